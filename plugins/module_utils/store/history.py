"""The history of a store, a line for each change, oldest first: read, written, and what follows from it.

It tells which content was proven, and what is held where the file that says so is lost.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, TEXT_OR_NULL
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import HISTORY
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, NAME, content, serial

# What every line needs; what else a line has is for people
SHAPE = {
    "model": NAME,
    "result": str,
    "from": (LABEL, NULL),
    "to": (LABEL, NULL),
    **{name + "?": TEXT_OR_NULL for name in ("when", "who", "run", "host", "what", "source", "release", "why")},
}
PROVEN = "proven"
# The end of a hold by hand, in a line of its own
FORGET = "forget"
PUT_BACK = "put back"


def proven(lines: Sequence[Mapping[str, Any]], name: str) -> List[Mapping[str, Any]]:
    """The changes of a model that were proven."""
    return [line for line in lines if line["model"] == name and line["result"] == PROVEN]


def proven_labels(lines: Sequence[Mapping[str, Any]], name: str) -> List[str]:
    """Labels of the model's releases that were proven, newest proof first."""
    found = []
    for line in reversed(proven(lines, name)):
        # What served before was proven too, maybe before there was a history; a put back has there what failed
        found += [line["to"], None if line.get("what") == PUT_BACK else line["from"]]
    return [fromkey for fromkey in dict.fromkeys(found) if fromkey]


def previous(lines: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str], current: Optional[str]) -> Optional[str]:
    """Which of the labels that are here, newest first, has the content that was proven last beside the current one's."""
    # A store from before there was a history: the serials tell
    order = proven_labels(lines, name) or [other for other in labels if serial(other) < serial(current or "0")]
    for label in order:
        if content(label) != content(current):
            here = [entry for entry in (label, *labels) if entry in labels and content(entry) == content(label)]
            if here:
                return here[0]
    return None


def kept(lines: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str], keep: int) -> List[str]:
    """A label, the newest of `labels`, for each of the `keep` contents that were proven last; every content counts in a store from
    before there was a history."""
    newest = {content(label): label for label in reversed(labels)}
    order = dict.fromkeys(content(label) for label in proven_labels(lines, name) or labels)
    return [newest[label] for label in order if label in newest][:keep]


def holds(lines: Sequence[Mapping[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """{model: its hold} as they follow from what was rolled back, proven, and done since."""
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
            # Rolled back twice: it is still the first one's source that is not wanted
            rejected = hold["source"] if hold else sources.get(name)
            found.pop(name, None)
            if rejected and rejected != line.get("source"):
                facts = {"by": line.get("who") or "unknown", "when": line.get("when") or "unknown", "why": line.get("why") or ""}
                found[name] = {"source": rejected, "label": line["to"], "release": line.get("release"), **facts}
        elif hold and content(line["to"]) == content(hold["label"]):
            # Made anew, or put back
            hold["label"] = line["to"]
        else:
            found.pop(name, None)
        sources[name] = line.get("source")
    return found


def read_history(root: str) -> List[Dict[str, Any]]:
    """Every change that is written down, oldest first. What is no line of it is passed over here, and told as damage."""
    return shapes.read_lines(os.path.join(root, HISTORY), SHAPE)[0]


def append_history(root: str, lines: List[Dict[str, Any]]) -> None:
    """Write changes down; one that a run wrote before it was killed is not written twice."""
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
