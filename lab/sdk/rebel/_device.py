"""The emulated NPU: a command queue, its memory, its faults and its ledger, shared by all processes that use the card.

A run reserves the next free interval of the NPU, and waits for its end. Meanwhile the next run can already reserve an interval. So
the intervals of an NPU have no gaps and never overlap. The processes share one small file for each NPU in /dev/shm, and change it
under a record lock. The kernel releases the lock of a killed process. Each write is one whole word, so the file is never
half-written.
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
DEFAULT_MEMORY = 16 << 30  # Bytes of each NPU
RUN_FAULTS = ("501", "503", "hang", "hang_forever")
FAULTS = ("no_memory", *RUN_FAULTS)

# Layout of the shared file, in signed 64-bit words: end of the last reserved interval (CLOCK_MONOTONIC, ns), checksum of the fault
# file, number of times that each of its faults applied, and (pid, start time, bytes) of each process that has device memory.
FREE_AT, FAULT_FILE = 0, 8
MOST_FAULTS, MOST_PROCESSES = 64, 512
FAULT_COUNTS = 16
MEMORY_USERS = FAULT_COUNTS + 8 * MOST_FAULTS
SIZE = MEMORY_USERS + 24 * MOST_PROCESSES
WORD, MEMORY_USER = struct.Struct("q"), struct.Struct("qqq")

# Nanoseconds by which a sleep ends early, because waking up takes about as long. The rest is a busy wait.
WAKE_UP_NS = 30_000
# Seconds between two reads of the fault file by a hanging run
FAULT_POLL_SECONDS = 0.01
PR_SET_TIMERSLACK = 29

# An Npu stays open until the process ends, because closing any descriptor of a file releases all record locks of the process on it.
_npus: dict[tuple[int, str], Npu] = {}
_opening = threading.Lock()
_thread = threading.local()


def npu_at(node: Path) -> Npu:
    """Return the NPU of a device node. A process has one object for each node."""
    with _opening:
        key = (os.getpid(), str(node))
        found = _npus.get(key)
        if found is None:
            found = _npus[key] = Npu(node)
        return found


def state_path(node: Path) -> Path:
    """Return the path of the shared file of an NPU. Nodes in different directories are different NPUs."""
    root = "" if node.parent == Path("/dev") else f"{zlib.crc32(os.fsencode(node.parent.resolve())):08x}-"
    return SHM / f"npufleet-lab-{root}{node.name}.npu"


class Npu:
    """An NPU, as one process uses it."""

    def __init__(self, node: Path) -> None:
        self.node = node
        self.number = int(node.name[4:])
        self._threads = threading.Lock()
        self._file = open(state_path(node), "a+b")  # noqa: SIM115  The file stays open.
        if os.fstat(self._file.fileno()).st_size < SIZE:
            self._file.truncate(SIZE)
        self._map = mmap.mmap(self._file.fileno(), SIZE)

    def lock(self) -> None:
        """Lock the NPU first against other threads, then against other processes. Record locks do not separate threads."""
        self._threads.acquire()
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._threads.release()

    @property
    def free_at(self) -> int:
        """End of the last reserved interval, CLOCK_MONOTONIC in ns."""
        return WORD.unpack_from(self._map, FREE_AT)[0]

    @free_at.setter
    def free_at(self, end: int) -> None:
        WORD.pack_into(self._map, FREE_AT, end)

    def allocate(self, count: int, total: int) -> None:
        """Allocate `count` bytes of the NPU's `total` bytes to this process. The memory of ended processes counts as free."""
        process = (os.getpid(), started(os.getpid()))
        self.lock()
        try:
            used, own, empty = 0, None, None
            for offset in range(MEMORY_USERS, SIZE, MEMORY_USER.size):
                pid, start, held = MEMORY_USER.unpack_from(self._map, offset)
                if held and (pid, start) == process:
                    own = (offset, held)
                elif held and started(pid) != start:
                    WORD.pack_into(self._map, offset + 16, held := 0)
                if not held and empty is None:
                    empty = offset
                used += held
            if used + count > total:
                raise RBLNRuntimeError(f"Lack of device memory: NPU {self.number} has {total - used} bytes free, expected {count}.")
            if own is None and empty is None:
                raise RBLNRuntimeError(f"NPU {self.number} is in use by {MOST_PROCESSES} processes, it takes no more.")
            if own is not None:
                WORD.pack_into(self._map, own[0] + 16, own[1] + count)
            elif empty is not None:
                MEMORY_USER.pack_into(self._map, empty, *process, count)
        finally:
            self.unlock()

    def release(self, count: int) -> None:
        """Release `count` bytes of this process."""
        process = (os.getpid(), started(os.getpid()))
        self.lock()
        try:
            for offset in range(MEMORY_USERS, SIZE, MEMORY_USER.size):
                pid, start, held = MEMORY_USER.unpack_from(self._map, offset)
                if held and (pid, start) == process:
                    WORD.pack_into(self._map, offset + 16, max(0, held - count))
        finally:
            self.unlock()

    def count_fault(self, file: int, index: int, times: Optional[int]) -> bool:
        """Return True if fault `index` of the fault file with checksum `file` applies to this run, and count it."""
        if times is None:
            return True
        self.lock()
        try:
            if WORD.unpack_from(self._map, FAULT_FILE)[0] != file:
                self._map[FAULT_COUNTS:MEMORY_USERS] = bytes(MEMORY_USERS - FAULT_COUNTS)
                WORD.pack_into(self._map, FAULT_FILE, file)
            offset = FAULT_COUNTS + WORD.size * index
            count = WORD.unpack_from(self._map, offset)[0]
            if count < times:
                WORD.pack_into(self._map, offset, count + 1)
            return count < times
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
    """Wait until `end` (CLOCK_MONOTONIC, ns). Return a few microseconds later, never earlier."""
    if not hasattr(_thread, "precise"):
        # By default the kernel may delay wake-ups by 50 us to group them. This thread allows 1 ns.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        _thread.precise = True
    while (left := end - time.monotonic_ns()) > 0:
        if left > WAKE_UP_NS:
            time.sleep((left - WAKE_UP_NS) / 1e9)


