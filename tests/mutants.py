#!/usr/bin/env python3
"""Seeds the defects of mutants.yml one at a time into a copy of the checkout; each must turn its named tests red.

A mutant that survives is a test that cannot fail. Exit 1 when one survives, or when a named test is not green without it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def run_tests(checkout: Path, tests: list[str]) -> int:
    """pytest's exit code over these tests: 0 all green, 1 some red, anything else is a test that was not run."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def main() -> int:
    mutants = yaml.safe_load((ROOT / "tests/mutants.yml").read_text())
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        checkout = Path(directory) / "checkout"
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
        )
        for name in filter(None, tracked.stdout.decode().split("\0")):
            target = checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, target, follow_symlinks=False)
        every = sorted({test for mutant in mutants for test in mutant["tests"]})
        if run_tests(checkout, every) != 0:
            print("mutants: the named tests are not green without a defect: run `make unit` first")
            return 1
        for mutant in mutants:
            path = checkout / mutant["file"]
            whole = path.read_text()
            if whole.count(mutant["find"]) != 1:
                print(f"mutants: {mutant['name']}: {mutant['file']} has its text {whole.count(mutant['find'])} times, wanted once")
                survivors.append(mutant["name"])
                continue
            path.write_text(whole.replace(mutant["find"], mutant["replace"]))
            code = run_tests(checkout, mutant["tests"])
            path.write_text(whole)
            killed = code == 1
            print(f"mutants: {'killed  ' if killed else 'SURVIVED'} {mutant['name']} ({', '.join(mutant['tests'])})", flush=True)
            if not killed:
                survivors.append(mutant["name"])
    print(f"mutants: {len(mutants) - len(survivors)} of {len(mutants)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
