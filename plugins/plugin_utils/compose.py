# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired container of the server as a file of Docker Compose.

The file adds only the health check. A value that status shows as a digest is not in the file but in `.env` beside it, which Compose
reads by itself.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List, Mapping, Tuple

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import DEFAULTS

SERVICE = "triton"
# The prefix of the names of values in .env
PREFIX = "NPUFLEET_VALUE_"
# The ID of an image, which Compose cannot pull
IDENT = re.compile("sha256:[0-9a-f]{64}")
# Compose 1.29 and 2 read these differently inside the quotes of an .env.
AMBIGUOUS = re.compile(r"['\\\r\n]|\$\{")
# Seconds between two health checks, and until a check fails
INTERVAL, TIMEOUT = 30, 10
# urllib would use a proxy that is meant for the server's own downloads.
ASK = (
    "import http.client, sys; asked = http.client.HTTPConnection('127.0.0.1', 8000, timeout=5); "
    "asked.request('GET', '/v2/health/ready', headers=HEADER); sys.exit(asked.getresponse().status != 200)"
)


def _limits(found: Mapping[str, str]) -> Dict[str, Any]:
    """Return {"memlock": {"soft": -1, "hard": -1}} for {"memlock": "-1:-1"}."""
    pairs = {name: both.split(":") for name, both in found.items()}
    return {name: {"soft": int(soft), "hard": int(hard)} for name, (soft, hard) in pairs.items()}


def _same(value: Any) -> Any:
    return value


def _by_name(requests: Any) -> Dict[str, Any]:
    """Return ["cdi rebellions.ai/npu=0,..."] as a reservation. Compose requires capabilities, which the engine ignores here."""
    names = [name for request in requests for name in request.removeprefix("cdi ").split(",")]
    return {"resources": {"reservations": {"devices": [{"driver": "cdi", "device_ids": names, "capabilities": ["npu"]}]}}}


# {fact of a container: (option of Compose, function that returns the form of Compose)}
OPTIONS: Dict[str, Tuple[str, Callable[[Any], Any]]] = {
    "image": ("image", _same),
    "command": ("command", list),
    "environment": ("environment", dict),
    "log": ("logging", lambda log: {"driver": log["driver"], "options": dict(log["options"])}),
    "ports": ("ports", lambda ports: [f"{where}:{inside}" for inside, where in sorted(ports.items())]),
    "privileged": ("privileged", _same),
    "restart": ("restart", _same),
    "shm_size": ("shm_size", _same),
    "stop_timeout": ("stop_grace_period", "{}s".format),
    "ulimits": ("ulimits", _limits),
    "volumes": ("volumes", list),
    "cap_add": ("cap_add", list),
    "cap_drop": ("cap_drop", list),
    "cpuset": ("cpuset", _same),
    "device_requests": ("deploy", _by_name),
    "devices": ("devices", list),
    "entrypoint": ("entrypoint", list),
    "extra_hosts": ("extra_hosts", list),
    "groups": ("group_add", list),
    "ipc": ("ipc", _same),
    "cpus": ("cpus", _same),
    "memory": ("mem_limit", _same),
    # Compose would create another network than that of the managed container.
    "network": ("network_mode", lambda network: "bridge" if network == DEFAULTS["network"] else network),
    "pid": ("pid", _same),
    "pids_limit": ("pids_limit", _same),
    "read_only": ("read_only", _same),
    "security": ("security_opt", list),
    "tmpfs": ("tmpfs", list),
    "user": ("user", _same),
    "working_dir": ("working_dir", _same),
}
# Facts that are written although they are defaults of the engine, because Compose has other defaults
ALWAYS = ("network",)


def compose_file(
    desired: Mapping[str, Any], sealed: Mapping[str, Any], actual: Mapping[str, Any], host: str, health: Mapping[str, Any]
) -> Dict[str, str]:
    """Return {"file": the Compose file, "env": the text of .env, empty if no value is kept out of the file}. Raises Refusal.

    `desired` and `sealed` are the desired state of the concern `server` in the clear and with digests, `actual` is its actual
    state, all as host_state returns them. `health` has the `start_period` in seconds and the `restricted` APIs.
    """
    container = dict(desired["container"])
    reasons = _reasons(container, actual, host)
    if reasons:
        raise Refusal(reasons)
    # The ID that this engine has given to the image
    container.update(image=actual["image"], volumes=sorted({*container["volumes"], *actual["driver_files"]["binds"]}))
    container.update({key: actual["access"][key] for key in ("devices", "groups")})
    values: Dict[str, str] = {}
    for fact in ("command", "environment", "log"):
        container[fact] = _kept_out(container[fact], sealed["container"][fact], values)
    service: Dict[str, Any] = {"container_name": desired["name"], "pull_policy": "never"}
    for fact, (option, form) in OPTIONS.items():
        if fact in ALWAYS or container[fact] != DEFAULTS.get(fact):
            service[option] = form(container[fact])
    service["healthcheck"] = _health(desired, health)
    # JSON turns texts of variables into plain texts for YAML.
    plain = json.loads(json.dumps({"services": {SERVICE: service}}))
    text = yaml.safe_dump(plain, sort_keys=False, width=1000, allow_unicode=True)
    return {"file": _head(desired, host, bool(values)) + text, "env": _env(values, host)}


