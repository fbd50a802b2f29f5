#!/usr/bin/env python3
"""Check that tests only use attributes, names and arguments that exist, so that a rename also reaches tests that need a lab.

mypy reads each directory of tests on its own, because modules of different directories share a name. Of its errors, only those
about missing names count: stand-ins have other types than what they replace.
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
# Modules that tests load from a path of their own at run time, or that replace a module of the same name
EXCLUDED = r"^collections/|/models/.*/[0-9]+/|/connection/|/played/"
SHARED = ("collections", "tests", "tests/unit", "tests/faults")


class Room(NamedTuple):
    """A directory of tests, what mypy leaves out of it, and the directories from which its tests import."""

    path: str
    imports: tuple[str, ...] = ()
    excluded: str = "^$"


ROOMS = (
    Room("tests/unit", ("tests/report",), "tests/unit/(backend|bench|lab|models|sdk)/"),
    Room("tests/unit/backend"),
    Room("tests/unit/bench", ("tests/bench", "tests/monitoring")),
    Room("tests/unit/lab", ("lab",)),
    Room("tests/unit/models"),
    Room("tests/faults"),
    Room("tests/hostile"),
    Room("tests/heavy"),
    Room("tests/report"),
    Room("tests/bench", ("lab", "tests/testinfra", "tests/monitoring")),
    Room("tests/monitoring"),
    Room("tests/testinfra", ("tests/monitoring",)),
)


def missing_names(room: Room) -> list[str]:
    """Return mypy's errors about missing names in a room. Raises SystemExit if mypy could not read the room."""
    options = ["--allow-untyped-defs", "--check-untyped-defs", "--no-error-summary", "--hide-error-context"]
    for pattern in (EXCLUDED, room.excluded):
        options += ["--exclude", pattern]
    path = os.pathsep.join(str(ROOT / name) for name in (room.path, *room.imports, *SHARED))
    command = [sys.executable, "-m", "mypy", *options, room.path]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": path}, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "errors prevented further checking" in done.stdout:
        raise SystemExit(f"mypy cannot read {room.path}:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if COUNTED.search(line) and line.startswith(room.path)]


def main() -> int:
    """Print the errors of all rooms. Return 1 if there are any."""
    errors = [error for room in ROOMS for error in missing_names(room)]
    print("".join(f"{error}\n" for error in errors), end="")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
