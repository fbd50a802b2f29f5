# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired container of the server as a Compose file.

The file has the options of the desired container, and a health check. Values that can be secret are in `.env` in the same
directory, which Compose reads by default.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Mapping

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import ENGINE_DEFAULTS

SERVICE = "triton"
# The prefix of the names of values in .env
PREFIX = "NPUFLEET_VALUE_"
IMAGE_ID = re.compile("sha256:[0-9a-f]{64}")
# Compose 1.29 and 2 read these characters differently in the quotes of an .env file.
AMBIGUOUS = re.compile(r"['\\\r\n]|\$\{")
# Seconds between two health checks, and seconds after which a health check fails
INTERVAL_SECONDS, TIMEOUT_SECONDS = 30, 10
# http.client uses no proxy. urllib would use the proxies that the environment has for the server's own downloads.
HEALTH_PROGRAM = (
    "import http.client, sys; connection = http.client.HTTPConnection('127.0.0.1', 8000, timeout=5); "
    "connection.request('GET', '/v2/health/ready', headers=HEADER); sys.exit(connection.getresponse().status != 200)"
)


def _cdi_reservation(requests: Any) -> Dict[str, Any]:
    """Return device requests such as ["cdi rebellions.ai/npu=0"] as a reservation. Compose requires the key `capabilities`."""
    names = [name for request in requests for name in request.removeprefix("cdi ").split(",")]
    return {"resources": {"reservations": {"devices": [{"driver": "cdi", "device_ids": names, "capabilities": ["npu"]}]}}}


# The facts of a container for which Compose has an option, in the order in which the file lists them
FACTS = (
    "image", "command", "environment", "log", "ports", "privileged", "restart", "shm_size", "stop_timeout", "ulimits", "volumes",
    "cap_add", "cap_drop", "cpuset", "device_requests", "devices", "entrypoint", "extra_hosts", "groups", "ipc", "cpus", "memory",
    "network", "pid", "pids_limit", "read_only", "security", "tmpfs", "user", "working_dir",
)  # fmt: skip
# {fact: option of Compose} if the names differ
OPTION_NAMES = {
    "log": "logging", "stop_timeout": "stop_grace_period", "device_requests": "deploy", "groups": "group_add",
    "memory": "mem_limit", "network": "network_mode", "security": "security_opt",
}  # fmt: skip
# {fact: function that converts its value for Compose}
CONVERSIONS: Dict[str, Callable[[Any], Any]] = {
    "log": lambda log: {"driver": log["driver"], "options": log["options"]},
    "ports": lambda ports: [f"{address}:{port}" for port, address in sorted(ports.items())],
    "stop_timeout": "{}s".format,
    # {"memlock": "-1:-1"} becomes {"memlock": {"soft": -1, "hard": -1}}.
    "ulimits": lambda ulimits: {name: dict(zip(("soft", "hard"), map(int, both.split(":")))) for name, both in ulimits.items()},
    "device_requests": _cdi_reservation,
    # Without this option, Compose would create a network for the project.
    "network": lambda network: "bridge" if network == ENGINE_DEFAULTS["network"] else network,
}


def compose_file(
    desired: Mapping[str, Any], sealed: Mapping[str, Any], actual: Mapping[str, Any], host: str, health: Mapping[str, Any]
) -> Dict[str, str]:
    """Return {"file", "env"}: the texts of the Compose file and of .env. `env` is empty if no value is secret. Raises Refusal.

    `desired` and `actual` are states of the concern `server`. `sealed` is the desired state with digests instead of secrets.
    `health` has the `start_period` in seconds, and in `restricted` the APIs that require a key.
    """
    container = dict(desired["container"])
    reasons = _reasons(container, actual, host)
    if reasons:
        raise Refusal(reasons)
    # An image can have different IDs in different engines. The file contains the ID in this host's engine.
    container.update(image=actual["image"], volumes=sorted({*container["volumes"], *actual["driver_files"]["binds"]}))
    container.update({key: actual["access"][key] for key in ("devices", "groups")})
    values: Dict[str, str] = {}
    for fact in ("command", "environment", "log"):
        container[fact] = _without_secrets(container[fact], sealed["container"][fact], values)
    service: Dict[str, Any] = {"container_name": desired["name"], "pull_policy": "never"}
    for fact in FACTS:
        if fact == "network" or container[fact] != ENGINE_DEFAULTS.get(fact):
            service[OPTION_NAMES.get(fact, fact)] = CONVERSIONS.get(fact, lambda value: value)(container[fact])
    service["healthcheck"] = _health(desired, health)
    # JSON turns Ansible's string types into plain strings, which YAML can dump.
    plain = json.loads(json.dumps({"services": {SERVICE: service}}))
    text = yaml.safe_dump(plain, sort_keys=False, width=1000, allow_unicode=True)
    return {"file": _head(desired, host, bool(values)) + text, "env": _env(values, host)}


