#!/usr/bin/env python3
"""Check that tests only use attributes, names and arguments that exist, so that a rename also reaches tests that need a lab.

mypy reads each directory of tests separately, because modules of different directories share names. Only its errors about missing
names count. Its errors about types do not count, because stand-ins have other types than what they replace.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COUNTED = re.compile(r"\[(attr-defined|name-defined|call-arg)\]$")
# Modules that tests load by path at run time, or that replace a module of the same name
EXCLUDED = r"^collections/|/models/.*/[0-9]+/|/connection/|/played/"
SHARED = ("collections", "tests", "tests/unit", "tests/faults")


class Suite(NamedTuple):
    """A directory of tests, the directories from which its tests import, and a pattern of files that mypy leaves out."""

    path: str
    imports: tuple[str, ...] = ()
    excluded: str = "^$"


SUITES = (
    Suite("tests/unit", ("tests/report",), "tests/unit/(backend|bench|lab|models|sdk)/"),
    Suite("tests/unit/backend"),
    Suite("tests/unit/bench", ("tests/bench", "tests/monitoring")),
    Suite("tests/unit/lab", ("lab",)),
    Suite("tests/unit/models"),
    Suite("tests/faults"),
    Suite("tests/hostile"),
    Suite("tests/heavy"),
    Suite("tests/report"),
    Suite("tests/bench", ("lab", "tests/testinfra", "tests/monitoring")),
    Suite("tests/monitoring"),
    Suite("tests/testinfra", ("tests/monitoring",)),
)


def missing_names(suite: Suite) -> list[str]:
    """Return mypy's errors about missing names in a suite. Raises SystemExit if mypy could not read the suite."""
    options = ["--allow-untyped-defs", "--check-untyped-defs", "--no-error-summary", "--hide-error-context"]
    for pattern in (EXCLUDED, suite.excluded):
        options += ["--exclude", pattern]
    path = os.pathsep.join(str(ROOT / name) for name in (suite.path, *suite.imports, *SHARED))
    command = [sys.executable, "-m", "mypy", *options, suite.path]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": path}, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "errors prevented further checking" in done.stdout:
        raise SystemExit(f"mypy cannot read {suite.path}:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if COUNTED.search(line) and line.startswith(suite.path)]


def main() -> int:
    """Print the errors of all suites. Return 1 if there are any."""
    errors = [error for suite in SUITES for error in missing_names(suite)]
    print("".join(f"{error}\n" for error in errors), end="")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
