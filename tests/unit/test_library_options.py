"""Options of a module that a host's library calls are checked on the controller, as Ansible checks them on a host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils import library

SPEC: dict[str, Any] = {
    "root": {"type": "path", "default": "/var/lib"},
    "wait": {"type": "int", "default": 0},
    "names": {"type": "list", "elements": "str"},
    "kept": {"type": "dict", "options": {"path": {"type": "path", "required": True}, "why": {"type": "str"}}},
    "places": {"type": "list", "elements": "path"},
    "_request": {"type": "dict"},
}
FIELDS = {"run": {"type": "str", "default": ""}, "token": {"type": "str", "no_log": True}}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(OPTIONS=SPEC, REQUEST=FIELDS)
    monkeypatch.setattr(library, "module", lambda _name: made)
    return made


def test_values_take_their_types_and_what_is_not_given_its_default() -> None:
    given = {"wait": "3", "names": "a,b", "kept": {"path": "/x"}, "_request": {"run": 1, "token": "hidden"}}
    found = library.checked("any", given)
    assert found is not None
    assert found.options == {
        "root": "/var/lib",
        "wait": 3,
        "names": ["a", "b"],
        "kept": {"path": "/x", "why": None},
        "places": None,
        "_request": {"run": "1", "token": "hidden"},
    }
    assert found.secrets == {"hidden"}
    # The caller's own is as it was
    assert given["wait"] == "3"


def test_a_module_that_is_handed_nothing_has_no_request(module: SimpleNamespace) -> None:
    assert library.checked("any", {}).options["_request"] == {"run": "", "token": None}  # type: ignore[union-attr]
    del module.REQUEST
    module.OPTIONS = {"root": {"type": "path"}}
    assert library.checked("any", {}).options == {"root": None}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given",
    [
        {"wait": "soon"},
        {"nothing": 1},
        {"_request": {"nothing": 1}},
        {"_request": "words"},
        {"kept": {"why": "no path"}},
        {"root": "~/npufleet"},
        {"root": "$HOME/npufleet"},
        {"kept": {"path": "~/x"}},
        {"places": ["/a", "~/b"]},
    ],
)
def test_what_is_wrong_or_means_something_on_the_host_is_not_for_the_controller(given: dict[str, Any]) -> None:
    assert library.checked("any", given) is None
