# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A change of one server of a balancer.

It drains or undrains the server, sets its weight, and waits until its requests have ended or its health check passes.

A change consists of steps and waits. A step holds the lock of the balancer: it reads all servers, changes one of them, and writes
the records of drains and the state file (drains.py). During a wait, the lock is free, so that other processes can change other
servers.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import system
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, servers
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.files import UNIT
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import NAME, BalancerError, process
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import DRAINED, READY, Balancer, Server

# First and longest pause in seconds between two reads of the requests in flight or of the health
FIRST_PAUSE, MAX_PAUSE = 0.1, 1.0
# Time limits in seconds: until closed requests have ended, and until a reload has ended
CLOSE_TIMEOUT, RELOAD_TIMEOUT = 15.0, 60.0
# Largest number of attempts to make a change if HAProxy is reloaded during each attempt
MAX_ATTEMPTS = 5


class Desired(NamedTuple):
    """The desired state of a server. If `state` or `weight` is None, a change leaves that property as it is.

    `run`, `by` and `reason` name the run, the person and the reason of the request. The record of a drain contains these fields.
    """

    name: str
    state: Optional[str]
    weight: Optional[int]
    # Kind of the drain (drains.KINDS)
    kind: str
    run: str
    by: str
    reason: str
    allow_outage: bool
    # Seconds to wait until no request is in flight. If `close` is True, the requests that remain after this time are closed.
    wait: int
    close: bool
    # Seconds to wait until health checks pass, before the server becomes ready. With 0, the change does not wait.
    up_within: int


class Step(NamedTuple):
    """The result of one step. `kept` is True if the drain of another owner prevented the change."""

    changed: bool
    kept: bool
    server: Server


