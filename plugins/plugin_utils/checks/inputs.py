# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The inputs of a host's checks: the files on the controller, the description of the server, and one digest of all inputs.

The digest is computed without parsing arrays. This is fast, so every run can compare it with the digest of the host's probe.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import address
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, yaml_of

CHECKS_DIR = os.path.join(COLLECTION, "files", "checks")
GOLDEN_DIR = os.path.join(COLLECTION, "files", "golden")
# Files of this directory that compute the document of the checks. A change of their code changes the digest.
CODE_FILES = ("arrays.py", "check_files.py", "fields.py", "tensors.py")
# The most bytes of a file name
MAX_NAME_BYTES = 255
TLS_OPTIONS = ("http_tls", "grpc_tls")


def found_in(parents: Sequence[str], *names: str) -> Optional[str]:
    """Return the path of a file in the first of `parents` that contains it, or None."""
    paths = (os.path.join(parent, *names) for parent in parents)
    return next((path for path in paths if os.path.isfile(path)), None)


def is_inside(path: str) -> bool:
    """Return True for a relative path that does not leave its directory."""
    return os.path.normpath(path) == path and path not in (".", "..") and not path.startswith(("/", "../")) and is_line(path)


def is_line(text: str) -> bool:
    """Return True for a text of one line whose parts between slashes fit into file names."""
    return text.isprintable() and all(len(part.encode()) <= MAX_NAME_BYTES for part in text.split("/"))


def directories(variables: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """Return (directories of check files, directories of golden data). Each list ends with the directory of the collection."""
    checks, golden = (
        [os.path.expanduser(path) for path in variables["inference_check_" + name]] for name in ("checks_dir", "golden_dir")
    )
    return [*checks, CHECKS_DIR], [*golden, GOLDEN_DIR]


def with_pem(server: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the set options of a server, with the contents of its TLS files instead of their paths. Raises Refusal."""
    result = {name: value for name, value in server.items() if value is not None}
    reasons: List[str] = []
    for kind in TLS_OPTIONS:
        files = {name: path for name, path in (result.get(kind) or {}).items() if path}
        if not files:
            result.pop(kind, None)
            continue
        if bool(files.get("cert")) != bool(files.get("key")):
            reasons.append(f"{kind} has only one of cert and key, expected both or neither")
        result[kind] = {}
        for name, path in files.items():
            try:
                result[kind][name] = Path(os.path.expanduser(path)).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reasons.append(
                    f"{kind}.{name} is {path} ({getattr(error, 'strerror', None) or error}), expected a PEM file on the controller"
                )
                continue
            if "-----BEGIN" not in result[kind][name]:
                reasons.append(f"{kind}.{name} is {path} without -----BEGIN, expected a PEM file")
    if reasons:
        raise Refusal(reasons)
    return result


def server_of(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the server that the inventory describes."""
    metrics = address(variables, "metrics")
    separate_metrics = not variables["inference_check_address"] and metrics != address(variables)
    url = f"http://{netloc(metrics, int(variables['npufleet_metrics_port']))}/metrics"
    return {
        "address": variables["inference_check_address"] or address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "grpc_port": int(variables["npufleet_grpc_port"]),
        "metrics_port": int(variables["npufleet_metrics_port"]),
        "metrics_url": url if separate_metrics else None,
        "http_tls": variables["inference_check_http_tls"] or None,
        "grpc_tls": variables["inference_check_grpc_tls"] or None,
        "headers": variables["inference_check_headers"] or None,
    }


def index_of_host(variables: Mapping[str, Any]) -> int:
    """Return the index of the host in the fleet. Checks with `spread` choose the rows of a host by this index."""
    fleet, host = list((variables.get("groups") or {}).get(variables["npufleet_group"], [])), variables["inventory_hostname"]
    return fleet.index(host) if host in fleet else 0


def digest(variables: Mapping[str, Any], files: str) -> str:
    """Return the SHA-256 of all inputs of the probe of a host. `files` is the result of files_digest. Raises Refusal."""
    host = variables["inventory_hostname"]
    parts = {
        "files": files,
        "host": [host, index_of_host(variables)],
        "server": with_pem(server_of(variables)),
        "timeout": int(variables["inference_check_timeout"]),
        "require_checks": str(variables["inference_check_require_checks"]).lower(),
        "latency": str(variables["monitoring_probe_latency"]).lower(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def files_digest(variables: Mapping[str, Any], models: Sequence[str]) -> str:
    """Return the SHA-256 of the client, CODE_FILES, the names of these models, their check files and the golden data."""
    checks_dirs, golden_dirs = directories(variables)
    sha256 = hashlib.sha256(archive.program(check_client.ENTRY))
    for name in CODE_FILES:
        sha256.update(file_digest(os.path.join(os.path.dirname(__file__), name)).encode())
    for model in models:
        path = found_in(checks_dirs, f"{model}.yml")
        sha256.update(f"\0{model}\0".encode())
        if path is None:
            continue
        sha256.update(file_digest(path).encode())
        for data in _golden_digests(_golden(path, model), golden_dirs):
            sha256.update(data)
    return sha256.hexdigest()


def _golden(path: str, model: str) -> str:
    """Return the directory of golden data that a check file names. Ignore errors in the file, which check_files.py reports."""
    try:
        golden = yaml_of(path).get("golden", model)
    except (AttributeError, UnicodeDecodeError, yaml.YAMLError):
        return model
    return golden if isinstance(golden, str) and is_inside(golden) else model


def _golden_digests(golden: str, golden_dirs: Sequence[str]) -> Iterator[bytes]:
    """Yield the name and digest of each file of golden data, from the first directory that contains the file."""
    names_done = set()
    for directory in golden_dirs:
        base = os.path.join(directory, golden)
        for parent, _names, files in trees.walk(base):
            for path in (os.path.join(parent, name) for name in files):
                name = os.path.relpath(path, base)
                if name not in names_done:
                    names_done.add(name)
                    yield f"{name}\0{file_digest(path)}".encode()
