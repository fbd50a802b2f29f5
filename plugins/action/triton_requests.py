# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of triton_requests: adds the address and the port of the server's metrics."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import address


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"address": address(variables, "metrics"), "port": int(variables["npufleet_metrics_port"]), **self._task.args}
        return self.call_module("triton_requests", arguments, task_vars)
