#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: adoption
short_description: Translate a Triton container that was started manually into variables and a model list
description:
  - Finds the container in which C(tritonserver) runs, as main process, child of a shell, or process of C(docker exec).
  - Reads C(docker inspect), the command line and API of the server, and its model repository. Nothing on the host is changed.
  - The controller writes variables, models and a first check of each model into O(dest). A check expects the current answers.
  - For a value that looks like a secret, the variables name a vault variable (RV(vault)). An operator has to create it.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.reader
options:
  name:
    description: Name or ID of the container. Required if C(tritonserver) runs in more than one container.
    type: str
  dest:
    description: Directory on the controller to write to, also in check mode. Without it, the plan uses the current inventory.
    type: path
"""

EXAMPLES = r"""
- name: Translate the only Triton container of the host
  npufleet.triton.adoption:
    dest: /srv/fleet/adopted/npu-01
  register: adoption
"""

RETURN = r"""
container:
  description: >-
    Name, ID and image of the container, and version, command line and process ID of the server. C(started_manually) is true if the
    container's own command did not start the server.
  returned: success
  type: dict
managed:
  description: Whether this project already manages the container.
  returned: success
  type: bool
models:
  description: Versions and files of the models that are served.
  returned: success
  type: dict
variables:
  description: The variables for C(host_vars) of the host.
  returned: when O(dest) is given
  type: dict
left_out:
  description: Settings that the variables do not cover, each with the reason.
  returned: success
  type: list
  elements: str
vault:
  description: Names of the variables that belong in the vault.
  returned: success
  type: list
  elements: str
plan:
  description: Differences of container, image and models from the desired state, in the form of M(npufleet.triton.host_state).
  returned: success
  type: list
  elements: dict
report:
  description: The plan as sentences.
  returned: success
  type: list
  elements: str
obstacles:
  description: Reasons why this container cannot be replaced now, each with the next step.
  returned: success
  type: list
  elements: str
"""

import base64
import os
import re
from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import request, shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign
from ansible_collections.npufleet.triton.plugins.module_utils.triton import options
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import version_of

OPTIONS: Dict[str, Any] = {
    "name": {"type": "str"},
    "dest": {"type": "path"},
}
REQUEST: Dict[str, Any] = {
    # Path of the model repository that all servers of this project use
    "store": {"type": "str", "required": True},
    # {model: body of an inference request}
    "requests": {"type": "dict"},
    # The part of a file that this call returns: `path`, `offset` and `size` in bytes
    "piece": {"type": "dict"},
}

# The path on the host under which the kernel shows the files of the container that a process runs in
PROCESS_ROOT = re.compile(r"/proc/\d+/root")
# The result contains files that are smaller than this number of bytes. The controller reads larger files in pieces.
MAX_SMALL_FILE = 1 << 20
# Limit of the Base64 characters of all files in the result
MAX_CONTENTS = 1 << 24
# Limit of the bytes of an answer to an inference request
MAX_ANSWER = 1 << 25
ANSWER_TIMEOUT = 60.0
INDEX_SHAPE = [{"name": str, "version?": shapes.TEXT_OR_NULL, "state?": str, "reason?": shapes.TEXT_OR_NULL}]


class Failure(Exception):
    """A reason why a container cannot be adopted. The message is for an operator."""


def process_ids(engine: Engine, container: str) -> List[int]:
    """Return the IDs of the processes of a container."""
    top = engine.get(f"/containers/{container}/top") or {}
    column = top["Titles"].index("PID") if "PID" in top.get("Titles", []) else 1
    return [int(line[column]) for line in top.get("Processes") or []]


def process_of(engine: Engine, container: str) -> Optional[Dict[str, Any]]:
    """Return the process of the tritonserver in a container, or None if no such process runs."""
    try:
        pids = process_ids(engine, container)
    except OSError:
        # A container that has just ended, such as the container of a check, has no server, so this is no error.
        state = (engine.get(f"/containers/{container}/json") or {}).get("State", {})
        if state.get("Running") and not state.get("Restarting"):
            raise
        return None
    for pid in pids:
        argv = texts(pid, "cmdline")
        if argv and os.path.basename(argv[0]) == options.SERVER:
            pairs = [entry.partition("=") for entry in texts(pid, "environ") if entry]
            try:
                directory = os.readlink(f"/proc/{pid}/cwd")
            except FileNotFoundError:
                return None
            return {
                "pid": pid,
                "argv": argv,
                "environment": {name: value for name, _equals, value in pairs},
                "directory": directory,
                "user": str(status_number(pid, "Uid")),
            }
    return None


def others_of(engine: Engine, inspect: Mapping[str, Any], server: int) -> List[Dict[str, Any]]:
    """Return {"pid", "program"} of each process except those of the server and those that only keep the container running."""
    init = inspect["State"]["Pid"]
    processes = []
    for pid in process_ids(engine, inspect["Id"]):
        argv = texts(pid, "cmdline")
        idle = pid == init or (is_descendant(pid, init) and options.starts_no_server({"Cmd": argv}))
        keeps_running = idle and options.starts_no_server(inspect["Config"])
        # A process without a command line has ended.
        if argv and not keeps_running and not is_descendant(pid, server) and not is_descendant(server, pid):
            processes.append({"pid": pid, "program": program_of(argv)})
    return processes


def is_descendant(pid: int, ancestor: int) -> bool:
    """Return True if `pid` is `ancestor` or its descendant. Processes of `docker exec` do not descend from the main process."""
    while pid > 1 and pid != ancestor:
        pid = status_number(pid, "PPid")
    return pid == ancestor


def program_of(argv: List[str]) -> str:
    """Return the name of a program and of its script, without other arguments, which may be secret."""
    name = os.path.basename(argv[0])
    script = re.fullmatch(r"[\w./+-]+\.\w{1,4}", argv[1]) if len(argv) > 1 else None
    return f"{name} {os.path.basename(script[0])}" if script else name


def raw(path: str) -> bytes:
    """Return the content of a file of /proc, or b"" if the process has ended."""
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return b""


def texts(pid: int, name: str) -> List[str]:
    """Return the texts in the file `cmdline` or `environ` of a process, or [] if the process has ended."""
    return [text.decode("utf-8", "replace") for text in raw(f"/proc/{pid}/{name}").split(b"\0")[:-1]]


def status_number(pid: int, field: str) -> int:
    """Return the first number of a field in the status of a process, or 0 if the process has ended."""
    lines = raw(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)


def find(engine: Engine, name: Optional[str]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return `docker inspect` and the server process of the container to adopt. Raises Failure."""
    if name:
        inspect = engine.get(f"/containers/{name}/json")
        if not inspect:
            raise Failure(f"container {name} does not exist, expected one that `docker ps` lists")
        if not inspect["State"]["Running"]:
            raise Failure(f"container {name} is {inspect['State']['Status']}, expected running. Start it and its server first")
        process = process_of(engine, name)
        if not process:
            expected = "but adoption reads the models of a running server. Start it first"
            raise Failure(f"container {name} runs no {options.SERVER}, {expected}")
        return inspect, process
    servers = {}
    for entry in engine.get("/containers/json") or []:
        process = process_of(engine, entry["Id"])
        if process:
            servers[entry["Names"][0].lstrip("/")] = (entry["Id"], process)
    if not servers:
        todo = "Start it, or run playbooks/site.yml for a new container"
        raise Failure(f"no running container has a {options.SERVER}, expected one to adopt. {todo}")
    if len(servers) > 1:
        names = ", ".join(sorted(servers))
        raise Failure(f"{options.SERVER} runs in more than one container: {names}; name the one to adopt (adopt_container)")
    container, process = next(iter(servers.values()))
    return engine.get(f"/containers/{container}/json") or {}, process


