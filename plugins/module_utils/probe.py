"""Small readers that several concerns share. Nothing here changes anything."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
from typing import Any, Dict, List, Optional, Tuple

# What the path of a request cannot hold as it is
_UNASKABLE = re.compile(r"[\x00-\x20\x7f/?#\ud800-\udfff]")
NAMELESS = "its name has a space, a control character, / ? or #, which no request over HTTP can carry"


def run(*command: str) -> Tuple[int, str]:
    """Exit code and output (standard output, or standard error where that is all there is); 127 when not installed."""
    try:
        done = subprocess.run(list(command), capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not answer within 60 s"
    output = done.stdout or done.stderr
    return done.returncode, output.decode("utf-8", "replace").strip()


def file_system(path: str) -> Tuple[int, int]:
    """(file system, free bytes) of a directory that may not be there yet."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev, shutil.disk_usage(path).free


def text(path: str) -> Optional[str]:
    """Content of a small file, None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return None


def packages(names: List[str]) -> Dict[str, Dict[str, Any]]:
    """Installed Debian packages out of `names` (patterns allowed): {name: {"version", "held"}}."""
    if not names:
        return {}
    form = "${binary:Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"
    output = run("dpkg-query", "--show", "--showformat", form, *names)[1]
    found = {}
    for line in output.splitlines():
        columns = line.split("\t")
        if len(columns) == 4 and columns[3] == "installed":
            found[columns[0].split(":")[0]] = {"version": columns[1], "held": columns[2] == "hold"}
    return found


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def frames(raw: bytes) -> bytes:
    """What a container wrote, out of the engine's stream; one of a terminal has no frames and is as it is."""
    lines = b""
    while len(raw) >= 8 and raw[0] in (0, 1, 2):
        length = struct.unpack(">I", raw[4:8])[0]
        lines += raw[8 : 8 + length]
        raw = raw[8 + length :]
    return lines or raw


class Engine:
    """The Docker engine, asked over its socket, so that the standard library is enough."""

    def __init__(self, path: str = "/var/run/docker.sock", timeout: float = 20.0) -> None:
        self._path = path
        self._timeout = timeout

    def connection(self) -> http.client.HTTPConnection:
        """A connection of one exchange."""
        return _UnixConnection(self._path, self._timeout)

    def get(self, resource: str) -> Optional[Any]:
        """The engine's JSON answer; None for something that it does not have. Raises OSError when it is not there."""
        connection = self.connection()
        try:
            connection.request("GET", resource)
            answer = connection.getresponse()
            body = answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"the engine's answer broke off: {error}") from error
        finally:
            connection.close()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise OSError("the engine answered {}: {}".format(answer.status, body.decode("utf-8", "replace")[:200]))
        return json.loads(body)

    def execute(self, container: str, command: List[str]) -> Tuple[int, str]:
        """(exit code, what it wrote) of a command inside a running container. Raises OSError where it cannot be run."""
        asked = {"AttachStdout": True, "AttachStderr": True, "Cmd": command}
        made = json.loads(self._post(f"/containers/{container}/exec", asked))["Id"]
        # The engine ends its answer with the command.
        said = frames(self._post(f"/exec/{made}/start", {"Detach": False, "Tty": False}))
        ended = self.get(f"/exec/{made}/json") or {}
        return int(ended.get("ExitCode") or 0), said.decode("utf-8", "replace")

    def _post(self, resource: str, body: Any) -> bytes:
        connection = self.connection()
        try:
            connection.request("POST", resource, body=json.dumps(body), headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            raw = answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"the engine's answer broke off: {error}") from error
        finally:
            connection.close()
        if answer.status not in (200, 201):
            raise OSError("the engine answered {}: {}".format(answer.status, raw.decode("utf-8", "replace")[:200].strip()))
        return raw

    def answers(self) -> bool:
        """Whether an engine answers at all."""
        try:
            return self.get("/version") is not None
        except OSError:
            return False


def netloc(address: str, port: Any) -> str:
    """Address and port as URLs and the engine have them: an IPv6 address in brackets, no address as nothing."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class HttpConnection(http.client.HTTPConnection):
    """A connection whose paths may hold a model's name: Triton takes its bytes as they are, and quoted it would be another name."""

    def _encode_request(self, request: str) -> bytes:
        return request.encode()


def can_be_asked(model: str) -> bool:
    """Whether a request's path can hold the name of this model; where it cannot, `NAMELESS` says why."""
    return bool(model) and not _UNASKABLE.search(model)


def http_json(
    address: str,
    port: int,
    method: str,
    resource: str,
    timeout: float = 5.0,
    body: str = "",
    headers: Optional[Dict[str, str]] = None,
) -> Tuple[int, Any]:
    """Status and JSON body of one HTTP exchange; status 0 with the reason when there was none."""
    connection = HttpConnection(address, port, timeout=timeout)
    try:
        connection.request(method, resource, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()
    words = raw.decode("utf-8", "replace")
    try:
        found = json.loads(words) if raw else None
        if "\\ud" in words.lower():
            # Half a character, which nobody could write down
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
        return answer.status, found
    except (ValueError, RecursionError):
        return answer.status, words[:500]
