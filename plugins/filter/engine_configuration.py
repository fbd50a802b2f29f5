# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: engine_configuration
short_description: Compute the files of the container engine, and the units to restart with them
description:
  - Returns the files that the role P(npufleet.triton.docker_engine#role) writes, and the units that have to restart to read them.
  - The files may contain secrets.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The result of M(npufleet.triton.host_state) for the concern C(engine).
    type: dict
    required: true
  desired:
    description: The desired state of the engine with its secrets, from M(npufleet.triton.host_state) with C(unsealed).
    type: dict
    required: true
  current:
    description: The text of C(daemon.json), or an empty text if the file does not exist.
    type: str
    default: ""
  dockerd_help:
    description: The output of C(dockerd --help), or an empty text if the host has no engine.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Write the configuration of the engine
  npufleet.triton.host_files:
    files: "{{ (state | npufleet.triton.engine_configuration(unsealed.desired.engine)).files }}"
  no_log: true
"""

RETURN = r"""
_value:
  description: C(files) for M(npufleet.triton.host_files), and C(restart), the names of the units to restart in the right order.
  type: dict
"""

import json
import os
from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import daemon_config
from ansible_collections.npufleet.triton.plugins.module_utils.engine.daemon_config import DAEMON_JSON

ENGINE_UNIT = "docker.service"


def engine_configuration(
    state: Mapping[str, Any], desired: Mapping[str, Any], current: str = "", dockerd_help: str = ""
) -> Dict[str, Any]:
    """Return {"files", "restart"} (see RETURN). Raises ValueError if the text of daemon.json is not a JSON object."""
    names = {entry["name"] for entry in state["plan"]}
    program = state["actual"]["engine"]["program"]
    files: List[Dict[str, Any]] = [{"path": path, "content": content} for path, content in desired["drop_ins"].items()]
    if "daemon.json" in names:
        merged = daemon_config.merge(daemon_config.parse(current), desired["daemon"])
        private = desired["private"] or state["actual"]["engine"]["private"]
        # Docker 23 and newer can validate the file.
        validate = [program, "--validate", "--config-file", "%s"] if program is not None and "--validate" in dockerd_help else []
        text = json.dumps(merged, indent=4, sort_keys=True) + "\n"
        files.append({"path": DAEMON_JSON, "content": text, "mode": "0600" if private else "0644", "validate": validate})
    changed = {name for name in names if name == "daemon.json" or name in desired["drop_ins"]}
    # A changed order of units (action `order`) needs no restart, because it applies at the next boot.
    at_boot = {entry["name"] for entry in state["plan"] if entry["action"] == "order"}
    # A bare host has no engine that could be restarted.
    units = [os.path.basename(os.path.dirname(path))[: -len(".d")] for path in desired["drop_ins"] if path in changed]
    other_units = [unit for unit in dict.fromkeys(units) if unit != ENGINE_UNIT]
    restart = [*other_units, ENGINE_UNIT] if program is not None and changed - at_boot else []
    return {"files": files, "restart": restart}


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"engine_configuration": engine_configuration}
