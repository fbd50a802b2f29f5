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
from ansible_collections.npufleet.triton.plugins.module_utils.triton import log


def read_log(engine: Engine, desired: Mapping[str, Any], inspect: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"log": reason why the server does not answer, "cut_off": models that were loading when the server last ended}."""
    name, state = desired["name"], inspect["State"]
    running, restarted = state["Status"] == "running", bool(inspect.get("RestartCount"))
    since, cut_off = epoch(state.get("StartedAt") or ""), []
    if restarted or not running:
        until = since if running else 0.0
        cut_off = sorted(log.loading(log.log_lines(engine, name, until=until)) & set(desired["models"]))
    if not running:
        return {"log": log.ending_reason(engine, name), "cut_off": cut_off}
    # During a transaction, a server may have logged a failed load before it restarted.
    transaction = store.read_transaction(desired["root"]) if restarted else None
    if transaction:
        since = min(since, store.renewal_time(transaction) or since)
    lines = log.log_lines(engine, name, since)
    failed = [reason for reason in log.reasons(lines, sorted(desired["models"])).values() if reason.startswith("failed to load ")]
    # A restarted server has logged why it ended. A server that still starts has logged its progress.
    reason = log.ending_reason(engine, name) if restarted else log.progress(lines, sorted(desired["models"]))
    return {"log": "; ".join(failed) or reason, "cut_off": cut_off}


def hanging_loads(root: str, started: str, pid: int = 0) -> List[str]:
    """Return the models whose load hangs according to hung.json. The file does not apply to a server that started later.

    The start of the process is compared by uptime if possible, because the time of day may have been set meanwhile.
    """
    mark = store.read(root, store.HUNG).content
    if not mark:
        return []
    process = clock.process_started(pid) if "uptime" in mark and pid else None
    if process is None:
        applies = started and epoch(started) < mark["at"]
    else:
        applies = mark.get("boot") == clock.boot() and process < mark["uptime"]
    return sorted(mark["models"]) if applies else []


def epoch(stamp: str) -> float:
    """Return the seconds since 1970 for an engine's time, such as 2026-01-02T03:04:05.678901234Z, or 0 for any other text."""
    import calendar

    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", stamp)
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) + float(match[2] or 0) if match else 0
