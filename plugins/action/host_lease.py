# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of host_lease: adds the owner and the time limits of the lease, and data for the host.

With this data, the host can complete or undo a change if the run is interrupted.
"""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    """An action that takes or releases the lease of a host. While another run has the lease, the action waits."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"root": variables["npufleet_root"], **self._task.args}
        owner = runs.lease_owner(host)
        if arguments.get("state", "held") != "held":
            return self.call_module("host_lease", arguments, task_vars, owner)
        request = {
            **owner,
            "version": library.version(),
            "patience": int(variables["npufleet_lease_timeout"]),
            "container": self.container(variables),
        }
        message = run_guard.STEPS.message()
        if message:
            # An earlier step on a host has no result, so the state of that host is unknown. No further host is changed.
            return {"failed": True, "msg": f"{host} is not changed. {message}"}
        wait = int(arguments.get("wait", variables["npufleet_lease_wait"]))
        result = self.call_module("host_lease", {**arguments, "wait": 0}, task_vars, request)
        other_run = result.get("held_by")
        # If the other run was a run of this controller and has ended, this run can take over the lease at once.
        ended = {"ended": other_run} if runs.has_ended(other_run) else {}
        if other_run and (wait or ended):
            result = self.call_module("host_lease", {**arguments, "wait": wait}, task_vars, {**request, **ended})
        # Playbooks need the owner, because they also write it to other hosts of this change, such as load balancers.
        return {**result, "run": owner["run"], "by": owner["by"]}
