# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The clock of a host that does not step: seconds since its boot. The time of day is for people, logs and other machines only.

A moment is kept in a file as a mark, {"boot", "uptime"}: after a reboot it is no longer valid.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Mapping, Optional

# Fields of a mark
BOOT, UPTIME = "boot", "uptime"
# Index of `starttime` among the fields of /proc/PID/stat after the name of the process (proc(5))
STARTED = 19


def boot() -> str:
    """Return the ID of this boot, of the kernel and of the first process, whose start identifies it in a container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            kernel = source.read().strip()
    except OSError:
        kernel = ""
    return f"{kernel}/{_started(1)}"


def uptime() -> float:
    """Return the seconds since boot, those of a suspended host included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def mark() -> Dict[str, Any]:
    """Return the mark of this moment."""
    return {BOOT: boot(), UPTIME: uptime()}


def since(moment: Mapping[str, Any]) -> Optional[float]:
    """Return the seconds since a mark; None if it is of another boot, of the future, or no mark."""
    at = moment.get(UPTIME)
    if type(at) not in (int, float) or moment.get(BOOT) != boot():
        return None
    seconds = uptime() - float(at)  # type: ignore[arg-type]
    return seconds if seconds >= 0 else None


def age(moment: Mapping[str, Any], at: float) -> float:
    """Return the seconds since a mark that also has the time of day `at`, which counts after a reboot, or without a mark.

    What happened in an earlier boot is at least as old as this one, whatever the time of day says.
    """
    seconds = since(moment)
    if seconds is not None:
        return seconds
    return max(time.time() - at, uptime() if moment.get(BOOT) else 0.0)


def process_started(pid: int) -> Optional[float]:
    """Return the uptime at which a process started, None if it is gone."""
    found = _started(pid)
    return int(found) / os.sysconf("SC_CLK_TCK") if found else None


def _started(pid: int) -> str:
    """Return the start of a process in ticks since boot, empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as source:
            fields = source.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[STARTED] if len(fields) > STARTED and fields[STARTED].isdigit() else ""
