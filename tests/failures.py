"""Print the failed tests in JUnit files, with the start and the end of each message.

A CI system may keep only the end of a log, so each failure is one short line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

# Characters of a message that are printed: of its start, and of its end
START, END = 500, 300


def shortened(message: str) -> str:
    """Return a message on one line, without its middle part if it is long."""
    line = " ".join(message.split())
    return line if len(line) <= START + END else f"{line[:START]} [...] {line[-END:]}"


def failures(file: Path) -> list[str]:
    """Return a line for each failed test of a JUnit file."""
    lines = []
    for test in ElementTree.parse(file).getroot().iter("testcase"):
        for outcome in (*test.findall("failure"), *test.findall("error")):
            name = f"{test.get('classname', '').replace('.', '/')}.py::{test.get('name', '')}"
            # pytest cuts the attribute `message`. The lines of the error begin with E.
            error = " ".join(line[1:] for line in (outcome.text or "").splitlines() if line.startswith("E "))
            lines.append(f"FAILED {name}: {shortened(error or outcome.get('message', ''))}")
    return lines


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print("\n".join(failures(Path(argument))))
