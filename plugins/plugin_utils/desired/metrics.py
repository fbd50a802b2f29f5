# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired program of metrics of a host with NPUs: texts of its units and configuration, and the digest of its program."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.metrics import CONFIG
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import address
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

# Without the limit of the level, each run would add three lines to the journal.
SERVICE_TEXT = """# Written by npufleet
[Unit]
Description=Metrics of the NPUs and of this host for node exporter
After=docker.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -IS {library} metrics {config}
TimeoutStartSec=90
Nice=10
NoNewPrivileges=yes
MemoryMax=512M
TasksMax=64
SyslogIdentifier=npufleet-metrics
SyslogLevel=warning
LogLevelMax=notice
"""
TIMER_TEXT = """# Written by npufleet
[Unit]
Description=Continuous metrics of the NPUs and of this host

[Timer]
OnActiveSec=1
OnUnitActiveSec={interval}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the packages of node exporter, and the files of the program of metrics; `files` is None for a host without it."""
    exporter = sorted(variables["monitoring_node_packages"]) if variables["monitoring_node_exporter"] else []
    if not variables["monitoring_metrics"]:
        return {"exporter": exporter, "files": None}
    config = {
        "container": variables["triton_server_name"],
        "address": address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "metrics_address": address(variables, "metrics"),
        "metrics_port": int(variables["npufleet_metrics_port"]) if variables["triton_server_allow_metrics"] else None,
        "key": server_key.desired(variables),
        "root": variables["npufleet_root"],
        "directory": variables["monitoring_probe_directory"],
        "npus": int(variables["npufleet_npus"]),
        "driver": variables["npufleet_release_row"]["driver"]["version"],
    }
    return {
        "exporter": exporter,
        "files": {
            "service": SERVICE_TEXT.format(library=library.path(), config=CONFIG),
            "timer": TIMER_TEXT.format(interval=int(variables["monitoring_metrics_interval"])),
            "config": json.dumps(config, indent=2, sort_keys=True) + "\n",
            "program": archive.digest(library.ENTRIES["metrics"]),
        },
    }
