# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The history of a store: one JSON line for each change, oldest first.

It shows which releases were proven: the host served them, and they passed their checks. The label of a release is
`<serial number>-<content>`. The content is the start of the digest of its files, so releases with the same files have the same
content. If holds.json is lost, the holds are derived from the history.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, TEXT_OR_NULL
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import HISTORY
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, NAME, content, serial

# The fields of a line. `?` marks an optional field.
SHAPE = {
    "model": NAME,
    "result": str,
    "from": (LABEL, NULL),
    "to": (LABEL, NULL),
    **{name + "?": TEXT_OR_NULL for name in ("when", "who", "run", "host", "what", "source", "release", "why")},
}
PROVEN = "proven"
# The kind of change (`what`) of a line that ends a hold
FORGET = "forget"
# The kind of change (`what`) of a restore: the run returned to the previous release, because its change was not proven
RESTORED = "put back"


def proven_changes(lines: Sequence[Mapping[str, Any]], name: str) -> List[Mapping[str, Any]]:
    """Return the proven changes of a model."""
    return [line for line in lines if line["model"] == name and line["result"] == PROVEN]


def proven_labels(lines: Sequence[Mapping[str, Any]], name: str) -> List[str]:
    """Return the labels of a model's proven releases, newest proof first."""
    found = []
    for line in reversed(proven_changes(lines, name)):
        # The release `from` was also proven, even if no line shows its proof. But in a RESTORED line, `from` is the failed release.
        found += [line["to"], None if line.get("what") == RESTORED else line["from"]]
    return [label for label in dict.fromkeys(found) if label]


def previous(lines: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str], current: Optional[str]) -> Optional[str]:
    """Find the content that was proven last and differs from the content of `current`. Return its label, or None."""
    # Old versions of npufleet wrote no history. In their stores, the order of the serial numbers decides.
    order = proven_labels(lines, name) or [other for other in labels if serial(other) < serial(current or "0")]
    for label in order:
        if content(label) != content(current):
            equal_labels = [entry for entry in (label, *labels) if entry in labels and content(entry) == content(label)]
            if equal_labels:
                return equal_labels[0]
    return None


def labels_to_keep(lines: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str], keep: int) -> List[str]:
    """Return the newest label of each of the last `keep` proven contents.

    If the history has no proof of the model, every content counts as proven.
    """
    newest = {content(label): label for label in reversed(labels)}
    order = dict.fromkeys(content(label) for label in proven_labels(lines, name) or labels)
    return [newest[label] for label in order if label in newest][:keep]


def holds(lines: Sequence[Mapping[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Return {model: hold}, derived from the rollbacks and the changes after them.

    `source` of a hold is the source that the operator rejected with the rollback.
    """
    found: Dict[str, Dict[str, Any]] = {}
    sources: Dict[str, Any] = {}
    for line in lines:
        name = line["model"]
        if line.get("what") == FORGET:
            found.pop(name, None)
        if line["result"] != PROVEN:
            continue
        hold = found.get(name)
        if line.get("what") == "rollback":
            # A second rollback still rejects the source that the first rollback rejected.
            rejected = hold["source"] if hold else sources.get(name)
            found.pop(name, None)
            if rejected and rejected != line.get("source"):
                facts = {"by": line.get("who") or "unknown", "when": line.get("when") or "unknown", "why": line.get("why") or ""}
                found[name] = {"source": rejected, "label": line["to"], "release": line.get("release"), **facts}
        elif hold and content(line["to"]) == content(hold["label"]):
            # The held content has a new label, because a run has made a new release with this content.
            hold["label"] = line["to"]
        else:
            found.pop(name, None)
        sources[name] = line.get("source")
    return found


def read_history(root: str) -> List[Dict[str, Any]]:
    """Return all recorded changes, oldest first. Damaged lines are skipped here and reported by damage.py."""
    return read_lines(root)[0]


def read_lines(root: str) -> Tuple[List[Dict[str, Any]], Optional[str], bool]:
    """Return (valid lines of the history, flaws of the other lines or None, True if the file exists)."""
    return shapes.read_lines(os.path.join(root, HISTORY), SHAPE)


def append_history(root: str, lines: List[Dict[str, Any]]) -> None:
    """Append the lines that the history does not contain yet."""
    keys = ("run", "model", "what", "from", "to", "result")
    recorded = {tuple(line.get(key) for key in keys) for line in read_history(root)}
    new_lines = [line for line in lines if tuple(line[key] for key in keys) not in recorded]
    if not new_lines:
        return
    path = os.path.join(root, HISTORY)
    with open(path, "a+b") as sink:
        line_end = b""
        if sink.tell():
            sink.seek(-1, os.SEEK_END)
            line_end = b"" if sink.read(1) == b"\n" else b"\n"
        sink.write(line_end + b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in new_lines))
        sink.flush()
        os.fsync(sink.fileno())
    os.chmod(path, 0o644)
