"""How far a replacement of the server's container is: a file, written before its first step and removed with its last."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease

REPLACEMENT = "replacement.json"
# How far a replacement is: one call makes every step in between. A container that was stopped for something else, such as another
# driver, has to serve again, in its place or after it was replaced. A proven one stays, and the one before it has to be removed
SWAPPING, SWAPPED, STOPPED, PROVEN = "swapping", "swapped", "stopped", "proven"
SHAPE = {
    # Who began it: the run's id, and a person
    "run": str,
    "by": str,
    "since": str,
    "phase": re.compile(f"{SWAPPING}|{SWAPPED}|{STOPPED}|{PROVEN}"),
    # Whether the old container ran, its id, and the server that hands had started inside it
    "ran": bool,
    "old": shapes.TEXT_OR_NULL,
    "inside": dict,
}
# A container that was left aside without a word
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
    """The replacement under way, None where there is none. One that cannot be read is one of which nothing more is known."""
    found = shapes.read(os.path.join(root, REPLACEMENT), SHAPE)
    if not found.exists:
        return None
    return dict(UNKNOWN) if found.flaw else dict(found.content)


def write(root: str, entry: Mapping[str, Any]) -> None:
    """Record how far it is. The command line of a server inside may hold keys, so that root alone may read the file."""
    lease.write(os.path.join(root, REPLACEMENT), entry, 0o600)


def close(root: str) -> None:
    """It has ended."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(root, REPLACEMENT))


def broken_off(root: str, run: Optional[str] = None) -> bool:
    """Whether a replacement, that of a run or any, ended between two steps that one call makes. Nothing serves then."""
    entry = read(root)
    return entry is not None and entry["phase"] == SWAPPING and run in (None, entry["run"])
