#!/usr/bin/python3
"""Runs a Triton server where no init system and no engine does, and starts it again when it ends.

npufleet_supervisor.py CONFIG: a JSON file with `command`, `environment`, `log`, `log_bytes`, `stop_timeout` (seconds), `pid` and
`stuck_load_limit` (seconds, see stuck_load.py). It needs Python 3.9, the standard library, and stuck_load.py beside it.
The file `pid` is locked for as long as it runs: the lock says whether it does, and the number in it who that is. SIGTERM ends the
server and then itself. The server does not outlive it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import IO, Any, Dict, List, Optional

from stuck_load import Guard

# Seconds until a server that ended starts again, doubled each time, and after which one that ran counts as well
FIRST, LONGEST, WELL = 1.0, 60.0, 120.0
# Between two looks at the server and the size of its log
LOOK = 0.5
# Longer than a look at the lock takes
MOMENT = 2.0
PR_SET_PDEATHSIG = 1
# Said before the process of a load is ended that is stuck
ENDS = "a load is stuck, ends"


def dies_with_us() -> None:
    """For the server, before it becomes one: a supervisor that is killed leaves none behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def alone(pid: IO[str]) -> bool:
    """Lock this file; False where another supervisor has it. Whoever looks whether one runs has it for a moment."""
    deadline = time.monotonic() + MOMENT
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(pid, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


class Supervisor:
    """One server."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self.config = config
        self.server: Optional[subprocess.Popen[bytes]] = None
        self.told = False

    def run(self) -> int:
        """Until it is told to end."""
        # "a+": the number of one that runs must not be lost
        with open(self.config["pid"], "a+", encoding="ascii") as pid:
            if not alone(pid):
                print(f"npufleet_supervisor: another one holds {self.config['pid']}", file=sys.stderr)
                return 1
            pid.truncate(0)
            pid.write(f"{os.getpid()}\n")
            pid.flush()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._end)
            self._serve()
            pid.truncate(0)
        return 0

    def _end(self, *_arguments: Any) -> None:
        self.told = True

    def _wait(self, seconds: float) -> None:
        """So long, or until it is told to end."""
        deadline = time.monotonic() + seconds
        while not self.told and time.monotonic() < deadline:
            time.sleep(min(LOOK, seconds))

    def _serve(self) -> None:
        pause = FIRST
        while not self.told:
            began = time.monotonic()
            code = self._once()
            if self.told:
                return
            pause = FIRST if time.monotonic() - began >= WELL else pause
            self._say(f"the server ended with {code} and starts again in {pause:.0f} s")
            self._wait(pause)
            pause = min(pause * 2, LONGEST)

    def _once(self) -> int:
        """One life of the server; its exit code."""
        with open(self.config["log"], "ab") as log:
            try:
                self.server = subprocess.Popen(
                    self.config["command"],
                    env=self.config["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=dies_with_us,
                )
            except OSError as error:
                self._say(f"the server cannot be started: {error}")
                return 127
        server = self.server.pid
        # The parent of the server may look at its system calls, where a container lets no other process do that.
        with Guard(lambda: server, self.config.get("stuck_load_limit", 0), tell=lambda wait: self._say(f"{ENDS} {wait}")):
            while self.server.poll() is None and not self.told:
                self._wait(LOOK)
                self._rotate()
        if self.server.poll() is None:
            self.server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(self.config["stop_timeout"])
        # Stubs of the python backend may outlive a server that was killed
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)
        return self.server.wait()

    def _say(self, words: str) -> None:
        with open(self.config["log"], "a", encoding="utf-8") as log:
            log.write(f"npufleet_supervisor: {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}: {words}\n")

    def _rotate(self) -> None:
        """Keep one log of before. The server goes on writing to its own, which it only appends to."""
        path = self.config["log"]
        if os.path.exists(path) and os.path.getsize(path) > self.config["log_bytes"]:
            shutil.copyfile(path, path + ".1")
            os.truncate(path, 0)


def main(words: List[str]) -> int:
    """Entry point."""
    with open(words[0], encoding="utf-8") as source:
        config = json.load(source)
    return Supervisor(config).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
