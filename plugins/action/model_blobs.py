# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of model_blobs: finds the origin of each file (a path on the controller or a URL), and transfers the files to the host."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError
from ansible_collections.npufleet.triton.plugins.modules.model_blobs import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import manifests
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text
from ansible_collections.npufleet.triton.plugins.plugin_utils.transfer.sender import Sender


class ActionModule(FleetAction):
    """An action that pushes the files of the controller to the host, and lets the host fetch all other files."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        _validation, options = self.validate_argument_spec(argument_spec=OPTIONS)
        origins = options["origins"]
        if origins is None:
            with self.refusing(host):
                entries, reasons = manifests(variables)
                if reasons:
                    raise Refusal(reasons)
            origins = {digest: origin for entry in entries.values() for digest, origin in entry["origins"].items()}
        if self._task.check_mode:
            return {"changed": bool(options["sha256"])}
        try:
            with host_text.rejecting_invalid_answers(host):
                return Sender(self, host, variables, task_vars).send(options["sha256"], origins)
        except StoreError as error:
            return {"failed": True, "msg": f"{host}: {error}"}
