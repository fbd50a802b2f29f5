# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of inference_check: sends the checks to the host and writes the results on the controller."""

from __future__ import annotations

from typing import Any, Dict

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleUndefinedVariable
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.modules.inference_check import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import host_checks
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import check_results
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        directory = self._task.args.get("results_dir")
        path = self.results_path(directory, host) if directory else None
        # The previous results must not remain if this check fails early.
        check_results.remove(path)
        try:
            result = self._prove(task_vars, host)
        except (AnsibleActionFail, AnsibleConnectionFailure) as error:
            check_results.write(path, host, error.message, [])
            raise
        with host_text.rejecting_invalid_answers(host):
            host_text.require_keys(result, "msg")
            check_results.write(path, host, result["msg"], result.get("checks", []))
        return result

    def _prove(self, task_vars: Dict[str, Any], host: str) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        try:
            # Variables of the wrong type are refused first, because the defaults of the arguments come from them.
            if variables.type_errors:
                raise Refusal(variables.type_errors)
            task_server = self._task.args.get("server") or {}
            fixed_address = bool(task_server.get("address") or variables["inference_check_address"])
            self._task.args = host_checks.with_defaults(self._task.args, variables)
            _validation, arguments = self.validate_argument_spec(argument_spec=OPTIONS)
            checks = host_checks.checks_of(host, arguments, variables)
        except AnsibleUndefinedVariable as error:
            raise self.refuse(host, error) from None
        except Refusal as refusal:
            lines = "".join(f"\n  - {reason}" for reason in refusal.reasons)
            return {"failed": True, "msg": f"{host}: no request was sent:{lines}"}
        for name in ("results_dir", "models", "require_checks", "checks_dir", "golden_dir"):
            arguments.pop(name)
        arguments["server"] = checks.server
        request = {
            "document": checks.document,
            "program": checks.program,
            "key": checks.key,
            "root": variables["npufleet_root"],
            "container": variables["triton_server_name"],
            "fixed_address": fixed_address,
        }
        result = self.call_module("inference_check", arguments, task_vars, request)
        if checks.unchecked and not arguments["keep"]:
            result["warnings"] = [*result.get("warnings", []), host_checks.warning(host, checks.unchecked)]
        return result
