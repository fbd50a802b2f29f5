# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The record of the last rollouts on a host, in `rollouts.json`. Only the run that holds the lease of the host writes it.

An entry is written when a rollout takes the lease, and completed when the lease is released. The entry of a run that was killed
therefore has no end. Nothing in the record decides what a host does.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp

RECORD = "rollouts.json"
# The most entries, the largest size of the file in bytes, and the most concerns of an entry
MOST, SIZE, CONCERNS = 50, 1 << 18, 20
_TEXT = re.compile(r".{0,500}", re.DOTALL)
_TEXT_OR_NULL = (_TEXT, shapes.NULL)
_COUNT = (int, shapes.NULL)
# What the controller knows at the end of a host change
END = {
    "failure": _TEXT,
    "verdict": ({"verdict": _TEXT, "text": _TEXT}, shapes.NULL),
    "in_flight": _COUNT,
    "closed": _COUNT,
}
# What the controller knows at its begin
BEGIN = {
    "playbook": _TEXT,
    "commit": _TEXT_OR_NULL,
    "release": _TEXT_OR_NULL,
    "concerns": [_TEXT],
    # The number of the batch, from 1, and the number of batches
    "batch": int,
    "batches": int,
}
ENTRY = {"run": _TEXT, "by": _TEXT, "began": _TEXT, "ended": _TEXT_OR_NULL, **BEGIN, **END}
_OPEN: Dict[str, Any] = {"ended": None, "failure": "", "verdict": None, "in_flight": None, "closed": None}


def read(root: str) -> List[Dict[str, Any]]:
    """Return the valid entries, newest first. A missing or damaged file has none."""
    found = shapes.read(os.path.join(root, RECORD), [dict], SIZE)
    if found.flaw or not found.exists:
        return []
    return [{name: entry[name] for name in ENTRY} for entry in found.content if not shapes.mismatch(entry, ENTRY)][:MOST]


def begin(root: str, run: str, by: str, given: Mapping[str, Any]) -> None:
    """Add the entry of a rollout that begins to change this host. Raises OSError, and ValueError for an invalid entry."""
    _require(given, BEGIN)
    known = {name: given[name] for name in BEGIN}
    entry = {**_OPEN, **known, "concerns": given["concerns"][:CONCERNS], "run": run[:500], "by": by[:500], "began": timestamp()}
    _write(root, [entry, *read(root)])


def end(root: str, run: str, given: Mapping[str, Any]) -> None:
    """Complete the newest entry, if it is the open one of this run. Raises OSError, and ValueError for an invalid end.

    `given` may be empty, if all that is known is that the change has succeeded.
    """
    entries = read(root)
    if given:
        _require(given, END)
    if not entries or entries[0]["run"] != run[:500] or entries[0]["ended"] is not None:
        return
    known = {name: given[name] for name in END if name in given}
    _write(root, [{**entries[0], **known, "ended": timestamp()}, *entries[1:]])


def _require(given: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    flaw = shapes.mismatch(given, shape)
    if flaw:
        raise ValueError(f"the entry of the rollout is invalid: {flaw}")


def _write(root: str, entries: List[Dict[str, Any]]) -> None:
    kept = entries[:MOST]
    text = json.dumps(kept, sort_keys=True)
    # The newest entries are kept. Each one alone is small.
    while len(text) > SIZE:
        kept = kept[: len(kept) // 2]
        text = json.dumps(kept, sort_keys=True)
    durable.write(os.path.join(root, RECORD), text + "\n")
