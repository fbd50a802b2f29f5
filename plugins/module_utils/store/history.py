# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The history of a store: a line for each change, oldest first.

The proven contents follow from it, and so do the holds if their own file is lost.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, TEXT_OR_NULL
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import HISTORY
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, NAME, content, serial

# The fields that every line needs. Other fields are for people.
SHAPE = {
    "model": NAME,
    "result": str,
    "from": (LABEL, NULL),
    "to": (LABEL, NULL),
    **{name + "?": TEXT_OR_NULL for name in ("when", "who", "run", "host", "what", "source", "release", "why")},
}
PROVEN = "proven"
# A line that ends a hold
FORGET = "forget"
# A line of a change that was rolled back
RESTORED = "put back"


def proven(lines: Sequence[Mapping[str, Any]], name: str) -> List[Mapping[str, Any]]:
    """Return the proven changes of a model."""
    return [line for line in lines if line["model"] == name and line["result"] == PROVEN]


def proven_labels(lines: Sequence[Mapping[str, Any]], name: str) -> List[str]:
    """Return the labels of a model's proven releases, newest proof first."""
    found = []
    for line in reversed(proven(lines, name)):
        # The previous release was proven, too, maybe before the history began. A restored release has the failed one there.
        found += [line["to"], None if line.get("what") == RESTORED else line["from"]]
    return [fromkey for fromkey in dict.fromkeys(found) if fromkey]


def previous(lines: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str], current: Optional[str]) -> Optional[str]:
    """Return the label, of these on the host, whose content was proven last, except for the content of the current one."""
    # In a store that is older than the history, the serials show the order
    order = proven_labels(lines, name) or [other for other in labels if serial(other) < serial(current or "0")]
    for label in order:
        if content(label) != content(current):
            here = [entry for entry in (label, *labels) if entry in labels and content(entry) == content(label)]
            if here:
                return here[0]
    return None


def kept(lines: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str], keep: int) -> List[str]:
    """Return the newest label of each of the `keep` contents that were proven last.

    In a store that is older than the history, every content counts.
    """
    newest = {content(label): label for label in reversed(labels)}
    order = dict.fromkeys(content(label) for label in proven_labels(lines, name) or labels)
    return [newest[label] for label in order if label in newest][:keep]


def holds(lines: Sequence[Mapping[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Return {model: its hold}, as they follow from rollbacks and later changes."""
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
            # After two rollbacks the source of the first one is still rejected
            rejected = hold["source"] if hold else sources.get(name)
            found.pop(name, None)
            if rejected and rejected != line.get("source"):
                facts = {"by": line.get("who") or "unknown", "when": line.get("when") or "unknown", "why": line.get("why") or ""}
                found[name] = {"source": rejected, "label": line["to"], "release": line.get("release"), **facts}
        elif hold and content(line["to"]) == content(hold["label"]):
            # The held content was made again, or restored
            hold["label"] = line["to"]
        else:
            found.pop(name, None)
        sources[name] = line.get("source")
    return found


def read_history(root: str) -> List[Dict[str, Any]]:
    """Return every recorded change, oldest first. A damaged line is skipped here, and reported by damage.py."""
    return shapes.read_lines(os.path.join(root, HISTORY), SHAPE)[0]


def append_history(root: str, lines: List[Dict[str, Any]]) -> None:
    """Append changes, without those that the same run has already recorded."""
    keys = ("run", "model", "what", "from", "to", "result")
    there = {tuple(line.get(key) for key in keys) for line in read_history(root)}
    fresh = [line for line in lines if tuple(line[key] for key in keys) not in there]
    if not fresh:
        return
    path = os.path.join(root, HISTORY)
    with open(path, "a+b") as sink:
        torn = b""
        if sink.tell():
            sink.seek(-1, os.SEEK_END)
            torn = b"" if sink.read(1) == b"\n" else b"\n"
        sink.write(torn + b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in fresh))
        sink.flush()
        os.fsync(sink.fileno())
    os.chmod(path, 0o644)
