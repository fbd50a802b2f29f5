# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of adoption: translates a container into variables, copies the models and records a check of each model."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleActionFail
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, NPU_HOSTS
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs
from ansible_collections.npufleet.triton.plugins.module_utils.triton.options import SERVER
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import arguments, first_check, translation
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import desired, validate
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# An adoption writes this file into its destination. A later adoption refuses to replace files in a directory without this file.
MARK_FILE = "adoption.json"
# Largest number of bytes of a file that one module call returns
MAX_PIECE_BYTES = 32 << 20
# The concerns in the plan of an adoption. Watchdog, probe and metrics are left out. They are systemd units, which a run installs
# after it has replaced the container.
ADOPTED_CONCERNS = [name for name, concern in CONCERNS.items() if NPU_HOSTS in concern.groups and concern.role and not concern.unit]
# Valid names of containers and models. The name of a model becomes a directory name and a part of URLs.
CONTAINER = re.compile("[a-zA-Z0-9][a-zA-Z0-9_.-]*")
MODEL = re.compile(r"\w[\w.+-]{0,199}")
HEADER = "Host {}: variables from its container {}, which was started manually. Edit them as needed."
# The variables that every desired state needs
REQUIRED_VARIABLES = (
    "rbln_release", "npufleet_npus", "npufleet_card", "npufleet_release_rows", "triton_server_model_control_mode",
    "triton_server_allow_http", "inventory_hostname", "group_names",
)  # fmt: skip


