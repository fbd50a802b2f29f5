"""Say what is wrong with Triton model repositories, before a server reads them: one finding a line.

  npufleet-lint model_repository --release 24.01
  npufleet-lint model_repository --format sarif > findings.sarif

A warning alone is no failure.
"""

from __future__ import annotations

import sys
from typing import List, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import command_line

NAME = "npufleet-lint"
NEEDED = 'python3 -m pip install "protobuf>=4.25,<7" PyYAML'


def parser(formats: List[str]) -> command_line.Parser:
    """The command line."""
    command = command_line.Parser(NAME, __doc__)
    command.add_argument("repository", nargs="+", metavar="REPOSITORY", help="directory of models")
    command.add_argument("--release", metavar="ROW", help="row of files/releases.yml whose Triton has to know every field")
    command.add_argument("--model", action="append", default=[], metavar="NAME", help="only this model; again for more")
    command.add_argument("--format", choices=formats, default="text", help="github is annotations, sarif SARIF 2.1.0 (text)")
    command.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    return command


def _work(arguments: Optional[List[str]]) -> int:
    # The parser of YAML and the schema's are not Python's own, and there may be none.
    try:
        from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import finding, output, repository
    except ImportError as error:
        raise command_line.End(command_line.MISTAKEN, f"{error}: {NEEDED}") from None
    wanted = parser(list(output.FORMATS)).parse_args(arguments)
    try:
        row = None
        if wanted.release is not None:
            rows = finding.release_rows()
            if wanted.release not in rows:
                found = f"found rows for {', '.join(sorted(rows))}, wanted one of them: correct it"
                raise Refusal([f"--release {wanted.release}: {found}"])
            row = finding.row_of(wanted.release, rows[wanted.release])
        linted = repository.lint(wanted.repository, wanted.model, row)
    except Refusal as refusal:
        raise command_line.End(command_line.MISTAKEN, "; ".join(refusal.reasons)) from None
    sys.stdout.write(output.FORMATS[wanted.format](linted.findings))
    errors = sum(other.severity == finding.ERROR for other in linted.findings)
    if wanted.format in ("text", "github"):
        count = f"{errors} errors, {len(linted.findings) - errors} warnings"
        print(f"{len(linted.models)} models: {count}", file=sys.stderr)
    if row and row.remark():
        print(row.remark(), file=sys.stderr)
    return command_line.WRONG if errors else command_line.RIGHT


def main(arguments: Optional[List[str]] = None) -> int:
    """Entry point; the exit code is one of command_line.CODES."""
    return command_line.run(NAME, lambda: _work(arguments))


if __name__ == "__main__":
    sys.exit(main())
