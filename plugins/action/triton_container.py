# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of triton_container: adds the run that changes the host, and the time limits of container, cards and server."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"root": variables["npufleet_root"], **self._task.args}
        request = {**runs.lease_owner(host), "container": self.container(variables)}
        return self.call_module("triton_container", arguments, task_vars, request)
