# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Runs of the vendor's driver installer."""

from __future__ import annotations

# AnsibleModule.run_command cannot end the installer's child processes after a timeout. pylint: disable=ansible-bad-function
import os
import signal
import subprocess
from contextlib import suppress
from typing import IO, List, Optional

# An error message shows at most MAX_LINES lines from the last TAIL_BYTES bytes of the log.
MAX_LINES, TAIL_BYTES = 30, 16384
# Longest time in seconds between SIGTERM and SIGKILL
MAX_WAIT_SECONDS = 30.0


def run(command: List[str], log: IO[bytes], timeout: float) -> Optional[int]:
    """Run an installer. Return its exit code, or None if the installer was ended after the timeout."""
    # The installer has a session of its own, so that its children can be ended with it. pylint: disable=consider-using-with
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(MAX_WAIT_SECONDS)
        # Child processes may still run, so the whole process group is killed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def last_lines(path: str) -> str:
    """Return the last non-empty lines of a log."""
    with open(path, "rb") as source:
        source.seek(max(os.path.getsize(path) - TAIL_BYTES, 0))
        lines = source.read().decode("utf-8", "replace").splitlines()
    return "\n".join([line.rstrip() for line in lines if line.strip()][-MAX_LINES:])
