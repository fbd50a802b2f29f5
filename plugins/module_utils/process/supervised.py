# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Start and stop a server with its supervisor (supervisor.py), and read its configuration and log.

The files are in `run/` below the project directory. `config.json` is the configuration of the running supervisor. The supervisor
holds a lock on the file `pid` as long as it runs.
"""

from __future__ import annotations

# This file starts a process that outlives the module, which run_command cannot do. pylint: disable=ansible-bad-function
import base64
import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable, locks
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load

PROGRAM, CONFIG, PID, LOG = "supervisor.pyz", "config.json", "pid", "triton.log"
# Size in bytes at which the supervisor rotates the log. One previous log is kept.
LOG_BYTES = 50 << 20
SHAPE = {
    "command": [str],
    "environment": {re.compile(".+"): str},
    "stop_timeout": int,
    "program": str,  # digest of the supervisor's sources
    # Older versions of this project do not write these fields.
    "stuck_load_limit?": int,
    "since?": int,
}
# Log lines of the supervisor: the server has ended (ENDED), or the supervisor ends a stuck load (STUCK)
ENDED = re.compile(r"npufleet_supervisor: \S+: the server ")
STUCK = re.compile(r"npufleet_supervisor: \S+: (a load is stuck, ends .+)")
# Time limit in seconds for the start of a supervisor. The time limit for its end is the server's stop_timeout plus these seconds.
GRACE = 20.0
# Seconds between two polls
POLL_SECONDS = 0.1
# Largest number of bytes of the log that are read
MAX_LOG_BYTES = 4 << 20


class ProcessError(Exception):
    """The error if a server cannot be started or stopped. The message is for an operator."""


def home(root: str) -> str:
    """Return the directory of the running server."""
    return os.path.join(root, "run")


def log_path(root: str) -> str:
    """Return the path of the server's log."""
    return os.path.join(home(root), LOG)


def holder(root: str) -> Optional[int]:
    """Return the process ID of the supervisor, or 0 if it is unknown, or None if no supervisor runs."""
    with suppress(FileNotFoundError), open(os.path.join(home(root), PID), "r+", encoding="ascii") as pid:
        if locks.is_held(pid):
            found = pid.read().strip()
            return int(found) if found.isdigit() else 0
    return None


def running(root: str) -> Optional[Dict[str, Any]]:
    """Return the configuration of the running supervisor, or {} if it is unknown, or None if no supervisor runs."""
    # The field `since` differs at every start, so it is not compared with the desired configuration.
    return None if holder(root) is None else {name: value for name, value in _config(root).items() if name != "since"}


def _config(root: str) -> Dict[str, Any]:
    content = shapes.read(os.path.join(home(root), CONFIG), SHAPE).content or {}
    return {name: value for name, value in content.items() if name in SHAPE or name + "?" in SHAPE}


def start(root: str, config: Mapping[str, Any], archive: str, python: str) -> None:
    """Start a supervisor, which starts the server. `archive` is the supervisor's program in base64. Raises ProcessError."""
    directory = home(root)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    files = {"log": log_path(root), "log_bytes": LOG_BYTES, "since": log_size(root), "pid": os.path.join(directory, PID)}
    durable.write(os.path.join(directory, PROGRAM), base64.b64decode(archive), 0o600)
    durable.write(os.path.join(directory, CONFIG), json.dumps({**config, **files}, indent=1, sort_keys=True), 0o600)
    with open(log_path(root), "ab") as sink:
        # In its own session, the supervisor survives the end of the terminal and of Ansible
        started = subprocess.Popen(
            [python, "-I", os.path.join(directory, PROGRAM), os.path.join(directory, CONFIG)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            cwd=root,
            start_new_session=True,
        )
    deadline = time.monotonic() + GRACE
    while not holder(root):
        if started.poll() is not None or time.monotonic() >= deadline:
            raise ProcessError(f"the supervisor does not run: {log_tail(log_since(root, 0))}")
        time.sleep(POLL_SECONDS)


def stop(root: str) -> bool:
    """Stop the supervisor, which stops the server. Return False if no supervisor ran. Raises ProcessError."""
    pid = holder(root)
    if pid is None:
        return False
    # A configuration that cannot be read has no stop_timeout.
    timeout = _config(root).get("stop_timeout", 60) + GRACE
    if pid:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while holder(root) is not None:
        if time.monotonic() >= deadline:
            raise ProcessError(
                f"process {pid or '?'} has not ended within {timeout:.0f} s: see {log_path(root)}, end it and run again"
            )
        time.sleep(POLL_SECONDS)
    return True


def log_tail(log: str) -> str:
    """Return the end of a log in one line."""
    return " ".join(log.split())[-600:] or "its log is empty"


def log_of_start(root: str) -> str:
    """Return the log since the supervisor was started."""
    return log_since(root, int(_config(root).get("since", 0)))


def log_since(root: str, since: int, until: Optional[int] = None) -> str:
    """Return the log from byte `since` to byte `until` or its end. If this part is longer than MAX_LOG_BYTES, return its end."""
    with suppress(OSError), open(log_path(root), "rb") as source:
        size = source.seek(0, os.SEEK_END) if until is None else until
        # If the log is shorter than `since`, the supervisor has rotated the log.
        begin = source.seek(max(since if since <= size else 0, size - MAX_LOG_BYTES))
        return source.read(size - begin).decode("utf-8", "replace")
    return ""


def log_size(root: str) -> int:
    """Return the size of the log in bytes, or 0 if there is no log."""
    with suppress(OSError):
        return os.path.getsize(log_path(root))
    return 0


class Guard:
    """A reader of the log, which finds the stuck loads that the supervisor has ended during a change.

    It has the same methods as stuck_load.Guard.
    """

    def __init__(self, root: str) -> None:
        self._root, self._rounds = root, 0
        self._read_until = self.since = log_size(root)
        self._messages: List[str] = []

    @property
    def ended_loads(self) -> List[str]:
        """The messages of the supervisor about stuck loads since this guard was created."""
        size = log_size(self._root)
        if size != self._read_until:
            self._messages += STUCK.findall(log_since(self._root, self._read_until, size))
            self._read_until = size
        return self._messages

    def repeats(self, mark: int) -> bool:
        """Return True if the caller has to repeat its load, at most stuck_load.MAX_ROUNDS times during a change.

        `mark` is the length of `ended_loads` before the load. If the list is longer now, the load was stuck.
        """
        stuck = len(self.ended_loads) > mark
        self._rounds += stuck
        if stuck:
            # Log lines before this point are not about the repeated load
            self.since = self._read_until
        return stuck and self._rounds <= stuck_load.MAX_ROUNDS

    def did(self) -> List[str]:
        """Return the messages about ended loads for the report of the change."""
        return list(self.ended_loads)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_error: Any) -> None:
        pass
