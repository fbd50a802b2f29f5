"""Errors of the lock file: one clear message for a wrong type, whatever reads the entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import bounds, lock_file, variables
from helpers import fleet

DIGEST = "sha256:" + "d" * 64
ENTRY: dict[str, Any] = {
    "reference": "npufleet/triton:24.01-0123456789ab",
    "recipe": "0" * 64,
    "id": DIGEST,
    "content": DIGEST,
    "supply": {"wheels": {}},
    "versions": {"numpy": "1.26.4"},
    "options": ["allow-vertex-ai"],
    "archive": DIGEST,
    "repo_digest": f"registry.example.com/npufleet/triton@{DIGEST}",
}
NEXT_STEP = "Restore the reviewed file, or remove this release from it: site.yml then builds and pins a new image"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of the lock file."""
    return tmp_path / ".npufleet.lock.json"


def host(file: Path) -> Any:
    """Return the variables of a host that read this lock file."""
    return fleet(npufleet_lock=role_defaults()["npufleet_lock"], npufleet_lock_file=str(file))


def refused(file: Path, content: str) -> list[str]:
    """Return the reasons against the plan of a host with this content of the lock file."""
    file.write_text(content)
    with pytest.raises(Refusal) as refusal:
        variables.desired(host(file), ["image", "server", "probe"])
    return refusal.value.reasons


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (5, "it is a whole number, expected an object"),
        (["x"], "it is a list, expected an object"),
        ("sha256:1", "it is text, expected an object"),
        (None, "it is null, expected an object"),
        ({"id": 5}, "id is a whole number, expected text"),
        ({"id": "../../x"}, 'id is "../../x", expected [A-Za-z0-9:_-]{1,200}'),
        ({**ENTRY, "recipe": 5}, "recipe is a whole number, expected text"),
        ({**ENTRY, "content": 5}, "content is a whole number, expected text"),
        ({**ENTRY, "reference": 5}, "reference is a whole number, expected text"),
        ({**ENTRY, "archive": [DIGEST]}, "archive is a list, expected text"),
        ({**ENTRY, "repo_digest": 5}, "repo_digest is a whole number, expected text"),
        ({**ENTRY, "options": "allow-vertex-ai"}, "options is text, expected a list"),
        ({**ENTRY, "options": [5]}, "options[0] is a whole number, expected text"),
        ({**ENTRY, "supply": 5}, "supply is a whole number, expected an object"),
        ({"id": DIGEST, "content": DIGEST}, "it has content and no reference"),
    ],
)
def test_wrong_type_in_an_entry_is_one_reason(file: Path, entry: Any, error: str) -> None:
    assert refused(file, json.dumps({"24.01": entry})) == [f"{file}, release 24.01: {error}. {NEXT_STEP}"]


@pytest.mark.parametrize("content", ["[1]", "5", '"text"', "null"])
def test_file_without_an_object_is_one_reason(file: Path, content: str) -> None:
    expected = f"{file} contains no object, expected a map with an entry for each release. Restore the reviewed file"
    assert refused(file, content) == [expected]


@pytest.mark.parametrize("content", ["", "{no", '{"24.01": {}'])
def test_file_without_json_is_named(file: Path, content: str) -> None:
    (reason,) = refused(file, content)
    assert reason.startswith(f"{file} cannot be read: ") and reason.endswith(". Restore the reviewed file")


@pytest.mark.parametrize("lock", [{}, {"24.01": ENTRY}, {"24.01": {}}, {"25.08": 5}, {"24.01": {"id": "sha256:1", "options": []}}])
def test_other_files_are_accepted(file: Path, lock: Any) -> None:
    """An error in the entry of another release does not matter."""
    file.write_text(json.dumps(lock))
    assert lock_file.errors(host(file)) == []


def test_missing_file_is_accepted(file: Path) -> None:
    assert lock_file.errors(host(file)) == []


def test_roles_refuse_the_same_entries() -> None:
    fits = bounds.BOUNDS["npufleet_locked"].fits
    assert fits(ENTRY) and fits({})
    assert not fits({"id": 5}) and not fits({**ENTRY, "options": 5})
