"""Small readers that several concerns share. Nothing here changes anything."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
from typing import Any, Dict, List, Optional, Tuple


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


class Engine:
    """The Docker engine, asked over its socket: read-only, so the standard library is enough."""

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

    def answers(self) -> bool:
        """Whether an engine answers at all."""
        try:
            return self.get("/version") is not None
        except OSError:
            return False


def http_json(address: str, port: int, method: str, resource: str, timeout: float = 5.0, body: str = "") -> Tuple[int, Any]:
    """Status and JSON body of one HTTP exchange; status 0 with the reason when there was none."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    try:
        connection.request(method, resource, body=body or None)
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()
    try:
        return answer.status, json.loads(raw) if raw else None
    except ValueError:
        return answer.status, raw.decode("utf-8", "replace")[:500]
