"""Locks on files, which the kernel lets go of when a process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from typing import IO, Any

# Seconds between two looks at what another process holds
LOOK = 0.2
# Whoever can open a file can lock it, and so keep its owner waiting
MODE = 0o600


def opened(path: str) -> IO[Any]:
    """Open a lock file that its owner alone can open, whatever the umask is. A file that others could open is corrected.

    Raises OSError, also for a link or a pipe.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    # Where it raises, such as for a pipe, it has closed the file
    lock = os.fdopen(handle, "r+", encoding="ascii")
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) != MODE:
            os.fchmod(handle, MODE)
    except BaseException:
        lock.close()
        raise
    return lock


def take(lock: IO[Any], deadline: float) -> bool:
    """Lock an open file against every other process; whether it was had by the deadline, a time of `time.monotonic`."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(LOOK)


def held(lock: IO[Any]) -> bool:
    """Return True if another process has locked an open file.

    Whoever looks shares the lock until the file is closed: others who look do not see that, and who locks it waits for a moment.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
