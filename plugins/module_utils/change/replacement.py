# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The record of a replacement of the server: it is written before the first step, and removed after the last one."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, Callable, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp

REPLACEMENT = "replacement.json"
# One call makes all steps between SWAPPING and SWAPPED. A container that was STOPPED for something else, such as another driver,
# has to serve again, or another one in its place. With PROVEN, only the removal of the previous container is left.
SWAPPING, SWAPPED, STOPPED, PROVEN = "swapping", "swapped", "stopped", "proven"
SHAPE = {
    # The run that began, and its person
    "run": str,
    "by": str,
    "since": str,
    "phase": re.compile(f"{SWAPPING}|{SWAPPED}|{STOPPED}|{PROVEN}"),
    # The previous container: whether it ran, its id, and a server that was started in it manually
    "ran": bool,
    "old": shapes.TEXT_OR_NULL,
    "inside": dict,
    # What a previous server without a container was started with
    "config?": dict,
}
# A previous container without a record
UNKNOWN: Dict[str, Any] = {
    "run": "?",
    "by": "unknown",
    "since": "unknown",
    "phase": SWAPPED,
    "ran": True,
    "old": None,
    "inside": {},
}


def read(root: str) -> Optional[Dict[str, Any]]:
    """Return the open replacement, None if there is none. A record that cannot be read is an unknown replacement."""
    found = shapes.read(os.path.join(root, REPLACEMENT), SHAPE)
    if not found.exists:
        return None
    return dict(UNKNOWN) if found.flaw else dict(found.content)


def write(root: str, entry: Mapping[str, Any]) -> None:
    """Write the record. Only root can read the file, because the command line of a server may hold keys."""
    lease.write(os.path.join(root, REPLACEMENT), entry, 0o600)


def begin(root: str, holder: lease.Holder, **facts: Any) -> None:
    """Record a replacement by this run before its first step. `facts` are fields of the record."""
    write(root, {**UNKNOWN, "run": holder.run, "by": holder.by, "since": timestamp(), "phase": SWAPPING, **facts})


def advance(root: str, phase: str) -> None:
    """Record the next phase of the open replacement."""
    write(root, {**(read(root) or UNKNOWN), "phase": phase})


def close(root: str) -> None:
    """Remove the record."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(root, REPLACEMENT))


def broken_off(root: str, run: Optional[str] = None) -> bool:
    """Return True if a replacement, by this run or any, ended between two steps of one call. Nothing serves then."""
    entry = read(root)
    return entry is not None and entry["phase"] == SWAPPING and run in (None, entry["run"])


def recover(
    root: str, holder: lease.Holder, restore: Callable[[], Optional[str]], failure: Callable[[Exception], str]
) -> Optional[str]:
    """Restore the server before a replacement that broke off. Returns what was done, None if there was no server before.

    A failure does not end the run, as its own server may do better. `failure` returns its message.
    """
    try:
        with lease.working(root, holder):
            return restore()
    except Exception as error:
        return f"it could not be restored: {failure(error)}"
