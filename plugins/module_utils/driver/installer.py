"""The vendor's installer of a driver: run within its time, and what it said last."""

from __future__ import annotations

# Ends it with all that it has started, which run_command of a module does not. pylint: disable=ansible-bad-function
import os
import signal
import subprocess
from contextlib import suppress
from typing import IO, List, Optional

# Lines of its output that a failure shows, and bytes in which they are looked for
SHOWN = 30
TAIL = 16384
# Seconds to end by itself once it is told to
PATIENCE = 30.0


def run(command: List[str], log: IO[bytes], timeout: float) -> Optional[int]:
    """The exit code of an installer, None where it had to be ended: it and all that it has started."""
    # In a session of its own, so that its children can be ended with it. pylint: disable=consider-using-with
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        # Also what its first process has left behind
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def last_lines(path: str) -> str:
    """The end of what it has said."""
    with open(path, "rb") as source:
        source.seek(max(os.path.getsize(path) - TAIL, 0))
        lines = source.read().decode("utf-8", "replace").splitlines()
    return "\n".join([line.rstrip() for line in lines if line.strip()][-SHOWN:])
