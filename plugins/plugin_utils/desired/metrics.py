# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired metrics program of a host: texts of its units and configuration, and the digest of its code."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.metrics import CONFIG
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import LOAD_BALANCER_HOSTS, NPU_HOSTS, groups_of
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container, server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

# Without LogLevelMax, each run would add three lines to the journal.
SERVICE_TEXT = """# Written by npufleet
[Unit]
Description=Metrics of this host for node exporter
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
Description=Continuous metrics of this host for node exporter

[Timer]
OnActiveSec=1
OnUnitActiveSec={interval}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


# The settings of the server on a host without NPUs
NO_SERVER = {
    "container": "",
    "address": "",
    "http_port": 0,
    "metrics_address": None,
    "metrics_port": None,
    "key": None,
    "npus": 0,
    "driver": "",
}


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the packages of node exporter, and the files of the metrics program; `files` is None without this program."""
    exporter = sorted(variables["monitoring_node_packages"]) if variables["monitoring_node_exporter"] else []
    if not variables["monitoring_metrics"]:
        return {"exporter": exporter, "files": None}
    groups = groups_of(variables["group_names"], variables["npufleet_group"])
    npu_host, load_balancer = NPU_HOSTS in groups, LOAD_BALANCER_HOSTS in groups
    certificates = container.host_certificates(variables) if npu_host else []
    if load_balancer:
        paths = {"load_balancer_tls_certificate": files.CERTIFICATE, "load_balancer_client_ca": files.CLIENT_CA}
        certificates += [path for name, path in paths.items() if variables[name]]
    config = {
        "root": variables["npufleet_root"],
        "directory": variables["monitoring_probe_directory"],
        "npu_host": npu_host,
        "load_balancer": load_balancer,
        "certificates": certificates,
        **(_server(variables) if npu_host else NO_SERVER),
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


def _server(variables: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "container": variables["triton_server_name"],
        "address": container.address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "metrics_address": container.address(variables, "metrics"),
        "metrics_port": int(variables["npufleet_metrics_port"]) if variables["triton_server_allow_metrics"] else None,
        "key": server_key.desired(variables),
        "npus": int(variables["npufleet_npus"]),
        "driver": variables["npufleet_release_row"]["driver"]["version"],
    }
