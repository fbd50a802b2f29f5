"""Whether a host is as wanted: read it, compare, and wait for what comes by itself."""

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

POLL_SECONDS = 0.5
# Characters of what was found that a failed proof tells: Triton's reasons for every model
TOLD = 2000
# Lives of a server's process that a proof waits for
LIVES = 2


def look(desired: Mapping[str, Any], root: str = "", run: str = "", ended: str = "") -> Tuple[Dict[str, Any], List[Item]]:
    """(what was read by concern, the plan) for every concern that `desired` has; of a server also what a run left unfinished."""
    actual: Dict[str, Any] = {}
    plan: List[Item] = []
    units = system.unit_states(*(concern.unit for name, concern in CONCERNS.items() if concern.unit and name in desired))
    for name, concern in CONCERNS.items():
        if name in desired:
            actual[name] = {**concern.part.read(desired[name]), **units.get(concern.unit, {})}
            plan += concern.part.diff(desired[name], actual[name])
    if "server" in desired and root:
        plan += resume.unfinished(root, run, bool(actual["server"].get("previous")), ended)
    return actual, plan


def hopeless(plan: List[Item]) -> bool:
    """Whether waiting cannot help: hardware for hands to repair, a container that has ended, a load that Triton refused."""
    return any(
        item["action"] in (INSPECT, "create", "replace")
        or (item["concern"], item["action"]) == ("server", "start")
        or (item["action"] in ("load", "restart") and "UNAVAILABLE" in (item["current"] or ""))
        for item in plan
    )


def ended_since(first: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a server that does not answer has ended since the first look. It loads every model before it ends for one of them."""
    silent = now.get("state") == "running" and now.get("served") is None
    return bool(silent and now["restarts"] > first.get("restarts", now["restarts"]))


def says_more(first: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a server that ended once in the middle of its loads is started again: it says then why the others do not load."""
    lives = now.get("restarts", 0) - first.get("restarts", 0)
    return bool(now.get("cut_off")) and str(now.get("state")).startswith(("running", "restarting")) and lives < LIVES


def about(plan: List[Item], linked: bool, prove: bool) -> List[Item]:
    """The part of the plan that was asked for: a proof is part of a switch that is open until it is over, and what is linked may
    be another release in another container than the wanted ones."""
    # A release whose record is lost goes when the one after it is proven
    plan = [item for item in plan if not (prove and item["action"] in (models.PROVE, models.MEND))]
    # Of the container that would be made next: the one that serves has what it mounts
    plan = [item for item in plan if not ((prove or linked) and item["name"] in server.TO_MOUNT)]
    foreign = [
        item
        for item in plan
        if item["name"].startswith("container.")
        or (prove and item["name"] == server.HANGING)
        or item["action"] in ("release", "withdraw")
    ]
    return [item for item in plan if not (linked and item in foreign)]


def polled(desired: Mapping[str, Any], plan: List[Item]) -> Tuple[Dict[str, str], Set[str]]:
    """({model: why Triton refused it}, models that it still loads) since the open switch, in mode poll, where nobody who asked is
    answered."""
    wanted = desired.get("server") or {}
    names = [item["name"] for item in plan if (item["concern"], item["action"]) == ("server", "wait")]
    opened = store.read_transaction(wanted["root"]) if names and wanted.get("mode") == "poll" else None
    if not opened:
        return {}, set()
    lines = log.log_lines(Engine(), wanted["name"], store.renewed(opened))
    return log.reasons(lines, names), log.loading(lines) & set(names)


class Seen(NamedTuple):
    """What was read by concern, the differences that count, why Triton refused models, and which it still loads."""

    actual: Dict[str, Any]
    plan: List[Item]
    said: Dict[str, str]
    loading: Collection[str] = ()

    def over(self) -> bool:
        """Whether Triton has refused a model, and has come to the end of all the others: every reason is there."""
        return bool(self.said) and not self.loading

    def words(self) -> str:
        """Every difference that is left, a line each."""
        return "".join(
            "\n  - " + sentence(entry, TOLD) + (f"; Triton says: {self.said[entry['name']]}" if entry["name"] in self.said else "")
            for entry in self.plan
        )


def settled(first: Mapping[str, Any], seen: Seen) -> bool:
    """Whether waiting cannot help, and every reason is there."""
    now = seen.actual.get("server") or {}
    if says_more(first, now):
        return hopeless([item for item in seen.plan if (item["concern"], item["action"]) != ("server", "start")])
    return hopeless(seen.plan) or ended_since(first, now)


def see(
    desired: Mapping[str, Any],
    root: str = "",
    run: str = "",
    ended: str = "",
    linked: bool = False,
    prove: bool = False,
    timeout: float = 0,
) -> Seen:
    """Read the host; for a proof again until nothing differs, waiting cannot help, or the seconds are over.

    `linked` compares with what the store links. `run` is the caller's own, `ended` one that is known to be gone.
    """
    deadline = time.monotonic() + timeout
    actual, plan = look(desired, root, run, ended)
    seen = Seen(actual, about(plan, linked, prove), {})
    first: Mapping[str, Any] = actual.get("server") or {}
    # A proof is a step of a change: the lease of its run, if there is one, stays live however long it takes
    with lease.working(root, limit=timeout + lease.CALL) if prove and root else nullcontext():
        while prove and seen.plan and time.monotonic() < deadline and not (seen.over() or settled(first, seen)):
            time.sleep(POLL_SECONDS)
            actual, plan = look(desired, root, run, ended)
            plan = about(plan, linked, prove)
            seen = Seen(actual, plan, *polled(desired, plan))
    return seen
