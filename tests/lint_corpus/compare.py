"""The linter beside the recorded verdicts of real Tritons."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from cases import CASES, Files, Link, subject

VERDICTS = Path(__file__).with_name("verdicts.json")
# Release -> Triton's version
RELEASES = {"24.01": "2.42.0", "24.10": "2.51.0"}
# Rules that refuse what Triton would load: on purpose
POLICY = {
    "npu host": "an NPU host has no GPU",
    "passive": "no request would ever be answered",
    "state": "a state without a name cannot be asked for",
    "stray": "a model without a config.pbtxt says nothing that could be checked",
}


class Judged(NamedTuple):
    """One case on one release: the linter's rules with an error, and Triton's verdict."""

    name: str
    release: str
    rules: frozenset[str]
    verdict: str

    @property
    def agrees(self) -> bool:
        return bool(self.rules) == (self.verdict != "loads")


def laid(place: Path, files: Files) -> Path:
    """Write the files of a case below a place."""
    for path, content in files.items():
        at = place / path
        (at if path.endswith("/") else at.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            at.symlink_to(content.target)
        elif not path.endswith("/"):
            at.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def digest(name: str) -> str:
    """What a recorded verdict belongs to: another content needs another one."""
    return hashlib.sha256(repr(sorted(CASES[name][1].items())).encode()).hexdigest()[:8]


def recorded() -> Mapping[str, list[str]]:
    """{case: [digest, verdict of each release]}."""
    found: dict[str, list[str]] = json.loads(VERDICTS.read_text())
    return found


def judged() -> list[Judged]:
    """Every case on every release."""
    verdicts = recorded()
    found = []
    for name, (_rule, files) in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            laid(Path(place), files)
            for number, (release, version) in enumerate(RELEASES.items()):
                findings = lint([place], row=Row(release, version)).findings
                rules = frozenset(
                    finding.rule for finding in findings if finding.severity == ERROR and finding.model == subject(files)
                )
                found.append(Judged(name, release, rules, verdicts[name][1 + number]))
    return found


def table() -> str:
    """Numbers for each release, and every case on which the two differ."""
    lines, all_ = [], judged()
    for release in RELEASES:
        here = [entry for entry in all_ if entry.release == release]
        misses = [entry for entry in here if not entry.agrees and not entry.rules]
        alarms = [entry for entry in here if not entry.agrees and entry.rules]
        agree = len(here) - len(misses) - len(alarms)
        share, differ = f"{agree} agree ({agree / len(here):.1%})", f"{len(misses)} misses, {len(alarms)} false alarms"
        lines.append(f"Triton {release}: {len(here)} repositories, {share}, {differ}")
        for finding in misses + alarms:
            lines.append(f"  {finding.name}: Triton {finding.verdict}, the linter: {', '.join(sorted(finding.rules)) or 'right'}")
    return "\n".join(lines)
