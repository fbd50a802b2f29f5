# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The file of Triton's keys to object stores."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Mapping, Optional

# A directory that only root can read
CREDENTIALS_HOME = "/etc/npufleet/credentials"


def problem(desired: Mapping[str, str], group: int, needed: bool) -> Optional[str]:
    """Return what is wrong with the file, else None. If `needed`, the server is not root and reads the file by its group."""
    try:
        with open(desired["path"], "rb") as source:
            status = os.fstat(source.fileno())
            digest = hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return "nothing"
    if digest != desired["sha256"]:
        return f"SHA-256 {digest[:12]}"
    mode = stat.S_IMODE(status.st_mode)
    alone, shared = (mode, status.st_uid) == (0o600, 0), (mode, status.st_uid, status.st_gid) == (0o640, 0, group)
    fits = shared or (alone and not needed)
    return None if fits else f"mode {mode:04o} of user {status.st_uid} and group {status.st_gid}"
