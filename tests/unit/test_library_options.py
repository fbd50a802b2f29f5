"""The controller validates the options of a module that runs from the library of a host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils import library

SPEC: dict[str, Any] = {
    "root": {"type": "path", "default": "/var/lib"},
    "wait": {"type": "int", "default": 0},
    "names": {"type": "list", "elements": "str"},
    "kept": {"type": "dict", "options": {"path": {"type": "path", "required": True}, "why": {"type": "str"}}},
    "places": {"type": "list", "elements": "path"},
}
FIELDS = {"run": {"type": "str", "default": ""}, "token": {"type": "str", "no_log": True}}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(OPTIONS=SPEC, REQUEST=FIELDS)
    monkeypatch.setattr(library, "module", lambda _name: made)
    return made


def test_values_take_their_types_and_what_is_not_given_its_default() -> None:
    given = {"wait": "3", "names": "a,b", "kept": {"path": "/x"}, "_request": {"run": 1, "token": "hidden"}}
    found = library.parameters("any", given)
    assert found.values == {
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
    assert library.parameters("any", {}).values["_request"] == {"run": "", "token": None}
    del module.REQUEST
    module.OPTIONS = {"root": {"type": "path"}}
    assert library.parameters("any", {}).values == {"root": None}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"wait": "soon"}, "any: argument 'wait' is of type"),
        ({"nothing": 1}, "any: nothing. Supported parameters include"),
        ({"_request": {"nothing": 1}}, "any: nothing. Supported parameters include"),
        ({"_request": "words"}, "any: argument '_request' is of type"),
        ({"kept": {"why": "no path"}}, "any: missing required arguments: path"),
        ({"root": "~/npufleet"}, "any: root is ~/npufleet, expected a path without ~ and $"),
        ({"root": "$HOME/npufleet"}, "any: root is $HOME/npufleet, expected"),
        ({"kept": {"path": "~/x"}}, "any: path is ~/x, expected"),
        ({"places": ["/a", "~/b"]}, "any: places is ~/b, expected"),
    ],
)
def test_invalid_options_are_rejected_before_the_call(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal) as refused:
        library.parameters("any", given)
    assert [entry for entry in refused.value.reasons if reason in entry], refused.value.reasons


def test_every_reason_against_the_options_is_given() -> None:
    with pytest.raises(Refusal) as refused:
        library.parameters("any", {"root": "~", "wait": "soon"})
    assert len(refused.value.reasons) == 2


def test_secrets_are_found_at_any_depth(module: SimpleNamespace) -> None:
    module.OPTIONS = {
        "servers": {
            "type": "list",
            "elements": "dict",
            "options": {"keys": {"type": "dict", "no_log": True}, "name": {"type": "str"}},
        },
    }
    servers = [{"name": "one", "keys": {"a": "hidden", "b": ["deep", 17, True, None, ""]}}, {"name": "two"}]
    assert library.parameters("any", {"servers": servers}).secrets == {"hidden", "deep", "17"}
