# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A change of one server of a balancer: drain or undrain it, set its weight, and wait for its requests or its health.

Each step reads the servers, changes them, and writes the records and the state file, all under the lock of the balancer. The
waiting is done without the lock, so that other processes can change other servers meanwhile.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import system
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, servers
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BalancerError, process
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import (
    DOWN,
    DRAINED,
    IN_MAINTENANCE,
    READY,
    Balancer,
    Server,
)

# Seconds between two looks at the requests or the health: the first ones, and the later ones
SHORT, LONG = 0.1, 1.0
# Seconds in which closed requests have to end, and in which a reload has to end
CLOSING, RELOADING = 15.0, 60.0
# How often a change is repeated because HAProxy was reloaded meanwhile
ATTEMPTS = 5
UNIT = "haproxy.service"


class Desired(NamedTuple):
    """The desired state of a server, and the caller. `state` and `weight` may be None: they stay as they are."""

    name: str
    state: Optional[str]
    weight: Optional[int]
    kind: str
    run: str
    by: str
    reason: str
    allow_outage: bool
    # Seconds to wait until nothing is in flight, and whether to close the rest then
    wait: int
    close: bool
    # Seconds to wait until health checks pass, before the server becomes ready. 0 does not wait.
    up_within: int


class Step(NamedTuple):
    """A step under the lock: what it has changed, and whether another owner's drain prevented it."""

    changed: bool
    kept: bool
    server: Server


