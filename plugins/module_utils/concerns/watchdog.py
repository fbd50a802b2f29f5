"""The watchdog beside the server: its unit, program and configuration, and that what runs has them."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.container import address, by_grpc
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.contract import NOTHING, NPU_HOSTS, Given
from ansible_collections.npufleet.triton.plugins.module_utils.driver.vendor_tool import TOOLS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item, short
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, keys

CONCERN = "watchdog"
GROUP = NPU_HOSTS
UNIT = "npufleet-watchdog.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
PROGRAM = "/usr/local/lib/npufleet/npufleet_watchdog.py"
# What it imports
BESIDE = "/usr/local/lib/npufleet/stuck_load.py"
CONFIG = "/etc/npufleet/watchdog.json"
# Where the collection has both; on a host this is never opened.
SOURCES = [
    os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../..", "roles/triton_server/files", os.path.basename(path))
    for path in (PROGRAM, BESIDE)
]
# What is read of what the program says of itself
STATE = {"running?": ({"program?": str, "config?": str}, shapes.NULL), "gave_up?": shapes.TEXT_OR_NULL}
UNIT_TEXT = f"""# Written by npufleet
[Unit]
Description=Watchdog of the Triton server
After=docker.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/python3 -I {PROGRAM} {CONFIG}
Restart=always
RestartSec=5
WatchdogSec={{patience}}
NoNewPrivileges=yes
MemoryMax=1G
TasksMax=512
SyslogIdentifier=npufleet-watchdog

[Install]
WantedBy=multi-user.target
"""
# Variables of the role that are the program's limits as they are
LIMITS = (
    "interval",
    "fault_limit",
    "stall_limit",
    "stub_limit",
    "silence_limit",
    "start_limit",
    "actions",
    "backoff",
)


def desired(variables: Mapping[str, Any], given: Given = NOTHING) -> Dict[str, Any]:
    """Texts of unit and configuration, and the program's digest; without `files` no watchdog is wanted."""
    root = variables["npufleet_root"]
    if not variables["triton_server_watchdog"]:
        return {"root": root, "files": None}
    config = {
        "container": variables["triton_server_name"],
        "address": address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "metrics_port": int(variables["npufleet_metrics_port"]) if variables["triton_server_allow_metrics"] else None,
        "mode": variables["triton_server_model_control_mode"],
        "root": root,
        "vendor_tools": list(TOOLS),
        "load_limit": int(variables["triton_server_ready_timeout"]),
        # The engine needs a while beyond the container's own patience.
        "stop_limit": int(variables["triton_server_stop_timeout"]) + 60,
        "free_limit": int(variables["npufleet_free_timeout"]),
        "key": keys.desired(variables),
        "client": control.PROGRAM if by_grpc(variables) else None,
        "stuck_load_limit": int(variables["triton_server_stuck_load_limit"]),
        **{name: int(variables["triton_server_watchdog_" + name]) for name in LIMITS},
    }
    # Longer than a reload that fails, of which each request has a client to start, and the restart after it, and than a put back
    patience = 3 * config["load_limit"] + 2 * config["stop_limit"] + config["free_limit"] + config["interval"] + 120
    patience += 2 * int(control.GRACE)
    content = hashlib.sha256()
    for path in SOURCES:
        with open(path, "rb") as source:
            content.update(source.read())
    program = content.hexdigest()
    texts = {"unit": UNIT_TEXT.format(patience=patience), "config": json.dumps(config, indent=2, sort_keys=True) + "\n"}
    return {"root": root, "files": {**texts, "program": program}}


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """The files, and what the running program says of itself."""
    program, beside = read_text(PROGRAM), read_text(BESIDE)
    state = shapes.read(wanted["root"] + "/watchdog.json", STATE).content
    return {
        "unit": read_text(UNIT_FILE),
        "config": read_text(CONFIG),
        "program": None if program is None else hashlib.sha256((program + (beside or "")).encode()).hexdigest(),
        "state": state or {},
    }


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """One item at most: the watchdog is put in order as a whole."""
    files = wanted["files"]
    if files is None:
        there = [name for name in ("unit", "config", "program") if actual[name] is not None]
        return [item(CONCERN, UNIT, "there: " + ", ".join(there), None, "unwatch")] if there else []
    found = [
        f"{'no' if actual[name] is None else 'another'} {words}"
        for name, words in (("unit", "unit file"), ("config", "configuration"), ("program", "program"))
        if actual[name] != files[name]
    ]
    if not found:
        found = [] if actual["enabled"] else ["disabled"]
        found += [] if actual["active"] == "active" else [actual["active"]]
    if not found:
        # It reads its files once.
        running = actual["state"].get("running") or {}
        config = hashlib.sha256(files["config"].encode()).hexdigest()
        if (running.get("program"), running.get("config")) != (files["program"], config):
            found.append("running with older files")
    return [item(CONCERN, UNIT, ", ".join(found), "enabled and active, as the inventory has it", "watch")] if found else []


def warning(actual: Mapping[str, Any]) -> Optional[str]:
    """What only hands can do about a server that the watchdog gave up, None where it did not."""
    words = (actual.get("state") or {}).get("gave_up")
    return f"the watchdog gave up: {short(words)}" if words and actual.get("active") == "active" else None
