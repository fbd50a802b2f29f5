"""What the tests of the linter share: repositories written as tables of files, and findings as short tuples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint

# A tensor, and a config in which nothing is wrong
A, B = '{ name: "A" data_type: TYPE_FP32 dims: [ 3 ] }', '{ name: "B" data_type: TYPE_FP32 dims: [ 3 ] }'
GOOD = f'backend: "python"\nmax_batch_size: 4\ninput [ {A} ]\noutput [ {B} ]\n'

# A model.py that Triton loads
PYTHON = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def write(place: Path, files: Mapping[str, str]) -> Path:
    """Write files below a place; a path that ends in / is an empty directory."""
    for path, content in files.items():
        if path.endswith("/"):
            (place / path).mkdir(parents=True)
        else:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(content)
    return place


def findings(place: Path, files: Mapping[str, str], row: Row | None = None) -> list[Finding]:
    """All findings about a repository of these files."""
    return lint([str(write(place, files))], row=row).findings


def of_config(place: Path, config: str, row: Row | None = None, **files: str) -> list[tuple[int | None, str, str, str]]:
    """(line, field, found, wanted) of the findings about a model `m` with a model.py; more files by path with _ for /."""
    found = findings(
        place, {"m/config.pbtxt": config, "m/1/model.py": PYTHON, **{f"m/{path}": content for path, content in files.items()}}, row
    )
    return [(entry.line, entry.field, entry.actual, entry.expected) for entry in found]


def short(found: list[Finding], place: Path) -> list[str]:
    """`severity rule place field` of each finding, the file below the repository."""
    return [f"{entry.severity} {entry.rule}: {Path(entry.file).relative_to(place)} {entry.field}".rstrip() for entry in found]
