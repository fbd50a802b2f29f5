"""The desired watchdog of a host: texts of its unit and configuration, and the digest of its program."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.watchdog import BESIDE, CONFIG, PROGRAM
from ansible_collections.npufleet.triton.plugins.module_utils.driver.vendor_tool import TOOLS
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import address, by_grpc
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

SOURCES = [os.path.join(COLLECTION, "roles/triton_server/files", os.path.basename(path)) for path in (PROGRAM, BESIDE)]
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
# Variables of the role that the program takes unchanged
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


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the files of the watchdog; `files` is None for a host without a watchdog."""
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
        # The engine needs some time beyond the stop timeout of the container.
        "stop_limit": int(variables["triton_server_stop_timeout"]) + 60,
        "free_limit": int(variables["npufleet_free_timeout"]),
        "key": server_key.desired(variables),
        "client": control.PROGRAM if by_grpc(variables) else None,
        "stuck_load_limit": int(variables["triton_server_stuck_load_limit"]),
        **{name: int(variables["triton_server_watchdog_" + name]) for name in LIMITS},
    }
    # Longer than a restore, and than a failing reload, whose requests each start a client, with the restart after it
    patience = 3 * config["load_limit"] + 2 * config["stop_limit"] + config["free_limit"] + config["interval"] + 120
    patience += 2 * int(control.GRACE)
    content = hashlib.sha256()
    for path in SOURCES:
        with open(path, "rb") as source:
            content.update(source.read())
    texts = {"unit": UNIT_TEXT.format(patience=patience), "config": json.dumps(config, indent=2, sort_keys=True) + "\n"}
    return {"root": root, "files": {**texts, "program": content.hexdigest()}}
