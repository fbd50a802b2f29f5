# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of triton_process: computes the desired store and server of a host that is itself a container."""

from __future__ import annotations

import base64
import re
from typing import Any, Dict, List, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.process.state import key_path
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.triton.keys import FILE
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import host_checks
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container, server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.server import MODEL_FACTS
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated, collect_desired
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import check_results
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, runs
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import files_of
from ansible_collections.npufleet.triton.plugins.plugin_utils.transfer.sender import Sender

SUPERVISOR = "process.supervisor"
# Options that some versions of tritonserver lack
OPTIONAL_OPTIONS = (*container.CLOUD_SERVICES, "metrics-address")
# Bytes of disk space for the SDK and the packages that it requires, unpacked and as wheels
SDK_BYTES = 3 << 30
# A path that a shell reads as one word
PLAIN_PATH = re.compile(r"/[\w./-]+")


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"root": variables["npufleet_root"], **self._task.args}
        state = arguments.get("state", "started")
        request: Dict[str, Any] = runs.lease_owner(host)
        if state == "stopped":
            return self.call_module("triton_process", arguments, task_vars, request)
        with self.refusing(host):
            order, reasons, manifests = self._order(variables, str(arguments["root"]), host)
        if not order:
            raise Refusal(reasons)
        request.update(order=order, api_key=str(variables["triton_server_api_key"]))
        plan = self.call_module("triton_process", {**arguments, "state": "planned"}, task_vars, request)
        if plan.get("failed"):
            return plan
        with host_text.rejecting_invalid_answers(host):
            reasons += [str(entry) for entry in plan.get("refusals") or []]
            if reasons:
                raise Refusal(reasons)
            if state == "planned":
                return plan
            if not self._task.check_mode:
                origins = {digest: origin for model in manifests.values() for digest, origin in model["origins"].items()}
                with self.refusing(host):
                    order["blobs"] = Sender(self, host, variables, task_vars).local_files(list(plan["missing"]), origins)
        result = self.call_module("triton_process", arguments, task_vars, request)
        checks = result.pop("checks", None)
        if checks:
            path = self.results_path(variables["inference_check_results_dir"], host)
            with host_text.rejecting_invalid_answers(host):
                check_results.write(path, host, result.get("msg", ""), checks)
            result["passed"] = sum(bool(entry.get("ok")) for entry in checks)
        return self.failed_change(result) if result.get("failed") else result

    def _order(self, variables: Templated, root: str, host: str) -> Tuple[Dict[str, Any], List[str], Dict[str, Any]]:
        """Return the request for the change, the reasons against the change, and the manifests by model."""
        desired, manifests, reasons = collect_desired(variables, ["models"])
        reasons += server_key.reasons(variables)
        if not PLAIN_PATH.fullmatch(root):
            reasons.append(f"npufleet_root is {root}, expected a path of letters, digits, dots, hyphens and underlines")
        if variables["triton_server_model_repositories"] != [f"{variables['npufleet_root']}/served"]:
            reasons.append("triton_server_model_repositories has other paths, expected only npufleet_root/served in a container")
        try:
            host_check = host_checks.checks_of(host, host_checks.with_defaults({"image": "this container"}, variables), variables)
            checks = host_check.for_change(variables, "", {**host_check.key, "path": key_path(root)} if host_check.key else None)
        except Refusal as refusal:
            reasons += refusal.reasons
            checks = {}
        if not desired:
            return {}, reasons, manifests
        key = server_key.desired(variables)
        backends = files_of(variables["triton_image_backends"])
        server = {
            "root": root,
            "address": container.address(variables),
            "http_port": int(variables["npufleet_http_port"]),
            "grpc": container.accepts_grpc(variables),
            "grpc_port": int(variables["npufleet_grpc_port"]),
            "key": {**key, "path": key_path(root)} if key else None,
            "fingerprint": server_key.digest(variables),
            "mode": variables["triton_server_model_control_mode"],
            "cache": container.cache(variables),
            "models": {name: {fact: dict(model)[fact] for fact in MODEL_FACTS} for name, model in manifests.items()},
            "triton": str(variables["npufleet_release_row"]["triton"]["version"]),
            "cards": container.cards(variables),
            "command": command(variables, sorted(manifests), root),
            "maybe": list(OPTIONAL_OPTIONS),
            "environment": {name: str(value) for name, value in variables["triton_server_environment"].items()},
            "stop_timeout": int(variables["triton_server_stop_timeout"]),
            "stuck_load_limit": int(variables["triton_server_stuck_load_timeout"]),
            "backends": {path: base64.b64encode(content).decode() for path, content in backends.items()},
            "supervisor": {
                "archive": base64.b64encode(archive.program(SUPERVISOR)).decode(),
                "digest": archive.digest(SUPERVISOR),
            },
        }
        order = {
            "desired": {"models": {**desired["models"], "root": root}, "server": server},
            "container": {**self.container(variables), "key": server["key"]},
            "poll_seconds": int(variables["triton_server_poll_seconds"]),
            "keep": int(variables["model_repository_keep"]),
            "releases": {name: manifest.to_release(model) for name, model in manifests.items()},
            "blobs": {},
            "checks": checks,
            "conditions": conditions(variables),
        }
        return order, reasons, manifests


def command(variables: Mapping[str, Any], models: List[str], root: str) -> List[str]:
    """Return the command line of the server.

    The server listens on the ports that a container would publish, and reads the key from a file below `root`.
    """
    ports = {
        f"--{name}-port={container_port}": f"--{name}-port={variables[f'npufleet_{name}_port']}"
        for name, container_port in container.SERVICES
    }
    line = [ports.get(word, word) for word in container.command(variables, models, OPTIONAL_OPTIONS)]
    listens = {name: container.listen_address(variables, name) for name, _container_port in container.SERVICES}
    line += [f"--{name}-address={listen}" for name, listen in listens.items() if listen]
    return [word.replace(FILE, key_path(root)) for word in server_key.command(variables, line)]


def conditions(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the conditions for this container: versions, cards, packages, ports, shared memory and disk space."""
    row = variables["npufleet_release_row"]
    return {
        "triton": str(row["triton"]["version"]),
        "python": str(row["triton"]["python"]),
        "driver": str(row["driver"]["version"]),
        "cards": container.cards(variables),
        "requirements": [str(requirement) for requirement in variables["triton_image_requirements"]],
        "listen": container.listen_address(variables) or "0.0.0.0",
        "ports": [
            int(variables[f"npufleet_{name}_port"])
            for name, _container_port in container.SERVICES
            if variables[f"triton_server_allow_{name}"]
        ],
        "shm_size": container.size_of(variables, "triton_server_shm_size"),
        "room": SDK_BYTES,
    }
