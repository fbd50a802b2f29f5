"""A change of what a server serves, on its host alone: brought into service, proven, and kept, or what served before put back.

Whoever calls it holds the host and has made what the change needs: blobs and releases in the store, the container `<name>-next`.
From then on no controller is needed. A change that is killed between two steps is ended by resume.py.

Its lines: one change from the first look to the way back, which is read from top to bottom.
"""

from __future__ import annotations

import glob
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils import failures, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import cards, container, lease, proof, releases
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe, server
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client, contexts
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.repository import Change, Refused, Server
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import from_elsewhere

# What of the server's plan another container is made for
REPLACES = frozenset({"create", "replace"})
# What is done on free cards alone
STARTS = REPLACES | {"start", "restart"}
# What was put back where the change ended before it began
NOTHING = "nothing was changed"
# Seconds in which a server that does not poll shows what it loaded
SETTLE = 5.0
# Stops and starts of a change that loads no model
STEPS = 4


class Order(TypedDict):
    """What the controller hands over."""

    # What the result is known by
    id: str
    # The host's name in the inventory, the directory of the project on it, and who changes it
    host: str
    root: str
    run: str
    by: str
    # The concerns `models` and `server`, as host_state has them
    desired: Dict[str, Any]
    # What is to be served from now on: the options of a state of releases.apply, and `withdraw`; None for what is linked already
    switch: Optional[Dict[str, Any]]
    # Serve what is linked, whatever container and models the inventory wants
    linked: bool
    # Name of the container, and the times that it needs (container.py)
    container: Dict[str, Any]
    # A server that hands had started inside the old container
    inside: Dict[str, Any]
    # Seconds between two looks of a server that polls
    poll_seconds: int
    # {"image", "document", "program"} of the checks; None proves without questions
    checks: Optional[Dict[str, Any]]
    # How many proven releases of a model stay
    keep: int
    # Why nothing is to be changed any more, but what served before put back; empty for a change
    given_up: str
    # Seconds for which what is proven waits to be accepted, 0 for not at all; whether it is kept where nobody answers
    accept_within: float
    kept_unanswered: bool
    # Whether nothing of the run follows: a change that is kept releases the host, too
    release_host: bool


