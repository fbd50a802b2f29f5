"""The Docker engine, asked over its socket with the standard library alone."""

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
# It becomes a part of a path
ID = re.compile(r"[\w.-]{1,128}")


def frames(raw: bytes) -> bytes:
    """Return what a container wrote, out of the engine's stream; one of a terminal has no frames and is as it is."""
    lines = bytearray()
    at = 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        length = struct.unpack(">I", raw[at + 4 : at + 8])[0]
        lines += raw[at + 8 : at + 8 + length]
        at += 8 + length
    return bytes(lines) or raw


# What an engine says of a container, as far as anything is made of it
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
    """Return the data of an engine's answer, of this shape if there is one. Raises OSError for what no engine says."""
    try:
        return shapes.parse(body) if shape is None else shapes.parse_as(body, shape)
    except ValueError as error:
        raise OSError(f"the engine answered what it should not ({error}): {body[:200]!a}") from None


def absent(container: Mapping[str, Any]) -> List[str]:
    """Paths of the host that a container mounts and that are not there: the engine would make directories of them at its start."""
    binds = (container.get("HostConfig") or {}).get("Binds") or []
    paths = [str(bind).partition(":")[0] for bind in binds]
    return sorted(path for path in paths if path.startswith("/") and not os.path.exists(path))


class Engine:
    """The Docker engine, asked over its socket, so that the standard library is enough."""

    def __init__(self, path: str = "/var/run/docker.sock", timeout: float = 20.0) -> None:
        self._path = path
        self._timeout = timeout

    def connected(self, timeout: Optional[float] = None) -> socket.socket:
        """A connection of one exchange. Raises OSError when there is no engine."""
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
        """(status, body) of one answer, within so many seconds. Raises OSError when there is none."""
        told = dict(headers or {}) if body is None else {"Content-Type": "application/json", **(headers or {})}
        budget = Budget(timeout or self._timeout)
        with self.connected(budget.seconds) as connected:
            return exchange(connected, method, resource, told, None if body is None else json.dumps(body).encode(), budget)

    def get(self, resource: str) -> Optional[Any]:
        """The engine's JSON answer; None for something that it does not have. Raises OSError when it is not there."""
        status, body = self.exchange("GET", resource)
        if status == 404:
            return None
        if status != 200:
            raise OSError("the engine answered {}: {}".format(status, body.decode("utf-8", "replace")[:200]))
        return _data(body)

    def container(self, name: str) -> Optional[Dict[str, Any]]:
        """`docker inspect`, None where there is no such container. Raises OSError without an engine that says what one is."""
        from urllib.parse import quote

        found: Optional[Dict[str, Any]] = self.get(f"/containers/{quote(name)}/json")
        flaw = None if found is None else shapes.mismatch(found, CONTAINER)
        if flaw:
            raise OSError(f"the engine describes {name} in a shape that is not known ({flaw}): see `docker inspect {name}`")
        return found

    def execute(self, container: str, command: List[str]) -> Tuple[int, str]:
        """(exit code, what it wrote) of a command inside a running container. Raises OSError where it cannot be run."""
        asked = {"AttachStdout": True, "AttachStderr": True, "Cmd": command}
        made = _data(self._post(f"/containers/{container}/exec", asked), {"Id": ID})["Id"]
        # The engine ends its answer with the command.
        said = frames(self._post(f"/exec/{made}/start", {"Detach": False, "Tty": False}))
        ended = self.get(f"/exec/{made}/json")
        code = ended["ExitCode"] if ended and not shapes.mismatch(ended, {"ExitCode": int}) else 0
        return int(code), said.decode("utf-8", "replace")

    def run(self, name: str, config: Mapping[str, Any], limit: float) -> Tuple[int, str]:
        """(exit code, what it wrote) of a container that is made for this and gone afterwards.

        Raises OSError where it cannot be run, or has not ended after so many seconds.
        """
        from urllib.parse import quote

        place = "/containers/" + quote(name)
        # One that a kill has left
        self.exchange("DELETE", place + "?force=true")
        self._post(f"/containers/create?name={quote(name)}", config)
        try:
            self._post(place + "/start", None)
            ended = _data(self._post(place + "/wait", None, limit), {"StatusCode": int})
            said = frames(self.exchange("GET", place + "/logs?stdout=1&stderr=1")[1])
        except socket.timeout:
            raise OSError(f"it has not ended within {limit:.0f} s") from None
        finally:
            self.exchange("DELETE", place + "?force=true")
        return int(ended["StatusCode"]), said.decode("utf-8", "replace")

    def _post(self, resource: str, body: Any, timeout: Optional[float] = None) -> bytes:
        status, raw = self.exchange("POST", resource, body, timeout)
        if status not in (200, 201, 204):
            raise OSError("the engine answered {}: {}".format(status, raw.decode("utf-8", "replace")[:200].strip()))
        return raw

    def answers(self) -> bool:
        """Whether an engine answers at all."""
        try:
            return self.get("/version") is not None
        except OSError:
            return False
