"""Controller side of inference_check: sends along what the host needs of the check files, and keeps the results."""

from __future__ import annotations

import base64
import json
import os
from datetime import datetime, timezone
from typing import Any, Dict, Mapping, Optional

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleUndefinedVariable
from ansible_collections.npufleet.triton.plugins.module_utils import archive, request
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.modules.inference_check import new_module
from ansible_collections.npufleet.triton.plugins.plugin_utils import host_text
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import documents
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import CHECKS, GOLDEN, place, server_of, with_pem
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import placed_here
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import picture

# The module's options, and the variables that they follow
FOLLOWS = {
    "image": "inference_check_image",
    "timeout": "inference_check_timeout",
    "latency": "inference_check_latency",
    "require_checks": "inference_check_require_checks",
    "checks_dir": "inference_check_checks_dir",
    "golden_dir": "inference_check_golden_dir",
}


class ActionModule(FleetAction):
    """Turns names of models into documents, then runs them through the module on the host."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        path = self._results_path(self._task.args.get("results_dir"), host)
        # Before anything can fail: an old result must not outlive a host that cannot be asked.
        if path:
            _forget(path)
        try:
            result = self._prove(task_vars, host)
        except (AnsibleActionFail, AnsibleConnectionFailure) as error:
            if path:
                _write(path, {"host": host, "when": _now(), "msg": error.message, "checks": []})
            raise
        with host_text.understood(host):
            return self._kept(result, path, host)

    @staticmethod
    def _kept(result: Dict[str, Any], path: Optional[str], host: str) -> Dict[str, Any]:
        """Write the answers down, and give back what is for the screen."""
        for check in result.get("checks", []):
            drawn = picture.data_uri(check.pop("picture", None))
            if drawn:
                check["picture"] = drawn
        if path:
            kept = {"host": host, "when": _now(), "msg": result.get("msg", ""), "checks": result.get("checks", [])}
            _write(path, kept)
        for check in result.get("checks", []):
            # For reports; whoever reads a failure on the screen is not helped by them.
            check.pop("image", None)
            check.pop("picture", None)
        return result

    def _prove(self, task_vars: Dict[str, Any], host: str) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        try:
            # First, as the task's arguments are made of them
            if variables.misfits:
                raise Refusal(variables.misfits)
            self._task.args = _with_defaults(self._task.args, variables)
            _validation, arguments = self.validate_argument_spec(argument_spec=new_module.keywords["argument_spec"])
            arguments.pop("results_dir")
            arguments.pop(request.NAME)
            models = arguments.pop("models")
            if models is None:
                placed = placed_here(variables["triton_models"], host, list(task_vars.get("group_names", [])))
                models = [str(model["name"]) for model in placed]
            if not arguments["image"]:
                raise Refusal(
                    ["found no image, wanted the one that is locked for the release: run playbooks/site.yml, or name one"]
                )
            checks_dirs, golden_dirs = arguments.pop("checks_dir"), arguments.pop("golden_dir")
            arguments["server"] = with_pem(arguments["server"])
            key = keys.for_checks(variables)
            document = documents(models, [*checks_dirs, CHECKS], [*golden_dirs, GOLDEN], arguments["host_index"])
        except AnsibleUndefinedVariable as error:
            raise self.refuse(host, error) from None
        except KeyError as error:
            return {
                "failed": True,
                "msg": f"{host}: found no {error.args[0]} in the models to check: set triton_models, or name models",
            }
        except Refusal as refusal:
            lines = "".join(f"\n  - {reason}" for reason in refusal.reasons)
            return {"failed": True, "msg": f"{host}: nothing was asked:{lines}"}
        unasked = [] if arguments.pop("require_checks") else [entry["model"] for entry in document.pop("unproven")]
        document["unasked"] = unasked
        program = base64.b64encode(archive.of(check_client.ENTRY)).decode()
        handed = {"document": {"host": host, **document}, "program": program, "key": key}
        result = self.ask("inference_check", arguments, task_vars, handed)
        if arguments["keep"]:
            return result
        if unasked:
            words = f"{host}: not proven, as they have no check file: " + ", ".join(unasked)
            result["warnings"] = [*result.get("warnings", []), words]
        return result

    def _results_path(self, directory: Optional[str], host: str) -> Optional[str]:
        return os.path.join(self._loader.path_dwim(directory), f"{host}.json") if directory else None


def _with_defaults(given: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """A task's arguments, and what the inventory says where it has none."""
    arguments: Dict[str, Any] = {option: variables[name] for option, name in FOLLOWS.items()}
    own = {name: value for name, value in (given.get("server") or {}).items() if value is not None}
    server = {name: value for name, value in server_of(variables).items() if value is not None}
    return {**arguments, "host_index": place(variables), **given, "server": {**server, **own}}


def _now() -> str:
    """This moment in UTC, as ISO 8601 has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _forget(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise AnsibleActionFail(f"the results of an earlier run cannot be removed from the controller: {error}") from None


def _write(path: str, result: Mapping[str, Any]) -> None:
    """Write a result as a whole: a reader sees all of it or nothing."""
    draft = path + ".draft"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # What a server answers is told as it came
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as target:
            json.dump(result, target)
        os.replace(draft, path)
    except OSError as error:
        raise AnsibleActionFail(f"the results cannot be written to {path} on the controller: {error}") from None