def started(pid: int) -> Optional[int]:
    """Return the start time of a process in clock ticks since boot, or None if there is no process with this ID."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            return int(source.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


class FaultFile:
    """A file of faults: a JSON list of {"npu", "kind", "times"}, which is read again when the file changes.

    `times` is how often a fault applies, in all processes together. Without it, the fault applies until it is removed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Optional[tuple[int, ...]] = None
        self._key = 0
        self._faults: list[dict[str, Any]] = []

    def next(self, npus: Iterable[Npu], kinds: Sequence[str]) -> Optional[str]:
        """Return the kind of the first fault in `kinds` that now applies to one of the NPUs, and count it. None without a fault."""
        self._read()
        for npu in npus:
            for index, fault in enumerate(self._faults):
                hit = fault.get("npu") == npu.number and fault["kind"] in kinds
                if hit and npu.count_fault(self._key, index, fault.get("times")):
                    return fault["kind"]
        return None

    def applies(self, npus: Iterable[Npu], kind: str) -> bool:
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
            return  # The file is half-written, so the previous faults stay valid.
        wrong = [fault for fault in faults if not isinstance(fault, dict) or fault.get("kind") not in FAULTS]
        if wrong or len(faults) > MOST_FAULTS:
            raise RBLNRuntimeError(
                f"RBLN_LAB_FAULTS: {wrong or len(faults)}, expected at most {MOST_FAULTS} of {', '.join(FAULTS)}."
            )
        self._seen, self._faults = seen, faults
        self._key = zlib.crc32(repr(seen).encode())


class Ledger:
    """The ledger of the NPUs: a file of JSON lines for each process, with one line for each interval of each NPU.

    A line is {"npu", "begin", "end", "rows", "pid"}. Times are seconds of CLOCK_MONOTONIC with nine decimals, so that adjacent
    intervals share the same number, and lengths are exact to a few ns after parsing.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._pid = 0
        self._file = -1

    def write(self, npus: Iterable[Npu], begin: int, end: int, rows: int) -> None:
        """Append an interval from `begin` to `end` (ns) for each NPU, in one write."""
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
    """Return `count` nanoseconds as text in exact decimal seconds."""
    return f"{count // 1_000_000_000}.{count % 1_000_000_000:09d}"


def never_return() -> None:
    """Block in a native call that keeps the interpreter lock, so that only a kill ends the process."""
    native = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(256)  # Zero bytes are an unlocked mutex.
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)
