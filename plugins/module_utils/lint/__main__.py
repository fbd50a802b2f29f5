"""Lints Triton repositories: one finding a line, exit 1 where one is an error, 2 where nothing could be looked at.

PYTHONPATH=collections python -m ansible_collections.npufleet.triton.plugins.module_utils.lint model_repository --release 24.01
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import List, Optional

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.lint import schema
from ansible_collections.npufleet.triton.plugins.module_utils.lint.finding import ERROR, Row
from ansible_collections.npufleet.triton.plugins.module_utils.lint.repository import lint
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

RELEASES = os.path.join(os.path.dirname(os.path.dirname(schema.FILE)), "releases.yml")


def row_of(release: str) -> Row:
    """A row of files/releases.yml."""
    with open(RELEASES, encoding="utf-8") as source:
        rows = yaml.safe_load(source)["npufleet_releases"]
    if release not in rows:
        raise Refusal([f"release {release}: found rows for {', '.join(sorted(rows))}, wanted one of them: correct it"])
    return Row(release, rows[release]["triton"]["version"])


def main(arguments: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="lint", description="Lints Triton repositories: one finding a line.")
    parser.add_argument("repository", nargs="+", help="directory of models")
    parser.add_argument("--release", help="row of files/releases.yml whose Triton has to know every field")
    parser.add_argument("--model", action="append", default=[], help="only this model; may be given again")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON document")
    wanted = parser.parse_args(arguments)
    try:
        row = row_of(wanted.release) if wanted.release else None
        found = lint(wanted.repository, wanted.model, row)
    except Refusal as refusal:
        print("\n".join(refusal.reasons), file=sys.stderr)
        return 2
    errors = [one for one in found.findings if one.severity == ERROR]
    if wanted.json:
        print(json.dumps([one._asdict() for one in found.findings], indent=1))
    else:
        for one in found.findings:
            print(one.sentence() if one.severity == ERROR else f"{one.sentence()} (warning)")
        count = f"{len(errors)} errors, {len(found.findings) - len(errors)} warnings"
        print(f"{len(found.models)} models: {count}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
