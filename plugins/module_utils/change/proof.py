# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Read a host, compare it with the desired state, and wait for temporary differences, such as a model that still loads."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import store, system
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, resume
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models, server
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.triton import log

# Seconds between two reads of the host
POLL_SECONDS = 0.5
# Largest length of an actual value in the message of a failed proof. The value may contain Triton's reasons for every model.
MAX_SHOWN = 2000
# Number of restarts for which a proof waits if the server crashes
MAX_RESTARTS = 2


def read_host(
    desired: Mapping[str, Any], root: str = "", run: str = "", dead_run: str = "", driver: Any = None
) -> Tuple[Dict[str, Any], List[Item]]:
    """Return the actual state of each concern in `desired`, and the plan with items for a change that another run left open."""
    actual: Dict[str, Any] = {}
    plan: List[Item] = []
    units = system.unit_states(*(concern.unit for name, concern in CONCERNS.items() if concern.unit and name in desired))
    for name, concern in CONCERNS.items():
        if name in desired:
            host_side = driver.host_side if driver and name == server.CONCERN else concern.host_side
            actual[name] = {**host_side.read(desired[name]), **units.get(concern.unit, {})}
            plan += host_side.diff(desired[name], actual[name])
    if "server" in desired and root:
        plan += resume.unfinished(root, run, bool(actual["server"].get("previous")), dead_run)
    return actual, plan


def cannot_recover(plan: List[Item]) -> bool:
    """Return True if the plan has a difference that waiting cannot remove: hardware, an ended container, or a refused load."""
    return any(
        item["action"] in (INSPECT, "create", "replace")
        or (item["concern"], item["action"]) == ("server", "start")
        or (item["action"] in ("load", "restart") and "UNAVAILABLE" in (item["current"] or ""))
        for item in plan
    )


def restarted_since(first: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if a server that does not answer has restarted since `first`.

    The server ended while it loaded its models. The next start will end in the same way, so waiting cannot help.
    """
    silent = now.get("state") == "running" and now.get("served") is None
    return bool(silent and now["restarts"] > first.get("restarts", now["restarts"]))


def will_log_more(first: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if the server will start again and log why more models do not load.

    When the server ended, it was still loading some models (`cut_off`), so the log does not explain these loads. The next start
    repeats them. A proof waits for at most MAX_RESTARTS starts.
    """
    restarts = now.get("restarts", 0) - first.get("restarts", 0)
    return bool(now.get("cut_off")) and str(now.get("state")).startswith(("running", "restarting")) and restarts < MAX_RESTARTS


def relevant(plan: List[Item], serve_current: bool, prove: bool) -> List[Item]:
    """Return the relevant items of a plan.

    With `prove`, ignore the open transaction of the change itself. With `serve_current`, ignore differences from the inventory.
    """
    actions, names = set(), set()
    if prove:
        # These actions follow after the proof: the caller closes the transaction and repairs files of the store.
        actions |= {models.PROVE, models.MEND}
    if prove or serve_current:
        # These differences concern the start of a new container. They do not affect the container that serves now.
        names |= set(server.TO_MOUNT)
    if serve_current:
        actions |= {"release", "withdraw"}
        names |= {server.VERSION, server.HANGING} if prove else {server.VERSION}
        plan = [item for item in plan if (item["concern"], item["action"]) != (server.CONCERN, "replace")]
    return [item for item in plan if item["action"] not in actions and item["name"] not in names]


def poll_results(desired: Mapping[str, Any], plan: List[Item], driver: Any) -> Tuple[Dict[str, str], Set[str]]:
    """Return {model: why Triton refused it} and the models that still load, from the log since the start of the transaction.

    Only the log of a server in mode poll is read, because in that mode no request returns the result of a load.
    """
    desired_server = desired.get("server") or {}
    names = [item["name"] for item in plan if (item["concern"], item["action"]) == ("server", "wait")]
    opened = store.read_transaction(desired_server["root"]) if names and desired_server.get("mode") == "poll" else None
    if not opened:
        return {}, set()
    since = store.renewal_time(opened)
    lines = driver.log_lines(since) if driver else log.log_lines(Engine(), desired_server["name"], since)
    return log.reasons(lines, names), log.loading(lines) & set(names)


class Observation(NamedTuple):
    """The actual state by concern, the plan, {model: why Triton refused the load}, and the models that still load."""

    actual: Dict[str, Any]
    plan: List[Item]
    refusals: Dict[str, str]
    loading: Collection[str] = ()

    def describe(self) -> str:
        """Return the differences, one line each."""
        reasons = {name: f"; Triton says: {why}" for name, why in self.refusals.items()}
        return "".join(f"\n  - {sentence(entry, MAX_SHOWN)}{reasons.get(entry['name'], '')}" for entry in self.plan)


def is_final(first: Mapping[str, Any], observation: Observation) -> bool:
    """Return True if waiting cannot remove the differences, and Triton has logged every reason."""
    if observation.refusals and not observation.loading:
        return True
    now = observation.actual.get("server") or {}
    if will_log_more(first, now):
        return cannot_recover([item for item in observation.plan if (item["concern"], item["action"]) != ("server", "start")])
    return cannot_recover(observation.plan) or restarted_since(first, now)


def observe(
    desired: Mapping[str, Any],
    root: str = "",
    run: str = "",
    dead_run: str = "",
    serve_current: bool = False,
    prove: bool = False,
    timeout: float = 0,
    driver: Any = None,
) -> Observation:
    """Read the host. With `prove`, repeat this until nothing differs, waiting cannot help, or `timeout` seconds have passed.

    With `serve_current`, `desired` contains the releases that the served/ links point to. `run` is the ID of the caller's run.
    `dead_run` is the ID of a run that the caller knows to have ended. A `driver` (drivers.py) reads the server in place of the
    concern `server`.
    """
    deadline = time.monotonic() + timeout
    actual, plan = read_host(desired, root, run, dead_run, driver)
    latest = Observation(actual, relevant(plan, serve_current, prove), {})
    first: Mapping[str, Any] = actual.get("server") or {}
    # A proof is a step of a change, so it keeps the lease of the run live.
    with lease.working(root, limit=timeout + lease.CALL_LIMIT) if prove and root else nullcontext():
        while prove and latest.plan and time.monotonic() < deadline and not is_final(first, latest):
            time.sleep(POLL_SECONDS)
            actual, plan = read_host(desired, root, run, dead_run, driver)
            plan = relevant(plan, serve_current, prove)
            latest = Observation(actual, plan, *poll_results(desired, plan, driver))
    return latest
