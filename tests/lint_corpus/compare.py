"""The linter beside the recorded verdicts of real Tritons."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import effects
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from building import Files, Library, Link, Pipe, subject
from cases import CASES

VERDICTS = Path(__file__).with_name("verdicts.json")
# Release -> Triton's version
RELEASES = {"24.01": "2.42.0", "24.10": "2.51.0"}
MEMORY = "/dev/shm"
# The Python of the servers' stubs, which is that of the tests
PYTHON = "3.11"
# Rules that refuse what Triton would load: on purpose
POLICY = {
    "npu host": "an NPU host has no GPU, which a stand-in for TensorRT does not need",
    "passive": "no request would ever be answered",
    "release": "the Python backend of an older release loads bfloat16, and its requests fail",
}
# What a fault of one model does to all others when a server starts
OF_ALL = (effects.CRASHES, effects.LOADS_NOTHING, effects.HANGS)


class Judged(NamedTuple):
    """One case on one release: the linter's rules with an error that is a matter of Triton, and Triton's verdict."""

    name: str
    release: str
    rules: frozenset[str]
    verdict: str

    @property
    def agrees(self) -> bool:
        return bool(self.rules) == (self.verdict != "loads")


def laid(place: Path, files: Files, library: bytes = b"\x7fELF") -> Path:
    """Write the files of a case below a place."""
    for path, content in files.items():
        at = place / path
        (at if path.endswith("/") else at.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            at.symlink_to(content.target)
        elif isinstance(content, Pipe):
            os.mkfifo(at)
        elif isinstance(content, Library):
            at.write_bytes(library)
        elif not path.endswith("/"):
            at.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def digest(name: str) -> str:
    """What a recorded verdict belongs to: another content needs another one."""
    content = repr(sorted(CASES[name][1].items()))
    return hashlib.sha256((content if keeps_server(name) else f"alone {content}").encode()).hexdigest()[:8]


def keeps_server(name: str) -> bool:
    """Return True if a case can be put to a server that has answered others. Whoever unpacks an environment leaves its traces."""
    return not name.startswith(("roots-", "environments-"))


def recorded() -> Mapping[str, list[str]]:
    """{case: [digest, verdict of each release]}."""
    found: dict[str, list[str]] = json.loads(VERDICTS.read_text())
    return found


def judged() -> list[Judged]:
    """Every case on every release."""
    verdicts = recorded()
    found = []
    for name, (_rule, files) in CASES.items():
        # In memory, as most of the time would go by with files that come and go
        with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as place:
            laid(Path(place), files)
            for number, (release, version) in enumerate(RELEASES.items()):
                findings = lint([place], row=Row(release, version, python=PYTHON)).findings
                errors = [finding for finding in findings if finding.severity == ERROR and finding.triton]
                at_start = name.startswith("roots-")
                rules = {
                    finding.rule for finding in errors if finding.model == subject(files) or (at_start and finding.triton in OF_ALL)
                }
                found.append(Judged(name, release, frozenset(rules), verdicts[name][1 + number]))
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
