# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a Triton server on a machine without init system and container engine. It restarts a server that ends.

The supervisor is a separate archive (programs/archive.py), called as `supervisor.pyz CONFIG`. CONFIG is a JSON file with `command`,
`environment`, `log`, `log_bytes`, `stop_timeout` (seconds), `pid` and `stuck_load_limit` (seconds). The supervisor locks the file
`pid` as long as it runs, and writes its process ID into the file. SIGTERM ends the server and then the supervisor. The server never
outlives the supervisor.
"""

from __future__ import annotations

# This file is a program, which has no AnsibleModule. pylint: disable=ansible-bad-function
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp
from ansible_collections.npufleet.triton.plugins.module_utils.triton.stuck_load import Guard

# The pauses in seconds before restarts. The first pause is FIRST_PAUSE. Each next pause is twice as long, up to MAX_PAUSE. If the
# server ran for STABLE_SECONDS before it ended, the next pause is FIRST_PAUSE.
FIRST_PAUSE, MAX_PAUSE, STABLE_SECONDS = 1.0, 60.0, 120.0
# Seconds between two checks of the server and of the size of its log
POLL_SECONDS = 0.5
# Seconds to wait for the lock, because another process can hold it for a moment to test it
LOCK_TIMEOUT = 2.0
PR_SET_PDEATHSIG = 1
# Beginning of the log line about a stuck load that the supervisor ends
STUCK_MESSAGE = "a load is stuck, ends"


def die_with_parent() -> None:
    """Tell the kernel to kill this process, which becomes the server, when its parent ends. The parent is the supervisor."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    """A supervisor of one server."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self.config = config
        self.server: Optional[subprocess.Popen[bytes]] = None
        self.ending = False

    def run(self) -> int:
        """Keep the server running until SIGTERM. Return the exit code."""
        with locks.open_lock(self.config["pid"]) as pid_file:
            if not locks.take(pid_file, time.monotonic() + LOCK_TIMEOUT):
                print(f"npufleet_supervisor: another supervisor holds {self.config['pid']}", file=sys.stderr)
                return 1
            pid_file.truncate(0)
            pid_file.write(f"{os.getpid()}\n")
            pid_file.flush()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._end)
            self._serve()
            pid_file.truncate(0)
        return 0

    def _end(self, *_arguments: Any) -> None:
        self.ending = True

    def _wait(self, seconds: float) -> None:
        """Wait for `seconds`, but only until the supervisor has to end."""
        deadline = time.monotonic() + seconds
        while not self.ending and time.monotonic() < deadline:
            time.sleep(min(POLL_SECONDS, seconds))

    def _serve(self) -> None:
        pause = FIRST_PAUSE
        while not self.ending:
            started = time.monotonic()
            code = self._run_server()
            if self.ending:
                return
            pause = FIRST_PAUSE if time.monotonic() - started >= STABLE_SECONDS else pause
            self._log(f"the server ended with {code} and starts again in {pause:.0f} s")
            self._wait(pause)
            pause = min(pause * 2, MAX_PAUSE)

    def _run_server(self) -> int:
        """Run the server until it ends or the supervisor has to end. Return the exit code of the server."""
        with open(self.config["log"], "ab") as log:
            try:
                self.server = subprocess.Popen(
                    self.config["command"],
                    env=self.config["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                self._log(f"the server cannot be started: {error}")
                return 127
        server = self.server.pid
        # Run the guard here: a container can allow only the parent of the server to read the server's system calls.
        with Guard(lambda: server, self.config.get("stuck_load_limit", 0), log=lambda wait: self._log(f"{STUCK_MESSAGE} {wait}")):
            while self.server.poll() is None and not self.ending:
                self._wait(POLL_SECONDS)
                self._rotate()
        if self.server.poll() is None:
            self.server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(self.config["stop_timeout"])
        # If the server was killed, stubs of the python backend may still run, so the whole process group is killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)
        return self.server.wait()

    def _log(self, message: str) -> None:
        with open(self.config["log"], "a", encoding="utf-8") as log:
            log.write(f"npufleet_supervisor: {timestamp()}: {message}\n")

    def _rotate(self) -> None:
        """If the log is too large, copy it to `<log>.1` and empty it. The server can keep the log open, because it only appends."""
        path = self.config["log"]
        if os.path.exists(path) and os.path.getsize(path) > self.config["log_bytes"]:
            shutil.copyfile(path, path + ".1")
            os.truncate(path, 0)


def main() -> int:
    """Run the supervisor. Return its exit code."""
    with open(sys.argv[1], encoding="utf-8") as source:
        config = shapes.parse_as(source.read(), dict)
    return Supervisor(config).run()
