# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of wait_for_npus: adds the container that may use the cards, and the seconds to wait until no other process uses them."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        defaults = {"container": variables["triton_server_name"], "timeout": int(variables["npufleet_free_timeout"])}
        return self.call_module("wait_for_npus", {**defaults, **self._task.args}, task_vars, {"host": host})