class ActionModule(FleetAction):
    """An action that adopts a container. The module only reads the container and sends requests to the server in the container."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        fleet = self.variables(task_vars)
        with self.refusing(host):
            validate({**{key: fleet[key] for key in fleet if key in REQUIRED_VARIABLES}, "triton_models": []}, ["server"])
            self.request = {"store": fleet["triton_server_model_repositories"][0]}
        self.arguments = {"name": self._task.args.get("name") or None}
        answer = self.call_module("adoption", self.arguments, task_vars, self.request)
        if answer.get("failed"):
            return {**self.failed_change(answer), "msg": f"{host}: {answer.get('msg')}"}
        with host_text.rejecting_invalid_answers(host):
            return self.translate(host, answer["found"], fleet, task_vars)

    def translate(self, host: str, facts: Mapping[str, Any], fleet: Mapping[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result of the task from the facts about the container, its server and its models."""
        check_names(facts)
        name = facts["inspect"]["Name"].lstrip("/")
        self.arguments["name"] = name
        process, models = facts["process"], facts["models"]
        translated = translation.translate(facts, host, fleet["npufleet_root"])
        translated.left_out[:0] = facts["left_out"]
        secrets = translation.secrets(facts, translated.vault)
        result: Dict[str, Any] = {
            "changed": False,
            "managed": facts["managed"],
            "container": {
                "name": name,
                "id": facts["inspect"]["Id"],
                "image": facts["inspect"]["Config"]["Image"],
                "triton": facts["server"]["version"],
                "command": translation.masked(process["argv"], secrets),
                "pid": process["pid"],
                "started_manually": not process["main"],
            },
            "models": {key: {"versions": model["versions"], "files": sorted(model["files"])} for key, model in models.items()},
        }
        if facts["managed"]:
            return {**result, "plan": [], "report": [], "left_out": [], "vault": [], "obstacles": []}
        overlay: Dict[str, Any] = {}
        dest = self._task.args.get("dest")
        if dest:
            dest = os.path.abspath(self._loader.path_dwim(dest))
            overlay = self.write(dest, facts, translated, fleet, task_vars)
            result.update(variables=overlay, changed=True)
        result.update(
            left_out=translation.masked(translated.left_out, secrets),
            vault=sorted(translated.vault),
            exec_options=exec_options(facts, secrets),
            obstacles=obstacles(facts, secrets),
        )
        # The new variables refer to vault variables that the inventory lacks, so their values come from the container. Without
        # `dest`, there are no new variables.
        vault = translated.vault if dest else {}
        variables = self.variables({**task_vars, **vault, **trusted(overlay), "triton_server_name": name})
        with self.refusing(host):
            concerns = [concern for concern in self.concerns(variables, task_vars) if concern in ADOPTED_CONCERNS]
            desired_state, _manifests = desired(variables, concerns)
        if not dest:
            missing_models = ", ".join(sorted(set(models) - set(desired_state["server"]["models"])))
            if missing_models:
                reason = "triton_models lacks them; write the model list first (adopt_write)"
                result["obstacles"].append(f"{host} would no longer serve {missing_models}: {reason}")
        state = self.call_module("host_state", {}, task_vars, {"desired": desired_state, "host": host})
        if state.get("failed"):
            return {"failed": True, "msg": f"{host}: {state.get('msg')}"}
        # In an item of a plan, only these two values can contain secrets.
        plan = [
            {**entry, **translation.masked({key: entry[key] for key in ("current", "desired")}, secrets)} for entry in state["plan"]
        ]
        result.update(plan=plan, report=translation.masked(state["report"], secrets))
        if dest:
            keys = ("container", "models", "left_out", "vault", "obstacles", "report")
            Path(dest, MARK_FILE).write_text(json.dumps({key: result[key] for key in keys}, indent=2), "utf-8")
        return result

    def write(
        self,
        dest: str,
        facts: Mapping[str, Any],
        translated: arguments.Translation,
        fleet: Mapping[str, Any],
        task_vars: Mapping[str, Any],
    ) -> Dict[str, Any]:
        """Write models, checks and variables into `dest`, and return the variables. Replace the files of an earlier adoption."""
        if os.path.isdir(dest) and os.listdir(dest):
            if not os.path.exists(os.path.join(dest, MARK_FILE)):
                raise AnsibleActionFail(f"{dest} has files that no adoption wrote: name another directory (adopt_dest)")
            trees.remove(dest)
        os.makedirs(dest)
        sizes = {f"{name}/{path}": file["size"] for name, model in facts["models"].items() for path, file in model["files"].items()}
        host = task_vars["inventory_hostname"]
        reason = blobs.shortage(f"{dest} on the controller", shutil.disk_usage(dest).free, {}, sizes)
        if reason:
            raise AnsibleActionFail(f"{host}: {reason}")
        Path(dest, MARK_FILE).write_text("{}\n", "utf-8")
        key = "{}/{}".format(fleet["npufleet_card"].replace("RBLN-", ""), fleet["npufleet_release_row"]["sdk"]["shape"])
        entries = []
        for name, model in facts["models"].items():
            entry = translation.model_entry(name, model, key, int(fleet["npufleet_npus"]), translated.left_out)
            compiled = translation.compiled_file(model)
            for path, file in model["files"].items():
                if path == compiled:
                    target = entry["artefacts"][key]["file"] = os.path.join(dest, "compiled", file["sha256"])
                else:
                    target = host_text.path_below(f"{dest}/models/{name}", path)
                if not os.path.exists(target):
                    self.copy_file(file, model["contents"].get(path), target, task_vars)
            config = Path(dest, "models", name, "config.pbtxt")
            if model["config"] and not config.exists():
                config.parent.mkdir(parents=True, exist_ok=True)
                config.write_bytes(manifest.config_of(model["config"]))
            entries.append(entry)
        self.record_checks(dest, facts, translated, task_vars)
        variables = {
            **translated.variables,
            "npufleet_model_repository": os.path.join(dest, "models"),
            "inference_check_checks_dir": [os.path.join(dest, "checks")],
            "inference_check_golden_dir": [os.path.join(dest, "golden")],
            "triton_models": entries,
        }
        notes = [HEADER.format(host, facts["inspect"]["Name"].lstrip("/"))]
        secrets = translation.secrets(facts, translated.vault)
        notes += [f"Left out: {line}" for line in translation.masked(translated.left_out, secrets)]
        notes += [f"For the vault: {entry}" for entry in sorted(translated.vault)]
        text = "---\n" + "".join(map(host_text.comment, notes)) + host_text.variables(variables)
        Path(dest, "host_vars.yml").write_text(text, "utf-8")
        return variables

    def copy_file(self, file: Mapping[str, Any], content: Optional[str], target: str, task_vars: Mapping[str, Any]) -> None:
        """Copy a model file to the controller. A file without `content` can be too large for memory, and is copied in pieces."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target + ".part", "wb") as out:
            if content is not None:
                out.write(base64.b64decode(content))
            while content is None and out.tell() < file["size"]:
                piece = {"path": file["at"], "offset": out.tell(), "size": MAX_PIECE_BYTES}
                answer = self.call_module("adoption", self.arguments, task_vars, {**self.request, "piece": piece})
                if answer.get("failed") or not answer["data"]:
                    progress = f"copied {out.tell()} of {file['size']} bytes"
                    raise AnsibleActionFail(f"{file['at']}: {progress}: {answer.get('msg')}; try again")
                raw = base64.b64decode(answer["data"])
                if len(raw) > min(MAX_PIECE_BYTES, file["size"] - out.tell()):
                    raise host_text.InvalidText(f"{file['at']} has {len(raw)} more bytes, expected {file['size']} in total")
                out.write(raw)
        digest = blobs.file_digest(target + ".part")
        if digest != file["sha256"]:
            reason = f"its SHA-256 is {digest}, expected {file['sha256']}"
            raise AnsibleActionFail(f"{file['at']} changed while it was read: {reason}. Try again")
        os.replace(target + ".part", target)

    def record_checks(
        self, dest: str, facts: Mapping[str, Any], translated: arguments.Translation, task_vars: Mapping[str, Any]
    ) -> None:
        """Write a check for each model that answers a generated request. The check expects the same answer after the adoption."""
        import numpy as np

        protocols = [key for key in ("http", "grpc") if translated.variables.get(f"triton_server_allow_{key}", True)]
        reasons: Dict[str, str] = {}
        # Only one request and its answers are in memory at a time.
        for number, (name, model) in enumerate(facts["models"].items()):
            try:
                if number >= first_check.MAX_MODELS:
                    raise first_check.NoRequest(f"{first_check.MAX_MODELS} models already have a recorded check")
                arrays, body = first_check.request(model["config"])
                answers = [self.infer(name, body, task_vars) for _time in range(2)]
                document, files = first_check.check(name, arrays, answers, protocols)
            except first_check.NoRequest as reason:
                reasons[name] = str(reason)
                continue
            golden, check_file = Path(dest, "golden", name), Path(dest, "checks", f"{name}.yml")
            golden.mkdir(parents=True)
            check_file.parent.mkdir(exist_ok=True)
            for path, array in files.items():
                np.save(golden / path, array, allow_pickle=False)
            check_file.write_text("---\n# Recorded before the adoption\n" + host_text.document(document), "utf-8")
        for name, why in sorted(reasons.items()):
            translated.left_out.append(f"model {name}: no check could be recorded, {why}; write checks/{name}.yml yourself")

    def infer(self, name: str, body: str, task_vars: Mapping[str, Any]) -> Any:
        """Return (HTTP status, answer) for one request to the server."""
        answer = self.call_module("adoption", self.arguments, task_vars, {**self.request, "requests": {name: body}})
        if answer.get("failed"):
            raise AnsibleActionFail(f"the server stopped answering: {answer.get('msg')}")
        return answer["answers"][name]


def check_names(facts: Mapping[str, Any]) -> None:
    """Check that names can become paths on the controller. Raises InvalidText with all reasons."""
    reasons = []
    container = facts["inspect"]["Name"].lstrip("/")
    if not CONTAINER.fullmatch(container):
        reasons.append(f"container name is {host_text.line(container)[:80]!r}, expected a name that the engine accepts")
    for name, model in facts["models"].items():
        if not MODEL.fullmatch(name):
            reasons.append(f"model name is {host_text.line(name)[:80]!r}, expected letters, digits, '_', '-' and '.'")
        for path, file in model["files"].items():
            try:
                host_text.path_below(name, path)
                host_text.digest(file["sha256"])
            except host_text.InvalidText as reason:
                reasons.append(f"model {host_text.line(name)[:80]}: {reason}")
            if not (isinstance(file["size"], int) and file["size"] >= 0):
                reasons.append(f"model {host_text.line(name)[:80]}: size of {path} is {file['size']!r}, expected bytes")
    if reasons:
        raise host_text.InvalidText("; ".join(reasons[:10]))


def trusted(value: Any) -> Any:
    """Return variables in which Ansible evaluates only the texts of type Template. Other texts may come from a host."""
    if isinstance(value, host_text.Template):
        return trust_as_template(str(value))
    if isinstance(value, dict):
        return {key: trusted(entry) for key, entry in value.items()}
    return [trusted(entry) for entry in value] if isinstance(value, list) else value


def secret_exports(facts: Mapping[str, Any], secrets: Sequence[str] = ()) -> List[str]:
    """Return the names of variables that a shell exported to the server and whose values may be secret."""
    exported = translation.own_environment(facts)[1]
    return sorted(
        name
        for name, value in exported.items()
        if arguments.is_secret(name, value) or any(entry in value for entry in secrets if entry)
    )


def exec_options(facts: Mapping[str, Any], secrets: Sequence[str] = ()) -> Dict[str, Any]:
    """Return the options of `docker exec` that start the server again.

    Return {} if the container's own command starts the server, or if a shell exported secrets to the server.
    The command line of the server may contain keys, so it is not returned. The host reads it before the server is stopped.
    """
    process = facts["process"]
    if process["main"] or secret_exports(facts, secrets):
        return {}
    options = ["--workdir", process["directory"], "--user", process["user"]]
    for name, value in sorted(translation.own_environment(facts)[1].items()):
        options += ["--env", f"{name}={value}"]
    return {"pid": process["pid"], "options": options}


def obstacles(facts: Mapping[str, Any], secrets: Sequence[str] = ()) -> List[str]:
    """Return the reasons why this container could not be started again after a stop."""
    reasons = []
    if facts["inspect"]["HostConfig"].get("AutoRemove"):
        reasons.append("it was started with --rm, so the engine would remove it after a stop: start it without --rm, then adopt it")
    for other in facts.get("others") or []:
        if other["program"] == SERVER:
            reasons.append(f"another {SERVER} (process {int(other['pid'])}) runs in it: move that server to another container")
    names = ", ".join(secret_exports(facts, secrets))
    if names and not facts["process"]["main"]:
        reasons.append(f"a shell exported {names} to its server, which a restart cannot repeat: start the container with --env")
    return reasons
