"""Controller side of host_state: computes what is wanted of the host, then asks it once."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils.controller import FleetAction
from ansible_collections.npufleet.triton.plugins.module_utils.variables import concerns_of, desired


class ActionModule(FleetAction):
    """Fills in `desired` from the inventory, the release row and the model manifests."""

    _requires_connection = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        variables = self.variables(task_vars)
        concerns = self._task.args.get("concerns")
        if concerns is None:
            concerns = concerns_of(list(task_vars.get("group_names", [])))
        arguments = {key: self._task.args[key] for key in ("free", "prove", "timeout") if key in self._task.args}
        free, proof = (boolean(arguments.get(key, False)) for key in ("free", "prove"))
        with self.refusing(host):
            # The mark, and who has the cards open, do not depend on what is wanted of the host
            wanted, manifests = ({}, {}) if free or not concerns else desired(variables, list(concerns), now=proof)
            if free:
                wanted = {"server": {"name": variables["triton_server_name"]}}
            arguments["mark"] = "{}/maintenance.json".format(variables["npufleet_root"])
        arguments["desired"] = wanted
        arguments["host"] = host
        result = self.ask("host_state", arguments, task_vars)
        if result.get("failed"):
            # The message says it all; the rest would bury it.
            return {key: result[key] for key in ("failed", "msg", "plan", "exception") if key in result}
        # What the apply steps need beside the plan, and no host has to see.
        result["origins"] = {digest: origin for one in manifests.values() for digest, origin in one["origins"].items()}
        result["desired"] = wanted
        result["mark"] = arguments["mark"]
        return result
