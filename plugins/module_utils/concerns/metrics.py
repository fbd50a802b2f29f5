# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `metrics`: node exporter, and the timer, program and configuration that write metrics for it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import installed_packages, read_text

CONCERN = "metrics"
TIMER = "npufleet-metrics.timer"
SERVICE_FILE = "/etc/systemd/system/npufleet-metrics.service"
TIMER_FILE = "/etc/systemd/system/" + TIMER
CONFIG = "/etc/npufleet/metrics.json"


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the installed packages of node exporter, the files of the program and the digest of its code."""
    return {
        "exporter": sorted(installed_packages(desired["exporter"])),
        "service": read_text(SERVICE_FILE),
        "timer": read_text(TIMER_FILE),
        "config": read_text(CONFIG),
        "program": (shapes.read(library.programs(), {"metrics": str}).content or {}).get("metrics"),
    }


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the missing packages of node exporter, and at most one difference of the program."""
    missing = sorted(set(desired["exporter"]) - set(actual["exporter"]))
    plan = [item(CONCERN, "node exporter", "without " + ", ".join(missing), "installed", "packages")] if missing else []
    return plan + _program(desired, actual)


def _program(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return at most one difference of the program, because the role installs all its parts together."""
    names = {"service": "unit file", "timer": "timer file", "config": "configuration", "program": "program"}
    files = desired["files"]
    if files is None:
        installed = [words for name, words in names.items() if name != "program" and actual[name] is not None]
        return [item(CONCERN, TIMER, "installed: " + ", ".join(installed), None, "remove")] if installed else []
    found = [
        f"{'no' if actual[name] is None else 'another'} {words}" for name, words in names.items() if actual[name] != files[name]
    ]
    if not found:
        found = [] if actual["enabled"] else ["disabled"]
        found += [] if actual["active"] == "active" else [actual["active"]]
    return [item(CONCERN, TIMER, ", ".join(found), "enabled and active, as in the inventory", "install")] if found else []
