# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The address, the ports and the key of an actual server, from `docker inspect` or from the command line of the server.

The inventory is not enough: it may already describe the next server, or a server whose change was rolled back.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import local_address

DEFAULT_PORTS = {"http": "8000", "grpc": "8001", "metrics": "8002"}
# The part of the command line that names the HTTP header with the API key. The controller writes this part (server_key.py).
_KEY_NAME = re.compile(r'"--http-restricted-api=[^:"]+:([a-z0-9-]+)=\$key"')


def command_of(inspect: Mapping[str, Any]) -> List[str]:
    """Return the command line of a container, or an empty list without one."""
    return [str(word) for word in (inspect.get("Config") or {}).get("Cmd") or []]


def endpoint(inspect: Mapping[str, Any], service: str = "http") -> Optional[Tuple[str, int]]:
    """Return (address, port) of a container's service (http, grpc or metrics) on this host, or None if it has no published port."""
    host = inspect.get("HostConfig") or {}
    port = _option(command_of(inspect), f"{service}-port") or DEFAULT_PORTS[service]
    if not port.isascii() or not port.isdigit():
        return None
    if host.get("NetworkMode") == "host":
        return "127.0.0.1", int(port)
    for entry in (host.get("PortBindings") or {}).get(f"{port}/tcp") or []:
        with suppress(ValueError, KeyError):
            return local_address(entry.get("HostIp") or ""), int(entry["HostPort"])
    return None


def of_container(settings: Mapping[str, Any], inspect: Mapping[str, Any]) -> Dict[str, Any]:
    """Return `settings` with the `address`, `http_port` and `key` of the actual container.

    If a script or `docker exec` has started the server, the container's command line has no option of the server. The settings
    then stay as they are.
    """
    starts_server = any(word.rpartition("/")[2] == "tritonserver" for word in command_of(inspect))
    published = endpoint(inspect) if starts_server else None
    address = {"address": published[0], "http_port": published[1]} if published else {}
    return {**settings, **address, "key": api_key(command_of(inspect), keys.FILE) or settings.get("key")}


def of_process(settings: Mapping[str, Any], command: Sequence[str], key_file: str) -> Dict[str, Any]:
    """Return `settings` with the `address`, `http_port` and `key` of the actual command line of a server process."""
    address, port = _option(command, "http-address") or "", _option(command, "http-port") or ""
    if not port.isascii() or not port.isdigit():
        return dict(settings)
    key = api_key(command, key_file) or settings.get("key")
    return {**settings, "address": local_address(address), "http_port": int(port), "key": key}


def api_key(command: Sequence[str], path: str) -> Optional[Dict[str, str]]:
    """Return {"name": name of the header, "path": path} if a server reads its key from this path, or None.

    A path from the command line is not trusted, because root would read that file and send its content. So the caller gives `path`.
    """
    names = [name for word in command if f"key=$(cat {path})" in word for name in _KEY_NAME.findall(word)]
    return {"name": names[0], "path": path} if names else None


def secures_grpc(inspect: Mapping[str, Any]) -> bool:
    """Return True if Triton itself uses TLS for gRPC in a container."""
    return any(word.startswith("--grpc-use-ssl") and not word.endswith(("=false", "=0")) for word in command_of(inspect))


def _option(command: Sequence[str], name: str) -> Optional[str]:
    """Return the value of an option `--name=value`, or None if the command line does not have the option."""
    return next((word.split("=", 1)[1] for word in command if word.startswith(f"--{name}=")), None)
