# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The file with Triton's keys to object stores."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Mapping, Optional

# The directory of the file. Only root can read it.
CREDENTIALS_HOME = "/etc/npufleet/credentials"


def credentials_flaw(desired: Mapping[str, str], group: int, group_must_read: bool) -> Optional[str]:
    """Return the flaw of the file with Triton's keys to object stores, or None.

    If `group_must_read` is true, the group must be able to read the file, because the server does not run as root.
    """
    try:
        with open(desired["path"], "rb") as source:
            status = os.fstat(source.fileno())
            digest = hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return "missing"
    if digest != desired["sha256"]:
        return f"SHA-256 {digest[:12]}"
    mode = stat.S_IMODE(status.st_mode)
    private, shared = (mode, status.st_uid) == (0o600, 0), (mode, status.st_uid, status.st_gid) == (0o640, 0, group)
    fits = shared or (private and not group_must_read)
    return None if fits else f"mode {mode:04o} of user {status.st_uid} and group {status.st_gid}"