class Change:
    """A change of one server. `warn` is called with a message that is no error."""

    def __init__(self, balancer: Balancer, home: str, desired: Desired, check_mode: bool, warn: Callable[[str], None]) -> None:
        servers.check_name(desired.name)
        self.balancer, self.home, self.desired, self.check_mode, self.warn = balancer, home, desired, check_mode, warn
        # Process of HAProxy that has the change
        self.pid = 0

    def apply(self) -> Dict[str, Any]:
        """Bring the server to the desired state, and return the result of the module. Raises BalancerError."""
        desired = self.desired
        if not self.balancer.sees_old_workers:
            self.warn(f"{self.balancer.master} is missing, so requests in workers of earlier configurations are not seen.")
        before = self.described()
        fresh = self._recheck() if desired.state == READY and desired.up_within else False
        step = self._settled()
        result: Dict[str, Any] = {"in_flight": 0, "closed": 0, "waited": 0.0}
        if desired.state == DRAINED:
            result.update(self._empty())
        after = self.described() if not self.check_mode else self._predicted(before, step)
        return {
            "changed": step.changed or fresh or result["closed"] > 0,
            "kept": step.kept,
            "server": after,
            "before": before,
            **result,
        }

    def described(self) -> Dict[str, Any]:
        """Return the server as the module returns it. Raises BalancerError."""
        server = self.balancer.server(self.desired.name)
        in_flight = server.in_flight + self.balancer.old_in_flight().get(server.name, 0)
        return describe(server, in_flight, drains.read(self.home).by_server.get(server.name))

    def _settled(self) -> Step:
        """Change the server until the change has outlasted every reload of HAProxy that ran at the same time."""
        changed, kept = False, False
        for _attempt in range(ATTEMPTS):
            self.pid = process(self.balancer.runtime).pid
            step = self._step()
            changed, kept = changed or step.changed, step.kept
            if self.check_mode or not changed or kept:
                return Step(changed, kept, step.server)
            self._await_reload()
            if process(self.balancer.runtime).pid == self.pid:
                return Step(changed, kept, step.server)
        raise BalancerError(f"HAProxy was reloaded during each of {ATTEMPTS} attempts to change {self.desired.name}. Run again")

    def _await_reload(self) -> None:
        """Wait until systemd has ended a reload of HAProxy. A worker that starts may have read the state file before the change."""
        if not os.path.isdir("/run/systemd/system"):
            return
        deadline = time.monotonic() + RELOADING
        while system.unit_states(UNIT)[UNIT]["active"] == "reloading":
            if time.monotonic() > deadline:
                raise BalancerError(f"the reload of {UNIT} takes more than {RELOADING:.0f} s. See journalctl --unit {UNIT}")
            time.sleep(SHORT)

    def _step(self) -> Step:
        """Change state and weight once, under the lock."""
        desired = self.desired
        with drains.locked():
            found = self.balancer.servers()
            server = servers.one_of(found, desired.name)
            records = self._records(found)
            record = records.get(server.name)
            if desired.state is not None and server.state != READY and not drains.may_change(desired.kind, record):
                return self._kept(server)
            commands: List[Callable[[], None]] = []
            weight = self._weight(server)
            if weight is not None and server.weights != (weight, weight):
                commands.append(lambda: self.balancer.weigh(server.name, weight))
            if desired.state == DRAINED:
                drains_now = not server.idle
                if drains_now:
                    self._refuse_outage(found, server)
                    commands.append(lambda: self.balancer.drain(server.name))
                renewed = not self._owns(record)
                if renewed:
                    records[server.name] = self._record()
            elif desired.state == READY:
                renewed = records.pop(server.name, None) is not None
                if server.undrain:
                    commands.append(lambda: self.balancer.undrain(server))
            else:
                renewed = False
            if not (commands or renewed):
                return Step(False, False, server)
            if not self.check_mode:
                self._carry_out(commands, records)
            return Step(True, False, server)

    def _carry_out(self, commands: List[Callable[[], None]], records: Dict[str, Dict[str, str]]) -> None:
        """Run the commands, and write the files. The record of a drain is written first, and removed last."""
        draining = self.desired.state == DRAINED
        if draining:
            drains.write(self.home, records)
        for command in commands:
            command()
        drains.save_state(self.home, self.balancer.runtime)
        if not draining:
            drains.write(self.home, records)
        self._verify()

    def _verify(self) -> None:
        """Raise BalancerError if HAProxy does not have the desired state after the change."""
        server = self.balancer.server(self.desired.name)
        expected = self.desired.state
        reached = expected is None or (server.idle if expected == DRAINED else server.state == READY)
        weight = self._weight(server)
        if not reached or (weight is not None and server.weights != (weight, weight)):
            raise BalancerError(
                f"{server.name} is {server.state} with the weights {server.weights[0]} (HTTP) and {server.weights[1]} (gRPC), "
                f"expected {expected or server.state} with {weight if weight is not None else 'the same'}. "
                "Does the gRPC server track the HTTP server?"
            )

    def _kept(self, server: Server) -> Step:
        """Keep a drain of another owner. A server that still takes requests of one protocol is drained completely."""
        if self.desired.state == READY or server.idle:
            return Step(False, True, server)
        if not self.check_mode:
            self.balancer.drain(server.name)
            drains.save_state(self.home, self.balancer.runtime)
        return Step(True, True, server)

    def _records(self, found: Dict[str, Server]) -> Dict[str, Dict[str, str]]:
        """Return the records of the servers that are drained. The others belong to a drain that ended without its record."""
        records, flaw = drains.read(self.home)
        if flaw:
            path = os.path.join(self.home, drains.RECORDS)
            self.warn(f"{path} is damaged: {flaw}. Drained servers count as drained by an operator.")
        return {name: record for name, record in records.items() if name in found and found[name].state != READY}

    def _record(self) -> Dict[str, str]:
        texts = {"by": self.desired.by, "run": self.desired.run, "reason": self.desired.reason}
        return {
            "kind": self.desired.kind,
            **{field: text.replace("\0", "")[: drains.TEXT] for field, text in texts.items()},
            "since": system.timestamp(),
        }

    def _owns(self, record: Optional[Dict[str, str]]) -> bool:
        return record is not None and (record["kind"], record["run"]) == (self.desired.kind, self.desired.run)

    def _weight(self, server: Server) -> Optional[int]:
        """Return the weight to set, None to keep it. A server that an operator emptied by a weight of 0 gets its initial weight."""
        if self.desired.weight is None and self.desired.state == READY and 0 in server.weights:
            return server.initial_weight
        return self.desired.weight

    def _refuse_outage(self, found: Dict[str, Server], server: Server) -> None:
        """Raise BalancerError if no other server would take requests."""
        serving = servers.serving(found)
        if serving == [server.name] and not self.desired.allow_outage:
            raise BalancerError(
                f"{server.name} is the last server that takes requests, expected another one that is ready and up. "
                "Nothing was changed. Make another server ready, or allow the outage"
            )

    # Health

    def _recheck(self) -> bool:
        """Wait until new health checks of a drained server pass. Return True if this ended the maintenance state of HAProxy."""
        name, changed = self.desired.name, False
        with drains.locked():
            found = self.balancer.servers()
            server = servers.one_of(found, name)
            if server.state != READY and not drains.may_change(self.desired.kind, self._records(found).get(name)):
                return False
            if self.check_mode:
                return False
            if server.state == IN_MAINTENANCE:
                # Servers in maintenance are not checked.
                self.balancer.drain(name)
                drains.save_state(self.home, self.balancer.runtime)
                changed = True
            if server.state != READY and server.idle and self.balancer.server(name).health != servers.UNKNOWN:
                self.balancer.expect_checks(name)
        self._await_health()
        return changed

    def _await_health(self) -> None:
        deadline, pause = time.monotonic() + self.desired.up_within, SHORT
        while True:
            server = self.balancer.server(self.desired.name)
            if server.health != DOWN:
                return
            if time.monotonic() >= deadline:
                raise BalancerError(
                    f"{server.name} is down by the health check of the balancer for {self.desired.up_within} s, expected it to be "
                    f"up. It stays {server.state}. See the log of HAProxy"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONG)

    # Requests in flight

    def _empty(self) -> Dict[str, Any]:
        """Wait until nothing is in flight, and close the rest if that is desired. Return a part of the result."""
        name, began = self.desired.name, time.monotonic()
        at_drain = in_flight = self.balancer.in_flight(name)
        if self.check_mode:
            return {"in_flight": at_drain, "closed": 0, "waited": 0.0}
        in_flight = self._await_empty(began + self.desired.wait)
        waited = round(time.monotonic() - began, 1)
        closed = 0
        if in_flight and self.desired.close:
            self.balancer.close(name)
            left = self._await_empty(time.monotonic() + CLOSING)
            if left:
                raise BalancerError(
                    f"{left} requests of {name} are in flight {CLOSING:.0f} s after they were closed, expected none"
                )
            closed = in_flight
        return {"in_flight": at_drain, "closed": closed, "waited": waited}

    def _await_empty(self, deadline: float) -> int:
        """Wait until nothing is in flight or the deadline. Return the number in flight. Raises BalancerError if the drain ends."""
        name, pause = self.desired.name, SHORT
        while True:
            server = self.balancer.server(name)
            if not server.idle:
                self._drain_again(server)
            in_flight = server.in_flight + self.balancer.old_in_flight().get(name, 0)
            left = deadline - time.monotonic()
            if not in_flight or left <= 0:
                return in_flight
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONG)

    def _drain_again(self, server: Server) -> None:
        """Drain a server again that lost its drain in a reload. Raises BalancerError if another caller made it ready."""
        with drains.locked():
            record = drains.read(self.home).by_server.get(server.name)
        if not self._owns(record) or process(self.balancer.runtime).pid == self.pid:
            raise BalancerError(f"{server.name} is {server.state} again, expected it to stay drained: another caller made it ready")
        self.warn(f"{server.name} lost its drain in a reload of HAProxy and is drained again.")
        self._settled()

    def _predicted(self, before: Dict[str, Any], step: Step) -> Dict[str, Any]:
        """Return the server as a run without check mode would leave it."""
        if step.kept or not step.changed:
            return before
        desired = self.desired
        weight = self._weight(step.server)
        state = {} if desired.state is None else {"state": desired.state}
        owner = {} if desired.state is None else {"drained": None if desired.state == READY else self._record()}
        return {**before, **state, **owner, **({} if weight is None else {"weight": weight})}


def describe(server: Server, in_flight: int, record: Optional[Dict[str, str]]) -> Dict[str, Any]:
    """Return a server as data for the results of modules."""
    return {
        "state": server.state,
        "weight": server.weights[0],
        "health": server.health,
        "in_flight": in_flight,
        "drained": record if server.state != READY else None,
    }
