"""Controller side of model_store: fills in the files of the models to release, who is at it, and brings large files to the host."""

from __future__ import annotations

import base64
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError
from ansible_collections.npufleet.triton.plugins.plugin_utils import host_text, runs
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import Manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.transfer.sender import Sender


class ActionModule(FleetAction):
    """Renders the models that are asked for and hands their small files over with the module's arguments."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        arguments = dict(self._task.args)
        variables = self.variables(task_vars)
        if arguments.get("transfer") is not None:
            return self._transfer(host, variables, task_vars)
        if arguments.get("state", "released") == "released":
            with self.refusing(host):
                if variables.misfits:
                    raise Refusal(variables.misfits)
                found, reasons = manifest.manifests(variables)
                if reasons:
                    raise Refusal(reasons)
            arguments["releases"] = {name: _with_contents(found[name]) for name in arguments.get("models") or [] if name in found}
        arguments.setdefault("root", variables["npufleet_root"])
        # A play that includes one role does not see the defaults of another
        arguments.setdefault("keep", int(variables["model_repository_keep"]))
        return self.ask("model_store", {**arguments, **runs.holder(host)}, task_vars)

    def _transfer(self, host: str, variables: Templated, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Bring large files, and nothing else."""
        origins = self._task.args.get("origins")
        if origins is None:
            with self.refusing(host):
                found, reasons = manifest.manifests(variables)
                if reasons:
                    raise Refusal(reasons)
            origins = {digest: origin for entry in found.values() for digest, origin in entry["origins"].items()}
        try:
            with host_text.understood(host):
                return Sender(self, host, variables, task_vars).send(self._task.args["transfer"], origins)
        except StoreError as error:
            return {"failed": True, "msg": f"{host}: {error}"}


def _with_contents(manifest: Manifest) -> Dict[str, Any]:
    files = {}
    for path, facts in manifest["files"].items():
        files[path] = dict(facts)
        if not facts["blob"]:
            files[path]["content"] = base64.b64encode(manifest["contents"][path]).decode()
    keys = ("source", "release", "versions", "steps", "cached", "shape")
    return {**{key: value for key, value in manifest.items() if key in keys}, "files": files}
