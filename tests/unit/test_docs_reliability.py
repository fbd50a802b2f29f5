"""docs/reliability.md says what tests prove: the outcome of each fault in each mode, and promises with the names of their tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TABLE = yaml.safe_load((ROOT / "tests/faults/faults.yml").read_text())
SUITES = {"servers": "tests/faults/test_faults.py", "lab": "tests/testinfra/models/test_faults.py"}
MODES = ("none", "poll", "explicit")
WORDS = {
    "reliability.md": {
        "same": "old answers go on",
        "clean": "clean error and alert, repaired by one run",
        "restart": "drained and restarted",
    },
    "reliability.ko.md": {
        "same": "이전 응답이 이어짐",
        "clean": "깔끔한 오류와 알림, 한 번 실행으로 복구",
        "restart": "처리 중인 요청을 마치고 재시작",
    },
}
TITLES = {"reliability.md": "title", "reliability.ko.md": "ko"}
# The head of the last column of a table of promises
HEADS = {"reliability.md": "| Tests |", "reliability.ko.md": "| 테스트 |"}
# A file below tests/, and the tests of it
FILE = re.compile(r"`((?:unit|testinfra|faults)/[\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)")


def rows(name: str) -> list[list[str]]:
    """Cells of the table whose columns are the modes."""
    lines = (ROOT / "docs" / name).read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if all(f"| `{mode}` " in line for mode in MODES))
    table = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


@pytest.mark.parametrize("name", WORDS)
def test_the_table_is_what_the_tests_prove(name: str) -> None:
    told = [row[:4] for row in rows(name)]
    proven = [[fault[TITLES[name]], *(WORDS[name][fault[mode]] for mode in MODES)] for fault in TABLE]
    assert told == proven
    assert all(row[4] for row in rows(name)), "a fault without what happens and how it is repaired"


@pytest.mark.parametrize("by", SUITES)
def test_every_fault_has_a_test_and_every_test_a_fault(by: str) -> None:
    tree = ast.parse((ROOT / SUITES[by]).read_text())
    told = [
        keyword.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "tells"
        for keyword in node.keywords
        if keyword.arg != "editions"
    ]
    assert sorted(str(entry) for entry in told) == sorted(fault["fault"] for fault in TABLE if fault["by"] == by)


def test_the_table_is_whole() -> None:
    assert all(fault[mode] in WORDS["reliability.md"] for fault in TABLE for mode in MODES)
    assert {fault["by"] for fault in TABLE} == set(SUITES)


def promises(name: str) -> list[list[tuple[str, str]]]:
    """Return the tests of each promise, as pairs of a file and a name."""
    found, inside = [], False
    for line in (ROOT / "docs" / name).read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.endswith(HEADS[name]):
            inside = True
        elif inside and not line.startswith("|---"):
            cell = line.strip("| ").rpartition(" | ")[2]
            found.append([(file, test) for file, tests in FILE.findall(cell) for test in re.findall(r"test_\w+", tests)])
            assert FILE.sub("", cell).strip("; ") == "", f"the cell has more than names of tests: {cell}"
    return found


@pytest.mark.parametrize("name", WORDS)
def test_each_promise_names_tests_that_exist(name: str) -> None:
    assert len(promises(name)) > 20
    for named in promises(name):
        assert named, "a promise without a test"
        for file, test in named:
            assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(), f"{file}: {test}"


def test_both_pages_name_the_same_tests() -> None:
    assert promises("reliability.md") == promises("reliability.ko.md")
