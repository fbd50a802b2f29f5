# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The linter's findings as text, JSON, annotations of GitHub, or SARIF 2.1.0.

Annotations: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions (escaped as in GitHub's toolkit).
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
    """Return one line for each finding. A warning ends with "(warning)"."""
    return "".join(f"{finding.sentence()}{'' if finding.severity == ERROR else ' (warning)'}\n" for finding in findings)


def as_json(findings: Sequence[Finding]) -> str:
    """Return a JSON list of the findings."""
    return json.dumps([finding._asdict() for finding in findings], indent=1) + "\n"


def github(findings: Sequence[Finding]) -> str:
    """Return a workflow command for each finding. GitHub shows the finding beside its line in a pull request."""
    lines = []
    for finding in findings:
        location = {"file": relative(finding.file), "line": finding.line, "title": f"{TOOL}: {finding.rule}"}
        properties = ",".join(f"{name}={_property(str(value))}" for name, value in location.items() if value is not None)
        lines.append(f"::{finding.severity} {properties}::{_data(finding.message())}\n")
    return "".join(lines)


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def sarif(findings: Sequence[Finding]) -> str:
    """Return a SARIF document with one run of the linter."""
    rules = list(dict.fromkeys(entry.rule for entry in findings))
    results = []
    for finding in findings:
        # GitHub shows only results with a line. Therefore a finding about a whole file gets line 1.
        location = {"artifactLocation": _artifact(finding.file), "region": {"startLine": finding.line or 1}}
        name = f"{finding.model}/{finding.field}" if finding.field else finding.model
        results.append(
            {
                "ruleId": _id(finding.rule),
                "ruleIndex": rules.index(finding.rule),
                "level": finding.severity,
                "message": {"text": finding.message()},
                "locations": [{"physicalLocation": location, "logicalLocations": [{"fullyQualifiedName": name}]}],
            }
        )
    rule_entries = [{"id": _id(rule), "shortDescription": {"text": f"Triton model repository: {rule}"}} for rule in rules]
    run = {"tool": {"driver": {"name": TOOL, "rules": rule_entries}}, "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _id(rule: str) -> str:
    return rule.replace(" ", "-")


def _artifact(path: str) -> Dict[str, Any]:
    """Return a path in the form of SARIF. The root of the source is the current directory."""
    relative_path = relative(path)
    # The path can contain bytes that are not UTF-8.
    uri = urllib.parse.quote(os.fsencode(relative_path))
    return {"uri": f"file://{uri}"} if os.path.isabs(relative_path) else {"uri": uri, "uriBaseId": "%SRCROOT%"}


def relative(path: str) -> str:
    """Return a path relative to the current directory, or the absolute path if it is outside this directory."""
    relative_path = os.path.relpath(path)
    return os.path.abspath(path) if relative_path.split(os.sep, maxsplit=1)[0] == os.pardir else relative_path


FORMATS: Dict[str, Callable[[Sequence[Finding]], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
