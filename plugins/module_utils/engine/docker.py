# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A client of the Docker engine's API over its Unix socket."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, exchange

ANY = re.compile(".*", re.DOTALL)
# An ID is used in the path of requests, so its characters are checked.
ID = re.compile(r"[\w.-]{1,128}")


def decode_stream(raw: bytes) -> bytes:
    """Return the output of a container without the engine's frame headers. Output of a terminal has no headers."""
    output = bytearray()
    at = 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        length = struct.unpack(">I", raw[at + 4 : at + 8])[0]
        output += raw[at + 8 : at + 8 + length]
        at += 8 + length
    return bytes(output) or raw


# The fields of `docker inspect` that this project reads
CONTAINER = {
    "Id": ID,
    "Name?": str,
    "Image?": str,
    "RestartCount?": int,
    "State": {"Status": str, "Running": bool, "ExitCode?": int, "Pid?": int, "StartedAt?": str},
    "Config?": {
        "Cmd?": ([str], shapes.NULL),
        "Entrypoint?": ([str], shapes.NULL),
        "Env?": ([str], shapes.NULL),
        "Labels?": (dict, shapes.NULL),
        "User?": str,
    },
    "HostConfig?": {
        "Binds?": ([str], shapes.NULL),
        "NetworkMode?": str,
        "PortBindings?": ({ANY: ([{"HostIp?": str, "HostPort?": str}], shapes.NULL)}, shapes.NULL),
    },
}


def _data(body: bytes, shape: Any = None) -> Any:
    """Return the data of an engine's response. Raises OSError if it is invalid JSON or does not match the shape."""
    try:
        return shapes.parse(body) if shape is None else shapes.parse_as(body, shape)
    except ValueError as error:
        raise OSError(f"the engine returned an invalid response ({error}): {body[:200]!a}") from None


def _successful(status: int, body: bytes) -> bytes:
    """Return the body of a successful response. Raises OSError for a failed request."""
    if status not in (200, 201, 204):
        raise OSError("the engine answered {}: {}".format(status, body.decode("utf-8", "replace")[:200].strip()))
    return body


def missing_binds(container: Mapping[str, Any]) -> List[str]:
    """Return the missing host paths of a container's bind mounts, which the engine would create as directories."""
    binds = (container.get("HostConfig") or {}).get("Binds") or []
    paths = [str(bind).partition(":")[0] for bind in binds]
    return sorted(path for path in paths if path.startswith("/") and not os.path.exists(path))


class Engine:
    """A client of the Docker engine that needs only the standard library."""

    def __init__(self, path: str = "/var/run/docker.sock", timeout: float = 20.0) -> None:
        self._path = path
        self._timeout = timeout

    def connect(self, timeout: Optional[float] = None) -> socket.socket:
        """Return a connection for one exchange. Raises OSError if no engine listens."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout or self._timeout)
            connected.connect(self._path)
        except OSError:
            connected.close()
            raise
        return connected

    def exchange(
        self,
        method: str,
        resource: str,
        body: Any = None,
        timeout: Optional[float] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Tuple[int, bytes]:
        """Send a request, and return (status, body) of the response. Raises OSError if no response comes in time."""
        fields = dict(headers or {}) if body is None else {"Content-Type": "application/json", **(headers or {})}
        budget = Budget(timeout or self._timeout)
        with self.connect(budget.seconds) as connected:
            return exchange(connected, method, resource, fields, None if body is None else json.dumps(body).encode(), budget)

    def get(self, resource: str) -> Optional[Any]:
        """Return the data of a GET, or None for status 404. Raises OSError for any other failure."""
        status, body = self.exchange("GET", resource)
        return None if status == 404 else _data(_successful(status, body))

    def container(self, name: str) -> Optional[Dict[str, Any]]:
        """Return `docker inspect` of a container, or None if it does not exist. Raises OSError without a valid response."""
        from urllib.parse import quote

        found: Optional[Dict[str, Any]] = self.get(f"/containers/{quote(name)}/json")
        flaw = None if found is None else shapes.mismatch(found, CONTAINER)
        if flaw:
            raise OSError(f"the engine returned an unknown format for {name} ({flaw}): see `docker inspect {name}`")
        return found

    def execute(self, container: str, command: List[str]) -> Tuple[int, str]:
        """Run a command in a running container, and return (exit code, output). Raises OSError if the command cannot run."""
        options = {"AttachStdout": True, "AttachStderr": True, "Cmd": command}
        identity = _data(self._post(f"/containers/{container}/exec", options), {"Id": ID})["Id"]
        # The response ends when the command ends.
        output = decode_stream(self._post(f"/exec/{identity}/start", {"Detach": False, "Tty": False}))
        state = self.get(f"/exec/{identity}/json")
        code = state["ExitCode"] if state and not shapes.mismatch(state, {"ExitCode": int}) else 0
        return int(code), output.decode("utf-8", "replace")

    def run(self, name: str, config: Mapping[str, Any], limit: float) -> Tuple[int, str]:
        """Run a container and remove it, and return (exit code, output). Raises OSError if it does not end within the limit."""
        from urllib.parse import quote

        resource = "/containers/" + quote(name)
        # An earlier call that was killed may have left a container with this name.
        self.exchange("DELETE", resource + "?force=true")
        self._post(f"/containers/create?name={quote(name)}", config)
        try:
            self._post(resource + "/start", None)
            exit_status = _data(self._post(resource + "/wait", None, limit), {"StatusCode": int})
            output = decode_stream(self.exchange("GET", resource + "/logs?stdout=1&stderr=1")[1])
        except socket.timeout:
            raise OSError(f"the container did not end within {limit:.0f} s") from None
        finally:
            self.exchange("DELETE", resource + "?force=true")
        return int(exit_status["StatusCode"]), output.decode("utf-8", "replace")

    def _post(self, resource: str, body: Any, timeout: Optional[float] = None) -> bytes:
        return _successful(*self.exchange("POST", resource, body, timeout))

    def is_running(self) -> bool:
        """Return True if the engine responds."""
        try:
            return self.get("/version") is not None
        except OSError:
            return False
