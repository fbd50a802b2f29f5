# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `probe`: timer, program, configuration and checks of the probe, and its last result."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import program
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, short
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text, run

CONCERN = "probe"
TIMER = "npufleet-probe.timer"
SERVICE = "npufleet-probe.service"
SERVICE_FILE = "/etc/systemd/system/npufleet-probe.service"
TIMER_FILE = "/etc/systemd/system/" + TIMER
CONFIG = "/etc/npufleet/probe.json"
# The file of the checks. Only root may read it, because it has golden data and perhaps the key of a restricted API.
CHECKS_FILE = "/etc/npufleet/probe_checks.json"
PARTS = {**program.TIMER_PARTS, "checks": "set of checks"}
# Number of intervals without a run after which a warning is shown
LATE_INTERVALS = 5
# A warning shows at most MAX_CHECKS failed checks, with MAX_CHARACTERS characters each. The journal has all checks.
MAX_CHECKS, MAX_CHARACTERS = 3, 120


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the files of the probe, and its last result."""
    return {
        "service": read_text(SERVICE_FILE),
        "timer": read_text(TIMER_FILE),
        "config": read_text(CONFIG),
        "program": program.installed_digest("probe"),
        "checks": _checks(CHECKS_FILE),
        "state": _state(desired["root"] + "/probe.json"),
    }


def _checks(path: str) -> Optional[str]:
    """Return the digest in the first line of the file, which identifies the checks, or None if the file cannot be read.

    Return an empty string if the content was changed, or if other users can access the file.
    """
    try:
        with open(path, "rb") as source:
            head = shapes.parse(source.readline())
            unchanged = head["document"] == hashlib.sha256(source.read()).hexdigest()
            return head["checks"] if unchanged and os.fstat(source.fileno()).st_mode & 0o077 == 0 else ""
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        return ""


def _state(path: str) -> Dict[str, Any]:
    """Return the last result, with the messages of the failed checks in "failed", or an empty dict without a result."""
    try:
        state = shapes.parse(read_text(path) or "{}")
        names = ("when", "at", "boot", "uptime", "interval", "paused", "unavailable", "document")
        result = {key: state[key] for key in names if key in state}
        result.update({key: float(result[key]) for key in ("at", "uptime", "interval") if key in result})
        result.update({"age": clock.age(result, result["at"])} if "at" in result else {})
        checks = state.get("checks", [])
        failed = [f"{check['name']}: {check['why']}" for check in checks if not check["ok"]]
        return {**result, "count": len(checks), "failed": failed} if result else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def renew() -> Optional[str]:
    """Repeat the probe if its last result is a failure. Return the reason why the repeated probe has no result, or None."""
    began = {**clock.mark(), "at": time.time()}
    try:
        path = shapes.parse(read_text(CONFIG) or "")["root"] + "/probe.json"
    except (ValueError, KeyError, TypeError):
        return None
    last = _state(path)
    if not last or not (last["failed"] or last.get("unavailable")):
        return None
    # If the probe is already running, the first start only waits for its end, and the second start runs the probe again.
    for _attempt in range(2):
        code, output = run("systemctl", "start", SERVICE)
        if code:
            return f"the probe cannot be repeated: {short(output, MAX_CHARACTERS)}"
        if _is_after(_state(path), began):
            return None
    return "the repeated probe has no result. See journalctl --unit npufleet-probe"


def _is_after(state: Mapping[str, Any], began: Mapping[str, Any]) -> bool:
    """Return True if the probe with this result started after `began`. Results of older versions only have the time of day."""
    if "uptime" in state:
        return state.get("boot") == began.get("boot") and bool(state["uptime"] >= began["uptime"])
    return bool(state.get("at", 0) >= began["at"])


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return at most one difference."""
    if desired["files"] is None:
        return program.to_remove(CONCERN, TIMER, PARTS, actual, "unprobe")
    flaws = program.flaws(PARTS, {**desired["files"], "checks": desired["checks"]}, actual)
    return program.to_install(CONCERN, TIMER, flaws, "probe")


def warning(actual: Mapping[str, Any]) -> Optional[str]:
    """Return a warning if checks failed or the probe has no current result, or None."""
    state = actual.get("state") or {}
    if actual.get("active") != "active" or not state or state.get("paused"):
        return None
    when = state.get("when", "")
    if state.get("age", float("inf")) > LATE_INTERVALS * state.get("interval", 0):
        return f"the probe has not run since {when}: see journalctl --unit npufleet-probe"
    if state.get("unavailable"):
        return "the probe cannot run its checks, {}: {}".format(when, short(state["unavailable"].get("why"), 2 * MAX_CHARACTERS))
    # A result of checks that are no longer installed does not count.
    if state["failed"] and state.get("document") == actual.get("checks"):
        shown = "; ".join(short(check, MAX_CHARACTERS) for check in state["failed"][:MAX_CHECKS])
        more = len(state["failed"]) - MAX_CHECKS
        rest = f"; and {more} more, see journalctl --unit npufleet-probe" if more > 0 else ""
        return "{} of {} checks of the probe failed, {}: {}{}".format(len(state["failed"]), state["count"], when, shown, rest)
    return None