def _reasons(container: Mapping[str, Any], actual: Mapping[str, Any], host: str) -> List[str]:
    reasons = []
    unknown = sorted(fact for fact in set(container) - set(FACTS) if container[fact] != ENGINE_DEFAULTS.get(fact, ...))
    if unknown:
        options = ", container.".join(unknown)
        reasons.append(f"{host}: container.{options} is set, expected only options that npufleet can write into a Compose file")
    if not container["image"]:
        reasons.append(f"{host}: the lock file has no image, expected the image of this release. Run playbooks/site.yml first")
    elif not IMAGE_ID.fullmatch(str(actual.get("image"))):
        reasons.append(
            f"{host}: the host has no image, expected the locked image. Run playbooks/site.yml --tags engine,image first"
        )
    reasons += [f"{host}: {why}" for why in (*actual["access"]["missing"], *actual["access"]["mismatches"])]
    absent = [*actual["absent"], *actual["driver_files"]["missing"]]
    if absent:
        # The engine would create missing sources of mounts as directories.
        reasons.append(
            f"{host}: {', '.join(absent)} is missing, expected the source of a mount. Create it, install the driver for it, or "
            "correct triton_server_volumes or triton_server_driver_files"
        )
    return reasons


def _without_secrets(value: Any, sealed: Any, values: Dict[str, str]) -> Any:
    """Return a value for the Compose file. Replace each secret (a digest in `sealed`) by a variable, and add it to `values`."""
    if isinstance(value, Mapping):
        return {name: _without_secrets(entry, sealed[name], values) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(entry, sealed_entry, values) for entry, sealed_entry in zip(value, sealed)]
    # The text with which the container reads the API key (server_key.py) contains no secret.
    if value == sealed or (isinstance(value, str) and (value.startswith(server_key.START) or value == server_key.SHELL)):
        return _plain(value)
    # In `sealed`, a digest replaces only the end of a text such as --cache-config=redis,password=...
    head = str(sealed).partition("digest:")[0] if isinstance(value, str) else ""
    head = head if str(value).startswith(head) else ""
    name = f"{PREFIX}{len(values) + 1}"
    values[name] = str(value)[len(head) :]
    return f"{_plain(head)}${{{name}:?found no {name} in .env beside this file}}"


def _plain(value: Any) -> Any:
    """Return a value with each `$` escaped, so that Compose substitutes no variables."""
    return value.replace("$", "$$") if isinstance(value, str) else value


def _health(desired: Mapping[str, Any], health: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the health check, which the Python of Triton's image runs in the container."""
    key = desired["key"] if "health" in health["restricted"] else None
    header = "{{{!r}: open({!r}).read().strip()}}".format(key["name"], key["path"]) if key else "{}"
    return {
        "test": ["CMD", "python3", "-c", _plain(HEALTH_PROGRAM.replace("HEADER", header))],
        "interval": f"{INTERVAL_SECONDS}s",
        "timeout": f"{TIMEOUT_SECONDS}s",
        "retries": 3,
        "start_period": f"{int(health['start_period'])}s",
    }


def _head(desired: Mapping[str, Any], host: str, has_secrets: bool) -> str:
    lines = [
        f"The container {desired['name']} of {json.dumps(host)}, as playbooks/site.yml starts it. playbooks/compose.yml wrote this",
        "file. To change it, change the inventory and run the playbook again. The host must have the image with the ID below, and",
        "the sources of the mounts. Two containers with this name, or on these ports, cannot run at once.",
    ]
    if has_secrets:
        lines.append(
            "Values that may be secret are in the file .env. It must be in this directory, and only its owner may read it."
        )
    return "".join(f"# {line}\n" for line in lines)


def _env(values: Mapping[str, str], host: str) -> str:
    """Return the text of .env, with quotes that Compose 1.29 and 2 read in the same way. Raises Refusal."""
    ambiguous = [name for name, value in values.items() if AMBIGUOUS.search(value)]
    if ambiguous:
        raise Refusal(
            f"{host}: {len(ambiguous)} possibly secret values contain a quote, a backslash, a line break or ${{, which Compose "
            "1.29 and 2 read differently in .env. Change the values in triton_server_environment, triton_server_extra_args or "
            "triton_server_log_options"
        )
    return "".join(f"{name}='{value}'\n" for name, value in values.items())
