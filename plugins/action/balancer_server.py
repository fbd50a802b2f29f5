# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Controller side of balancer_server: the run and the person for the record of a drain, and the name of the balancer."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    """One call of the module on the balancer, to which tasks of other hosts delegate it."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        balancer = self._task.delegate_to or host
        owner = runs.lease_owner(balancer)
        arguments = {"run": owner["run"], "by": owner["by"], **self._task.args}
        return self.call_module("balancer_server", arguments, {**task_vars, "inventory_hostname": balancer}, {"host": balancer})
