# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `watchdog`: the installed unit, program and configuration, and the versions that the running process uses."""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import program
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, short
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

CONCERN = "watchdog"
UNIT = "npufleet-watchdog.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
CONFIG = "/etc/npufleet/watchdog.json"
PARTS = {"unit": "unit file", "config": "configuration", "program": "program"}
# The fields that are read from the state file of the watchdog
STATE = {"running?": ({"program?": str, "config?": str}, shapes.NULL), "gave_up?": shapes.TEXT_OR_NULL}


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the files of the watchdog, and the state that the running process has written."""
    state = shapes.read(desired["root"] + "/watchdog.json", STATE).content
    return {
        "unit": read_text(UNIT_FILE),
        "config": read_text(CONFIG),
        "program": program.installed_digest("watchdog"),
        "state": state or {},
    }


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return at most one difference."""
    files = desired["files"]
    if files is None:
        return program.to_remove(CONCERN, UNIT, PARTS, actual, "unwatch")
    flaws = program.flaws(PARTS, files, actual)
    if not flaws:
        # The process reads its files only when it starts, so it may run with older files.
        running = actual["state"].get("running") or {}
        config = hashlib.sha256(files["config"].encode()).hexdigest()
        if (running.get("program"), running.get("config")) != (files["program"], config):
            flaws.append("running with older files")
    return program.to_install(CONCERN, UNIT, flaws, "watch")


def warning(actual: Mapping[str, Any]) -> Optional[str]:
    """Return a warning if the watchdog gave up and the server needs an operator, or None."""
    reason = (actual.get("state") or {}).get("gave_up")
    return f"the watchdog gave up: {short(reason)}" if reason and actual.get("active") == "active" else None
