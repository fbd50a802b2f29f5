"""Shapes of JSON files: what fits, and how it is said where something does not."""

from __future__ import annotations

import json
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
        ({"by": 1}, "by is a whole number, expected text"),
        ({"renewed": "now"}, "renewed is text, expected a whole number or a number"),
        ({"renewed": True}, "renewed is true or false, expected a whole number or a number"),
        ({"mine": 1}, "mine is a whole number, expected true or false"),
        ({"from": None, "steps": None}, None),
        ({"from": "x"}, r'from is "x", expected \d+-[0-9a-f]{12}'),
        ({"from": 1}, "from is a whole number, expected text or null"),
        ({"steps": [1]}, "steps[0] is a whole number, expected text"),
        ({"steps": {}}, "steps is an object, expected a list or null"),
        ({"why": []}, "why is a list, expected text or null"),
        ({"models": []}, "models is a list, expected an object"),
        ({"models": {"../x": {}}}, r'models has the name "../x", expected \w+'),
        ({"models": {"digits": {}}}, "models.digits has no to"),
        ({"models": {"digits": {"to": "../x\n"}}}, r'models.digits.to is "../x\n", expected \d+-[0-9a-f]{12}'),
        (
            {"models": {"digits": {"to": "1-" + "a" * 12, "versions": ["1", 2]}}},
            "models.digits.versions[1] is a whole number, expected text",
        ),
    ],
)
def test_what_fits_and_what_does_not(change: dict[str, Any], flaw: str | None) -> None:
    assert shapes.mismatch({**GOOD, **change}, SHAPE) == flaw


@pytest.mark.parametrize("content", [b"", b"{", b'{"by": "ali', b"\xff", b"[" * 100_000, b"7", b"null", b'{"renewed": NaN}'])
def test_a_file_of_anything_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    found = shapes.read(str(path), SHAPE)
    assert found.exists and found.content is None and found.flaw
    assert found.flaw.startswith("it is not JSON (") or found.flaw in (
        "it is a whole number, expected an object",
        "it is null, expected an object",
    )


def test_no_file_is_no_flaw_and_a_directory_is_one(tmp_path: Path) -> None:
    assert shapes.read(str(tmp_path / "none"), SHAPE) == (None, None, False)
    (tmp_path / "link").symlink_to("none")
    assert shapes.read(str(tmp_path / "link"), SHAPE) == (None, "it is a broken link", True)
    assert shapes.read_lines(str(tmp_path / "link"), SHAPE) == ([], "it is a broken link", True)
    assert shapes.read(str(tmp_path), SHAPE) == (None, "it cannot be read (Is a directory)", True)


def test_lines_that_fit_are_read_and_the_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": "1"}\n{"a": "2\n\n\xff\n{"a": 3}\n{"a": "4"}\n5\n{"a": "6"')
    fitting, flaw, exists = shapes.read_lines(str(path), {"a": str})
    assert (fitting, exists) == ([{"a": "1"}, {"a": "4"}], True)
    assert flaw and flaw.startswith("line 2: it is not JSON (")
    assert "line 5: a is a whole number, expected text and 2 more" in flaw
    assert shapes.read_lines(str(tmp_path / "none"), {}) == ([], None, False)


# From elsewhere


def nested(levels: int, kind: str = "[]") -> str:
    return '{"a":' * levels + "1" + "}" * levels if kind == "{}" else "[" * levels + "]" * levels


HOSTILE = {
    "": "Expecting value",
    "{": "Expecting property name",
    "\ufeff{}": "BOM",
    '{"a": Infinity}': "Infinity is not a finite number",
    '{"a": -Infinity}': "-Infinity is not a finite number",
    '{"a": NaN}': "NaN is not a finite number",
    '{"a": 1e999}': "1e999 is not a finite number",
    '{"a": ' + "9" * 21 + "}": "a number of 21 digits",
    "9" * 5_000_000: "a number of 5000000 digits",
    '{"a": 1, "b": 2, "a": 3}': 'it has "a" twice',
    nested(65): "more than 64 levels",
    nested(65, "{}"): "more than 64 levels",
    nested(900): "more than 64 levels",
    nested(200_000): "more than 64 levels",
    nested(200_000, "{}"): "more than 64 levels",
    "[" * 200_000: "more than 64 levels",
    " " * (shapes.MAX_SIZE + 1): "more than 16777216 bytes",
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_no_peer_has_to_say_is_refused_in_words(text: str) -> None:
    for raw in (text, text.encode()):
        with pytest.raises(ValueError, match=re.escape(HOSTILE[text])):
            shapes.parse(raw)


@pytest.mark.parametrize("raw", [b'{"a": "\xff"}', b"\xff\xfe{\x00}\x00", '{"a": "1"}'.encode("utf-16")])
def test_other_encodings_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="utf-8"):
        shapes.parse(raw)


@pytest.mark.parametrize("text", ["1", "null", '"a"', "[]", nested(64), '{"a": 18446744073709551615, "b": -1.5e300}', '{"a": {}}'])
def test_what_people_and_servers_write_is_read(text: str) -> None:
    assert shapes.parse(text) == shapes.parse(text.encode()) == json.loads(text)


def test_data_of_another_shape_is_refused_in_words() -> None:
    assert shapes.parse_as('{"a": [1, 2]}', {"a": [int]}) == {"a": [1, 2]}
    with pytest.raises(ValueError, match=r"a\[1\] is text, expected a whole number"):
        shapes.parse_as('{"a": [1, "2"]}', {"a": [int]})
