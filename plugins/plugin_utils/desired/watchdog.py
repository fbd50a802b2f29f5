# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired watchdog of a host: texts of its unit and configuration, and the digest of its program."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.watchdog import CONFIG
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import FILE_NAMES
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import accepts_grpc, address
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

UNIT_TEXT = """# Written by npufleet
[Unit]
Description=Watchdog of the Triton server
After=docker.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/python3 -IS {library} watchdog {config}
Restart=always
RestartSec=5
WatchdogSec={patience}
NoNewPrivileges=yes
MemoryMax=1G
TasksMax=512
SyslogIdentifier=npufleet-watchdog

[Install]
WantedBy=multi-user.target
"""
# Endings of the variables triton_server_watchdog_* in the configuration. The values are seconds, except for `max_actions`.
COPIED_SETTINGS = (
    "interval", "fault_timeout", "stall_timeout", "process_timeout", "silence_timeout",
    "start_timeout", "max_actions", "backoff",
)  # fmt: skip


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
        "load_limit": int(variables["triton_server_ready_timeout"]),
        "stop_timeout": int(variables["triton_server_stop_timeout"]),
        "free_limit": int(variables["npufleet_free_timeout"]),
        "key": server_key.desired(variables),
        "grpc": accepts_grpc(variables),
        "stuck_load_limit": int(variables["triton_server_stuck_load_timeout"]),
        **{FILE_NAMES.get(name, name): int(variables["triton_server_watchdog_" + name]) for name in COPIED_SETTINGS},
    }
    # Only hosts with a separate metrics address get `metrics_address`, so that the file of all other hosts stays the same.
    if address(variables, "metrics") != config["address"]:
        config["metrics_address"] = address(variables, "metrics")
    # systemd kills a watchdog that is silent for this time. So this time must be sufficient for the longest steps: a restore, or a
    # failing reload followed by a restart. Each of the two requests in these steps can take `control.GRACE` longer than its limit.
    patience = 3 * config["load_limit"] + 2 * config["stop_timeout"] + config["free_limit"] + config["interval"] + 240
    patience += 2 * int(control.GRACE)
    files = {
        "unit": UNIT_TEXT.format(library=library.path(), config=CONFIG, patience=patience),
        "config": json.dumps(config, indent=2, sort_keys=True) + "\n",
        "program": archive.digest(library.ENTRIES["watchdog"]),
    }
    return {"root": root, "files": files}
