# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The servers of a balancer and the commands that change them. A server has one state for HTTP and gRPC together."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import runtime
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BACKENDS, BalancerError, Runtime

READY, DRAINED, IN_MAINTENANCE = "ready", "drained", "maintenance"
UP, DOWN, UNKNOWN = "up", "down", "unknown"
# Flags of srv_admin_state. The flags in OWN_MAINTENANCE and OWN_DRAIN were set on the server itself. MAINTENANCE and DRAIN also
# include inherited flags.
OWN_MAINTENANCE, MAINTENANCE, OWN_DRAIN, DRAIN = 0x01, 0x01 | 0x02 | 0x04 | 0x20 | 0x40, 0x08, 0x08 | 0x10
# Values of srv_op_state of a server that takes requests: starting, running
RUNNING = (1, 2)


class Server(NamedTuple):
    """A server, which is in the backend for HTTP and in the backend for gRPC."""

    name: str
    # `drained` if the server is drained for HTTP or for gRPC
    state: str
    # Weights for HTTP and for gRPC
    weights: Tuple[int, int]
    initial_weight: int
    # Health of the HTTP server. The gRPC server always has the same health (HAProxy's option `track`).
    health: str
    # Requests and streams in flight in the current worker
    in_flight: int
    # Commands that make the server ready again for both protocols
    undrain: List[str]
    # True if the server takes no new requests over HTTP and none over gRPC
    idle: bool


class Balancer:
    """A running HAProxy with its current worker and the workers that reloads left behind."""

    def __init__(self, socket: str, master: str) -> None:
        self.runtime, self.master = Runtime(socket), master

    def servers(self) -> Dict[str, Server]:
        """Return the servers by name. Raises BalancerError if the two backends differ."""
        states = runtime.by_protocol(runtime.parse_state(self.runtime.command("show servers state")))
        stats = runtime.by_protocol(runtime.parse_stat(self.runtime.command("show stat")))
        for name in set().union(*states.values(), *stats.values()):
            for protocol, backend in BACKENDS.items():
                if name not in states[protocol] or name not in stats[protocol]:
                    raise BalancerError(
                        f"the server {name} is not in the backend {backend}, expected it in {', '.join(BACKENDS.values())}"
                    )
        return {
            name: _server(states["http"][name], states["grpc"][name], stats["http"][name], stats["grpc"][name])
            for name in sorted(states["http"])
        }

    def server(self, name: str) -> Server:
        """Return the server with a name. Raises BalancerError if no server has the name."""
        return server_named(self.servers(), name)

    @property
    def sees_old_workers(self) -> bool:
        """Return True if the master socket exists. Only this socket lists old workers."""
        return os.path.exists(self.master)

    def old_workers(self) -> List[Runtime]:
        """Return the workers that reloads left behind and that still have sessions. Raises BalancerError."""
        if not self.sees_old_workers:
            return []
        processes = runtime.parse_old_workers(Runtime(self.master, "@master").command("show proc"))
        return [Runtime(self.master, f"@!{pid}") for pid in processes]

    def old_in_flight(self) -> Dict[str, int]:
        """Return {server: number of requests and streams in flight in old workers}. Raises BalancerError."""
        found: Dict[str, int] = {}
        for worker in self.old_workers():
            answer = worker.command("show stat")
            for row in [] if runtime.is_gone(answer) else runtime.parse_stat(answer):
                found[row.name] = found.get(row.name, 0) + row.in_flight
        return found

    def in_flight(self, server: Server) -> int:
        """Return the number of requests and streams that a server has in flight in all workers. Raises BalancerError."""
        return server.in_flight + self.old_in_flight().get(server.name, 0)

    def drain(self, name: str) -> None:
        """Drain a server: over HTTP and gRPC, it finishes its requests and takes no new ones. Raises BalancerError."""
        self.runtime.execute(f"set server {BACKENDS['http']}/{name} state drain")

    def undrain(self, server: Server) -> None:
        """Make a server ready for both protocols. Raises BalancerError."""
        for command in server.undrain:
            self.runtime.execute(command)

    def expect_checks(self, name: str) -> None:
        """Mark a drained server as down until new health checks pass, because the host can have changed since the last checks."""
        self.runtime.execute(f"set server {BACKENDS['http']}/{name} health down")

    def set_weight(self, name: str, weight: int) -> None:
        """Set the weight of a server for both protocols. Raises BalancerError."""
        for backend in BACKENDS.values():
            self.runtime.execute(f"set server {backend}/{name} weight {weight}")

    def close(self, name: str) -> None:
        """Close all requests and streams of a server, in all workers. Raises BalancerError."""
        for backend in BACKENDS.values():
            self.runtime.execute(f"shutdown sessions server {backend}/{name}")
        for worker in self.old_workers():
            # An old worker refuses commands for its stopped backends, but it accepts commands for single sessions.
            for session in runtime.parse_sessions(worker.command("show sess"), name):
                answer = worker.command(f"shutdown session {session}").strip()
                # The session may have ended since it was listed.
                if answer and not runtime.is_gone(answer) and not answer.startswith("No such session"):
                    raise BalancerError(f"an old worker of HAProxy refuses to close a session: {answer[:200]}")


def server_named(servers: Dict[str, Server], name: str) -> Server:
    """Return the server with a name. Raises BalancerError if no server has the name."""
    if name not in servers:
        raise BalancerError(f"the balancer has no server {name!r}. Its servers: {', '.join(servers) or 'none'}")
    return servers[name]


def _server(http: runtime.StateRow, grpc: runtime.StateRow, http_stat: runtime.StatRow, grpc_stat: runtime.StatRow) -> Server:
    both = (http, grpc)
    idle = [bool(row.admin & (MAINTENANCE | DRAIN)) or row.weight == 0 for row in both]
    return Server(
        name=http.name,
        state=IN_MAINTENANCE if http.admin & MAINTENANCE else DRAINED if any(idle) else READY,
        weights=(http.weight, grpc.weight),
        initial_weight=http.initial_weight,
        health=_health(http, http_stat),
        in_flight=http_stat.in_flight + grpc_stat.in_flight,
        undrain=[f"set server {row.backend}/{row.name} state ready" for row in both if row.admin & (OWN_MAINTENANCE | OWN_DRAIN)],
        idle=all(idle),
    )


def _health(state: runtime.StateRow, stat: runtime.StatRow) -> str:
    """Return the result of the health checks. It is UNKNOWN if HAProxy does not check the server, for example in maintenance."""
    if state.admin & MAINTENANCE or stat.status == "no check":
        return UNKNOWN
    return UP if state.operational in RUNNING else DOWN
