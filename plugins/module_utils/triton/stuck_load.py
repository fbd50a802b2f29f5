# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Stuck loads: model loads in which server and stub wait for each other. This module finds them in /proc and ends them.

A stub is the process that Triton's python backend starts for an instance of a model. If a starting stub is silent for too long,
the server gives it up and waits for its exit. But the stub waits for the next message of the server. So the load never ends, and a
starting server opens no port.

docs/decisions/0037-a-stuck-load-is-ended.md lists the conditions under which a load counts as stuck. A load that is only slow does
not meet them: its server waits for a message of the stub, and not for the exit of the stub.
"""

from __future__ import annotations

# Programs that are no Ansible modules import this file, too. pylint: disable=ansible-bad-function
import os
import re
import signal
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text
from ansible_collections.npufleet.triton.plugins.module_utils.triton.stubs import NAME, PROC, command_line

# Numbers of the system calls `wait4` and `futex`, by machine architecture
CALL_NUMBERS = {"x86_64": (61, 202), "aarch64": (260, 98)}
# Seconds that a wait has to last by default, seconds between two samples, and smallest number of samples that show the wait
DEFAULT_LIMIT, SAMPLE_PAUSE, MIN_SAMPLES = 15.0, 1.0, 4
# Largest number of times that one change repeats stuck loads
MAX_ROUNDS = 10
# If both threads together use at most this share of a processor, they count as idle. The share is not 0, because a waiting stub
# checks for messages every second.
MAX_IDLE_SHARE = 0.01


class Process(NamedTuple):
    """A process. Its start time `started`, in clock ticks since boot, distinguishes it from a later process with the same ID."""

    pid: int
    started: int


class Wait(NamedTuple):
    """A stub that waits for a message, and the server whose thread waits for the exit of the stub."""

    stub: Process
    server: Process
    # ID of the server's thread
    thread: int
    # Name of the instance, and the path of the Python file that the stub runs
    instance: str
    code: str

    def __str__(self) -> str:
        return f"process {self.stub.pid} of {self.instance}"


class Sample(NamedTuple):
    """The waits at the time `at` (of `time.monotonic`): {wait: clock ticks of processor time that its two threads have used}."""

    at: float
    waits: Dict[Wait, int]


def lasting_waits(samples: Sequence[Sample], limit: float, ticks_per_second: float) -> List[Wait]:
    """Return the waits that were in every sample of the last `limit` seconds, and used no processor time meanwhile."""
    if not samples or limit <= 0:
        return []
    lasting, latest = [], samples[-1]
    for wait, used in latest.waits.items():
        count, lasted = 0, 0.0
        for sample in reversed(samples):
            seconds = latest.at - sample.at
            # A difference of one tick can come from rounding.
            idle = 1 + MAX_IDLE_SHARE * ticks_per_second * seconds
            if wait not in sample.waits or used - sample.waits[wait] > idle:
                break
            count, lasted = count + 1, seconds
        if count >= MIN_SAMPLES and lasted >= limit:
            lasting.append(wait)
    return lasting


class History:
    """The samples of the last `limit` seconds. Only one thread may use an object of this class."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._samples: List[Sample] = []
        self._ticks_per_second = float(os.sysconf("SC_CLK_TCK"))

    def add(self, sample: Sample) -> List[Wait]:
        """Add a sample, and return the waits that have lasted for `limit` seconds."""
        self._samples.append(sample)
        if not sample.waits:
            self._samples.clear()
        while len(self._samples) > MIN_SAMPLES and sample.at - self._samples[1].at >= self.limit:
            del self._samples[0]
        return lasting_waits(self._samples, self.limit, self._ticks_per_second)

    def forget(self) -> None:
        """Remove all samples."""
        self._samples.clear()


def take_sample(root: int) -> Sample:
    """Return the waits of the process `root` and the processes below it. Skip processes that cannot be read."""
    calls = CALL_NUMBERS.get(os.uname().machine)
    waits: Dict[Wait, int] = {}
    now = time.monotonic()
    if calls is None:
        return Sample(now, waits)
    processes = {int(name): found for name, found in ((name, _stat(name)) for name in os.listdir(PROC) if name.isdigit()) if found}
    stubs = {pid: stat for pid, stat in processes.items() if stat.name == NAME}
    for server in {stat.parent for stat in stubs.values()}:
        if server not in processes or not _is_below(server, root, processes):
            continue
        waited = _waited_for(server, calls[0])
        for pid, stat in stubs.items():
            number = _pid_in_container(pid) if waited and stat.parent == server else None
            if number not in waited or not _awaits_message(pid, calls[1]):
                continue
            thread = waited[number]
            arguments = command_line(pid)
            used = [_stat(f"{pid}/task/{pid}"), _stat(f"{server}/task/{thread}")]
            # State S is an ordinary sleep. A process that is stopped or waits for a disk has another state.
            if len(arguments) < 3 or any(entry is None or entry.state != "S" for entry in used):
                continue
            both = Process(pid, stat.started), Process(server, processes[server].started)
            waits[Wait(*both, thread, arguments[-2], arguments[1])] = sum(entry.ticks for entry in used if entry)
    return Sample(now, waits)


