"""What the checks of a host are made of: files on the controller, and one digest over all that they follow from.

The digest costs no reading of arrays, so that every run can compare what a host keeps for its probe. Controller only.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import address
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, yaml_of

CHECKS = os.path.join(COLLECTION, "files", "checks")
GOLDEN = os.path.join(COLLECTION, "files", "golden")
# Code that a document follows from, beside the one that travels with it
CODE = ("check_files.py", "tensors.py")
# Of a name in a file system
NAME_BYTES = 255
TLS = ("http_tls", "grpc_tls")


def found_in(directories: Sequence[str], *names: str) -> Optional[str]:
    """Where a file is: the first directory that has it wins."""
    paths = (os.path.join(directory, *names) for directory in directories)
    return next((path for path in paths if os.path.isfile(path)), None)


def is_inside(path: str) -> bool:
    """Return True for a relative path of a file or directory that stays in the directory that it is looked for in."""
    return os.path.normpath(path) == path and path not in (".", "..") and not path.startswith(("/", "../")) and is_line(path)


def is_line(text: str) -> bool:
    """Return True for a text of one line whose parts fit into file names."""
    return text.isprintable() and all(len(part.encode()) <= NAME_BYTES for part in text.split("/"))


def directories(variables: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """(directories of check files, of their golden data): those of the site, and then the collection's own."""
    checks, golden = (
        [os.path.expanduser(variable) for variable in variables["inference_check_" + name]] for name in ("checks_dir", "golden_dir")
    )
    return [*checks, CHECKS], [*golden, GOLDEN]


def with_pem(server: Mapping[str, Any]) -> Dict[str, Any]:
    """The server of a task's arguments with the content of each file of its TLS, and without what is not set. Raises Refusal."""
    found = {name: value for name, value in server.items() if value is not None}
    reasons: List[str] = []
    for kind in TLS:
        files = {name: path for name, path in (found.get(kind) or {}).items() if path}
        if not files:
            found.pop(kind, None)
            continue
        if bool(files.get("cert")) != bool(files.get("key")):
            reasons.append(f"{kind}: found cert or key alone, wanted both or none")
        found[kind] = {}
        for name, path in files.items():
            try:
                with open(os.path.expanduser(path), encoding="utf-8") as source:
                    found[kind][name] = source.read()
            except (OSError, UnicodeDecodeError) as error:
                reasons.append(f"{kind}.{name}: found {error}, wanted a PEM file on the controller")
                continue
            if "-----BEGIN" not in found[kind][name]:
                reasons.append(f"{kind}.{name}: found {path} without -----BEGIN, wanted a PEM file")
    if reasons:
        raise Refusal(reasons)
    return found


def server_of(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """The server as the inventory has it."""
    return {
        "address": variables["inference_check_address"] or address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "grpc_port": int(variables["npufleet_grpc_port"]),
        "metrics_port": int(variables["npufleet_metrics_port"]),
        "http_tls": variables["inference_check_http_tls"] or None,
        "grpc_tls": variables["inference_check_grpc_tls"] or None,
        "headers": variables["inference_check_headers"] or None,
    }


def place(variables: Mapping[str, Any]) -> int:
    """The host's place in the fleet, by which checks that spread choose their rows."""
    fleet, host = list((variables.get("groups") or {}).get(variables["npufleet_group"], [])), variables["inventory_hostname"]
    return fleet.index(host) if host in fleet else 0


def digest(variables: Mapping[str, Any], files: str) -> str:
    """SHA-256 over everything that the document of a host's probe follows from; `files` is files_digest's. Raises Refusal."""
    host = variables["inventory_hostname"]
    said = {
        "files": files,
        "host": [host, place(variables)],
        "server": with_pem(server_of(variables)),
        "timeout": int(variables["inference_check_timeout"]),
        "require_checks": str(variables["inference_check_require_checks"]).lower(),
        "latency": str(variables["monitoring_probe_latency"]).lower(),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def files_digest(variables: Mapping[str, Any], models: Sequence[str]) -> str:
    """SHA-256 over the client, the names of these models, and their check files with their golden data."""
    checks_dirs, golden_dirs = directories(variables)
    whole = hashlib.sha256(archive.of(check_client.ENTRY))
    for name in CODE:
        whole.update(_of(os.path.join(os.path.dirname(__file__), name)))
    for model in models:
        path = found_in(checks_dirs, f"{model}.yml")
        whole.update(f"\0{model}\0".encode())
        if path is None:
            continue
        whole.update(_of(path))
        for data in _data(_golden(path, model), golden_dirs):
            whole.update(data)
    return whole.hexdigest()


def _of(path: str) -> bytes:
    with open(path, "rb") as source:
        return hashlib.sha256(source.read()).digest()


def _golden(path: str, model: str) -> str:
    """The directory of a check file's data. A file that is none is refused where it is read as a whole."""
    try:
        golden = yaml_of(path).get("golden", model)
    except (AttributeError, UnicodeDecodeError, yaml.YAMLError):
        return model
    return golden if isinstance(golden, str) and is_inside(golden) else model


def _data(golden: str, directories: Sequence[str]) -> Iterator[bytes]:
    """Name and digest of every file that a check may read, of the first directory that has it."""
    seen = set()
    for directory in directories:
        base = os.path.join(directory, golden)
        for place, _names, files in trees.walk(base):
            for path in (os.path.join(place, name) for name in files):
                name = os.path.relpath(path, base)
                if name not in seen:
                    seen.add(name)
                    yield name.encode() + b"\0" + _of(path)
