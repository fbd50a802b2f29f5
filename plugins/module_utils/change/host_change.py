# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Change what a host serves: make the change, then prove and keep it, or restore the previous state.

Before the change, the caller takes the lease, copies the model files and creates the container `<name>-next`. So the change needs
no connection to the controller. If the process of the change is killed, resume.py ends the change.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from ansible_collections.npufleet.triton.plugins.module_utils import failures, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, proof, releases
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError
from ansible_collections.npufleet.triton.plugins.module_utils.change.drivers import REPLACES, STARTS, ContainerDriver, Driver, Order
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import server
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.process.supervised import ProcessError
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.repository import Change, Refused, Server
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import served_without_release

# The report of a rollback that had nothing to undo
NOTHING = "nothing was changed"
# Seconds within which a server that does not poll must list its loaded models
SETTLE_SECONDS = 5.0
# Largest number of steps of a change besides loads. A step takes at most as long as one stop and one start.
MAX_STEPS = 4


class Unproven(Exception):
    """The error if a change is not proven. `hung` has the models whose loads hang until the server restarts."""

    def __init__(self, message: str, hung: Sequence[str] = (), checks: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.hung = list(hung)
        self.checks = list(checks)


class Outcome(NamedTuple):
    """The result of a change. `did` lists its steps. `why` is the reason of a failure, or None. `back` reports the rollback."""

    did: List[str]
    why: Optional[str] = None
    back: str = ""
    checks: Sequence[Mapping[str, Any]] = ()
    replaces: bool = False  # True if the plan replaces the server
    # The models that were switched to another release
    moves: Mapping[str, store.Move] = {}
    warnings: Sequence[str] = ()
    accepted: Optional[bool] = None  # None if the change did not have to be accepted
    restored: bool = False  # True if the previous state was restored and verified, or if nothing was changed
    released: bool = False  # True if the change released the lease of the host


# Errors whose message is meant for an operator. Other errors also cause a rollback, and are reported with their source line.
EXPECTED = (Unproven, Refused, check_client.ClientError, ContainerError, ProcessError, store.StoreError, lease.LeaseError, OSError)


class HostChange:
    """A change of one host. `log_step` logs a step. `decide` returns None to accept a proven change, or a reason to reject it."""

    def __init__(
        self,
        order: Order,
        driver: Optional[Driver] = None,
        log_step: Callable[[str], None] = lambda step: None,
        decide: Callable[[Outcome], Optional[str]] = lambda proven: None,
    ) -> None:
        self.order, self.driver = order, driver or ContainerDriver(order)
        self.log_step, self.decide = log_step, decide
        self.root, self.settings = order["root"], order["container"]
        self.server: Mapping[str, Any] = order["desired"]["server"]
        # The models of the inventory. A rollback sets `models` to those of the previous server (`_previous_models`).
        self.models: Mapping[str, Any] = self.server["models"]
        self.run_of_store = store.Run(order["run"], order["by"], order["host"])
        self.did: List[str] = []
        self.warnings: List[str] = []
        self.actions: Set[str] = set()
        # `server_touched`: a step on the server has begun. `proven`: the change is proven, and its transaction is closed.
        self.replaces = self.cache_stale = self.server_touched = self.proven = self.restored = False
        self.moves: Mapping[str, store.Move] = {}
        self.accepted: Optional[bool] = None
        self.guard = self.driver.guard

    def run(self) -> Outcome:
        """Make and prove the change, or restore the previous state. Raises LeaseError if this run does not have the lease."""
        holder = self.driver.holder
        # The guard needs the lease to end stuck loads. pylint: disable-next=confusing-with-statement
        with lease.working(self.root, holder, self._limit()) as current_lease, self.guard:
            # An operator may have begun a maintenance after the lease was taken.
            lease.refuse_maintenance(self.root, bool(current_lease and current_lease["maintenance"]))
            try:
                observation = self._observe_actions()
            except Exception as error:
                return Outcome(self.did, self._reason(error), NOTHING, restored=True)
            try:
                if self.order["rollback_reason"]:
                    raise Unproven(self.order["rollback_reason"])
                if self._switch():
                    observation = self._observe_actions()
                checks = self._serve(observation)
            except Exception as error:
                why = self._reason(error)
                back = self._roll_back(observation, why, getattr(error, "hung", []))
                return self._outcome(getattr(error, "checks", []), why, back)
            # The change is proven, and its transaction is closed. From here on, an error is only a warning.
            if self.proven:
                self._clean_up()
            released = False
            if self.order["release_host"]:
                with self._warn_on_error("the lease of the host was not released"):
                    released = lease.release(self.root, holder)
            return self._outcome(checks)._replace(released=released)

    def observe(self) -> proof.Observation:
        """Return the actual state of the host and its differences from the desired state."""
        return self._observe(["models", "server"], self.order["serve_current"])

    def _limit(self) -> float:
        """Return an upper limit in seconds for the change and its rollback: the sum of the time limits of all steps."""
        step = sum(float(self.settings.get(name) or 0) for name in ("ready_timeout", "stop_timeout", "free_timeout"))
        models = len(self.order["desired"]["models"].get("models") or {}) + len(self.server.get("models") or {})
        checking = check_client.time_limit(self.order["checks"]["document"]) if self.order["checks"] else 0.0
        change_and_rollback = 2 * (MAX_STEPS + models) * (step + 2 * control.GRACE)
        return change_and_rollback + checking + self.order["acceptance_timeout"] + lease.CALL_LIMIT

    def _reason(self, error: Exception) -> str:
        return self.driver.mask_secrets(failures.reason(error, EXPECTED))

    def _outcome(self, checks: Sequence[Mapping[str, Any]], why: Optional[str] = None, back: str = "") -> Outcome:
        did = [*self.did, *self.guard.did()]
        return Outcome(did, why, back, checks, self.replaces, self.moves, self.warnings, self.accepted, self.restored)

    def _observe_actions(self) -> proof.Observation:
        """Return the state of the host, and set `actions` to the actions of the plan that concern the server."""
        observation = self.observe()
        opened = (observation.actual.get("models") or {}).get("transaction")
        # `stale`: after the switch, the response cache may contain responses of the previous release.
        self.cache_stale = bool(opened and opened["stale"] and self.server["cache"])
        self.actions = {entry["action"] for entry in observation.plan if entry["concern"] == server.CONCERN}
        self.actions |= {"restart"} if self.cache_stale else set()
        self.replaces = bool(self.actions & REPLACES)
        return observation

    def _switch(self) -> bool:
        """Make the releases and switch to them. Return False if nothing had to change."""
        if not self.order["store_change"]:
            return False
        change = dict(self.order["store_change"])
        change["withdraw"] = [
            name for name in change.get("withdraw", []) if os.path.lexists(os.path.join(self.root, "served", name))
        ]
        if change["state"] == "released" and releases.is_applied(self.root, change):
            return False
        self.log_step("switch the models")
        answer = self._store(change["state"], change)
        self.moves = answer["moves"]
        self.did += [f"repaired {path}" for path in answer.get("mended", [])]
        return True

    def _serve(self, observation: proof.Observation) -> List[Dict[str, Any]]:
        """Apply the change to the server, prove it and keep it. Return the results of the checks."""
        if not self.actions and store.read_transaction(self.root) is None:
            return []
        self._apply(observation)
        self._prove()
        checks = self._check()
        self._accept(checks)
        self.log_step("keep the change")
        self._store("proven", {"why": ""})
        self.proven = True
        return checks

    # The server

    def _apply(self, observation: proof.Observation) -> None:
        """Make the server serve the desired state."""
        actions, noun = self.actions, self.driver.noun
        if actions & STARTS:
            self.log_step("wait for the cards")
            reasons = self.driver.busy_cards()
            if reasons:
                lines = "".join(f"\n  - {reason}" for reason in reasons)
                raise Unproven(f"the cards are not free, end what holds them and run again:{lines}")
        if actions & self.driver.prepares:
            self.log_step(f"list the cards with the SDK in the new {noun}")
            self.did += self.driver.prepare()
        self.server_touched = True
        if self.replaces:
            self.log_step(f"replace the {noun}")
            self.did += self.driver.replace()
            return
        if "start" in actions:
            self.log_step(f"start the {noun}")
            self.driver.start()
            self.did.append(f"started the {noun}")
        elif "restart" in actions:
            # Triton reads some models only at its start, and only a restart clears its response cache.
            self._restart()
        elif actions & {"load", "unload"}:
            self._load(self.models if not self.order["serve_current"] else store.current_models(self.root, self.models))
        if self.server["mode"] == "poll" and not self.order["serve_current"]:
            self._release_lost_models(observation)

    def _restart(self) -> None:
        self.log_step(f"restart the {self.driver.noun}")
        self.driver.restart()
        self.did.append(f"restarted the {self.driver.noun}")

    def _load(self, models: Mapping[str, Any]) -> None:
        self.log_step("load and unload")
        actual, timeout = self.driver.actual_server(), float(self.settings["ready_timeout"])
        triton = Server(actual["address"], actual["http_port"], timeout, actual["key"], self.driver.runner())
        ended_before, change = len(self.guard.ended_loads), Change(triton, models)
        change.apply()
        self.did += [f"loaded {name}" for name in change.loaded] + [f"unloaded {name}" for name in change.unloaded]
        if change.why() and self.guard.repeats(ended_before):
            self._load(models)
        elif change.why():
            raise Unproven(change.why(), change.hung)

    def _release_lost_models(self, observation: proof.Observation) -> None:
        """Make a new release of each model that a polling server does not serve, because this server loads only newer files."""
        opened = store.read_transaction(self.root)
        switched = {name for name, move in opened["models"].items() if move["to"]} if opened else set()
        waiting = {entry["name"] for entry in observation.plan if (entry["concern"], entry["action"]) == (server.CONCERN, "wait")}
        labels = {name: store.served_label(self.root, name) for name in (waiting & set(self.server["models"])) - switched}
        again = {name: store.release_content(self.root, name, label) for name, label in sorted(labels.items()) if label}
        if again:
            self.log_step("make releases again that a polling server does not load")
            self._store("released", {"releases": again, "withdraw": [], "incoming": ""})

    # The proof

    def _prove(self) -> None:
        self.log_step("prove that the server serves the desired models")
        observation = self._wait_until_served(["models", "server"], self.order["serve_current"])
        if observation.plan:
            raise Unproven(f"{self.order['host']} is not in sync:{observation.describe()}", self._hanging_models(observation))

    def _wait_until_served(self, concerns: List[str], serve_current: bool) -> proof.Observation:
        """Wait until the host is in sync, and repeat loads that were stuck. Return the last observation."""
        ended_before = len(self.guard.ended_loads)
        observation = self._observe(concerns, serve_current, prove=True, timeout=self.settings["ready_timeout"])
        if not observation.plan or not self.guard.repeats(ended_before):
            return observation
        self.log_step("repeat the loads that were stuck")
        left = {entry["name"]: entry["action"] for entry in observation.plan if entry["concern"] == server.CONCERN}
        # Start the server if it does not run, because Triton ends if a load fails while Triton starts.
        if self.driver.start():
            pass
        elif "restart" in left.values():
            self._restart()
        elif {"load", "unload"} & set(left.values()):
            self._load(store.current_models(self.root, self.models) if serve_current else self.models)
        else:
            releases.touch_served(self.root, self.run_of_store, sorted(set(left) & set(self.models)))
        return self._wait_until_served(concerns, serve_current)

    def _hanging_models(self, observation: proof.Observation) -> List[str]:
        """Return the models of a polling server whose loads have neither succeeded nor failed."""
        if self.server["mode"] != "poll" or self.replaces:
            return []
        if observation.refusals:
            return sorted(observation.loading)
        return [entry["name"] for entry in observation.plan if entry["action"] == "wait" and entry["name"] != "http"]

    def _check(self) -> List[Dict[str, Any]]:
        """Run the checks and return their results. Raises Unproven if a check fails, so that the change is rolled back."""
        checks = self.order["checks"]
        if checks is None:
            return []
        self.log_step("prove by inference")
        document = dict(checks["document"])
        report = self.driver.infer(checks, document, keys.headers(document.pop("key", None)))
        results: List[Dict[str, Any]] = report["checks"]
        if not report["proven"]:
            raise Unproven(str(report["msg"]).replace(f"{document['host']}: ", "", 1), checks=results)
        if results:
            with self._warn_on_error("the probe was not run again"):
                self.warnings += filter(None, [self.driver.renew_probe()])
        return results

    def _accept(self, checks: Sequence[Mapping[str, Any]]) -> None:
        """Wait until the proven change is accepted. Raises Unproven if it is rejected, so that it is rolled back."""
        if not self.order["acceptance_timeout"]:
            return
        self.log_step("wait to be accepted")
        why = self.decide(self._outcome(checks))
        self.accepted = why is None
        if why is not None:
            raise Unproven(why, checks=checks)

    def _clean_up(self) -> None:
        """Remove the previous server and its files after the proof."""
        with self._warn_on_error(f"the previous {self.driver.noun} was not removed, the next change removes it"):
            if self.driver.keep():
                self.did.append(f"from now on, a rollback restores this {self.driver.noun}")
        with self._warn_on_error("the checks were not kept, a rollback is proven with the checks of the inventory"):
            self.driver.keep_checks()
        if self.replaces:
            with self._warn_on_error(f"files of the previous {self.driver.noun} were not removed"):
                self.did += [f"removed {path}" for path in self.driver.remove_unused_files()]

    @contextmanager
    def _warn_on_error(self, problem: str) -> Iterator[None]:
        """Turn an error in the `with` block into a warning, because the change is proven."""
        try:
            yield
        except Exception as error:
            self.warnings.append(f"{problem}: {self._reason(error)}")

    # The rollback

    def _roll_back(self, observation: proof.Observation, why: str, hung: Sequence[str]) -> str:
        """Restore the previous state. Return a text that says what serves now, or why the restore failed."""
        previous: Mapping[str, Any] = observation.actual.get("server") or {}
        try:
            self.log_step("restore the previous state")
            if not self.driver.existed(previous):
                return "there was no server before; the next run continues from this state"
            self.models = self._previous_models(previous)
            link_moves: Mapping[str, store.Move] = {}
            failure: Optional[Exception] = None
            try:
                link_moves = self._store("restored", {"why": why, "hung": hung})["moves"]
            except Exception as error:
                # Restore the server even if the links could not be restored. It then serves what the current links point to.
                failure = error
            restored = self.driver.restore()
            if failure is not None:
                raise failure
            if restored is None and link_moves:
                self._serve_current_releases()
            if (restored or link_moves) and self.driver.serves_store(previous):
                again = self._wait_until_served(["server"], serve_current=True)
                if again.plan:
                    raise Unproven(f"{self.order['host']} is not in sync:{again.describe()}")
            self._store("proven", {"why": why})
            self.restored = True
        except Exception as error:
            return f"the previous state could not be restored, repair that and run again: {self._reason(error)}"
        if restored:
            report = "the previous server serves again"
        elif link_moves:
            report = "the previous releases serve again"
        else:
            report = "nothing was switched" if self.server_touched else NOTHING
        return report + ("; a load hangs in the server, so the next run restarts it" if hung else "")

    def _previous_models(self, previous: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inventory's models in the store, and the models that the previous server read from object stores.

        If the previous server did not answer, return all models of the inventory.
        """
        if previous.get("served") is None:
            return self.models
        own = {name: model for name, model in self.models.items() if model["release"] is not None}
        return {**own, **{name: dict(server.OBJECT_STORE_MODEL) for name in served_without_release(previous["served"])}}

    def _serve_current_releases(self) -> None:
        """Make the running server serve the releases that the served/ links point to. Restart it if it does not load them."""
        polls = self.server["mode"] == "poll"
        try:
            if self.server["mode"] == "explicit":
                self._load(store.current_models(self.root, self.models))
            wait = self.order["poll_seconds"] * 2 + 30 if polls else SETTLE_SECONDS
            if self._observe(["server"], serve_current=True, prove=True, timeout=wait).plan:
                raise Unproven("the server does not serve the releases without a restart")
        except Exception:
            self._restart()
        else:
            if self.cache_stale:
                self._restart()

    def _observe(self, concerns: List[str], serve_current: bool, prove: bool = False, timeout: float = 0) -> proof.Observation:
        desired = {name: dict(self.order["desired"][name]) for name in concerns}
        if serve_current:
            desired["server"]["models"] = store.current_models(self.root, self.models)
        else:
            store.apply_holds(desired)
        return proof.observe(
            desired, self.root, self.order["run"], serve_current=serve_current, prove=prove, timeout=timeout, driver=self.driver
        )

    def _store(self, state: str, params: Mapping[str, Any]) -> Dict[str, Any]:
        """Apply a change of the store (releases.apply), and add the moved links to `did`. Return the result of the change."""
        answer = releases.apply(self.root, self.run_of_store, {**params, "keep": self.order["keep"], "state": state})
        self.warnings += answer.get("warnings", [])
        message = "proved {name} at {to}" if state == "proven" else "{name} is linked to {to}"
        # With a reason (`why`), this call ends a rollback. `did` already has the moved links from the call that restored them.
        link_moves = {} if state == "proven" and params["why"] else answer["moves"]
        self.did += [message.format(name=name, to=move["to"] or "no more") for name, move in link_moves.items()]
        return answer
