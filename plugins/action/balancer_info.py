# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of balancer_info: calls the module with the inventory name of the balancer."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class ActionModule(FleetAction):
    """An action that calls the module on the balancer. If a task runs for another host, `delegate_to` names the balancer."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        balancer = self._task.delegate_to or host
        return self.call_module("balancer_info", self._task.args, {**task_vars, "inventory_hostname": balancer}, {"host": balancer})
