# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Controller side of triton_container: who changes the host, and how long its container, its cards and its server may take."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    """Fills in what the inventory says of the container."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"root": variables["npufleet_root"], **self._task.args}
        handed = {**runs.holder(host), "container": self.container(variables)}
        return self.ask("triton_container", arguments, task_vars, handed)
