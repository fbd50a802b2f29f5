# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Locks on files. The kernel releases a lock when the process with the lock ends."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from typing import IO, Any

# Seconds between two attempts to lock a file
POLL_SECONDS = 0.2
# Only the owner may open a lock file, because every process that opens it can lock it.
LOCK_MODE = 0o600


def open_lock(path: str) -> IO[Any]:
    """Open or create a lock file, and make sure that only its owner can open it. Raises OSError, also for a link or a pipe."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, LOCK_MODE)
    # fdopen raises an error for a pipe, for example, and closes the handle.
    lock = os.fdopen(handle, "r+", encoding="ascii")
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) != LOCK_MODE:
            os.fchmod(handle, LOCK_MODE)
    except BaseException:
        lock.close()
        raise
    return lock


def take(lock: IO[Any], deadline: float) -> bool:
    """Lock an open file. Return False if another process keeps its lock until `deadline` (a value of `time.monotonic`)."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(POLL_SECONDS)


def is_held(lock: IO[Any]) -> bool:
    """Return True if another process has locked an open file.

    If the result is False, the caller has a shared lock until it closes the file. Other calls of `is_held` ignore shared locks, but
    a call of `take` waits for them.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