def resolve(root: str, path: str) -> str:
    """Return the path on the host for a path in a container. `root` is the root directory of the container. Raises Failure.

    Links are followed as in the container, so that an absolute link begins at `root`.
    """
    resolved = root
    parts = [part for part in path.split("/") if part]
    for _step in range(200):
        if not parts:
            return resolved
        resolved = os.path.join(resolved, parts.pop(0))
        if os.path.islink(resolved):
            target = os.readlink(resolved)
            resolved = root if target.startswith("/") else os.path.dirname(resolved)
            parts = [part for part in target.split("/") if part] + parts
    raise Failure(f"{path} is a loop of links, expected a file or a directory. Repair the repository")


def files_of(root: str, directory: str) -> Iterator[Tuple[str, str]]:
    """Yield (path below the directory, path on the host) of each file of a model."""
    queue = [""]
    while queue:
        directory_below = queue.pop()
        host_directory = resolve(root, os.path.join(directory, directory_below))
        for name in sorted(os.listdir(host_directory)):
            path = os.path.join(directory_below, name)
            host_path = resolve(root, os.path.join(directory, path))
            if os.path.isdir(host_path):
                queue += [path] if name not in ("__pycache__", ".git") else []
            elif os.path.isfile(host_path) and not name.endswith(".pyc"):
                yield path, host_path


def open_container_file(path: str, root: str) -> BinaryIO:
    """Open a file of a container. Raises Failure if a process has replaced the file by a link."""
    try:
        # With `single=False`, hard links are allowed, because image layers and model caches use them.
        return foreign.open_file(path, base=root, single=False)
    except foreign.Untrusted as error:
        raise Failure(f"{path} {error}: do not change the model while it is read, and run again") from None


