# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The key of a host's server, which requests to restricted APIs carry: its file, and what is wrong with that file.

The key is made on its host and stays there: container, plan and controller know its path and not its content.
"""

from __future__ import annotations

import hashlib
import os
import stat
from functools import cache
from typing import Any, Dict, Mapping, Optional

# The directory is mounted: a mounted file that is replaced keeps its old content in a running container.
HOME = "/etc/npufleet/server"
FILE = HOME + "/key"
APIS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
OPTIONS = ("http-restricted-api", "grpc-restricted-protocol")
# The name of the shell that reads the key and becomes the server
SHELL = "npufleet"


@cache
def fingerprint(key: str) -> str:
    """Return the digest by which keys are compared. It is slow, as plans show it and a person may have chosen the key."""
    return hashlib.pbkdf2_hmac("sha256", key.encode(), b"npufleet", 100_000).hex()


def content(path: str) -> Optional[str]:
    """Return the key; None if there is no readable key."""
    try:
        with open(path, encoding="ascii") as source:
            return source.read().strip() or None
    except (OSError, ValueError):
        return None


def headers(key: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """Return the header that opens restricted APIs over HTTP, empty for a server without a key."""
    found = content(key["path"]) if key else None
    return {key["name"]: found} if key and found else {}


def flaw(path: str, desired: Optional[str] = None, group: int = 0, needed: bool = False) -> Dict[str, Any]:
    """Return {"words": what is wrong with the file, None if it is in sync; "other": True if another key has to be written}.

    `desired` is the fingerprint of the desired key, None for any key. The `group` may read the file, and has to if `needed`.
    """
    found = content(path)
    if found is None:
        return {"words": "no key in it" if os.path.lexists(path) else "nothing", "other": True}
    if desired and fingerprint(found) != desired:
        return {"words": "another key", "other": True}
    for entry, alone, shared in ((os.path.dirname(path), 0o700, 0o050), (path, 0o600, 0o040)):
        state = os.lstat(entry)
        mode, mine = stat.S_IMODE(state.st_mode), group and state.st_gid == group
        kind = "a link" if stat.S_ISLNK(state.st_mode) else f"mode {mode:04o} of user {state.st_uid} and group {state.st_gid}"
        if mode & ~(alone | shared if mine else alone) or state.st_uid != os.geteuid() or stat.S_ISLNK(state.st_mode):
            # Another account may have read it.
            return {"words": f"{kind} at {entry}", "other": not desired}
        if needed and not (mine and mode & shared == shared):
            return {"words": f"{kind} at {entry}", "other": False}
    return {"words": None, "other": False}
