"""Measurements of this machine: memory and processor time of a container, and the cores that all other processes use."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, Optional, Tuple

# The columns user, nice, system, irq, softirq and steal of /proc/stat
BUSY = (0, 1, 2, 5, 6, 7)
CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


class Others:
    """The cores that processes outside of one container use, from the creation of this object until the call of `cores`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.began = self._now()

    def cores(self) -> Optional[float]:
        """Return the average number of cores, or None if the container's own share cannot be read."""
        seconds, busy, own = (now - began for now, began in zip(self._now(), self.began))
        return None if self.began[2] < 0 else max(0.0, (busy - own) / seconds)

    def _now(self) -> Tuple[float, float, float]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        own = container_seconds(self.pid)
        return time.monotonic(), sum(ticks[entry] for entry in BUSY) / os.sysconf("SC_CLK_TCK"), -1.0 if own is None else own


def container_seconds(pid: int) -> Optional[float]:
    """Return the CPU seconds of the control group (version 1 or 2) of a process, or None if they cannot be read."""
    for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        with suppress(OSError, StopIteration):
            if controllers == "cpuacct" or controllers.endswith(",cpuacct"):
                return int((CGROUPS / controllers / path.lstrip("/") / "cpuacct.usage").read_text()) / 1e9
            if not controllers:
                lines = (CGROUPS / path.lstrip("/") / "cpu.stat").read_text().splitlines()
                return next(int(entry.split()[1]) for entry in lines if entry.startswith("usage_usec")) / 1e6
    return None


def memory(pid: int) -> Tuple[float, float]:
    """Return (MiB of a container's first process and its descendants, MiB used in the container's /dev/shm).

    The first number is the proportional set size without shared memory. Shared memory is in the second number.
    """
    kib = 0
    for descendant in descendants(pid):
        with suppress(OSError):  # The process has ended meanwhile.
            rollup = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{descendant}/smaps_rollup").read_text(), re.MULTILINE))
            if rollup:  # A process that is ending has an empty file.
                kib += int(rollup["Pss"]) - int(rollup["Pss_Shmem"])
    shm = os.statvfs(f"/proc/{pid}/root/dev/shm")
    return kib / 1024, (shm.f_blocks - shm.f_bfree) * shm.f_frsize / 2**20


def descendants(pid: int) -> Dict[int, int]:
    """Return {process: its parent} of a process and its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parts[2])] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    tree = {pid: parents.get(pid, 0)}
    while more := {child: parent for child, parent in parents.items() if parent in tree and child not in tree}:
        tree.update(more)
    return tree
