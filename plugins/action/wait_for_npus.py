# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of wait_for_npus: adds the container that may use the cards, and the seconds to wait until no other process uses them."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class ActionModule(FleetAction):
    """An action that calls the module, which waits on the host."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {
            "container": variables["triton_server_name"],
            "timeout": int(variables["npufleet_free_timeout"]),
            **self._task.args,
        }
        return self.call_module("wait_for_npus", arguments, task_vars, {"host": host})