class Unproven(Exception):
    """The server does not serve what was asked for: why, and the models whose load hangs in it until it is started again."""

    def __init__(self, words: str, hung: Sequence[str] = (), checks: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(words)
        self.hung = list(hung)
        self.checks = list(checks)


class NotAccepted(Unproven):
    """It serves what was asked for, and is not wanted all the same: why."""


class Outcome(NamedTuple):
    """What came of it: `why` is None where it is proven, `back` what was put back then, or why that could not be."""

    did: List[str]
    why: Optional[str] = None
    back: str = ""
    checks: Sequence[Mapping[str, Any]] = ()
    # Whether it was to be another container
    replaces: bool = False
    # The models that were switched
    moves: Mapping[str, store.Move] = {}
    warnings: Sequence[str] = ()
    # Whether what is proven was accepted; None where it had not to be
    accepted: Optional[bool] = None
    # Whether the host is nobody's any more
    released: bool = False


def forget_keys(wanted: Optional[Mapping[str, Any]]) -> List[str]:
    """Remove Triton's keys to object stores that no container has any more; their paths."""
    kept = wanted["path"] if wanted else None
    gone = [path for path in sorted(glob.glob(os.path.join(server.CREDENTIALS_HOME, "cloud-*.json"))) if path != kept]
    for path in gone:
        os.unlink(path)
    return gone


# Asked with what is proven, until it is accepted (None) or refused (why)
Decide = Callable[[Outcome], Optional[str]]
# Errors whose message is meant for an operator. Any other error restores the previous state as well, and is reported with its place
EXPECTED = (Unproven, Refused, check_client.ClientError, container.ContainerError, store.StoreError, lease.LeaseError, OSError)


class HostChange:
    """One host's change. `say` is told each step as it begins, `decide` asked where it has to be accepted."""

    def __init__(
        self,
        order: Order,
        engine: Optional[container.Docker] = None,
        log_step: Callable[[str], None] = lambda step: None,
        decide: Decide = lambda proven: None,
    ) -> None:
        self.order = order
        self.engine = engine or container.Docker()
        self.log_step, self.decide = log_step, decide
        self.root, self.settings = order["root"], order["container"]
        self.name: str = self.settings["name"]
        self.server: Mapping[str, Any] = order["desired"]["server"]
        # What the server serves where nothing is linked in its place: as the inventory has it, or as it was before
        self.reads: Mapping[str, Any] = self.server["models"]
        self.who = store.Run(order["run"], order["by"], order["host"])
        self.did: List[str] = []
        self.warnings: List[str] = []
        self.todo: Set[str] = set()
        # `begun`: something was done to the server; `proven`: it was proven, and its transaction is closed
        self.replaces = self.stale = self.begun = self.proven = False
        self.moves: Mapping[str, store.Move] = {}
        self.accepted: Optional[bool] = None
        self.guard = container.guard(self.engine, self.name, self.settings)

    def run(self) -> Outcome:
        """Change, prove and keep, or put back. Raises LeaseError where this run does not hold the host."""
        me = lease.Holder(self.order["run"], self.order["by"])
        # The guard may end loads only while the host is held. pylint: disable-next=confusing-with-statement
        with lease.working(self.root, me, self._limit()) as held, self.guard:
            # Somebody may have taken the host out since the lease was taken
            lease.refuse_maintenance(self.root, bool(held and held["maintenance"]))
            try:
                seen = self._look()
            except Exception as error:
                return Outcome(self.did, failures.reason(error, EXPECTED), NOTHING)
            try:
                if self.order["given_up"]:
                    raise Unproven(self.order["given_up"])
                if self._switch():
                    seen = self._look()
                checks = self._serve(seen)
            except Exception as error:
                why = failures.reason(error, EXPECTED)
                return self._outcome(getattr(error, "checks", []), why, self._put_back(seen, why, getattr(error, "hung", [])))
            # From here on the change is proven and closed: whatever fails is a warning
            self._clean_up()
            return self._outcome(checks)._replace(released=self.order["release_host"] and self._release_host(me))

    def _limit(self) -> float:
        """Return the seconds that the change and its way back take at most, each of their steps at its own limit."""
        step = sum(float(self.settings.get(name) or 0) for name in ("ready_timeout", "stop_timeout", "free_timeout"))
        models = len(self.order["desired"]["models"].get("models") or {}) + len(self.server.get("models") or {})
        asked = check_client.time_limit(self.order["checks"]["document"]) if self.order["checks"] else 0.0
        return 2 * (STEPS + models) * (step + 2 * control.GRACE) + asked + self.order["accept_within"] + lease.CALL

    def _outcome(self, checks: Sequence[Mapping[str, Any]], why: Optional[str] = None, back: str = "") -> Outcome:
        return Outcome([*self.did, *self.guard.did()], why, back, checks, self.replaces, self.moves, self.warnings, self.accepted)

    def _look(self) -> proof.Seen:
        """What there is to do."""
        seen = self._see(["models", "server"], linked=self.order["linked"])
        opened = (seen.actual.get("models") or {}).get("transaction")
        # A response cache goes on giving the answers of before
        self.stale = bool(opened and opened["stale"] and self.server["cache"])
        self.todo = {entry["action"] for entry in seen.plan if entry["concern"] == "server"} | (
            {"restart"} if self.stale else set()
        )
        self.replaces = bool(self.todo & REPLACES)
        return seen

    def _switch(self) -> bool:
        """Make the releases and switch to them; whether anything was done."""
        switch = self.order["switch"]
        if not switch:
            return False
        withdraw = [name for name in switch.get("withdraw", []) if os.path.lexists(os.path.join(self.root, "served", name))]
        if switch["state"] == "released" and releases.settled(self.root, switch, withdraw):
            return False
        self.log_step("switch the models")
        answer = self._store(switch["state"], switch, withdraw)
        self.moves = answer["moves"]
        self.did += [f"put {path} right" for path in answer.get("mended", [])]
        return True

    def _serve(self, seen: proof.Seen) -> List[Dict[str, Any]]:
        """Bring it into service, prove it and keep it; the answers to the checks."""
        if not self.todo and store.read_transaction(self.root) is None:
            return []
        self._bring(seen)
        self._prove()
        checks = self._ask()
        self._accept(checks)
        self.log_step("keep it")
        self._store("proven", {"why": "", "keep": self.order["keep"]})
        self.proven = True
        return checks

    # Into service

    def _bring(self, seen: proof.Seen) -> None:
        """Have the server serve what is wanted."""
        todo = self.todo
        if todo & STARTS:
            self.log_step("wait for the cards")
            self._free_cards()
        if self.replaces:
            self.log_step("ask the SDK in the new container for the cards")
            cards.prove(self.engine, self.name, self.server["cards"])
        self.begun = True
        if self.replaces:
            self.log_step("replace the container")
            run = lease.Holder(self.order["run"], self.order["by"])
            self.did += container.replace(self.engine, self.root, run, self.name, self.settings, self.order["inside"])
            return
        if "start" in todo:
            self.log_step("start the container")
            container.start(self.engine, self.name, self.settings)
            self.did.append(f"started {self.name}")
        elif "restart" in todo:
            # Where models are only read at a start, or a cache would go on answering for them
            self._restart()
        elif todo & {"load", "unload"}:
            self._load(self.reads if not self.order["linked"] else store.linked(self.root, self.reads))
        if self.server["mode"] == "poll" and not self.order["linked"]:
            self._look_again(seen)

    def _free_cards(self) -> None:
        """Refuse to start on cards that another process has open, while the server has not changed."""
        reasons = contexts.wait_until_free(self.name, self.settings["free_timeout"])
        if reasons:
            lines = "".join(f"\n  - {reason}" for reason in reasons)
            raise Unproven(f"the cards are not free, end what holds them and run again:{lines}")

    def _restart(self) -> None:
        self.log_step("restart the container")
        container.restart(self.engine, self.name, self.settings)
        self.did.append(f"restarted {self.name}")

    def _load(self, models: Mapping[str, Any]) -> None:
        self.log_step("load and unload")
        inside = control.inside(self.name) if self.server["grpc"] else None
        address = str(self.server["address"])
        triton = Server(address, self.server["http_port"], float(self.settings["ready_timeout"]), self.settings["key"], inside)
        ended, change = len(self.guard.ended), Change(triton, models)
        change.apply()
        self.did += [f"loaded {name}" for name in change.loaded] + [f"unloaded {name}" for name in change.unloaded]
        if change.why() and self.guard.repeats(ended):
            self._load(models)
        elif change.why():
            raise Unproven(change.why(), change.hung)

    def _look_again(self, seen: proof.Seen) -> None:
        """A server that polls looks again only at what is newer than what it refused, or has lost: make that anew."""
        opened = store.read_transaction(self.root)
        switched = {name for name, move in opened["models"].items() if move["to"]} if opened else set()
        waiting = {
            entry["name"]
            for entry in seen.plan
            if (entry["concern"], entry["action"]) == ("server", "wait") and entry["name"] in self.server["models"]
        }
        again: Dict[str, Any] = {}
        for name in sorted(waiting - switched):
            label = store.served_label(self.root, name)
            if label:
                again[name] = store.release_again(self.root, name, label)
        if again:
            self.log_step("make releases anew that a polling server does not look at again")
            self._store("released", {"releases": again})

    # The proof

    def _prove(self) -> None:
        self.log_step("prove that it serves what was asked for")
        seen = self._wait_until_served(["models", "server"], self.order["linked"])
        if seen.plan:
            raise Unproven(f"{self.order['host']} is not as wanted:{seen.words()}", self._hanging(seen))

    def _wait_until_served(self, concerns: List[str], linked: bool) -> proof.Seen:
        """Return the proof, after each load that was stuck in it was repeated."""
        ended = len(self.guard.ended)
        seen = self._see(concerns, linked, prove=True, timeout=self.settings["ready_timeout"])
        if not seen.plan or not self.guard.repeats(ended):
            return seen
        self.log_step("repeat the loads that were stuck")
        left = {entry["name"]: entry["action"] for entry in seen.plan if entry["concern"] == server.CONCERN}
        # A server ends with a load that fails at its start. Its engine may have started it again.
        if container.start(self.engine, self.name, self.settings):
            pass
        elif "restart" in left.values():
            self._restart()
        elif {"load", "unload"} & set(left.values()):
            self._load(store.linked(self.root, self.reads) if linked else self.reads)
        else:
            releases.renew(self.root, self.who, sorted(set(left) & set(self.reads)))
        return self._wait_until_served(concerns, linked)

    def _hanging(self, seen: proof.Seen) -> List[str]:
        """In mode poll all that Triton says nothing about in all that time, or only that it loads it."""
        if self.server["mode"] != "poll" or self.replaces:
            return []
        if seen.said:
            return sorted(seen.loading)
        return [entry["name"] for entry in seen.plan if entry["action"] == "wait" and entry["name"] != "http"]

    def _ask(self) -> List[Dict[str, Any]]:
        """The answers to the checks, which have to be right while there is something to go back to."""
        checks = self.order["checks"]
        if checks is None:
            return []
        self.log_step("prove by inference")
        document = dict(checks["document"])
        found = check_client.prove(checks["image"], document, checks["program"], keys.headers(document.pop("key", None)))
        answers: List[Dict[str, Any]] = found["checks"]
        if not found["proven"]:
            raise Unproven(found["msg"], checks=answers)
        if answers:
            self._warn_of("the probe was not asked again", lambda: probe.renew(probe.moment()))
        return answers

    def _accept(self, checks: Sequence[Mapping[str, Any]]) -> None:
        """Wait until what is proven is accepted, with the way back still open."""
        if not self.order["accept_within"]:
            return
        self.log_step("wait to be accepted")
        why = self.decide(self._outcome(checks))
        self.accepted = why is None
        if why is not None:
            raise NotAccepted(why, checks=checks)

    def _clean_up(self) -> None:
        """Remove the container before the proven one, and its keys."""
        if not self.proven:
            return
        self._warn_of("the container before this one was not removed, the next change removes it", self._keep_container)
        if self.replaces:
            # The container before this one had its own until now
            self._warn_of("keys that no container has any more were not removed", self._forget_keys)

    def _keep_container(self) -> None:
        if container.keep(self.engine, self.root, self.name):
            self.did.append(f"{self.name} is the one to go back to from now on")

    def _forget_keys(self) -> None:
        self.did += [f"removed {path}" for path in forget_keys(self.server.get("credentials"))]

    def _release_host(self, me: lease.Holder) -> bool:
        released: List[bool] = []
        self._warn_of("the lease of the host was not released", lambda: released.append(lease.release(self.root, me)))
        return released == [True]

    def _warn_of(self, what: str, step: Callable[[], Optional[str]]) -> None:
        """Run a step whose failure does not concern what is proven: that, or the message that it returns, is a warning."""
        try:
            message = step()
        except Exception as error:
            message = f"{what}: {failures.reason(error, EXPECTED)}"
        self.warnings += [message] if message else []

    # The way back

    def _put_back(self, seen: proof.Seen, why: str, hung: Sequence[str]) -> str:
        """Restore what served before. Returns what was put back, or why it could not be."""
        was: Mapping[str, Any] = seen.actual.get("server") or {}
        try:
            self.log_step("put back what served before")
            if not (was.get("container") or was.get("previous")):
                return "there was none before; the next run goes on from here"
            self.reads = self._read_before(was)
            # A container that serves is worth the attempt, whatever became of the links. It starts with them as they are now
            moves, lost = self._restore_links(why, hung)
            back = container.put_back(self.engine, self.root, self.name, self.settings)
            if lost is not None:
                raise lost
            if back is None and moves:
                self._serve_linked()
            command = (was.get("container") or {}).get("command") or []
            # A container that hands had started serves from elsewhere
            if (back or moves) and (not was.get("container") or f"--model-repository={self.root}/served" in command):
                again = self._wait_until_served(["server"], linked=True)
                if again.plan:
                    raise Unproven(f"{self.order['host']} is not as wanted:{again.words()}")
            self._store("proven", {"why": why, "keep": self.order["keep"]})
        except Exception as failure:
            return f"what served before could not be put back, repair that and run again: {failures.reason(failure, EXPECTED)}"
        nothing = "nothing was switched" if self.begun else NOTHING
        words = "the one before it serves again" if back else "the releases before serve again" if moves else nothing
        return words + ("; the next run starts the server again, in which a load hangs" if hung else "")

    def _restore_links(self, why: str, hung: Sequence[str]) -> Tuple[Mapping[str, store.Move], Optional[Exception]]:
        """Return the links that were moved back, and the error if that failed."""
        try:
            return self._store("restored", {"why": why, "hung": hung})["moves"], None
        except Exception as error:
            return {}, error

    def _read_before(self, was: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the models, and of those of object stores the ones that the previous server had read.

        What a server that did not answer had read is not known: then the ones of the inventory count.
        """
        if was.get("served") is None:
            return self.reads
        own = {name: model for name, model in self.reads.items() if model["release"] is not None}
        return {**own, **{name: dict(server.CLOUD) for name in from_elsewhere(was["served"])}}

    def _serve_linked(self) -> None:
        """Have the running server serve what is linked; one that does not by itself is started again."""
        polls = self.server["mode"] == "poll"
        try:
            if self.server["mode"] == "explicit":
                self._load(store.linked(self.root, self.reads))
            wait = self.order["poll_seconds"] * 2 + 30 if polls else SETTLE
            if self._see(["server"], linked=True, prove=True, timeout=wait).plan:
                raise Unproven("it does not serve it by itself")
        except Exception:
            self._restart()
        else:
            if self.stale:
                self._restart()

    # What it reads and writes

    def _see(self, concerns: List[str], linked: bool, prove: bool = False, timeout: float = 0) -> proof.Seen:
        desired = {name: dict(self.order["desired"][name]) for name in concerns}
        if linked:
            desired["server"]["models"] = store.linked(self.root, self.reads)
        else:
            store.hold_back(desired)
        return proof.see(desired, self.root, self.order["run"], linked=linked, prove=prove, timeout=timeout)

    def _store(self, state: str, params: Mapping[str, Any], withdraw: Sequence[str] = ()) -> Dict[str, Any]:
        given = {"models": [], "releases": {}, "incoming": "", "why": "", "hung": [], "keep": self.order["keep"]}
        answer = releases.apply(self.root, self.who, {**given, **params, "state": state}, list(withdraw), self.warnings.append)
        words = "proved {name} at {to}" if state == "proven" else "{name} is linked to {to}"
        # What is put back was told when it was linked
        moves = {} if state == "proven" and params["why"] else answer.get("moves") or {}
        self.did += [words.format(name=name, to=move["to"] or "no more") for name, move in moves.items()]
        return answer
