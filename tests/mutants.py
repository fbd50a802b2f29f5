#!/usr/bin/env python3
"""Seed each defect of mutants.yml alone into a copy of the checkout, and run its tests, which then have to fail.

If the tests of a defect (a mutant) pass, the mutant survives, because no test detects it. Arguments are parts of the names of
mutants. The default is all mutants. The exit code is 1 if a mutant survives, or if tests fail without a defect.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
# Bytes of memory of each process, and seconds for each entry of `tests`: a defect may make a test allocate or wait without end
MAX_MEMORY, MAX_SECONDS = 8 << 30, 600.0
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def load() -> list[dict[str, Any]]:
    """Return the mutants of mutants.yml."""
    mutants: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/mutants.yml").read_text())
    return mutants


def lines_of_function(source: str, name: str) -> tuple[int, int]:
    """Return the first and the last line of a function, such as `read` or `Class.method`. Raises LookupError."""
    node: Any = ast.parse(source)
    for part in name.split("."):
        definitions = (child for child in ast.walk(node) if isinstance(child, DEFINITIONS) and child is not node)
        node = next((child for child in definitions if child.name == part), None)
        if node is None:
            raise LookupError(f"there is no function {name}")
    return node.lineno, node.end_lineno


def lines_of_task(source: str, name: str) -> tuple[int, int]:
    """Return the first and the last line of a task of a YAML file. Raises LookupError."""
    names = [(number, line.partition("- name: ")[2]) for number, line in enumerate(source.splitlines(), 1) if "- name: " in line]
    starts = [number for number, task in names if task == name]
    if len(starts) != 1:
        raise LookupError(f"{len(starts)} tasks have the name {name}, expected 1")
    return starts[0], min([number - 1 for number, _task in names if number > starts[0]], default=source.count("\n") + 1)


def seeded(mutant: Mapping[str, str], source: str) -> str:
    """Return the source of a file with the defect. Raises LookupError unless the text to replace occurs exactly once."""
    lines = source.splitlines(keepends=True)
    first, last = 1, len(lines)
    if "in" in mutant:
        lines_of = lines_of_task if mutant["file"].endswith(".yml") else lines_of_function
        first, last = lines_of(source, mutant["in"])
    before, scope, after = "".join(lines[: first - 1]), "".join(lines[first - 1 : last]), "".join(lines[last:])
    count = scope.count(mutant["find"])
    if count != 1:
        raise LookupError(f"{mutant.get('in', mutant['file'])} contains {mutant['find']!r} {count} times, expected 1")
    return before + scope.replace(mutant["find"], mutant["replace"]) + after


def copy_checkout(target: Path) -> None:
    """Copy the tracked and the new files of this checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, path, follow_symlinks=False)
    # Tests of faults download real servers to this directory.
    (ROOT / "build/faults").mkdir(parents=True, exist_ok=True)
    (target / "build").mkdir(exist_ok=True)
    (target / "build/faults").symlink_to(ROOT / "build/faults")


def run_tests(checkout: Path, tests: list[str], seconds: float = MAX_SECONDS, output: int | None = subprocess.DEVNULL) -> int:
    """Return pytest's exit code: 0 if the tests pass, 1 if some fail, or another code if they did not run or end in time.

    `output` is the file descriptor for the output of the tests, or None to show the output.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(command, cwd=checkout, stdout=output, stderr=output, start_new_session=True) as process:
        try:
            return process.wait(seconds * len(tests))
        except BaseException as error:
            # The processes that the tests started would outlive them.
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return process.wait()


def main() -> int:
    """Seed the mutants, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of mutants")
    names = parser.parse_args().names
    mutants = [mutant for mutant in load() if not names or re.search("|".join(map(re.escape, names)), mutant["name"])]
    for mutant in mutants:
        # If the text of a mutant is missing, the run ends here, before the other mutants take time.
        seeded(mutant, (ROOT / mutant["file"]).read_text())
    survivors = []
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        checkout = Path(directory) / "checkout"
        copy_checkout(checkout)
        if run_tests(checkout, sorted({test for mutant in mutants for test in mutant["tests"]}), output=None) != 0:
            print("mutants: these tests fail without a defect. Make them pass first.")
            return 1
        for mutant in mutants:
            path = checkout / mutant["file"]
            source = path.read_text()
            path.write_text(seeded(mutant, source))
            killed = run_tests(checkout, mutant["tests"]) == 1
            path.write_text(source)
            print(f"mutants: {'killed  ' if killed else 'SURVIVED'} {mutant['name']} ({', '.join(mutant['tests'])})", flush=True)
            survivors += [] if killed else [mutant["name"]]
    print(f"mutants: {len(mutants) - len(survivors)} of {len(mutants)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
