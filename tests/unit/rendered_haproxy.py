"""A HAProxy that runs a configuration as the role writes it, with sockets and files in a directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible_collections.npufleet.triton.plugins.module_utils.balancer.files import CERTIFICATE, CLIENT_CA, STATE
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import SOCKET, BalancerError, Runtime
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.balancer_config import Check, Server, Settings, render
from helpers import until
from small_haproxy import free_port

BODY = '{"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","data":[1.0]}]}'
# Lines that need root, users or sockets of a real host
OF_ROOT = ("    chroot /var/lib/haproxy\n", "    user haproxy\n", "    group haproxy\n", "    log /dev/log local0 notice\n")


class RenderedHaproxy:
    """A configuration and the HAProxy that runs it. `servers` are {name: (HTTP port, gRPC port)}."""

    def __init__(self, home: Path, servers: Mapping[str, tuple[int, int]], **more: Any) -> None:
        self.home, self.config, self.state = home, home / "haproxy.cfg", home / "state"
        self.socket, self.master = str(home / "admin.sock"), str(home / "master.sock")
        self.http_port, self.grpc_port, self.metrics_port = free_port(), free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.write(servers, **more)

    def write(self, servers: Mapping[str, tuple[int, int]], other: Mapping[str, str] | None = None, **more: Any) -> None:
        """Write the configuration of these servers. `more` are settings, and `other` are the contents of other files."""
        settings = Settings(
            servers=[Server(name, "127.0.0.1", *ports) for name, ports in servers.items()],
            bind=["127.0.0.1"],
            http_port=self.http_port,
            grpc_port=self.grpc_port,
            check=Check("double", BODY, '"outputs":['),
            check_interval=1,
            check_timeout=5,
            stream_timeout=600,
            maxconn=200,
            metrics_address=f"127.0.0.1:{self.metrics_port}",
        )._replace(**more)
        text = render(settings, other or {})
        for line in OF_ROOT:
            assert line in text
            text = text.replace(line, "")
        for path in (CERTIFICATE, CLIENT_CA):
            text = text.replace(path, str(self.home / os.path.basename(path)))
        self.config.write_text(text.replace(SOCKET, self.socket).replace(STATE, str(self.state)))

    def start(self) -> None:
        """Start HAProxy, and wait until it answers."""
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "haproxy is not installed: make unit-packages"
        command = [program, "-W", "-S", self.master, "-f", str(self.config)]
        with (self.home / "haproxy.log").open("a") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        until(lambda: self.ask("show info"))
        # Until the master answers, it ignores signals.
        assert "worker" in Runtime(self.master, "@master").command("show proc")

    def stop(self) -> None:
        """Kill HAProxy."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def ask(self, text: str) -> str:
        """Return the answer to a command, an empty text if HAProxy does not answer."""
        try:
            return Runtime(self.socket).command(text)
        except BalancerError:
            return ""

    def status(self, backend: str = "npufleet_http") -> dict[str, str]:
        """Return {server: its status} of a backend, such as UP, DOWN or DRAIN."""
        rows = [row.split(",") for row in self.ask("show stat").splitlines()]
        return {row[1]: row[17] for row in rows if row[0] == backend and row[1] != "BACKEND"}

    def up(self, *names: str) -> bool:
        """Return True if exactly these servers are up for HTTP."""
        return sorted(name for name, status in self.status().items() if status.startswith("UP")) == sorted(names)


@contextmanager
def rendered_haproxy(home: Path, servers: Mapping[str, tuple[int, int]], **more: Any) -> Iterator[RenderedHaproxy]:
    """Run HAProxy with these servers, and wait until all of them are up."""
    balancer = RenderedHaproxy(home, servers, **more)
    try:
        balancer.start()
        until(lambda: "L7OK" in balancer.ask("show stat") and balancer.up(*servers))
        yield balancer
    finally:
        balancer.stop()
