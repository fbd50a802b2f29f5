"""A comparison of the linter with the recorded verdicts of real Tritons (ask.py) on all cases (cases.py)."""

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
# {release: version of Triton}
RELEASES = {"24.01": "2.42.0", "24.10": "2.51.0"}
# A directory in memory for the files of cases
MEMORY = "/dev/shm"
# The version of Python in the stubs of the servers, which is also the version in the tests
PYTHON = "3.11"
# {rule that intentionally refuses models that Triton would load: reason}
POLICY = {
    "npu host": "an NPU host has no GPU, which a stand-in for TensorRT does not need",
    "passive": "no request would ever be answered",
    "release": "the Python backend of an older release loads bfloat16, and its requests fail",
}
# Effects of an error in one model that also stop a starting server from serving its other models
STOPS_OTHER_MODELS = (effects.CRASHES, effects.LOADS_NOTHING, effects.HANGS)


class Comparison(NamedTuple):
    """One case on one release: the linter's rules that report an effect on Triton, and the verdict of Triton."""

    name: str
    release: str
    rules: frozenset[str]
    verdict: str

    @property
    def agrees(self) -> bool:
        return bool(self.rules) == (self.verdict != "loads")


def write_files(directory: Path, files: Files, library: bytes = b"\x7fELF") -> Path:
    """Write the files of a case below a directory, and return the directory."""
    for path, content in files.items():
        file = directory / path
        (file if path.endswith("/") else file.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            file.symlink_to(content.target)
        elif isinstance(content, Pipe):
            os.mkfifo(file)
        elif isinstance(content, Library):
            file.write_bytes(library)
        elif not path.endswith("/"):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


def digest(name: str) -> str:
    """Return the digest of the content of a case. A recorded verdict is only valid for the content with its digest."""
    content = repr(sorted(CASES[name][1].items()))
    return hashlib.sha256((content if can_share_server(name) else f"alone {content}").encode()).hexdigest()[:8]


def can_share_server(name: str) -> bool:
    """Return True if a server that has loaded other cases can load this case. Environments leave unpacked files in their server."""
    return not name.startswith(("roots-", "environments-"))


def recorded() -> Mapping[str, list[str]]:
    """Return {case: [digest, verdict of each release]}."""
    verdicts: dict[str, list[str]] = json.loads(VERDICTS.read_text())
    return verdicts


def compare_all() -> list[Comparison]:
    """Return the comparisons of every case on every release."""
    verdicts = recorded()
    results = []
    for name, (_rule, files) in CASES.items():
        # Writing and removing the files of all cases on a disk would take most of the time.
        with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
            write_files(Path(directory), files)
            for number, (release, version) in enumerate(RELEASES.items()):
                findings = lint([directory], row=Row(release, version, python=PYTHON)).findings
                errors = [finding for finding in findings if finding.severity == ERROR and finding.triton]
                at_start = name.startswith("roots-")
                rules = {
                    finding.rule
                    for finding in errors
                    if finding.model == subject(files) or (at_start and finding.triton in STOPS_OTHER_MODELS)
                }
                results.append(Comparison(name, release, frozenset(rules), verdicts[name][1 + number]))
    return results


def table() -> str:
    """Return a report with the counts of each release, and with every case on which the linter and Triton disagree."""
    lines, comparisons = [], compare_all()
    for release in RELEASES:
        of_release = [entry for entry in comparisons if entry.release == release]
        misses = [entry for entry in of_release if not entry.agrees and not entry.rules]
        alarms = [entry for entry in of_release if not entry.agrees and entry.rules]
        agree = len(of_release) - len(misses) - len(alarms)
        share, differ = f"{agree} agree ({agree / len(of_release):.1%})", f"{len(misses)} misses, {len(alarms)} false alarms"
        lines.append(f"Triton {release}: {len(of_release)} repositories, {share}, {differ}")
        for entry in misses + alarms:
            lines.append(f"  {entry.name}: Triton {entry.verdict}, the linter: {', '.join(sorted(entry.rules)) or 'no error'}")
    return "\n".join(lines)