class Change:
    """A change of one server. `warn` is called with the text of each warning."""

    def __init__(self, balancer: Balancer, home: str, desired: Desired, check_mode: bool, warn: Callable[[str], None]) -> None:
        if not NAME.fullmatch(desired.name):
            raise BalancerError(f"the name of the server is {desired.name[:100]!r}, expected letters, digits and _ . : -")
        self.balancer, self.home, self.desired, self.check_mode, self.warn = balancer, home, desired, check_mode, warn
        # Process ID of the HAProxy worker that received the change
        self.pid = 0

    def apply(self) -> Dict[str, Any]:
        """Bring the server to the desired state, and return the result of the module. Raises BalancerError."""
        desired = self.desired
        if not self.balancer.sees_old_workers:
            self.warn(f"{self.balancer.master} is missing, so requests in workers of earlier configurations are not counted.")
        before = self.server_result()
        left_maintenance = self._await_new_checks() if desired.state == READY and desired.up_within else False
        step = self._change_despite_reloads()
        result: Dict[str, Any] = {"in_flight": 0, "closed": 0, "waited": 0.0}
        if desired.state == DRAINED:
            self._wait_for_requests(result)
        after = self.server_result() if not self.check_mode else self._predict(before, step)
        return {
            "changed": step.changed or left_maintenance or result["closed"] > 0,
            "kept": step.kept,
            "server": after,
            "before": before,
            **result,
        }

    def server_result(self) -> Dict[str, Any]:
        """Return the data of the server for the result of the module. Raises BalancerError."""
        server = self.balancer.server(self.desired.name)
        return describe(server, self.balancer.in_flight(server), drains.read(self.home).by_server.get(server.name))

    def _change_despite_reloads(self) -> Step:
        """Change the server. Repeat the change if HAProxy was reloaded meanwhile, because the new worker may lack the change."""
        changed = False
        for _attempt in range(MAX_ATTEMPTS):
            self.pid = process(self.balancer.runtime).pid
            step = self._change_once()
            changed = changed or step.changed
            if not self.check_mode and changed and not step.kept:
                self._await_reload()
                if process(self.balancer.runtime).pid != self.pid:
                    continue
            return step._replace(changed=changed)
        raise BalancerError(f"HAProxy was reloaded during each of {MAX_ATTEMPTS} attempts to change {self.desired.name}. Run again")

    def _await_reload(self) -> None:
        """Wait until a running reload of HAProxy has ended. Its new worker may have read the state file before the change."""
        if not os.path.isdir("/run/systemd/system"):
            return
        deadline = time.monotonic() + RELOAD_TIMEOUT
        while system.unit_states(UNIT)[UNIT]["active"] == "reloading":
            if time.monotonic() > deadline:
                raise BalancerError(f"the reload of {UNIT} takes more than {RELOAD_TIMEOUT:.0f} s. See journalctl --unit {UNIT}")
            time.sleep(FIRST_PAUSE)

    def _change_once(self) -> Step:
        desired = self.desired
        with drains.locked():
            all_servers = self.balancer.servers()
            server = servers.server_named(all_servers, desired.name)
            records = self._records(all_servers)
            record = records.get(server.name)
            if desired.state is not None and server.state != READY and not drains.may_change(desired.kind, record):
                return self._keep_foreign_drain(server)
            commands: List[Callable[[], None]] = []
            weight = self._weight(server)
            if weight is not None and server.weights != (weight, weight):
                commands.append(lambda: self.balancer.set_weight(server.name, weight))
            records_changed = False
            if desired.state == DRAINED:
                if not server.idle:
                    self._refuse_outage(all_servers, server)
                    commands.append(lambda: self.balancer.drain(server.name))
                records_changed = not self._owns(record)
                if records_changed:
                    records[server.name] = self._new_record()
            elif desired.state == READY:
                records_changed = records.pop(server.name, None) is not None
                if server.undrain:
                    commands.append(lambda: self.balancer.undrain(server))
            if not (commands or records_changed):
                return Step(False, False, server)
            if not self.check_mode:
                self._carry_out(commands, records)
            return Step(True, False, server)

    def _carry_out(self, commands: List[Callable[[], None]], records: Dict[str, Dict[str, str]]) -> None:
        """Run the commands and write the files. A drain is recorded first. An undrain removes the record last."""
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
        server = self.balancer.server(self.desired.name)
        expected = self.desired.state
        reached = expected is None or (server.idle if expected == DRAINED else server.state == READY)
        weight = self._weight(server)
        if not reached or (weight is not None and server.weights != (weight, weight)):
            raise BalancerError(
                f"{server.name} is {server.state} with the weights {server.weights[0]} (HTTP) and {server.weights[1]} (gRPC), "
                f"expected {expected or server.state} "
                f"with {f'the weight {weight}' if weight is not None else 'unchanged weights'}. "
                "Does the gRPC server track the HTTP server?"
            )

    def _keep_foreign_drain(self, server: Server) -> Step:
        """Keep the drain of another owner. If this change drains, too, the server is then drained for HTTP and gRPC."""
        if self.desired.state == READY or server.idle:
            return Step(False, True, server)
        if not self.check_mode:
            self.balancer.drain(server.name)
            drains.save_state(self.home, self.balancer.runtime)
        return Step(True, True, server)

    def _records(self, all_servers: Dict[str, Server]) -> Dict[str, Dict[str, str]]:
        """Return the records of drained servers. Leave out the record of a ready server: its drain has ended."""
        records, flaw = drains.read(self.home)
        if flaw:
            path = os.path.join(self.home, drains.RECORDS)
            self.warn(f"{path} is damaged: {flaw}. Drained servers count as drained by an operator.")
        return {name: record for name, record in records.items() if name in all_servers and all_servers[name].state != READY}

    def _new_record(self) -> Dict[str, str]:
        texts = {"by": self.desired.by, "run": self.desired.run, "reason": self.desired.reason}
        limited = {field: text.replace("\0", "")[: drains.MAX_TEXT] for field, text in texts.items()}
        return {"kind": self.desired.kind, **limited, "since": system.timestamp()}

    def _owns(self, record: Optional[Dict[str, str]]) -> bool:
        return record is not None and (record["kind"], record["run"]) == (self.desired.kind, self.desired.run)

    def _weight(self, server: Server) -> Optional[int]:
        """Return the weight to set, or None to keep it. A server with the weight 0 that becomes ready gets its initial weight."""
        if self.desired.weight is None and self.desired.state == READY and 0 in server.weights:
            return server.initial_weight
        return self.desired.weight

    def _refuse_outage(self, all_servers: Dict[str, Server], server: Server) -> None:
        serving = [name for name, other in all_servers.items() if other.state == READY and other.health != servers.DOWN]
        if serving == [server.name] and not self.desired.allow_outage:
            raise BalancerError(
                f"{server.name} is the last server that takes requests, expected another server that is ready and up. "
                "Nothing was changed. Make another server ready, or allow the outage"
            )

    # Health

    def _await_new_checks(self) -> bool:
        """Wait until new health checks of a drained server pass. Return True if the server left HAProxy's maintenance state."""
        name, changed = self.desired.name, False
        with drains.locked():
            all_servers = self.balancer.servers()
            server = servers.server_named(all_servers, name)
            record = self._records(all_servers).get(name)
            if self.check_mode or (server.state != READY and not drains.may_change(self.desired.kind, record)):
                return False
            if server.state == servers.IN_MAINTENANCE:
                # HAProxy does not check a server in its maintenance state, so the server is drained instead.
                self.balancer.drain(name)
                drains.save_state(self.home, self.balancer.runtime)
                changed = True
            if server.state != READY and server.idle and self.balancer.server(name).health != servers.UNKNOWN:
                self.balancer.expect_checks(name)
        self._await_health()
        return changed

    def _await_health(self) -> None:
        deadline, pause = time.monotonic() + self.desired.up_within, FIRST_PAUSE
        while True:
            server = self.balancer.server(self.desired.name)
            if server.health != servers.DOWN:
                return
            if time.monotonic() >= deadline:
                raise BalancerError(
                    f"{server.name} has failed the health check of the balancer for {self.desired.up_within} s, expected it to be "
                    f"up. It stays {server.state}. See the log of HAProxy"
                )
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    # Requests in flight

    def _wait_for_requests(self, result: Dict[str, Any]) -> None:
        """Wait until no request is in flight. With `close`, close the requests that remain. Write the counts into `result`."""
        name, began = self.desired.name, time.monotonic()
        result["in_flight"] = self.balancer.in_flight(self.balancer.server(name))
        if self.check_mode:
            return
        in_flight = self._await_no_requests(began + self.desired.wait)
        result["waited"] = round(time.monotonic() - began, 1)
        if in_flight and self.desired.close:
            self.balancer.close(name)
            left = self._await_no_requests(time.monotonic() + CLOSE_TIMEOUT)
            if left:
                raise BalancerError(
                    f"{left} requests of {name} are in flight {CLOSE_TIMEOUT:.0f} s after they were closed, expected none"
                )
            result["closed"] = in_flight

    def _await_no_requests(self, deadline: float) -> int:
        """Wait for the requests in flight until the deadline, and return how many remain. Raises BalancerError."""
        pause = FIRST_PAUSE
        while True:
            server = self.balancer.server(self.desired.name)
            if not server.idle:
                self._drain_again(server)
            in_flight = self.balancer.in_flight(server)
            left = deadline - time.monotonic()
            if not in_flight or left <= 0:
                return in_flight
            time.sleep(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE)

    def _drain_again(self, server: Server) -> None:
        """Drain a server again if a reload has ended its drain. Raises BalancerError if another caller made the server ready."""
        with drains.locked():
            record = drains.read(self.home).by_server.get(server.name)
        if not self._owns(record) or process(self.balancer.runtime).pid == self.pid:
            raise BalancerError(f"{server.name} is {server.state} again, expected it to stay drained: another caller made it ready")
        self.warn(f"{server.name} lost its drain in a reload of HAProxy and is drained again.")
        self._change_despite_reloads()

    def _predict(self, before: Dict[str, Any], step: Step) -> Dict[str, Any]:
        """Return the server as a run without check mode would leave it."""
        if step.kept or not step.changed:
            return before
        state, weight = self.desired.state, self._weight(step.server)
        changes: Dict[str, Any] = {} if weight is None else {"weight": weight}
        if state is not None:
            changes.update(state=state, drained=None if state == READY else self._new_record())
        return {**before, **changes}


def describe(server: Server, in_flight: int, record: Optional[Dict[str, str]]) -> Dict[str, Any]:
    """Return a server as data for the results of modules."""
    return {
        "state": server.state,
        "weight": server.weights[0],
        "health": server.health,
        "in_flight": in_flight,
        "drained": record if server.state != READY else None,
    }
