"""The lint that finds attributes, names and arguments in tests which do not exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("attributes_of_tests", ROOT / "tests/attributes.py")
assert SPEC and SPEC.loader
subject = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(subject)

RIGHT = "import helper\n\ndef test_it(): helper.present(1)\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (RIGHT, 0),
        ("import helper\n\ndef test_it(): helper.renamed()\n", 1),
        ("import helper\n\ndef test_it(): helper.present(1, 2)\n", 1),
        ("def test_it(): nowhere()\n", 1),
        ("import helper\n\ndef test_it(): helper.present('other type')\n", 0),
    ],
)
def test_only_missing_names_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/helper.py").write_text("def present(number: int) -> None: ...\n")
    (tmp_path / "suites/test_it.py").write_text(text)
    monkeypatch.setattr(subject, "ROOT", tmp_path)
    assert len(subject.missing_names(subject.Suite("suites"))) == count


def test_a_room_that_cannot_be_read_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/test_it.py").write_text("def broken(:\n")
    monkeypatch.setattr(subject, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="cannot read suites"):
        subject.missing_names(subject.Suite("suites"))


def test_every_directory_of_tests_is_a_room() -> None:
    """The stand-in SDK and stand-ins of Ansible's connections load modules from paths that mypy cannot follow."""
    left_out = {"tests/unit/sdk", "tests/unit/played", "tests/unit/fixtures", "tests/lint_corpus", "tests/sanity", "tests/alerts"}
    directories = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py") if path.parent != ROOT / "tests"}
    suites = {suite.path for suite in subject.SUITES}
    outside = {name for name in directories if not any(name == suite or name.startswith(f"{suite}/") for suite in suites)}
    assert outside <= left_out, "add a suite to tests/attributes.py"
