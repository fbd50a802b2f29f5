# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired probe of a host's server: texts of its units and configuration, and digests of its program and checks."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.probe import CHECKS_FILE, CONFIG
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

SERVICE_TEXT = """# Written by npufleet
[Unit]
Description=Probe of the Triton server by inference
After=docker.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -IS {library} probe {config}
TimeoutStartSec={patience}
Nice=10
UMask=0077
NoNewPrivileges=yes
MemoryMax=4G
TasksMax=512
SyslogIdentifier=npufleet-probe
"""
# The first probe runs a moment after the start of the timer, at boot or after a change.
TIMER_TEXT = """# Written by npufleet
[Unit]
Description=Continuous probe of the Triton server by inference

[Timer]
OnActiveSec=5
OnUnitActiveSec={interval}
RandomizedDelaySec={jitter}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the files and the digest of the checks of the probe; `files` is None for a host without a probe."""
    root = variables["npufleet_root"]
    if not variables["monitoring_probe"]:
        return {"root": root, "files": None}
    interval, jitter, limit = (int(variables[f"monitoring_probe_{name}"]) for name in ("interval", "jitter", "limit"))
    config = {
        "host": variables["inventory_hostname"],
        "document": CHECKS_FILE,
        "image": variables["inference_check_image"],
        "limit": limit,
        "interval": interval,
        "root": root,
        "textfile": variables["monitoring_probe_directory"] + "/npufleet.prom",
        "key": server_key.for_checks(variables),
    }
    return {
        "root": root,
        "directory": variables["monitoring_probe_directory"],
        "files": {
            # After the limit of the checks, the program still has to remove their container.
            "service": SERVICE_TEXT.format(library=library.path(), config=CONFIG, patience=limit + 60),
            "timer": TIMER_TEXT.format(interval=interval, jitter=jitter),
            "config": json.dumps(config, indent=2, sort_keys=True) + "\n",
            "program": archive.digest(library.ENTRIES["probe"]),
        },
        "checks": context.checks(),
    }
