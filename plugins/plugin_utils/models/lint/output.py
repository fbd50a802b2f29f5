"""The linter's findings as text, JSON, annotations of GitHub, or SARIF 2.1.0.

Annotations: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, whose own toolkit escapes as here.
SARIF: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import os
import urllib.parse
from typing import Any, Callable, Dict, Sequence

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding

TOOL = "npufleet-lint"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def text(findings: Sequence[Finding]) -> str:
    """One line for each; a warning is marked as one."""
    return "".join(f"{finding.sentence()}{'' if finding.severity == ERROR else ' (warning)'}\n" for finding in findings)


def as_json(findings: Sequence[Finding]) -> str:
    """A list of records."""
    return json.dumps([finding._asdict() for finding in findings], indent=1) + "\n"


def github(findings: Sequence[Finding]) -> str:
    """A command of a GitHub workflow for each, which puts it beside the line in a pull request."""
    lines = []
    for finding in findings:
        place = {"file": relative(finding.file), "line": finding.line, "title": f"{TOOL}: {finding.rule}"}
        properties = ",".join(f"{name}={_property(str(value))}" for name, value in place.items() if value is not None)
        lines.append(f"::{'error' if finding.severity == ERROR else 'warning'} {properties}::{_data(message(finding))}\n")
    return "".join(lines)


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def sarif(findings: Sequence[Finding]) -> str:
    """One run of the linter, a rule for each kind of finding that it has."""
    rules = list(dict.fromkeys(other.rule for other in findings))
    results = []
    for finding in findings:
        # GitHub shows no result without a line, so that of a file as a whole is on its first.
        location = {"artifactLocation": _artifact(finding.file), "region": {"startLine": finding.line or 1}}
        name = f"{finding.model}/{finding.field}" if finding.field else finding.model
        results.append(
            {
                "ruleId": _id(finding.rule),
                "ruleIndex": rules.index(finding.rule),
                "level": "error" if finding.severity == ERROR else "warning",
                "message": {"text": message(finding)},
                "locations": [{"physicalLocation": location, "logicalLocations": [{"fullyQualifiedName": name}]}],
            }
        )
    described = [{"id": _id(rule), "shortDescription": {"text": f"Triton model repository: {rule}"}} for rule in rules]
    run = {"tool": {"driver": {"name": TOOL, "rules": described}}, "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _id(rule: str) -> str:
    return rule.replace(" ", "-")


def _artifact(path: str) -> Dict[str, Any]:
    """A path as SARIF has it: one below the current directory is one of the repository's."""
    found = relative(path)
    if os.path.isabs(found):
        return {"uri": "file://" + _quoted(found)}
    return {"uri": _quoted(found), "uriBaseId": "%SRCROOT%"}


def _quoted(path: str) -> str:
    # The bytes of the name, whatever their encoding is
    return urllib.parse.quote(os.fsencode(path))


def relative(path: str) -> str:
    """A path from the current directory, absolute for one outside of it."""
    found = os.path.relpath(path)
    return os.path.abspath(path) if found.split(os.sep, maxsplit=1)[0] == os.pardir else found


def message(finding: Finding) -> str:
    """The sentence of a finding without its place, which stands beside it."""
    words = finding._replace(file="", line=None).sentence()
    return words[2:] if words.startswith(": ") else words


FORMATS: Dict[str, Callable[[Sequence[Finding]], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
