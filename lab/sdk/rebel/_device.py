"""The emulated NPU: a command queue, its memory, its faults and its ledger, shared by all processes that use the card.

A run reserves the next free interval of the NPU and may wait for its end while the run after it is already reserved: the
NPU goes from one to the next without a gap, and its intervals never overlap. What is shared is one small file for each NPU
in /dev/shm, changed under a record lock. The kernel takes that lock back from a process that is killed, and what is written
under it is one whole word at a time, so nobody finds the file wedged or half written.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Iterable, Optional, Sequence

from rebel.core.exception import RBLNRuntimeError

SHM = Path("/dev/shm")
DEFAULT_MEMORY = 16 << 30
RUN_FAULTS = ("501", "503", "hang", "hang_forever")
FAULTS = ("no_memory", *RUN_FAULTS)

# Layout of the shared file, signed 64 bit each: end of the last reserved interval (CLOCK_MONOTONIC, ns), which fault file is
# counted, how often each of its faults was met, and (pid, start time, bytes) of the processes that hold device memory.
FREE_AT, COUNTED = 0, 8
MOST_FAULTS, MOST_PROCESSES = 64, 512
MET = 16
HOLDERS = MET + 8 * MOST_FAULTS
SIZE = HOLDERS + 24 * MOST_PROCESSES
WORD, HOLDER = struct.Struct("q"), struct.Struct("qqq")

# The last part of a wait, in ns: a sleep ends this much early, as waking up takes about as long.
EARLY = 30_000
# Seconds between two reads of the fault file by a run that hangs.
LOOK = 0.01
PR_SET_TIMERSLACK = 29

# Never closed while the process lives: to close one descriptor gives up the record locks of all.
_npus: dict[tuple[int, str], Npu] = {}
_opening = threading.Lock()
_thread = threading.local()


def npu_at(node: Path) -> Npu:
    """Return the NPU of a device node, one object for each process."""
    with _opening:
        key = (os.getpid(), str(node))
        found = _npus.get(key)
        if found is None:
            found = _npus[key] = Npu(node)
        return found


def state_path(node: Path) -> Path:
    """Return the shared file of an NPU; nodes outside of /dev are other NPUs."""
    root = "" if node.parent == Path("/dev") else f"{zlib.crc32(os.fsencode(node.parent.resolve())):08x}-"
    return SHM / f"npufleet-lab-{root}{node.name}.npu"


class Npu:
    """One NPU as this process sees it."""

    def __init__(self, node: Path) -> None:
        self.node = node
        self.number = int(node.name[4:])
        self._mine = threading.Lock()
        self._file = open(state_path(node), "a+b")  # noqa: SIM115  open for as long as the process uses the NPU
        if os.fstat(self._file.fileno()).st_size < SIZE:
            self._file.truncate(SIZE)
        self._map = mmap.mmap(self._file.fileno(), SIZE)

    def lock(self) -> None:
        """Alone among the threads of this process, then among processes: a record lock does not tell threads apart."""
        self._mine.acquire()
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._mine.release()

    @property
    def free_at(self) -> int:
        """End of the last reserved interval, CLOCK_MONOTONIC in ns."""
        return WORD.unpack_from(self._map, FREE_AT)[0]

    @free_at.setter
    def free_at(self, end: int) -> None:
        WORD.pack_into(self._map, FREE_AT, end)

    def allocate(self, count: int, total: int) -> None:
        """Take `count` bytes of the `total` that the NPU has, for this process. Memory of processes that died is free."""
        process = (os.getpid(), started(os.getpid()))
        self.lock()
        try:
            used, mine, empty = 0, None, None
            for place in range(HOLDERS, SIZE, HOLDER.size):
                pid, start, held = HOLDER.unpack_from(self._map, place)
                if held and (pid, start) == process:
                    mine = (place, held)
                elif held and started(pid) != start:
                    WORD.pack_into(self._map, place + 16, held := 0)
                if not held and empty is None:
                    empty = place
                used += held
            if used + count > total:
                raise RBLNRuntimeError(f"Lack of device memory: NPU {self.number} has {total - used} bytes free, expected {count}.")
            if mine is None and empty is None:
                raise RBLNRuntimeError(f"NPU {self.number} is in use by {MOST_PROCESSES} processes, it takes no more.")
            if mine is not None:
                WORD.pack_into(self._map, mine[0] + 16, mine[1] + count)
            elif empty is not None:
                HOLDER.pack_into(self._map, empty, *process, count)
        finally:
            self.unlock()

    def release(self, count: int) -> None:
        """Give back `count` bytes of this process."""
        process = (os.getpid(), started(os.getpid()))
        self.lock()
        try:
            for place in range(HOLDERS, SIZE, HOLDER.size):
                pid, start, held = HOLDER.unpack_from(self._map, place)
                if held and (pid, start) == process:
                    WORD.pack_into(self._map, place + 16, max(0, held - count))
        finally:
            self.unlock()

    def meet(self, file: int, index: int, times: Optional[int]) -> bool:
        """Return True if fault `index` of the fault file `file` applies to this run, and count it."""
        if times is None:
            return True
        self.lock()
        try:
            if WORD.unpack_from(self._map, COUNTED)[0] != file:
                self._map[MET:HOLDERS] = bytes(HOLDERS - MET)
                WORD.pack_into(self._map, COUNTED, file)
            place = MET + WORD.size * index
            met = WORD.unpack_from(self._map, place)[0]
            if met < times:
                WORD.pack_into(self._map, place, met + 1)
            return met < times
        finally:
            self.unlock()


def reserve(npus: Sequence[Npu], duration: int) -> tuple[int, int]:
    """Reserve the next interval of `duration` ns in which all of these NPUs are free, and return (begin, end)."""
    for npu in npus:
        npu.lock()
    try:
        begin = max(time.monotonic_ns(), *[npu.free_at for npu in npus])
        end = begin + duration
        for npu in npus:
            npu.free_at = end
    finally:
        for npu in npus:
            npu.unlock()
    return begin, end


def wait_until(end: int) -> None:
    """Return at `end` (CLOCK_MONOTONIC, ns), a few microseconds after it and never before."""
    if not hasattr(_thread, "precise"):
        # The kernel gathers wake-ups within 50 us unless a thread asks for 1 ns.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        _thread.precise = True
    while (left := end - time.monotonic_ns()) > 0:
        if left > EARLY:
            time.sleep((left - EARLY) / 1e9)


def started(pid: int) -> Optional[int]:
    """When a process was started, in ticks since boot; None when there is none of this number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            return int(source.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


class FaultFile:
    """Faults on demand: a JSON list of {"npu", "kind", "times"}, read again when the file changes.

    `times` is how often a fault applies, over all processes together. Without it the fault applies while it is in the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Optional[tuple[int, ...]] = None
        self._key = 0
        self._faults: list[dict[str, Any]] = []

    def next(self, npus: Iterable[Npu], kinds: Sequence[str]) -> Optional[str]:
        """Kind of the first fault of these kinds that one of the NPUs has now; it counts as met."""
        self._read()
        for npu in npus:
            for index, fault in enumerate(self._faults):
                hit = fault.get("npu") == npu.number and fault["kind"] in kinds
                if hit and npu.meet(self._key, index, fault.get("times")):
                    return fault["kind"]
        return None

    def stands(self, npus: Iterable[Npu], kind: str) -> bool:
        """Return True if the file still has a fault of this kind for one of the NPUs."""
        self._read()
        numbers = {npu.number for npu in npus}
        return any(fault["kind"] == kind and fault.get("npu") in numbers for fault in self._faults)

    def _read(self) -> None:
        try:
            state = os.stat(self._path)
            seen = (state.st_ino, state.st_mtime_ns, state.st_size)
            if seen == self._seen:
                return
            with open(self._path) as source:
                faults = json.load(source)
        except FileNotFoundError:
            self._seen, self._faults = None, []
            return
        except ValueError:
            return  # The file is half written; the previous faults stay valid.
        wrong = [fault for fault in faults if not isinstance(fault, dict) or fault.get("kind") not in FAULTS]
        if wrong or len(faults) > MOST_FAULTS:
            raise RBLNRuntimeError(
                f"RBLN_LAB_FAULTS: {wrong or len(faults)}, expected at most {MOST_FAULTS} of {', '.join(FAULTS)}."
            )
        self._seen, self._faults = seen, faults
        self._key = zlib.crc32(repr(seen).encode())


class Ledger:
    """The ledger of the NPUs: one file of JSON lines for each process, one line for each interval of each NPU.

    A line is {"npu", "begin", "end", "rows", "pid"}, times in seconds of CLOCK_MONOTONIC with nine decimals: intervals that
    touch have the same number, and a length is true to a few ns after parsing.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._pid = 0
        self._file = -1

    def write(self, npus: Iterable[Npu], begin: int, end: int, rows: int) -> None:
        """Append an interval in ns, in one write."""
        pid = os.getpid()
        if pid != self._pid:
            self._directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file, self._pid = os.open(self._directory / f"{pid}.jsonl", flags, 0o644), pid
        span = f'"begin": {seconds(begin)}, "end": {seconds(end)}, "rows": {rows}, "pid": {pid}}}\n'
        os.write(self._file, "".join([f'{{"npu": {npu.number}, {span}' for npu in npus]).encode())

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def seconds(count: int) -> str:
    """Return nanoseconds as exact decimal seconds."""
    return f"{count // 1_000_000_000}.{count % 1_000_000_000:09d}"


def never_return() -> None:
    """Block in a native call that holds the lock of the interpreter, so that only a kill ends the process."""
    native = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(256)  # zeros are an unlocked mutex
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)