def end(wait: Wait, root: int) -> bool:
    """Kill the stub of a wait, if the same wait still exists. Return True if the stub was killed."""
    if wait not in take_sample(root).waits:
        return False
    with suppress(ProcessLookupError):
        os.kill(wait.stub.pid, signal.SIGKILL)
        return True
    return False


class Guard:
    """A thread that ends stuck loads below a process. It runs during a `with` block, in which the caller waits for a load.

    The thread calls `root` to get the ID of the process, or None if the process does not run. It calls `log` before it kills a
    stub. `ended_loads` lists the waits whose stubs were killed.
    """

    def __init__(
        self,
        root: Callable[[], Optional[int]],
        limit: float,
        pause: float = SAMPLE_PAUSE,
        log: Callable[[Wait], None] = lambda wait: None,
    ) -> None:
        self._root, self._pause, self._log = root, pause, log
        self._history = History(limit)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stuck loads", daemon=True)
        self._rounds = 0
        self.ended_loads: List[Wait] = []

    def repeats(self, mark: int) -> bool:
        """Return True if the caller should repeat a failed load. `mark` is the length of `ended_loads` before the load."""
        return len(self.ended_loads) > mark and self._rounds <= MAX_ROUNDS

    def did(self) -> List[str]:
        """Return a message for each stub that was killed."""
        return [f"ended {wait}, whose load was stuck" for wait in self.ended_loads]

    def __enter__(self) -> Guard:
        if self._history.limit > 0:
            self._thread.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._pause):
            root = self._root()
            if root is None:
                self._history.forget()
                continue
            waits = self._history.add(take_sample(root))
            self._rounds += bool(waits)
            for wait in waits:
                # The wait is added before the kill, because the caller calls repeats() as soon as its load fails.
                self.ended_loads.append(wait)
                self._log(wait)
                if not end(wait, root):
                    self.ended_loads.remove(wait)


class _Stat(NamedTuple):
    """The kernel's facts about a process or thread: `ticks` of processor time, and `started` in clock ticks since boot."""

    name: str
    state: str
    parent: int
    ticks: int
    started: int


def _stat(name: str) -> Optional[_Stat]:
    """Return the facts of the process or thread in a directory below /proc, or None if it has ended."""
    # The name of a process can contain spaces and brackets, so the fields are read after its last bracket.
    head, _bracket, tail = (read_text(f"{PROC}/{name}/stat") or "").rpartition(")")
    facts = tail.split()
    try:
        return _Stat(head.partition("(")[2], facts[0], int(facts[1]), int(facts[11]) + int(facts[12]), int(facts[19]))
    except (ValueError, IndexError):
        return None


def _is_below(pid: int, root: int, processes: Dict[int, _Stat]) -> bool:
    """Return True if `root` is the process itself or one of its ancestors."""
    visited = set()
    while pid in processes and pid not in visited:
        if pid == root:
            return True
        visited.add(pid)
        pid = processes[pid].parent
    return False


def _call(name: str) -> Optional[Tuple[int, List[int]]]:
    """Return (number, arguments) of the system call in which a thread sleeps, or None if the thread runs or cannot be read."""
    try:
        number, *arguments = (read_text(f"{PROC}/{name}/syscall") or "").split()
        return int(number), [int(argument, 16) for argument in arguments]
    except ValueError:
        return None


def _waited_for(server: int, wait4: int) -> Dict[Optional[int], int]:
    """Return {process ID in the container: ID of the server's thread that waits for the exit of this process}."""
    threads: Dict[Optional[int], int] = {}
    with suppress(OSError):
        for thread in os.listdir(f"{PROC}/{server}/task"):
            call = _call(f"{server}/task/{thread}")
            if call and call[0] == wait4 and call[1]:
                threads[call[1][0] & 0xFFFFFFFF] = int(thread)
    return threads


def _pid_in_container(pid: int) -> Optional[int]:
    """Return the ID that a process has in its own PID namespace. The server of a stub runs in the same namespace."""
    found = re.search(r"^NSpid:.*\s(\d+)$", read_text(f"{PROC}/{pid}/status") or "", re.MULTILINE)
    return int(found[1]) if found else None


def _awaits_message(pid: int, futex: int) -> bool:
    """Return True if the main thread of a stub sleeps in a futex of the shared memory that its command line names."""
    call, arguments = _call(f"{pid}/task/{pid}"), command_line(pid)
    if call is None or call[0] != futex or not call[1] or len(arguments) < 4:
        return False
    region = "/dev/shm/" + arguments[2].lstrip("/")
    for line in (read_text(f"{PROC}/{pid}/maps") or "").split("\n"):
        entry = line.split(None, 5)
        if len(entry) == 6 and entry[5] in (region, region + " (deleted)"):
            first, last = (int(bound, 16) for bound in entry[0].split("-"))
            if first <= call[1][0] < last:
                return True
    return False
