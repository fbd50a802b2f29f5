# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Controller side of host_lease: owner and duration of the lease, and the facts with which the host ends a change itself."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    """A request for the lease of a host, which waits for the present owner unless the owner's run has ended."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"root": variables["npufleet_root"], **self._task.args}
        holder = runs.lease_owner(host)
        if arguments.get("state", "held") != "held":
            return self.call_module("host_lease", arguments, task_vars, holder)
        request = {
            **holder,
            "version": library.version(),
            "patience": int(variables["npufleet_lease_timeout"]),
            "container": self.container(variables),
        }
        lost = run_guard.STEPS.message()
        if lost:
            # The host of a step without a result has an unknown state, so no further host is changed.
            return {"failed": True, "msg": f"{host} is not changed. {lost}"}
        wait = int(arguments.get("wait", variables["npufleet_lease_wait"]))
        result = self.call_module("host_lease", {**arguments, "wait": 0}, task_vars, request)
        owner = result.get("held_by")
        # The lease of a run of this machine that has ended is taken over immediately.
        ended = {"ended": owner} if runs.has_ended(owner) else {}
        if owner and (wait or ended):
            result = self.call_module("host_lease", {**arguments, "wait": wait}, task_vars, {**request, **ended})
        # Playbooks record the owner of a change at further places, such as load balancers.
        return {**result, "run": holder["run"], "by": holder["by"]}