def _reasons(container: Mapping[str, Any], actual: Mapping[str, Any], host: str) -> List[str]:
    """Return the reasons against a Compose file of this host."""
    reasons = []
    unknown = sorted(fact for fact in set(container) - set(OPTIONS) if container[fact] != DEFAULTS.get(fact, ...))
    if unknown:
        reasons.append(f"{host}: container.{', container.'.join(unknown)} is set, expected only options that a Compose file has")
    if not container["image"]:
        reasons.append(f"{host}: the lock file has no image, expected the one of this release. Run playbooks/site.yml first")
    elif not IDENT.fullmatch(str(actual.get("image"))):
        reasons.append(f"{host}: the host has no image, expected the locked one. Run playbooks/site.yml --tags engine,image first")
    reasons += [f"{host}: {why}" for why in (*actual["access"]["missing"], *actual["access"]["closed"])]
    absent = [*actual["absent"], *actual["driver_files"]["missing"]]
    if absent:
        # The engine would create missing sources of mounts as directories.
        reasons.append(
            f"{host}: {', '.join(absent)} is missing, expected the source of a mount. Create it, install the driver for it, or "
            "correct triton_server_volumes or triton_server_driver_files"
        )
    return reasons


def _kept_out(value: Any, shown: Any, values: Dict[str, str]) -> Any:
    """Return a value for the file. A part that is shown as a digest becomes a variable, whose value is added to `values`."""
    if isinstance(value, Mapping):
        return {name: _kept_out(entry, shown[name], values) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_kept_out(entry, seen, values) for entry, seen in zip(value, shown)]
    # The text of the shell that reads the key holds no secret.
    if value == shown or (isinstance(value, str) and (value.startswith(server_key.START) or value == server_key.SHELL)):
        return _plain(value)
    # A digest replaces the end of a text such as --cache-config=redis,password=...
    head = _common(str(value), str(shown)) if isinstance(value, str) else ""
    name = f"{PREFIX}{len(values) + 1}"
    values[name] = str(value)[len(head) :]
    return f"{_plain(head)}${{{name}:?found no {name} in .env beside this file}}"


def _common(value: str, shown: str) -> str:
    """Return the common start of a text and its form with a digest."""
    head = shown.partition("digest:")[0]
    return head if value.startswith(head) else ""


def _plain(value: Any) -> Any:
    """Return a value in which Compose finds no variables."""
    return value.replace("$", "$$") if isinstance(value, str) else value


def _health(desired: Mapping[str, Any], health: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the health check, which the Python of Triton's image runs in the container."""
    key = desired["key"] if "health" in health["restricted"] else None
    header = "{{{!r}: open({!r}).read().strip()}}".format(key["name"], key["path"]) if key else "{}"
    return {
        "test": ["CMD", "python3", "-c", _plain(ASK.replace("HEADER", header))],
        "interval": f"{INTERVAL}s",
        "timeout": f"{TIMEOUT}s",
        "retries": 3,
        "start_period": f"{int(health['start_period'])}s",
    }


def _head(desired: Mapping[str, Any], host: str, kept_out: bool) -> str:
    """Return the comment at the top of the file."""
    lines = [
        f"The container {desired['name']} of {json.dumps(host)}, equal to the one that playbooks/site.yml starts. Written by",
        "playbooks/compose.yml: change the inventory and run it again. The host has to have the image, under this ID, and what is",
        "mounted; two containers of this name, or on these ports, cannot run at once.",
    ]
    if kept_out:
        lines.append(
            "Values that may be secret are in the file .env, which has to be beside this one and readable only for its owner."
        )
    return "".join(f"# {line}\n" for line in lines)


def _env(values: Mapping[str, str], host: str) -> str:
    """Return the text of .env, in quotes that both versions of Compose read alike. Raises Refusal."""
    crooked = [name for name, value in values.items() if AMBIGUOUS.search(value)]
    if crooked:
        raise Refusal(
            [
                f"{host}: {len(crooked)} values of triton_server_environment, triton_server_extra_args and "
                "triton_server_log_options that may be secret have a quote, a backslash, a line break or ${, expected none, as "
                "Compose 1.29 and 2 read these differently in .env"
            ]
        )
    return "".join(f"{name}='{value}'\n" for name, value in values.items())
