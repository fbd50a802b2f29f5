"""What a host is handed to ask the checks of its models: the inventory's own, or what a task says instead. Controller only."""

from __future__ import annotations

import base64
import importlib
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import documents
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import CHECKS, GOLDEN, place, server_of, with_pem
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import placed_here

# Once in a run, for all processes that read the arrays of checks; where it is missing, whoever needs it says so
with suppress(ImportError):
    importlib.import_module("numpy")
# Options of the module inference_check, and the variables that they follow
FOLLOWS = {
    "image": "inference_check_image",
    "timeout": "inference_check_timeout",
    "latency": "inference_check_latency",
    "require_checks": "inference_check_require_checks",
    "checks_dir": "inference_check_checks_dir",
    "golden_dir": "inference_check_golden_dir",
}


class Checks(NamedTuple):
    """The document with the program that asks it, the key of the server's restricted APIs, the server with its TLS."""

    document: Dict[str, Any]
    program: str
    key: Optional[Dict[str, str]]
    server: Dict[str, Any]
    # Models without a check file that nobody has to prove
    unasked: List[str]

    def of_change(self, variables: Mapping[str, Any], image: str, key: Optional[Dict[str, str]]) -> Dict[str, Any]:
        """Return the checks as a change of a host takes them."""
        limits = {name: variables[f"inference_check_{name}"] for name in ("timeout", "latency")}
        return {"image": image, "document": {"server": self.server, **limits, "key": key, **self.document}, "program": self.program}


def with_defaults(given: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """A task's arguments, and what the inventory says where it has none."""
    arguments: Dict[str, Any] = {option: variables[name] for option, name in FOLLOWS.items()}
    own = {name: value for name, value in (given.get("server") or {}).items() if value is not None}
    server = {name: value for name, value in server_of(variables).items() if value is not None}
    return {**arguments, "host_index": place(variables), **given, "server": {**server, **own}}


def of(host: str, arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> Checks:
    """The checks of the models that are placed on a host, or of those that the arguments name. Raises Refusal."""
    models = arguments.get("models")
    try:
        if models is None:
            models = [str(entry["name"]) for entry in placed_here(variables)]
        if not arguments["image"]:
            raise Refusal(["found no image, wanted the one that is locked for the release: run playbooks/site.yml, or name one"])
        checks_dirs, golden_dirs = [*arguments["checks_dir"], CHECKS], [*arguments["golden_dir"], GOLDEN]
        server, key = with_pem(arguments["server"]), server_key.for_checks(variables)
        document = documents(models, checks_dirs, golden_dirs, arguments["host_index"])
    except KeyError as error:
        raise Refusal([f"found no {error.args[0]} in the models to check: set triton_models, or name models"]) from None
    unasked = [] if arguments["require_checks"] else [entry["model"] for entry in document.pop("unproven")]
    program = base64.b64encode(archive.of(check_client.ENTRY)).decode()
    return Checks({"host": host, **document, "unasked": unasked}, program, key, server, unasked)


def warning(host: str, unasked: Sequence[str]) -> str:
    """What is to be said of models that nobody asks."""
    return f"{host}: not proven, as they have no check file: " + ", ".join(unasked)
