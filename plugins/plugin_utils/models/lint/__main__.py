# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Check Triton model repositories before a server reads them, and print one finding on each line.

  npufleet-lint model_repository --release 24.01
  npufleet-lint model_repository --format sarif > findings.sarif

Warnings do not change the exit code.
"""

from __future__ import annotations

import sys
from typing import List, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import command_line

NAME = "npufleet-lint"
PACKAGES = 'python3 -m pip install "protobuf>=4.25,<7" PyYAML'


def parser(formats: List[str]) -> command_line.Parser:
    """Return the parser of the command line."""
    command = command_line.Parser(NAME, __doc__)
    command.add_argument("repository", nargs="+", metavar="REPOSITORY", help="directory of models")
    command.add_argument("--release", metavar="ROW", help="release row of files/releases.yml; its Triton must know all fields")
    command.add_argument("--model", action="append", default=[], metavar="NAME", help="check only this model (may be repeated)")
    help_text = "github prints annotations, sarif prints SARIF 2.1.0 (text)"
    command.add_argument("--format", choices=formats, default="text", help=help_text)
    command.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    return command


def _lint(arguments: Optional[List[str]]) -> int:
    # The import fails if the parser of YAML or of protobuf is not installed.
    try:
        from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import finding, output, repository
    except ImportError as error:
        raise command_line.CommandError(command_line.USAGE_ERROR, f"{error}. Run {PACKAGES}") from None
    options = parser(list(output.FORMATS)).parse_args(arguments)
    try:
        row = None
        if options.release is not None:
            rows = finding.release_rows()
            if options.release not in rows:
                raise Refusal(f"--release is {options.release!r}, expected one of {', '.join(sorted(rows))}. Correct it")
            row = finding.row_of(options.release, rows[options.release])
        linted = repository.lint(options.repository, options.model, row)
    except Refusal as refusal:
        raise command_line.CommandError(command_line.USAGE_ERROR, "; ".join(refusal.reasons)) from None
    sys.stdout.write(output.FORMATS[options.format](linted.findings))
    errors = sum(entry.severity == finding.ERROR for entry in linted.findings)
    if options.format in ("text", "github"):
        count = f"{errors} errors, {len(linted.findings) - errors} warnings"
        print(f"{len(linted.models)} models: {count}", file=sys.stderr)
    if row and row.remark():
        print(row.remark(), file=sys.stderr)
    return command_line.WRONG if errors else command_line.RIGHT


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command and return its exit code."""
    return command_line.run(NAME, lambda: _lint(arguments))


if __name__ == "__main__":
    sys.exit(main())