def model(root: str, directory: str, characters_left: int = MAX_CONTENTS) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Return {path: {"size", "sha256", "at": path on the host}} of all files of a model, and {path: Base64} of small files.

    `characters_left` is the limit of the Base64 characters of all small files together.
    """
    files: Dict[str, Any] = {}
    contents: Dict[str, str] = {}
    for path, host_path in files_of(root, directory):
        with open_container_file(host_path, root) as source:
            files[path] = {"size": os.fstat(source.fileno()).st_size, "sha256": foreign.digest(source), "at": host_path}
            if files[path]["size"] < min(MAX_SMALL_FILE, characters_left):
                source.seek(0)
                contents[path] = base64.b64encode(source.read(MAX_SMALL_FILE)).decode()
                characters_left -= len(contents[path])
    return files, contents


def served(address: str, port: int, key: Optional[Dict[str, str]] = None) -> Tuple[Dict[str, Any], List[Any]]:
    """Return the metadata and the model index of the server. `key` has the headers for restricted APIs. Raises Failure."""
    status, about = http_json(address, port, "GET", "/v2", ANSWER_TIMEOUT, headers=key)
    code, index = http_json(address, port, "POST", "/v2/repository/index", ANSWER_TIMEOUT, headers=key)
    if status != 200 or code != 200 or shapes.mismatch(index, INDEX_SHAPE) or not isinstance(about, dict):
        expected = "its model index. Adoption needs the HTTP service of the server"
        raise Failure(f"the server does not answer at {address}:{port} ({about if status != 200 else index}), expected {expected}")
    return about, index


def container_facts(engine: Engine, arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the facts of the container, its server and its models. Raises Failure."""
    inspect, process = find(engine, arguments["name"])
    image = images.inspect_image(engine, inspect["Image"]) or {}
    init = inspect["State"]["Pid"]
    descends = is_descendant(process["pid"], init)
    process["main"] = process["pid"] == init or (descends and not options.starts_no_server(inspect["Config"]))
    address, port = options.endpoint(inspect, process["argv"])
    key = options.key_headers(process["argv"])
    about, index = served(address, port, key)
    directories = options.repositories(process["argv"], process["directory"])
    remote = [path for path in directories if "://" in path]
    if remote:
        raise Failure(f"model repository {', '.join(remote)} is not on this host: list its models in triton_models yourself")
    root = f"/proc/{process['pid']}/root"
    models: Dict[str, Any] = {}
    left_out = []
    characters_left = MAX_CONTENTS
    for entry in index:
        name, version = entry["name"], entry.get("version")
        if entry.get("state") != "READY":
            state, reason = entry.get("state", "not loaded"), entry.get("reason", "")
            left_out.append(f"model {name} {version or ''}: {state} ({reason})")
            continue
        if name in models:
            models[name]["versions"].append(version)
            continue
        candidates = [os.path.join(directory, name) for directory in directories]
        model_directory = next((path for path in candidates if os.path.isdir(resolve(root, path))), None)
        if model_directory is None:
            raise Failure(f"model {name} is served, but is in none of {', '.join(directories)}: load it from one of them first")
        files, contents = model(root, model_directory, characters_left)
        characters_left -= sum(map(len, contents.values()))
        resource = f"/v2/models/{name}/versions/{version}/config"
        status, config = http_json(address, port, "GET", resource, ANSWER_TIMEOUT, headers=key)
        models[name] = {
            "home": model_directory,
            "versions": [version],
            "files": files,
            "contents": contents,
            "config": config if status == 200 and isinstance(config, dict) else None,
        }
    return {
        "inspect": inspect,
        "image": image,
        "default_runtime": (engine.get("/info") or {}).get("DefaultRuntime"),
        "process": process,
        "managed": arguments["store"] in directories,
        "server": {"version": version_of(about), "address": address, "port": port},
        "models": models,
        "others": others_of(engine, inspect, process["pid"]),
        "left_out": left_out,
    }


def infer(engine: Engine, arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """Send the given request to each model, and return {model: [status, answer]}."""
    inspect, process = find(engine, arguments["name"])
    address, port = options.endpoint(inspect, process["argv"])
    key = options.key_headers(process["argv"])
    return {
        name: http_json(address, port, "POST", f"/v2/models/{name}/infer", ANSWER_TIMEOUT, body, key, size=MAX_ANSWER)
        for name, body in arguments["requests"].items()
    }


def run(module: request.Module) -> None:
    arguments = request.merge_request(module, REQUEST)
    engine = Engine()
    try:
        if arguments["piece"]:
            path = arguments["piece"]["path"]
            root_match = PROCESS_ROOT.match(path)
            with open_container_file(path, root_match[0] if root_match else os.path.dirname(path)) as source:
                source.seek(int(arguments["piece"]["offset"]))
                module.exit_json(data=base64.b64encode(source.read(int(arguments["piece"]["size"]))).decode())
        if arguments["requests"]:
            module.exit_json(answers=infer(engine, arguments))
        module.exit_json(found=container_facts(engine, arguments))
    except Failure as failure:
        module.fail_json(msg=str(failure))
    except OSError as error:
        module.fail_json(msg=f"the container cannot be read: {error}: the engine and the server must run during the adoption")


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
