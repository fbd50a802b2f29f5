# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The checks of one host, from the inventory or from the arguments of a task."""

from __future__ import annotations

import base64
import importlib
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import read_checks
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import (
    CHECKS_DIR,
    GOLDEN_DIR,
    index_of_host,
    server_of,
    with_pem,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import placed_here

# Import numpy once, before Ansible forks a process for each host. If numpy is missing, only the code that uses numpy fails.
with suppress(ImportError):
    importlib.import_module("numpy")
# Options of the module inference_check whose default is the variable inference_check_<option>
VARIABLE_OPTIONS = ("image", "timeout", "latency", "require_checks", "checks_dir", "golden_dir")


class Checks(NamedTuple):
    """The checks of a host. `document` is the JSON document with the checks, `program` the client that sends them, in Base64."""

    document: Dict[str, Any]
    program: str
    # Name of the header and path of the key for restricted APIs
    key: Optional[Dict[str, str]]
    # Addresses and ports
    server: Dict[str, Any]
    # Models without a check file, if check files are optional
    unchecked: List[str]

    def for_change(self, variables: Mapping[str, Any], image: str, key: Optional[Dict[str, str]]) -> Dict[str, Any]:
        """Return the checks in the form that a host change expects."""
        limits = {name: variables[f"inference_check_{name}"] for name in ("timeout", "latency")}
        return {"image": image, "document": {"server": self.server, **limits, "key": key, **self.document}, "program": self.program}


def with_defaults(task_args: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the arguments of a task, with the variables of the inventory as defaults."""
    arguments: Dict[str, Any] = {option: variables[f"inference_check_{option}"] for option in VARIABLE_OPTIONS}
    task_server = {name: value for name, value in (task_args.get("server") or {}).items() if value is not None}
    return {**arguments, "host_index": index_of_host(variables), **task_args, "server": {**server_of(variables), **task_server}}


def checks_of(host: str, arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> Checks:
    """Return the checks of the models that the arguments name, or else of all models on the host. Raises Refusal."""
    models = arguments.get("models")
    try:
        if models is None:
            models = [str(entry["name"]) for entry in placed_here(variables)]
        if not arguments["image"]:
            raise Refusal(
                "image is empty, expected the image that .npufleet.lock.json has for the release row. "
                "Run playbooks/site.yml, or set image"
            )
        checks_dirs, golden_dirs = [*arguments["checks_dir"], CHECKS_DIR], [*arguments["golden_dir"], GOLDEN_DIR]
        server, key = with_pem(arguments["server"]), server_key.for_checks(variables)
        document = read_checks(models, checks_dirs, golden_dirs, arguments["host_index"])
    except KeyError as error:
        raise Refusal(
            f"the variable {error.args[0]} is not set. Set it, or name the models in the option models of the task"
        ) from None
    unchecked = [] if arguments["require_checks"] else [entry["model"] for entry in document.pop("no_check_file")]
    program = base64.b64encode(archive.program(check_client.ENTRY)).decode()
    return Checks({"host": host, **document, "unchecked": unchecked}, program, key, server, unchecked)


def warning(host: str, unchecked: Sequence[str]) -> str:
    """Return a warning about models without a check file."""
    return f"{host}: models without a check file are not proven: " + ", ".join(unchecked)
