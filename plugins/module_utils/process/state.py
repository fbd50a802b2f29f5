# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The server in the container in which Ansible runs: its files, its desired and actual state, and the differences."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import tempfile
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import (
    CONCERN,
    VERSION,
    connection,
    diff_serving,
    hanging_loads,
)
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable, trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.process import conditions, supervised
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import query, read_served, version_of

# Environment variables that the server inherits from Ansible. Other variables differ between terminals, and a difference would
# make a run replace the server.
INHERITED_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "RBLN_DEVICES", "RBLN_VISIBLE_DEVICES")


def key_path(root: str) -> str:
    """Return the path of this server's key."""
    return os.path.join(root, "server", "key")


def python_path(root: str) -> str:
    """Return the path of the virtual environment's Python, which has the SDK and the client."""
    return os.path.join(root, "venv", "bin", "python3")


def backends_path(root: str, files: Mapping[str, str]) -> str:
    """Return the server's directory of backends. Its name is a digest of `files`, so that changed files get a new directory."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return os.path.join(root, "backends", digest[:12])


def config(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the desired configuration of the supervisor, without the options in desired["maybe"] that this Triton lacks."""
    root = desired["root"]
    program = conditions.tritonserver() or "tritonserver"
    supported = conditions.options(program)
    unknown = tuple(f"--{name}" for name in desired["maybe"] if name not in supported)
    line = [word for word in desired["command"] if word.partition("=")[0] not in unknown]
    line = [program if word == "tritonserver" else word for word in line]
    line += ["--backend-directory=" + backends_path(root, desired["backends"])]
    # The stub of Triton's python backend runs the first Python in PATH, so the virtual environment is first.
    bins = [os.path.dirname(python_path(root)), os.path.dirname(program), conditions.PATHS]
    environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    environment.update(desired["environment"], PATH=":".join(bins), VIRTUAL_ENV=os.path.join(root, "venv"))
    return {
        "command": line,
        "environment": environment,
        "stop_timeout": desired["stop_timeout"],
        "program": desired["supervisor"]["digest"],
        "stuck_load_limit": desired["stuck_load_limit"],
    }


def mask_secrets(desired: Mapping[str, Any], message: str) -> str:
    """Return a message in which the secret values of the server's options and environment are replaced."""
    key = secret.new_key()
    environment, line = desired["environment"], desired["command"]
    shown = [*secret.seal_values(environment, key).values(), *secret.seal_command(line, key), keys.SHELL]
    return secret.remove_values(message, [*environment.values(), *line], map(str, shown))


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the actual state of the server: its process, the models that it serves, and its key."""
    root = desired["root"]
    found, pid = supervised.running(root), supervised.holder(root)
    log = supervised.log_of_start(root)
    actual: Dict[str, Any] = {
        "process": found,
        "state": "ended" if found is None else "running",
        "restarts": len(supervised.ENDED.findall(log)),
        "served": None,
        "backends": os.path.isdir(backends_path(root, desired["backends"])),
    }
    if desired["key"]:
        actual["key"] = keys.flaw(key_path(root), desired["fingerprint"])["flaw"]
    if found is not None:
        actual["hung"] = hanging_loads(root, "", pid or 0)
        endpoint = connection.of_process(desired, found.get("command") or [], key_path(root))
        actual["http_port"] = endpoint["http_port"]
        actual["served"] = read_served(endpoint)
        status, metadata = query(endpoint, "GET", "/v2")
        actual["version"] = version_of(metadata) if status == 200 else None
    if actual["served"] is None:
        actual["log"] = mask_secrets(desired, supervised.log_tail(log))
    return actual


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences of the server."""
    plan: List[Item] = []
    if actual.get("key"):
        # A server reads its key only when it starts, so a new key needs a restart.
        plan.append(item(CONCERN, "key", actual["key"], "a key that only its owner can read", "restart"))
    found, expected = actual["process"], config(desired)
    if found is None:
        return [*plan, item(CONCERN, "process", None, "a supervised tritonserver", "start")]
    differs = sorted(name for name in expected if found.get(name) != expected[name])
    if differs or not actual["backends"]:
        other = "started with other " + (", ".join(differs) or "backends")
        plan.append(item(CONCERN, "process", other, "started with the settings of the inventory", "replace"))
    if actual["served"] is not None and actual["version"] != desired["triton"]:
        plan.append(item(CONCERN, VERSION, actual["version"], f"{desired['triton']}, as rbln_release has it", INSPECT))
    return [*plan, *diff_serving(desired, actual)]


def write_key(desired: Mapping[str, Any], operator_key: str) -> bool:
    """Write the operator's key or a new key, if the server's key is missing or wrong. Return True if a key was written."""
    path = key_path(desired["root"])
    if not desired["key"] or not keys.flaw(path, desired["fingerprint"])["flaw"]:
        return False
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.chmod(os.path.dirname(path), 0o700)
    durable.write(path, operator_key or secrets.token_hex(32), 0o600)
    return True


def make_backends(desired: Mapping[str, Any]) -> bool:
    """Create the directory of backends with the desired files and links to Triton's own backends. Return False if it exists."""
    path = backends_path(desired["root"], desired["backends"])
    if os.path.isdir(path):
        return False
    image_backends = os.path.join(conditions.server_home(conditions.tritonserver() or ""), "backends")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = tempfile.mkdtemp(prefix=".", dir=os.path.dirname(path))
    for name, content in desired["backends"].items():
        target = os.path.join(draft, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as sink:
            sink.write(base64.b64decode(content))
    for name in os.listdir(image_backends):
        if not os.path.lexists(os.path.join(draft, name)):
            os.symlink(os.path.join(image_backends, name), os.path.join(draft, name))
    os.chmod(draft, 0o755)
    os.rename(draft, path)
    return True


def remove_backends(root: str) -> List[str]:
    """Remove the directories of backends that the running server does not use. Return the removed directories."""
    home = os.path.join(root, "backends")
    command = (supervised.running(root) or {}).get("command", [])
    used = [os.path.basename(word) for word in command if word.startswith("--backend-directory=")]
    unused = [os.path.join(home, name) for name in sorted(os.listdir(home)) if name not in used] if used else []
    for path in unused:
        trees.remove(path)
    return unused
