# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The key of a host's server, which requests to restricted APIs must carry, and the check of the file that contains the key.

A key is generated on its host and stays there. The container, the plan and the controller only get the path of the file.
"""

from __future__ import annotations

import hashlib
import os
import stat
from functools import cache
from typing import Any, Dict, Mapping, Optional

# The container mounts the directory. If it mounted the file, a running container would keep the old content of a replaced file.
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
# Argument 0 of the shell that reads the key and then executes the server
SHELL = "npufleet"


@cache
def fingerprint(key: str) -> str:
    """Return a digest to compare keys. It is slow to compute, because plans show it and a person may have chosen a weak key."""
    return hashlib.pbkdf2_hmac("sha256", key.encode(), b"npufleet", 100_000).hex()


def content(path: str) -> Optional[str]:
    """Return the key in a file, None if the file is missing, unreadable or empty."""
    try:
        with open(path, encoding="ascii") as source:
            return source.read().strip() or None
    except (OSError, ValueError):
        return None


def headers(key: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """Return the HTTP header that opens restricted APIs as {name: key}, an empty dict for a server without a key."""
    found = content(key["path"]) if key else None
    return {key["name"]: found} if key and found else {}


def flaw(path: str, desired: Optional[str] = None, group: int = 0, needed: bool = False) -> Dict[str, Any]:
    """Return {"words": the flaw of the file or None if it has none, "other": True if another key has to be written}.

    `desired` is the fingerprint of the desired key, None if any key will do. `group` may have read access, and must have it if
    `needed`.
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
            # Another account may have read the key. A generated key is replaced. A key that the operator has set stays.
            return {"words": f"{kind} at {entry}", "other": not desired}
        if needed and not (mine and mode & shared == shared):
            return {"words": f"{kind} at {entry}", "other": False}
    return {"words": None, "other": False}
