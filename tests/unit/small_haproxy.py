"""A small load balancer: the HAProxy of the distribution in front of small Tritons, with sockets and files in a directory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import traffic
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import Runtime
from helpers import until

CONFIG = """
global
  stats socket {home}/admin.sock mode 600 level admin
  server-state-file {home}/state
  hard-stop-after 300s
defaults
  mode http
  timeout connect 2s
  timeout client 300s
  timeout server 300s
  option abortonclose
  load-server-state-from-file global
  log ring@npufleet format raw local0
  log-format "{log_format}"
ring npufleet
  format raw
  maxlen 512
  size {ring_size}
frontend npufleet_http_in
  bind 127.0.0.1:{http_port}
  http-response set-var(txn.npufleet_grpc_status) res.fhdr(grpc-status)
  default_backend npufleet_http
frontend npufleet_grpc_in
  bind 127.0.0.1:{grpc_port} proto h2
  http-response set-var(txn.npufleet_grpc_status) res.fhdr(grpc-status)
  default_backend npufleet_grpc
backend npufleet_http
  option httpchk
  http-check send meth GET uri /v2/health/ready
  http-check expect status 200
  default-server check inter 500ms fastinter 200ms downinter 200ms fall 2 rise 2 weight 100
{http_servers}
backend npufleet_grpc
  default-server weight 100 proto h2
{grpc_servers}
"""


def free_port() -> int:
    """Return a port of the loopback that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class SmallHaproxy:
    """A running HAProxy in master-worker mode, and its paths."""

    def __init__(self, home: Path, servers: Mapping[str, tuple[int, int]], ring_size: int = traffic.RING_SIZE) -> None:
        self.home, self.config = home, home / "haproxy.cfg"
        self.socket, self.master = str(home / "admin.sock"), str(home / "master.sock")
        self.http_port, self.grpc_port = free_port(), free_port()
        rows = {"http": [], "grpc": []}
        for name, (http, grpc) in servers.items():
            rows["http"].append(f"  server {name} 127.0.0.1:{http}")
            rows["grpc"].append(f"  server {name} 127.0.0.1:{grpc} track npufleet_http/{name}")
        self.config.write_text(
            CONFIG.format(
                home=home,
                log_format=traffic.LOG_FORMAT,
                ring_size=ring_size,
                http_port=self.http_port,
                grpc_port=self.grpc_port,
                http_servers="\n".join(rows["http"]),
                grpc_servers="\n".join(rows["grpc"]),
            )
        )
        (home / "state").touch()
        self.log = home / "haproxy.log"
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "haproxy is not installed: make unit-packages"
        command = [program, "-W", "-S", self.master, "-f", str(self.config)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def command(self, text: str) -> str:
        """Run a command on the runtime socket, as an operator does with socat."""
        return Runtime(self.socket).command(text)

    def pid(self) -> str:
        """Return the process of the current worker, an empty string if none answers."""
        try:
            return next(line for line in self.command("show info").split("\n") if line.startswith("Pid: "))
        except Exception:
            return ""

    def reload(self) -> None:
        """Reload HAProxy, and wait until the new worker answers."""
        before = self.pid()
        self.process.send_signal(signal.SIGUSR2)
        until(lambda: self.pid() not in ("", before))

    def all_up(self) -> bool:
        """Return True if every server has passed its checks."""
        rows = self.command("show stat").split("\n")
        servers = [row for row in rows if row.startswith(("npufleet_http,", "npufleet_grpc,")) and "BACKEND" not in row]
        return bool(servers) and all(",UP," in row for row in servers) and "L7OK" in rows[3] + rows[4]


@contextmanager
def small_haproxy(home: Path, servers: Mapping[str, tuple[int, int]], **more: int) -> Iterator[SmallHaproxy]:
    """Start HAProxy with servers, {name: (HTTP port, gRPC port)}, and wait until they are up."""
    balancer = SmallHaproxy(home, servers, **more)
    try:
        until(lambda: balancer.pid() != "")
        until(balancer.all_up)
        # Until the master answers, it ignores signals.
        assert "worker" in Runtime(balancer.master, "@master").command("show proc")
        yield balancer
    finally:
        os.killpg(balancer.process.pid, signal.SIGKILL)
        balancer.process.wait()
