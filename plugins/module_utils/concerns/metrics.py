# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `metrics`: node exporter, and the timer, program and configuration that write metrics for it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns import program
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
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
        "program": program.installed_digest("metrics"),
    }


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the missing packages of node exporter, and at most one difference of the program."""
    missing = sorted(set(desired["exporter"]) - set(actual["exporter"]))
    plan = [item(CONCERN, "node exporter", "without " + ", ".join(missing), "installed", "packages")] if missing else []
    if desired["files"] is None:
        return plan + program.to_remove(CONCERN, TIMER, program.TIMER_PARTS, actual, "remove")
    flaws = program.flaws(program.TIMER_PARTS, desired["files"], actual)
    return plan + program.to_install(CONCERN, TIMER, flaws, "install")
