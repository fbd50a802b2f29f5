# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The file replacement.json, which exists from the first to the last step of a replacement of the server."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, Callable, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp

REPLACEMENT = "replacement.json"
# Phases of a replacement:
# - SWAPPING: A call is replacing the server, or was interrupted before it had replaced the server.
# - SWAPPED: The new server has started, but is not proven yet.
# - STOPPED: The container was stopped for another change, such as a change of the driver, and has to run again.
# - PROVEN: Only the removal of the previous container is left.
SWAPPING, SWAPPED, STOPPED, PROVEN = "swapping", "swapped", "stopped", "proven"
SHAPE = {
    # Id of the run that started the replacement
    "run": str,
    "by": str,  # person who started the run
    "since": str,
    "phase": re.compile(f"{SWAPPING}|{SWAPPED}|{STOPPED}|{PROVEN}"),
    "ran": bool,  # the previous container ran
    "old": shapes.TEXT_OR_NULL,  # id of the previous container
    "inside": dict,  # server that was started manually in the previous container
    # Configuration of a previous server that is a process (process/supervised.py)
    "config?": dict,
}
# The content that `read` returns if the file cannot be read
UNKNOWN: Dict[str, Any] = {
    "run": "?",
    "by": "unknown",
    "since": "unknown",
    "phase": SWAPPED,
    "ran": True,
    "old": None,
    "inside": {},
}


def read(root: str, previous: bool = False) -> Optional[Dict[str, Any]]:
    """Return the open replacement, or None if no replacement is open. Return UNKNOWN if the file cannot be read.

    `previous` is True if a previous container exists. It shows that a replacement is open, even if the file is missing.
    """
    content: Optional[Dict[str, Any]]
    content, flaw, exists = shapes.read(os.path.join(root, REPLACEMENT), SHAPE)
    return dict(UNKNOWN) if flaw or (previous and not exists) else content


def write(root: str, entry: Mapping[str, Any]) -> None:
    """Write the file. Only root can read it, because the command line of a server may contain keys."""
    lease.write(os.path.join(root, REPLACEMENT), entry, 0o600)


def begin(root: str, holder: lease.Holder, **facts: Any) -> None:
    """Write the file before the first step of a replacement by the run `holder`. `facts` are more fields of SHAPE."""
    write(root, {**UNKNOWN, "run": holder.run, "by": holder.by, "since": timestamp(), "phase": SWAPPING, **facts})


def advance(root: str, phase: str) -> None:
    """Write the next phase of the open replacement."""
    write(root, {**(read(root) or UNKNOWN), "phase": phase})


def close(root: str) -> None:
    """Remove the file, because no step of the replacement is left."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(root, REPLACEMENT))


def interrupted(root: str, run: Optional[str] = None) -> bool:
    """Return True if a replacement of `run`, by default of any run, is in phase SWAPPING, so that possibly no server runs."""
    entry = read(root)
    return entry is not None and entry["phase"] == SWAPPING and run in (None, entry["run"])


def recover(
    root: str, holder: lease.Holder, restore: Callable[[], Optional[str]], failure: Callable[[Exception], str]
) -> Optional[str]:
    """Restore the server that an interrupted replacement stopped. Return what was done, or None if there was no such server.

    If the restore fails, return the error as text (from `failure`), because the run continues and starts its own server.
    """
    try:
        with lease.working(root, holder):
            return restore()
    except Exception as error:
        return f"it could not be restored: {failure(error)}"
