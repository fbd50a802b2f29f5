"""Shapes of JSON files: what fits, and how it is said where something does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, NUMBER

LABEL = re.compile(r"\d+-[0-9a-f]{12}")
SHAPE = {
    "by": str,
    "renewed": NUMBER,
    "mine": bool,
    "why?": (str, NULL),
    "from?": (LABEL, NULL),
    "steps?": ([str], NULL),
    "models": {re.compile(r"\w+"): {"to": LABEL, "versions?": [str]}},
}
GOOD: dict[str, Any] = {"by": "alice", "renewed": 1.5, "mine": True, "models": {"digits": {"to": "0001-" + "a" * 12}}}


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        ({}, None),
        ({"why": None, "more": [1], "renewed": 0}, None),
        ({"by": 1}, "by is a whole number, wanted text"),
        ({"renewed": "now"}, "renewed is text, wanted a whole number or a number"),
        ({"renewed": True}, "renewed is true or false, wanted a whole number or a number"),
        ({"mine": 1}, "mine is a whole number, wanted true or false"),
        ({"from": None, "steps": None}, None),
        ({"from": "x"}, r'from is "x", wanted \d+-[0-9a-f]{12}'),
        ({"from": 1}, "from is a whole number, wanted text or null"),
        ({"steps": [1]}, "steps[0] is a whole number, wanted text"),
        ({"steps": {}}, "steps is an object, wanted a list or null"),
        ({"why": []}, "why is a list, wanted text or null"),
        ({"models": []}, "models is a list, wanted an object"),
        ({"models": {"../x": {}}}, r'models has a "../x", wanted names as \w+'),
        ({"models": {"digits": {}}}, "models.digits has no to"),
        ({"models": {"digits": {"to": "../x\n"}}}, r'models.digits.to is "../x\n", wanted \d+-[0-9a-f]{12}'),
        (
            {"models": {"digits": {"to": "1-" + "a" * 12, "versions": ["1", 2]}}},
            "models.digits.versions[1] is a whole number, wanted text",
        ),
    ],
)
def test_what_fits_and_what_does_not(change: dict[str, Any], flaw: str | None) -> None:
    assert shapes.misfit({**GOOD, **change}, SHAPE) == flaw


@pytest.mark.parametrize("content", [b"", b"{", b'{"by": "ali', b"\xff", b"[" * 100_000, b"7", b"null", b'{"renewed": NaN}'])
def test_a_file_of_anything_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    found = shapes.read(str(path), SHAPE)
    assert found.there and found.content is None and found.flaw
    assert found.flaw.startswith("it is no JSON (") or found.flaw in (
        "it is a whole number, wanted an object",
        "it is null, wanted an object",
    )


def test_no_file_is_no_flaw_and_a_directory_is_one(tmp_path: Path) -> None:
    assert shapes.read(str(tmp_path / "none"), SHAPE) == (None, None, False)
    (tmp_path / "link").symlink_to("none")
    assert shapes.read(str(tmp_path / "link"), SHAPE) == (None, "it is a link that leads nowhere", True)
    assert shapes.lines(str(tmp_path / "link"), SHAPE) == ([], "it is a link that leads nowhere", True)
    assert shapes.read(str(tmp_path), SHAPE) == (None, "it cannot be read (Is a directory)", True)


def test_lines_that_fit_are_read_and_the_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": "1"}\n{"a": "2\n\n\xff\n{"a": 3}\n{"a": "4"}\n5\n{"a": "6"')
    fitting, flaw, there = shapes.lines(str(path), {"a": str})
    assert (fitting, there) == ([{"a": "1"}, {"a": "4"}], True)
    assert flaw and flaw.startswith("line 2: it is no JSON (")
    assert "line 5: a is a whole number, wanted text and 2 more" in flaw
    assert shapes.lines(str(tmp_path / "none"), {}) == ([], None, False)
