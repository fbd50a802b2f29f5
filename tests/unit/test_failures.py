"""tests/failures.py prints the failed tests in a file that pytest has written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers import ROOT

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError("no lab")

def test_passes(): pass
def test_errs(broken): pass

@pytest.mark.parametrize("text", ["short", "long"])
def test_fails(text):
    raise AssertionError("begin\\n" + ("-" * 2000 if text == "long" else "") + " end")
"""


def test_each_failure_is_a_line_with_start_and_end_of_its_message(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    file = tmp_path / "some.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", tmp_path, f"--junit-xml={file}", tmp_path], capture_output=True, check=False
    )
    done = subprocess.run([sys.executable, ROOT / "tests/failures.py", file], capture_output=True, text=True, check=True)
    errs, short, long = done.stdout.splitlines()
    assert errs == "FAILED test_some.py::test_errs: ValueError: no lab"
    assert short == "FAILED test_some.py::test_fails[short]: AssertionError: begin end"
    assert long.startswith("FAILED test_some.py::test_fails[long]: AssertionError: begin ---") and long.endswith("--- end")
    assert len(long) < 1000
