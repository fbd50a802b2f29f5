# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The clock for durations: the seconds since boot. Unlike the time of day, nobody can set this clock.

The time of day is only for people, logs and other machines. Files store a moment as a mark: {"boot": ID of the boot,
"uptime": seconds}. A mark is valid until the next reboot.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

# Index of `starttime` among the fields of /proc/PID/stat after the name of the process (proc(5))
STARTTIME_INDEX = 19


def boot() -> str:
    """Return an ID of this boot: the boot ID of the kernel, and the start time of process 1, which differs between containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            kernel = source.read().strip()
    except OSError:
        kernel = ""
    return f"{kernel}/{start_ticks(1)}"


def uptime() -> float:
    """Return the seconds since boot, including the time in which the host was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def mark() -> Dict[str, Any]:
    """Return the mark of this moment."""
    return {"boot": boot(), "uptime": uptime()}


def since(moment: Mapping[str, Any]) -> Optional[float]:
    """Return the seconds since a mark, or None if the mark is invalid, from another boot, or in the future."""
    at = moment.get("uptime")
    if type(at) not in (int, float) or moment.get("boot") != boot():
        return None
    seconds = uptime() - float(at)  # type: ignore[arg-type]
    return seconds if seconds >= 0 else None


def age(moment: Mapping[str, Any], at: float) -> float:
    """Return the seconds since a mark. If the mark is no longer valid, use `at`, the time of day of the mark (seconds since 1970).

    A mark of an earlier boot was made before this boot. So its age is at least the uptime, even if the time of day was changed.
    """
    seconds = since(moment)
    if seconds is not None:
        return seconds
    return max(time.time() - at, uptime() if moment.get("boot") else 0.0)


def process_started(pid: int) -> Optional[float]:
    """Return the uptime in seconds at which a process started, or None if the process is gone."""
    found = start_ticks(pid)
    return int(found) / os.sysconf("SC_CLK_TCK") if found else None


def start_ticks(pid: int) -> str:
    """Return the start of a process in ticks since boot, as text, or an empty string if the process is gone."""
    fields: List[str] = []
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as source:
        fields = source.read().rpartition(")")[2].split()
    return fields[STARTTIME_INDEX] if len(fields) > STARTTIME_INDEX and fields[STARTTIME_INDEX].isdigit() else ""
