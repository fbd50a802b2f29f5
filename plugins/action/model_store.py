"""Controller side of model_store: hands over the files of the models to release, and who is at it."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import manifests
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs


class ActionModule(FleetAction):
    """Renders the models that are asked for and hands their small files over."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        arguments = dict(self._task.args)
        variables = self.variables(task_vars)
        releases: Dict[str, Any] = {}
        if arguments.get("state", "released") == "released":
            with self.refusing(host):
                if variables.type_errors:
                    raise Refusal(variables.type_errors)
                found, reasons = manifests(variables)
                if reasons:
                    raise Refusal(reasons)
            releases = {name: manifest.to_release(found[name]) for name in arguments.get("models") or [] if name in found}
        arguments.setdefault("root", variables["npufleet_root"])
        # A play that includes one role does not see the defaults of another
        arguments.setdefault("keep", int(variables["model_repository_keep"]))
        return self.ask("model_store", arguments, task_vars, {**runs.holder(host), "releases": releases})
