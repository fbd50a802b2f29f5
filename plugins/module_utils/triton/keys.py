# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The server's key on a host, and the check of the key file. A request to a restricted API must contain this key.

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
API_GROUPS = (
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
RESTRICT_OPTIONS = ("http-restricted-api", "grpc-restricted-protocol")
# Argument 0 of the shell that reads the key and then executes the server
SHELL = "npufleet"


@cache
def fingerprint(key: str) -> str:
    """Return the digest of a key. Plans show only the digest. It is slow to compute, so that a weak key is hard to guess."""
    return hashlib.pbkdf2_hmac("sha256", key.encode(), b"npufleet", 100_000).hex()


def content(path: str) -> Optional[str]:
    """Return the key in a file, or None if the file is missing, unreadable or empty."""
    try:
        with open(path, encoding="ascii") as source:
            return source.read().strip() or None
    except (OSError, ValueError):
        return None


def headers(key: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """Return the HTTP header that opens restricted APIs as {name: key}, or an empty dict for a server without a key."""
    value = content(key["path"]) if key else None
    return {key["name"]: value} if key and value else {}


def flaw(path: str, desired: Optional[str] = None, group: int = 0, group_must_read: bool = False) -> Dict[str, Any]:
    """Return {"flaw": the flaw of the file or None, "rewrite": True if a key has to be written}.

    `desired` is the fingerprint of the desired key, or None if any key is accepted. The members of `group` may read the file. If
    `group_must_read` is true, a file that they cannot read has a flaw.
    """
    actual_key = content(path)
    if actual_key is None:
        return {"flaw": "no key in it" if os.path.lexists(path) else "missing", "rewrite": True}
    if desired and fingerprint(actual_key) != desired:
        return {"flaw": "another key", "rewrite": True}
    for entry, owner_mode, group_mode in ((os.path.dirname(path), 0o700, 0o050), (path, 0o600, 0o040)):
        state = os.lstat(entry)
        mode, by_group = stat.S_IMODE(state.st_mode), group and state.st_gid == group
        is_link = stat.S_ISLNK(state.st_mode)
        kind = "a link" if is_link else f"mode {mode:04o} of user {state.st_uid} and group {state.st_gid}"
        allowed = owner_mode | group_mode if by_group else owner_mode
        if is_link or mode & ~allowed or state.st_uid != os.geteuid():
            # Another account may have read the key, so a generated key is replaced. A key that the operator has set stays.
            return {"flaw": f"{kind} at {entry}", "rewrite": not desired}
        if group_must_read and not (by_group and mode & group_mode == group_mode):
            return {"flaw": f"{kind} at {entry}", "rewrite": False}
    return {"flaw": None, "rewrite": False}
