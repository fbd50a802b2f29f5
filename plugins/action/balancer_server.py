# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of balancer_server: adds the name of the balancer, and the run and the person for the record of a drain."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    """An action that calls the module on the balancer. If a task runs for another host, `delegate_to` names the balancer."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        balancer = self._task.delegate_to or host
        owner = runs.lease_owner(balancer)
        arguments = {"run": owner["run"], "by": owner["by"], **self._task.args}
        return self.call_module("balancer_server", arguments, {**task_vars, "inventory_hostname": balancer}, {"host": balancer})
