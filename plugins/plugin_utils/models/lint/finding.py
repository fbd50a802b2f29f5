# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Findings of the linter, and the release row for which models are linted."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import effects
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.tokens import printable
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import PathProblem
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, yaml_of

ERROR = "error"
WARNING = "warning"


class Finding(NamedTuple):
    """An error or a warning about a file of a model, or about a field of its config.

    `triton` is the effect on Triton and `store` the effect on the fleet's store. Each is "" if there is no effect.
    """

    model: str
    file: str
    line: Optional[int]
    field: str
    actual: str
    expected: str
    todo: str
    severity: str
    rule: str
    triton: str = effects.REFUSES
    store: str = ""

    def sentence(self) -> str:
        """Return the finding as one printable line."""
        location = self.file if self.line is None else f"{self.file}:{self.line}"
        return self._about(f"{location}: {self.field}" if self.field else location)

    def message(self) -> str:
        """Return the finding as one printable line for formats with separate fields for the file and the line number."""
        return self._about(self.field or os.path.basename(self.file))

    def _about(self, subject: str) -> str:
        # The `actual` of a syntax error is a sentence of the parser, so it follows a colon.
        verb = ":" if self.rule == "syntax" else " is"
        todo = self.todo if self.todo.endswith("?") else f"{self.todo}."
        line = f"{subject}{verb} {self.actual}, expected {self.expected}. {todo}"
        clauses = [f"Triton {self.triton}"] * bool(self.triton) + [f"the fleet's store {self.store}"] * bool(self.store)
        effect = ", and ".join(clauses)
        return printable(f"{line} {effect[0].upper()}{effect[1:]}." if effect else line)


class Row(NamedTuple):
    """The release row for which models are linted. Without a row, the linter accepts all fields of the newest schema."""

    name: str
    triton: str
    # The reason why the combination of versions is untested, or ""
    untested: str = ""
    # The Python version of the image, such as 3.10, or "" if it is unknown
    python: str = ""

    def remark(self) -> str:
        """Return a remark if the release is untested, and "" otherwise."""
        return f"release {self.name} is untested: {self.untested}" if self.untested else ""


def row_of(name: str, facts: Mapping[str, Any]) -> Row:
    """Return the linter's form of a release row."""
    triton = facts["triton"]
    return Row(name, str(triton["version"]), str(facts.get("untested", "")), str(triton.get("python", "")))


@cache
def release_rows() -> Dict[str, Any]:
    """Return the release rows of this collection by name."""
    rows: Dict[str, Any] = yaml_of(os.path.join(COLLECTION, "files/releases.yml"))["npufleet_releases"]
    return rows


def reasons(findings: Sequence[Finding]) -> List[str]:
    """Return the errors among the findings as reasons of a refusal."""
    return [f"model {finding.model}: {finding.sentence()}" for finding in findings if finding.severity == ERROR]


def file_error(
    model: str, path: str, actual: str, expected: str, todo: str, rule: str, triton: str = effects.REFUSES, store: str = ""
) -> Finding:
    """Return an error about a whole file or directory."""
    return Finding(model, path, None, "", actual, expected, todo, ERROR, rule, triton, store)


def store_errors(model: str, problems: Sequence[PathProblem]) -> List[Finding]:
    """Return an error for each path of a model that the store does not copy. Triton itself can accept such a path."""
    return [file_error(model, *problem, rule="files", triton="", store=effects.STORE_REFUSES) for problem in problems]


def listed(values: Any) -> str:
    """Return the values of a list for a message."""
    return ", ".join(str(value) for value in values) or "none"
