"""Check files are data of somebody: their numbers, names and sizes have bounds, and no name leads out of the golden data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import paths

GOOD: dict[str, Any] = {
    "model": "m",
    "checks": [
        {
            "name": "row",
            "protocols": ["http"],
            "inputs": {"IN": {"generated": {}, "dtype": "FP32", "shape": [1, 4]}},
            "expect": {"OUT": {"finite": True}},
        }
    ],
}


def findings(place: Path, where: tuple[Any, ...] = (), value: Any = None) -> list[str]:
    """Return what is found in a good check file with one changed value."""
    document = copy.deepcopy(GOOD)
    part: Any = document
    for key in where[:-1]:
        part = part[key]
    if where:
        part[where[-1]] = value
    (place / "m.yml").write_text(yaml.safe_dump(document))
    return read(place)


def read(place: Path) -> list[str]:
    file = check_files.CheckFile("m", str(place / "m.yml"), [str(place)])
    file.read(0)
    return file.errors


def test_a_good_file_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    ("where", "value", "wanted"),
    [
        (("golden",), "../../..", "without .."),
        (("golden",), "/etc", "without .."),
        (("golden",), "a\nb", "without .."),
        (("checks", 0, "name"), "n" * 240, "at most 200 bytes"),
        (("checks", 0, "name"), "a\nb", "at most 200 bytes"),
        (("checks", 0, "name"), "a\x1b[2J", "at most 200 bytes"),
        (("checks", 0, "ms"), float("inf"), "at most 86400000"),
        (("checks", 0, "ms"), float("nan"), "a number above 0"),
        (("checks", 0, "timeout"), 10**12, "at most 86400"),
        (("checks", 0, "rows"), {"first": 0, "count": 10**12}, "at most 1000000"),
        (("checks", 0, "rows"), {"first": 10**12, "count": 1}, "at most 1000000"),
        (("checks", 0, "inputs", "IN", "shape"), [10**6, 10**6], "at most 67108864 values"),
        (("checks", 0, "inputs", "IN", "shape"), [1] * 40, "at most 32 sizes"),
        (("checks", 0, "inputs", "IN"), {"generated": {}, "dtype": "BYTES", "shape": [10**7]}, "at most 1048576 values"),
        (("checks", 0, "inputs", "IN"), {"npy": "../../../etc/passwd"}, "without .."),
        (("checks", 0, "inputs", "IN"), {"file": "/etc/shadow", "dtype": "BYTES"}, "without .."),
        (("checks", 0, "inputs", "IN"), {"raw": "a/../../x", "dtype": "FP32", "shape": [1]}, "without .."),
        (("checks", 0, "expect", "OUT"), {"class_count": 10**9}, "at most 1000000"),
        (("checks",), [GOOD["checks"][0]] * 1001, "at most 1000"),
    ],
)
def test_a_value_outside_of_its_bounds_is_refused(tmp_path: Path, where: tuple[Any, ...], value: Any, wanted: str) -> None:
    found = findings(tmp_path, where, value)
    assert any(wanted in finding for finding in found), found
    assert all(len(finding) < 1500 and "\x1b" not in finding for finding in found)


def test_golden_data_of_a_name_that_leads_elsewhere_is_not_digested(tmp_path: Path) -> None:
    (tmp_path / "m.yml").write_text("golden: ../../..\n")
    assert inputs._golden(str(tmp_path / "m.yml"), "m") == "m"


@pytest.mark.parametrize(
    "content",
    [
        # Nine lines that stand for a billion values, a list in itself, deep lists, a file of many bytes, a date of no calendar
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "model: &x [*x]\n",
        "model: " + "[" * 100 + "]" * 100,
        "#" * (paths.MAX_BYTES + 1),
        "model: 2024-99-99\n",
        "model: \xff\n".encode("latin-1"),
    ],
)
def test_a_file_that_is_too_much_is_no_yaml(tmp_path: Path, content: str | bytes) -> None:
    (tmp_path / "m.yml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (finding,) = read(tmp_path)
    assert ": is not a YAML file: " in finding
