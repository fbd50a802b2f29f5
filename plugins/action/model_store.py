# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of model_store: adds the directory of the store, and the run that has the lease of the host."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        arguments = {"root": self.variables(task_vars)["npufleet_root"], **self._task.args}
        return self.call_module("model_store", arguments, task_vars, runs.lease_owner(host))
