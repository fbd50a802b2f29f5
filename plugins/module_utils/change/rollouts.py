# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The record of the last rollouts on a host, in `rollouts.json`. Only the run that holds the lease of the host writes it.

An entry is written when a rollout takes the lease, and completed when the lease is released. The entry of a run that was killed
therefore has no end. The record is for operators. No decision depends on it.
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
# The file has at most MAX_ENTRIES entries and MAX_SIZE bytes. An entry has at most MAX_CONCERNS concerns.
MAX_ENTRIES, MAX_SIZE, MAX_CONCERNS = 50, 1 << 18, 20
_TEXT = re.compile(r".{0,500}", re.DOTALL)
_TEXT_OR_NULL = (_TEXT, shapes.NULL)
_COUNT = (int, shapes.NULL)
# Fields that the controller sends at the end of a host change. If the change drained the host, `in_flight` is
# the number of its requests when the drain began, and `closed` is the number of requests that the drain closed.
END = {
    "failure": _TEXT,
    "verdict": ({"verdict": _TEXT, "text": _TEXT}, shapes.NULL),
    "in_flight": _COUNT,
    "closed": _COUNT,
}
# Fields that the controller sends at the start of a host change
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
    """Return the valid entries, newest first. If the file is missing or damaged, return no entry."""
    entries = shapes.read(os.path.join(root, RECORD), [dict], MAX_SIZE).content or []
    return [{name: entry[name] for name in ENTRY} for entry in entries if not shapes.mismatch(entry, ENTRY)][:MAX_ENTRIES]


def begin(root: str, run: str, by: str, facts: Mapping[str, Any]) -> None:
    """Add the entry of a rollout that begins to change this host. Raises OSError, and ValueError for an invalid entry."""
    _require(facts, BEGIN)
    entry = {
        **_OPEN,
        **{name: facts[name] for name in BEGIN},
        "concerns": facts["concerns"][:MAX_CONCERNS],
        "run": run[:500],
        "by": by[:500],
        "began": timestamp(),
    }
    _write(root, [entry, *read(root)])


def end(root: str, run: str, facts: Mapping[str, Any]) -> None:
    """Complete the newest entry if it belongs to this run and is still open. Raises OSError, and ValueError for invalid `facts`.

    `facts` is empty if the caller only knows that the change has succeeded.
    """
    entries = read(root)
    if facts:
        _require(facts, END)
    if not entries or entries[0]["run"] != run[:500] or entries[0]["ended"] is not None:
        return
    completed = {**entries[0], **{name: facts[name] for name in END if name in facts}, "ended": timestamp()}
    _write(root, [completed, *entries[1:]])


def _require(facts: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    flaw = shapes.mismatch(facts, shape)
    if flaw:
        raise ValueError(f"the entry of the rollout is invalid: {flaw}")


def _write(root: str, entries: List[Dict[str, Any]]) -> None:
    newest = entries[:MAX_ENTRIES]
    text = json.dumps(newest, sort_keys=True)
    # If the text is too large, drop the older half of the entries. A single entry is always below the limit.
    while len(text) > MAX_SIZE:
        newest = newest[: len(newest) // 2]
        text = json.dumps(newest, sort_keys=True)
    durable.write(os.path.join(root, RECORD), text + "\n")
