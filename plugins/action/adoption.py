# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Controller side of adoption: translates the container that the host reads, and writes variables, models and first checks."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
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

MARK = "adoption.json"
# Bytes of a file that one call of the host returns
PIECE = 32 << 20
# Concerns of hosts with NPUs, except those with a systemd unit (watchdog and probe), which are installed after the replacement.
ADOPTED = [name for name, concern in CONCERNS.items() if concern.group == NPU_HOSTS and not concern.unit]
# Valid names of containers and models. The name of a model is also a directory and a part of URLs.
CONTAINER = re.compile("[a-zA-Z0-9][a-zA-Z0-9_.-]*")
MODEL = re.compile(r"\w[\w.+-]{0,199}")
HEAD = "{}: what its hand-made container {} was, as variables. Yours to edit from here on."


class ActionModule(FleetAction):
    """The adoption of a container. The host reads the container and sends requests to its server; the controller does the rest."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        fleet = self.variables(task_vars)
        with self.refusing(host):
            # The translation needs these variables of the host.
            validate({**{key: fleet[key] for key in fleet if key in NEEDED}, "triton_models": []}, ["server"])
            self.request = {"store": fleet["triton_server_model_repositories"][0]}
        self.arguments = {"name": self._task.args.get("name") or None}
        look = self.call_module("adoption", self.arguments, task_vars, self.request)
        if look.get("failed"):
            return {
                "failed": True,
                "msg": f"{host}: {look.get('msg')}",
                **({"exception": look["exception"]} if "exception" in look else {}),
            }
        with host_text.parsing(host):
            return self.translate(host, look["found"], fleet, task_vars)

    def translate(self, host: str, found: Mapping[str, Any], fleet: Mapping[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result of the task for a container, from the facts that the host has read."""
        check(found)
        name = found["inspect"]["Name"].lstrip("/")
        self.arguments["name"] = name
        process = found["process"]
        translated = translation.translate(found, host, fleet["npufleet_root"])
        translated.left_out[:0] = found["left_out"]
        secrets = translation.secrets(found, translated.vault)
        result: Dict[str, Any] = {
            "changed": False,
            "managed": found["managed"],
            "container": {
                "name": name,
                "id": found["inspect"]["Id"],
                "image": found["inspect"]["Config"]["Image"],
                "triton": found["server"]["version"],
                "command": translation.masked(process["argv"], secrets),
                "pid": process["pid"],
                "started_by_hand_inside": not process["main"],
            },
            "models": {
                placed: {"versions": model["versions"], "files": sorted(model["files"])}
                for placed, model in found["models"].items()
            },
        }
        if found["managed"]:
            return {**result, "plan": [], "report": [], "left_out": [], "vault": [], "obstacles": []}
        overlay: Dict[str, Any] = {}
        dest = self._task.args.get("dest")
        if dest:
            dest = os.path.abspath(self._loader.path_dwim(dest))
            overlay = self.write(dest, found, translated, fleet, task_vars)
            result.update(variables=overlay, changed=True)
        result.update(
            left_out=translation.masked(translated.left_out, secrets),
            vault=sorted(translated.vault),
            again=self.again(found, secrets),
            obstacles=obstacles(found, secrets),
        )
        # The new variables refer to vault variables that the inventory lacks so far. Without `dest`, only the inventory counts.
        vault = translated.vault if dest else {}
        seen = self.variables({**task_vars, **vault, **trusted(overlay), "triton_server_name": name})
        with self.refusing(host):
            wanted, _manifests = desired(
                seen,
                [name for name in self.concerns(seen, task_vars) if name in ADOPTED],
            )
        if not dest:
            gone = sorted(set(found["models"]) - set(wanted["server"]["models"]))
            if gone:
                result["obstacles"].append(
                    "{} would be gone: its server has {}, triton_models has not; write the model list first (adopt_write)".format(
                        host, ", ".join(gone)
                    )
                )
        state = self.call_module("host_state", {}, task_vars, {"desired": wanted, "host": host})
        if state.get("failed"):
            return {"failed": True, "msg": f"{host}: {state.get('msg')}"}
        # In a plan, only these two values may contain secrets.
        plan = [
            {**entry, **translation.masked({key: entry[key] for key in ("current", "desired")}, secrets)} for entry in state["plan"]
        ]
        result.update(plan=plan, report=translation.masked(state["report"], secrets))
        if dest:
            with open(os.path.join(dest, MARK), "w", encoding="utf-8") as target:
                json.dump(
                    {key: result[key] for key in ("container", "models", "left_out", "vault", "obstacles", "report")},
                    target,
                    indent=2,
                )
        return result

    def write(
        self,
        dest: str,
        found: Mapping[str, Any],
        translated: translation.Translation,
        fleet: Mapping[str, Any],
        task_vars: Mapping[str, Any],
    ) -> Dict[str, Any]:
        """Write models, checks and variables below `dest`, and return the variables. `dest` may have an earlier adoption."""
        if os.path.isdir(dest) and os.listdir(dest):
            if not os.path.exists(os.path.join(dest, MARK)):
                raise AnsibleActionFail(f"{dest} is not empty and not of an earlier adoption: name another directory (adopt_dest)")
            trees.remove(dest)
        os.makedirs(dest)
        sizes = {f"{name}/{path}": file["size"] for name, model in found["models"].items() for path, file in model["files"].items()}
        why = blobs.shortage(f"{dest} on the controller", shutil.disk_usage(dest).free, {}, sizes)
        if why:
            raise AnsibleActionFail(f"{task_vars['inventory_hostname']}: {why}")
        with open(os.path.join(dest, MARK), "w", encoding="utf-8") as mark:
            mark.write("{}\n")
        host = task_vars["inventory_hostname"]
        key = "{}/{}".format(fleet["npufleet_card"].replace("RBLN-", ""), fleet["npufleet_row"]["sdk"]["shape"])
        entries = []
        for name, model in found["models"].items():
            placed = translation.entry(name, model, key, int(fleet["npufleet_npus"]), translated.left_out)
            compiled = translation.compiled_file(model)
            for path, file in model["files"].items():
                whole = path == compiled
                target = os.path.join(dest, "compiled", file["sha256"]) if whole else host_text.below(f"{dest}/models/{name}", path)
                if not os.path.exists(target):
                    self.bring(file, model["contents"].get(path), target, task_vars)
                if path == compiled:
                    placed["artefacts"][key]["file"] = target
            self.config(os.path.join(dest, "models", name, "config.pbtxt"), name, model["config"])
            entries.append(placed)
        self.checks(dest, found, translated, task_vars)
        variables = {
            **translated.variables,
            "npufleet_model_repository": os.path.join(dest, "models"),
            "inference_check_checks_dir": [os.path.join(dest, "checks")],
            "inference_check_golden_dir": [os.path.join(dest, "golden")],
            "triton_models": entries,
        }
        notes = [HEAD.format(host, found["inspect"]["Name"].lstrip("/"))]
        secrets = translation.secrets(found, translated.vault)
        notes += [f"Left out: {line}" for line in translation.masked(translated.left_out, secrets)]
        notes += [f"For the vault: {entry}" for entry in sorted(translated.vault)]
        with open(os.path.join(dest, "host_vars.yml"), "w", encoding="utf-8") as out:
            out.write("---\n" + "".join(map(host_text.comment, notes)) + host_text.variables(variables))
        return variables

    def bring(self, file: Mapping[str, Any], content: Optional[str], target: str, task_vars: Mapping[str, Any]) -> None:
        """Copy one file of a model to the controller. A large file is copied in pieces, because it may not fit into memory."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target + ".part", "wb") as out:
            if content is not None:
                out.write(base64.b64decode(content))
            while content is None and out.tell() < file["size"]:
                piece = {"path": file["at"], "offset": out.tell(), "size": PIECE}
                answer = self.call_module("adoption", self.arguments, task_vars, {**self.request, "piece": piece})
                if answer.get("failed") or not answer["data"]:
                    raise AnsibleActionFail(
                        f"{file['at']} broke off at {out.tell()} of {file['size']} bytes: {answer.get('msg')}; try again"
                    )
                raw = base64.b64decode(answer["data"])
                if len(raw) > min(PIECE, file["size"] - out.tell()):
                    raise host_text.InvalidText(f"{file['at']} has {len(raw)} more bytes, expected {file['size']} in all")
                out.write(raw)
        digest = blobs.file_digest(target + ".part")
        if digest != file["sha256"]:
            raise AnsibleActionFail(
                f"{file['at']} changed while it was read: its SHA-256 is {digest}, expected {file['sha256']}. Try again"
            )
        os.replace(target + ".part", target)

    def config(self, path: str, name: str, served: Optional[Mapping[str, Any]]) -> None:
        """Write the config that the server reports, unless the model has a config.pbtxt."""
        if os.path.exists(path) or not served:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as target:
            target.write(manifest.config_of(served))

    def checks(
        self, dest: str, found: Mapping[str, Any], translated: translation.Translation, task_vars: Mapping[str, Any]
    ) -> None:
        """Write a check for each model that answers a generated request. After the adoption, the answer has to be the same."""
        import numpy as np

        protocols = [key for key in ("http", "grpc") if translated.variables.get(f"triton_server_allow_{key}", True)]
        reasons: Dict[str, str] = {}
        # The models are checked one by one, so that only one request and its answers are in memory.
        for number, (name, model) in enumerate(found["models"].items()):
            try:
                if number >= first_check.MODELS:
                    raise first_check.NoRequest(f"{first_check.MODELS} models have one already")
                arrays, body = first_check.request(model["config"])
                rounds = [self.infer(name, body, task_vars) for _time in range(2)]
                document, files = first_check.check(name, arrays, rounds, protocols)
            except first_check.NoRequest as reason:
                reasons[name] = str(reason)
                continue
            os.makedirs(os.path.join(dest, "golden", name))
            os.makedirs(os.path.join(dest, "checks"), exist_ok=True)
            for path, array in files.items():
                np.save(os.path.join(dest, "golden", name, path), array, allow_pickle=False)
            with open(os.path.join(dest, "checks", f"{name}.yml"), "w", encoding="utf-8") as target:
                target.write("---\n# Recorded from the hand-made server\n" + host_text.document(document))
        for name, why in sorted(reasons.items()):
            translated.left_out.append(f"model {name}: no check could be recorded, {why}; write checks/{name}.yml yourself")

    def infer(self, name: str, body: str, task_vars: Mapping[str, Any]) -> Any:
        """Return (HTTP status, answer) for one request to the server."""
        answer = self.call_module("adoption", self.arguments, task_vars, {**self.request, "requests": {name: body}})
        if answer.get("failed"):
            raise AnsibleActionFail(f"the server stopped answering: {answer.get('msg')}")
        return answer["answers"][name]

    def again(self, found: Mapping[str, Any], secrets: Sequence[str] = ()) -> Dict[str, Any]:
        """Return the options that start the server again in a container whose own command does not start it; else {}.

        The command line of the server may hold keys, so it is not part of the result. The host reads it before it ends the server.
        """
        process = found["process"]
        if process["main"] or hidden(found, secrets):
            return {}
        line = ["--workdir", process["directory"], "--user", process["user"]]
        for name, value in sorted(translation.own_environment(found)[1].items()):
            line += ["--env", f"{name}={value}"]
        return {"pid": process["pid"], "options": line}


# The variables that every desired state needs
NEEDED = (
    "rbln_release", "npufleet_npus", "npufleet_card", "npufleet_release_rows", "triton_server_model_control_mode",
    "triton_server_allow_http", "inventory_hostname", "group_names",
)  # fmt: skip


def check(found: Mapping[str, Any]) -> None:
    """Refuse names that cannot become paths on the controller. Raises InvalidText with all reasons."""
    reasons = []
    container = found["inspect"]["Name"].lstrip("/")
    if not CONTAINER.fullmatch(container):
        reasons.append(f"container name is {host_text.line(container)[:80]!r}, expected one that an engine accepts")
    for name, model in found["models"].items():
        if not MODEL.fullmatch(name):
            reasons.append(f"model name is {host_text.line(name)[:80]!r}, expected letters, digits, '_', '-' and '.'")
        for path, file in model["files"].items():
            try:
                host_text.below(name, path)
                host_text.digest(file["sha256"])
            except host_text.InvalidText as reason:
                reasons.append(f"model {host_text.line(name)[:80]}: {reason}")
            if not (isinstance(file["size"], int) and file["size"] >= 0):
                reasons.append(f"model {host_text.line(name)[:80]}: found {path} of {file['size']!r} bytes")
    if reasons:
        raise host_text.InvalidText("; ".join(reasons[:10]))


def trusted(value: Any) -> Any:
    """Return variables in which Ansible evaluates a Template, but no other text, because that may come from a host."""
    if isinstance(value, host_text.Template):
        return trust_as_template(str(value))
    if isinstance(value, dict):
        return {key: trusted(part) for key, part in value.items()}
    return [trusted(part) for part in value] if isinstance(value, list) else value


def hidden(found: Mapping[str, Any], secrets: Sequence[str] = ()) -> List[str]:
    """Return the variables that a shell exported to the server and that may be secret. No command line may show them."""
    exported = translation.own_environment(found)[1]
    return sorted(
        name
        for name, value in exported.items()
        if arguments.is_secret(name, value) or any(entry in value for entry in secrets if entry)
    )


def obstacles(found: Mapping[str, Any], secrets: Sequence[str] = ()) -> List[str]:
    """Return the reasons why this container could not be started again, so that it must not be stopped."""
    reasons = []
    if found["inspect"]["HostConfig"].get("AutoRemove"):
        reasons.append(
            "it was started with --rm and would be gone when it stops: start it without --rm at a quiet hour, then adopt"
        )
    for other in found.get("others") or []:
        if other["program"] == SERVER:
            reasons.append(f"another {SERVER} (process {int(other['pid'])}) runs in it: give that one a container of its own")
    process = found["process"]
    names = hidden(found, secrets)
    if not process["main"] and names:
        reasons.append(f"its server was given {', '.join(names)} by a shell, which could not be given again: start it with --env")
    return reasons
