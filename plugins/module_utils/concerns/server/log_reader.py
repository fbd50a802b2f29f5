# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The log of a server that does not answer: why the server ended, and which models it was loading at that time."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import (
    ending_reason,
    loading,
    log_lines,
    progress,
    reasons,
)


def read_log(engine: Engine, desired: Mapping[str, Any], inspect: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"log": reason why the server does not answer, "cut_off": models that were loading when the server last ended}."""
    name, state = desired["name"], inspect["State"]
    restarted = bool(inspect.get("RestartCount"))
    if state["Status"] != "running":
        return {"log": ending_reason(engine, name), "cut_off": interrupted_loads(engine, desired, state)}
    lines = log_lines(engine, name, _log_start(desired["root"], inspect))
    failed = [reason for reason in reasons(lines, sorted(desired["models"])).values() if reason.startswith("failed to load ")]
    # A restarted server has logged why it ended. A server that still starts has logged its progress.
    reason = ending_reason(engine, name) if restarted else progress(lines, sorted(desired["models"]))
    return {"log": "; ".join(failed) or reason, "cut_off": interrupted_loads(engine, desired, state) if restarted else []}


def _log_start(root: str, inspect: Mapping[str, Any]) -> float:
    """Return the time from which the log is read, in seconds since 1970: the start of the server.

    If the server has restarted and a transaction of the store is open, the log is read from the time of the transaction. The server
    may have logged a failed load before its restart.
    """
    started = epoch(inspect["State"].get("StartedAt") or "")
    transaction = store.read_transaction(root) if inspect.get("RestartCount") else None
    return min(started, store.renewal_time(transaction) or started) if transaction else started


def interrupted_loads(engine: Engine, desired: Mapping[str, Any], state: Mapping[str, Any]) -> List[str]:
    """Return the models that were loading when the server last ended. The log does not tell why these loads did not end."""
    until = epoch(state.get("StartedAt") or "") if state["Status"] == "running" else 0.0
    return sorted(loading(log_lines(engine, desired["name"], until=until)) & set(desired["models"]))


def hanging_loads(root: str, started: str, pid: int = 0) -> List[str]:
    """Return the models whose load hangs according to hung.json. The file does not apply to a server that started later.

    The start of the process is compared by uptime if possible, because the time of day may have been set meanwhile.
    """
    mark = store.read(root, store.HUNG).content
    process = clock.process_started(pid) if mark and "uptime" in mark and pid else None
    if mark and process is not None:
        return sorted(mark["models"]) if mark.get("boot") == clock.boot() and process < mark["uptime"] else []
    return sorted(mark["models"]) if mark and started and epoch(started) < mark["at"] else []


def epoch(stamp: str) -> float:
    """Return the seconds since 1970 for an engine's time, such as 2026-01-02T03:04:05.678901234Z, or 0 for any other text."""
    import calendar

    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", stamp)
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) + float(match[2] or 0) if match else 0
