"""A Docker engine that is played: containers by name, what 20.10 refuses, and a kill before any of its orders."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.npufleet.triton.plugins.module_utils.change.container import ContainerError, Docker

PORT = "8000"


class Killed(BaseException):
    """A kill of the process, which no handler of the run can catch."""


class PlayedEngine(Docker):
    """Containers of one host. `kill_at` is the number of orders after which the caller dies."""

    def __init__(self) -> None:
        super().__init__()
        self.containers: dict[str, dict[str, Any]] = {}
        self.orders: list[str] = []
        self.kill_at: int | None = None
        # What the SDK says in a container that was made to ask it, and what such a container was made of
        self.sees = (0, '{"npus": 2, "names": ["RBLN-CA12", "RBLN-CA12"]}')
        self.asked: list[Any] = []
        self._ids = (f"{number:064x}" for number in itertools.count(1))

    def add(self, name: str, status: str = "running", works: bool = True, port: str = PORT) -> str:
        """A container; one that does not work ends whenever it is started."""
        identity = next(self._ids)
        self.containers[identity] = {
            "Id": identity,
            "Name": "/" + name,
            "Image": "sha256:1",
            "RestartCount": 0,
            "State": {"Status": status, "Running": status in ("running", "restarting"), "ExitCode": 0, "Pid": 0},
            "Config": {"Cmd": ["tritonserver", "--http-port=8000", "--model-control-mode=explicit"]},
            "HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": port}]}},
            "works": works,
        }
        return identity

    def names(self) -> dict[str, str]:
        """{name: status} of every container."""
        return {container["Name"][1:]: container["State"]["Status"] for container in self.containers.values()}

    def serving(self, port: str = PORT) -> str | None:
        """Id of the container that answers on a port."""
        found = [
            container["Id"]
            for container in self.containers.values()
            if container["State"]["Status"] == "running"
            and container["works"]
            and container["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostPort"] == port
        ]
        assert len(found) <= 1, "two containers have one port"
        return found[0] if found else None

    def named(self, name: str) -> dict[str, Any] | None:
        return self.containers.get(name) or next(
            (container for container in self.containers.values() if container["Name"] == "/" + name), None
        )

    def connection(self) -> Any:
        class Silent:
            def request(self, *_words: Any) -> None:
                raise OSError("no log is kept")

            def close(self) -> None:
                pass

        return Silent()

    def get(self, resource: str) -> Any:
        found = self.named(resource.split("/")[2])
        if found and found["State"]["Status"] == "restarting":
            found["RestartCount"] += 1
        return found

    def order(self, method: str, resource: str, timeout: float, allowed: tuple[int, ...] = (204, 304)) -> None:
        if self.kill_at is not None and len(self.orders) >= self.kill_at:
            raise Killed
        self.orders.append(f"{method} {resource}")
        match = re.fullmatch(r"/containers/(\w+)(?:/(\w+))?(?:\?(?:name=)?(.*))?", resource)
        assert match, resource
        found = self.containers.get(match[1])
        if found is None:
            if 404 in allowed:
                return
            raise ContainerError(f"No such container: {match[1]}")
        getattr(self, "_" + (match[2] or "remove"))(found, match[3])

    def run(self, name: str, config: Mapping[str, Any], limit: float) -> tuple[int, str]:
        self.asked.append({"name": name, **config})
        return self.sees

    def _set(self, found: dict[str, Any], status: str, code: int = 0) -> None:
        found["State"].update(Status=status, Running=status in ("running", "restarting"), ExitCode=code)

    def _stop(self, found: dict[str, Any], _more: str) -> None:
        if found["State"]["Running"]:
            self._set(found, "exited", 0 if found["works"] else 1)

    _kill = _stop

    def _start(self, found: dict[str, Any], _more: str) -> None:
        if found["State"]["Status"] == "running":
            return
        port = found["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostPort"]
        if self.serving(port):
            raise ContainerError("port is already allocated")
        found["RestartCount"] = 0
        self._set(found, "running" if found["works"] else "restarting", 0 if found["works"] else 1)

    def _rename(self, found: dict[str, Any], name: str) -> None:
        if self.named(name):
            raise ContainerError(f'the container name "/{name}" is already in use')
        if found["State"]["Status"] == "restarting":
            raise ContainerError("sandbox not found")
        found["Name"] = "/" + name

    def _remove(self, found: dict[str, Any], _more: str) -> None:
        del self.containers[found["Id"]]
