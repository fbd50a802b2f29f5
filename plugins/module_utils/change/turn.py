"""A change of what a server serves, on its host alone: brought into service, proven, and kept, or what served before put back.

Whoever calls it holds the host and has made what the change needs: blobs and releases in the store, the container `<name>-next`.
From then on no controller is needed. A change that is killed between two steps is ended by resume.py.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import container, lease, proof, releases
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client, contexts
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.repository import Change, Refused, Server

# What of the server's plan another container is made for
REPLACES = frozenset({"create", "replace"})
# What is done on free cards alone
STARTS = REPLACES | {"start", "restart"}
LOOK = 0.5
# Seconds in which a server that does not poll shows what it loaded
SETTLE = 5.0


class Order(TypedDict):
    """What the controller hands over."""

    # The host's name in the inventory, the directory of the project on it, and who changes it
    host: str
    root: str
    run: str
    by: str
    # The concerns `models` and `server`, as host_state has them
    desired: Dict[str, Any]
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


class Unproven(Exception):
    """The server does not serve what was asked for: why, and the models whose load hangs in it until it is started again."""

    def __init__(self, words: str, hung: Sequence[str] = ()) -> None:
        super().__init__(words)
        self.hung = list(hung)


class Outcome(NamedTuple):
    """What came of it: `why` is None where it is proven, `back` what was put back then, or why that could not be."""

    did: List[str]
    why: Optional[str] = None
    back: str = ""
    checks: Sequence[Mapping[str, Any]] = ()


# What ends a change with its way back
FAILURES = (Unproven, Refused, check_client.Unasked, container.ContainerError, store.StoreError, OSError)


class Turn:
    """One host's change. `say` is told each step as it begins."""

    def __init__(
        self, order: Order, engine: Optional[container.Docker] = None, say: Callable[[str], None] = lambda step: None
    ) -> None:
        self.order = order
        self.engine = engine or container.Docker()
        self.say = say
        self.root, self.settings = order["root"], order["container"]
        self.name: str = self.settings["name"]
        self.server: Mapping[str, Any] = order["desired"]["server"]
        self.who = store.Run(order["run"], order["by"], order["host"])
        self.did: List[str] = []
        self.replaces = False

    def run(self) -> Outcome:
        """Change, prove and keep, or put back. Raises LeaseError where this run does not hold the host."""
        with lease.working(self.root, lease.Holder(self.order["run"], self.order["by"])) as held:
            # Somebody may have taken the host out since the lease was taken
            lease.refuse_maintenance(self.root, bool(held and held["maintenance"]))
            seen = self._see(["models", "server"], linked=self.order["linked"])
            opened = (seen.actual.get("models") or {}).get("transaction")
            # A response cache goes on giving the answers of before
            stale = bool(opened and opened["stale"] and self.server["cache"])
            todo = {entry["action"] for entry in seen.plan if entry["concern"] == "server"} | ({"restart"} if stale else set())
            self.replaces = bool(todo & REPLACES)
            if not todo and opened is None:
                return Outcome(self.did)
            try:
                self._bring(seen, todo)
                self._prove()
                checks = self._ask()
                self._keep()
            except FAILURES as error:
                return Outcome(self.did, str(error), self._put_back(seen, error, stale))
            return Outcome(self.did, checks=checks)

    # Into service

    def _bring(self, seen: proof.Seen, todo: Set[str]) -> None:
        """Have the server serve what is wanted."""
        if todo & STARTS:
            self.say("wait for the cards")
            self._free_cards()
        if self.replaces:
            self.say("replace the container")
            run = lease.Holder(self.order["run"], self.order["by"])
            self.did += container.replace(self.engine, self.root, run, self.name, self.settings, self.order["inside"])
            return
        if "start" in todo:
            self.say("start the container")
            container.start(self.engine, self.name, self.settings)
            self.did.append(f"started {self.name}")
        elif "restart" in todo:
            # Where models are only read at a start, or a cache would go on answering for them
            self._restart()
        elif todo & {"load", "unload"}:
            self._load(self.server["models"] if not self.order["linked"] else store.linked(self.root, self.server["models"]))
        if self.server["mode"] == "poll" and not self.order["linked"]:
            self._look_again(seen)

    def _free_cards(self) -> None:
        """Refuse to start on cards that another process has open, while the server has not changed."""
        deadline = time.monotonic() + self.settings["free_timeout"]
        while True:
            found = contexts.look(self.name)
            if not found["reasons"]:
                return
            if found["running"] or time.monotonic() >= deadline:
                lines = "".join(f"\n  - {reason}" for reason in found["reasons"])
                raise Unproven(f"the cards are not free, end what holds them and run again:{lines}")
            time.sleep(LOOK)

    def _restart(self) -> None:
        self.say("restart the container")
        container.restart(self.engine, self.name, self.settings)
        self.did.append(f"restarted {self.name}")

    def _load(self, models: Mapping[str, Any]) -> None:
        self.say("load and unload")
        inside = control.inside(self.name) if self.server["grpc"] else None
        address = str(self.server["address"])
        server = Server(address, self.server["http_port"], float(self.settings["ready_timeout"]), self.settings["key"], inside)
        change = Change(server, models)
        change.apply()
        self.did += [f"loaded {name}" for name in change.loaded] + [f"unloaded {name}" for name in change.unloaded]
        if change.reasons:
            lines = "".join(f"\n  - model {name}: {why.strip()}" for name, why in change.reasons.items())
            raise Unproven(f"Triton on port {self.server['http_port']} refused:{lines}", change.hung)

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
            self.say("make releases anew that a polling server does not look at again")
            self._store("released", {"releases": again})

    # The proof

    def _prove(self) -> None:
        self.say("prove that it serves what was asked for")
        seen = self._see(["models", "server"], linked=self.order["linked"], prove=True, timeout=self.settings["ready_timeout"])
        if seen.plan:
            raise Unproven(f"{self.order['host']} is not as wanted:{seen.words()}", self._hanging(seen))

    def _hanging(self, seen: proof.Seen) -> List[str]:
        """In mode poll all that Triton says nothing about in all that time."""
        if self.server["mode"] != "poll" or self.replaces or seen.said:
            return []
        return [entry["name"] for entry in seen.plan if entry["action"] == "wait" and entry["name"] != "http"]

    def _ask(self) -> List[Dict[str, Any]]:
        """The answers to the checks, which have to be right while there is something to go back to."""
        checks = self.order["checks"]
        if checks is None:
            return []
        self.say("prove by inference")
        document = dict(checks["document"])
        unproven: List[Dict[str, Any]] = document.pop("unproven", [])
        key = document.pop("key", None)
        if key:
            headers = {**keys.headers(key), **(document["server"].get("headers") or {})}
            document["server"] = {**document["server"], "headers": headers}
        asked = check_client.ask(checks["image"], document, checks["program"]) if document["checks"] else []
        answers = [*unproven, *asked]
        found = check_client.report(self.order["host"], answers, document.get("unasked", []))
        if not found["proven"]:
            raise Unproven(found["msg"])
        return answers

    def _keep(self) -> None:
        """Close what was open: these releases and this container are what to go back to from now on."""
        self.say("keep it")
        self._store("proven", {"why": "", "keep": self.order["keep"]})
        if container.keep(self.engine, self.root, self.name):
            self.did.append(f"{self.name} is the one to go back to from now on")

    # The way back

    def _put_back(self, seen: proof.Seen, error: Exception, stale: bool) -> str:
        """What served before serves again: what was put back, or why it could not be."""
        self.say("put back what served before")
        was: Mapping[str, Any] = seen.actual.get("server") or {}
        if not (was.get("container") or was.get("previous")):
            return "there was none before; the next run goes on from here"
        why, hung = str(error), getattr(error, "hung", [])
        try:
            moves = self._store("restored", {"why": why, "hung": hung})["moves"]
            # It starts with the links as they are now
            back = container.put_back(self.engine, self.root, self.name, self.settings)
            if back is None and moves:
                self._serve_linked(stale)
            command = (was.get("container") or {}).get("command") or []
            # A container that hands had started serves from elsewhere
            if (back or moves) and (not was.get("container") or f"--model-repository={self.root}/served" in command):
                again = self._see(["server"], linked=True, prove=True, timeout=self.settings["ready_timeout"])
                if again.plan:
                    raise Unproven(f"{self.order['host']} is not as wanted:{again.words()}")
            self._store("proven", {"why": why, "keep": self.order["keep"]})
        except FAILURES as failure:
            return f"what served before could not be put back, repair that and run again: {failure}"
        words = "the one before it serves again" if back else "the releases before serve again" if moves else "nothing was switched"
        return words + ("; the next run starts the server again, in which a load hangs" if hung else "")

    def _serve_linked(self, stale: bool) -> None:
        """Have the running server serve what is linked; one that does not by itself is started again."""
        polls = self.server["mode"] == "poll"
        try:
            if self.server["mode"] == "explicit":
                self._load(store.linked(self.root, self.server["models"]))
            wait = self.order["poll_seconds"] * 2 + 30 if polls else SETTLE
            if self._see(["server"], linked=True, prove=True, timeout=wait).plan:
                raise Unproven("it does not serve it by itself")
        except FAILURES:
            self._restart()
        else:
            if stale:
                self._restart()

    # What it reads and writes

    def _see(self, concerns: List[str], linked: bool, prove: bool = False, timeout: float = 0) -> proof.Seen:
        desired = {name: dict(self.order["desired"][name]) for name in concerns}
        if linked:
            desired["server"]["models"] = store.linked(self.root, self.server["models"])
        else:
            store.hold_back(desired)
        return proof.see(desired, self.root, self.order["run"], linked=linked, prove=prove, timeout=timeout)

    def _store(self, state: str, params: Mapping[str, Any]) -> Dict[str, Any]:
        given = {"state": state, "models": [], "releases": {}, "incoming": "", "why": "", "hung": [], "keep": self.order["keep"]}
        answer = releases.apply(self.root, self.who, {**given, **params}, [], self.say)
        self.did += [f"{name} {move['what']} {move['to'] or 'no more'}" for name, move in (answer.get("moves") or {}).items()]
        return answer
