"""A change of what a server serves, on its host alone: kept where it is proven, put back where not, also where it is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import (
    accepted_checks,
    container,
    drivers,
    host_change,
    lease,
    proof,
    replacement,
    resume,
)
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from played_engine import Killed, PlayedEngine
from test_model_store import owners  # noqa: F401 (a fixture)
from test_store_transaction import ALICE, A, B, proven, released  # noqa: F401 (a fixture)

SETTINGS = {"name": "triton", "free_timeout": 0, "stop_timeout": 1, "ready_timeout": 5, "key": None}
CARDS = {"npus": 2, "card": "RBLN-CA12"}
CHECKS = {"image": "sha256:1", "program": "p", "document": {"host": "npu1", "server": {}, "checks": [{}], "no_check_file": []}}
RIGHT = {"name": "digits/http/one", "ok": True, "why": ""}
WRONG = {"name": "digits/http/one", "ok": False, "why": "label is 3, expected 7"}
REPLACE = item("server", "container.image", "old", "new", "replace")
RESTART = item("server", "digits", "version 1 READY a", "version 1 READY b", "restart")
LOAD = item("server", "digits", "version 1 READY a", "version 1 READY b", "load")
WAIT = item("server", "digits", "version 1 LOADING", "version 1 READY b", "wait")


class Host:
    """One host whose looks are played: the first one, the proof, and every later one. The store and the steps are the real ones."""

    def __init__(self, root: Path, engine: PlayedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.engine = root, engine
        self.plan: list[Any] = []
        self.left: list[Any] = []
        self.later: list[Any] = []
        self.looks: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = [RIGHT]
        self.said: list[str] = []
        self.dies: int | None = None
        # The step that fails, and how
        self.fails: tuple[int, BaseException] | None = None
        self.held: list[str] = []
        self.running = True
        # Why Triton refused models in mode poll, and which it still loads
        self.triton_says: dict[str, str] = {}
        self.loading: list[str] = []
        # What was proven and had to be accepted, and why it is not
        self.shown: list[host_change.Outcome] = []
        self.unwanted: str | None = None
        # How often the probe was asked anew
        self.renewed = 0
        monkeypatch.setattr(drivers.probe, "renew", self.renew)
        monkeypatch.setattr(proof, "observe", self.see)
        monkeypatch.setattr(check_client, "run_in_container", lambda *_given: self.answers)
        monkeypatch.setattr(drivers.contexts, "read_use", lambda _name: {"running": self.running, "reasons": self.held})

    def see(
        self, desired: dict[str, Any], _root: str, _run: str, serve_current: bool = False, prove: bool = False, **_more: Any
    ) -> Any:
        self.looks.append({"concerns": sorted(desired), "serve_current": serve_current, "prove": prove})
        plan = self.later
        if not prove:
            plan = self.plan
        elif sum(look["prove"] for look in self.looks) == 1:
            plan = self.left
        opened = store.read_transaction(str(self.root))
        there = self.engine.named("triton")
        actual = {
            "models": {"transaction": {**opened, "stale": []} if opened else None},
            "server": {
                "container": {"command": [f"--model-repository={self.root}/served"]} if there else None,
                "previous": bool(self.engine.named("triton-previous")),
            },
        }
        return proof.Observation(actual, list(plan), self.triton_says, self.loading if prove else [])

    def renew(self) -> str:
        self.renewed += 1
        return "the probe cannot be repeated"

    def say(self, step: str) -> None:
        if self.dies is not None and len(self.said) >= self.dies:
            raise Killed
        self.said.append(step)
        if self.fails and len(self.said) == self.fails[0]:
            raise self.fails[1]

    def decide(self, shown: host_change.Outcome) -> str | None:
        self.shown.append(shown)
        # Nothing of what served before is given up yet, and nobody else has the host
        assert open_ends(self)
        assert lease.at_work(str(self.root))
        return self.unwanted

    def hold(self) -> None:
        lease.acquire(str(self.root), lease.Holder(**ALICE), 60.0, SETTINGS)

    def run(self, holds: bool = False, **order: Any) -> host_change.Outcome:
        """Make one change, by a run that takes the host first, or already `holds` it."""
        if not holds:
            self.hold()
        server = {
            "mode": "none",
            "models": {},
            "grpc": False,
            "address": "127.0.0.1",
            "http_port": 8000,
            "cache": False,
            "cards": CARDS,
        }
        given = {
            "id": "1",
            "rollback_reason": "",
            "store_change": None,
            "host": "npu1",
            "root": str(self.root),
            **ALICE,
            "desired": {"models": {}, "server": {**server, **order.pop("server", {})}},
            "serve_current": False,
            "container": SETTINGS,
            "manual_server": {},
            "poll_seconds": 1,
            "checks": CHECKS,
            "keep": 3,
            "acceptance_timeout": 0,
            "keep_unanswered": False,
            "release_host": False,
            **order,
        }
        driver = drivers.ContainerDriver(given, self.engine)  # type: ignore[arg-type]
        return host_change.HostChange(given, driver, self.say, self.decide).run()  # type: ignore[arg-type]

    def serves(self) -> dict[str, str]:
        """The digest's first letter of what each model is linked to."""
        return {name: (store.served_label(str(self.root), name) or "")[5] for name in store.served_names(str(self.root))}

    def last(self) -> list[tuple[str, str]]:
        return [(line["model"], line["result"]) for line in store.read_history(str(self.root))][-3:]


@pytest.fixture
def host(proven: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:  # noqa: F811
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path_factory.mktemp("watchdog") / "lock"))
    monkeypatch.setattr(accepted_checks, "PATH", str(tmp_path_factory.mktemp("etc") / "accepted_checks.json"))
    engine = PlayedEngine()
    monkeypatch.setattr(container, "_is_ready", lambda _address, port, *_more: engine.serving(str(port)) is not None)
    monkeypatch.setattr(resume, "serve_current_releases", lambda *_given, **_more: None)
    monkeypatch.setattr(drivers.contexts, "POLL_SECONDS", 0.01)
    engine.add("triton")
    yield Host(proven, engine, monkeypatch)


def switched(host: Host) -> None:
    assert released(host.root, B)["failed"] is False


def open_ends(host: Host) -> list[str]:
    return [name for name in (store.TRANSACTION, replacement.REPLACEMENT) if (host.root / name).exists()]


def test_a_server_as_wanted_is_left_alone(host: Host) -> None:
    assert host.run() == host_change.Outcome([], checks=[], warnings=[])
    assert (host.engine.orders, host.said) == ([], [])


def test_a_switch_is_brought_into_service_proven_and_kept(host: Host) -> None:
    switched(host)
    host.plan = [RESTART]
    outcome = host.run()
    assert (outcome.why, list(outcome.checks)) == (None, [RIGHT])
    # What it said was of the releases before
    assert (host.renewed, outcome.warnings) == (1, ["the probe cannot be repeated"])
    assert host.serves() == {"digits": "b", "words": "2"}
    assert [order.split("/")[-1] for order in host.engine.orders] == ["stop", "start"]
    assert open_ends(host) == []
    assert host.last() == [("digits", "proven"), ("faces", "proven"), ("words", "proven")]
    assert host.said == [
        "wait for the cards",
        "restart the container",
        "prove that the server serves the desired models",
        "prove by inference",
        "keep the change",
    ]


SWITCH = {
    "state": "released",
    "releases": {name: B[name] for name in ("digits", "words")},
    "withdraw": ["faces", "gone"],
    "incoming": "",
}


def test_releases_are_made_and_switched_to_in_the_same_change(host: Host) -> None:
    host.plan = [RESTART]
    outcome = host.run(store_change={**SWITCH, "incoming": str(host.root / "incoming")})
    assert outcome.why is None
    assert host.serves() == {"digits": "b", "words": "2"}
    assert {name: move["what"] for name, move in outcome.moves.items()} == {
        "digits": "deploy",
        "faces": "withdraw",
        "words": "deploy",
    }
    # What there is to do is seen behind the switch
    assert [look["prove"] for look in host.looks] == [False, False, True]
    assert host.said[0] == "switch the models"
    assert open_ends(host) == []


def test_a_release_that_cannot_be_made_switches_nothing(host: Host) -> None:
    lacks = {"digits": {**B["digits"], "files": {"1/model.rbln": {"sha256": "9" * 64, "blob": True}}}}
    outcome = host.run(store_change={**SWITCH, "releases": lacks})
    assert outcome.why and "999999999999" in outcome.why
    assert (outcome.back, host.engine.orders) == ("nothing was changed", [])
    assert host.serves() == {"digits": "a", "faces": "1"}
    assert open_ends(host) == []


def test_a_rollback_is_the_same_change(host: Host) -> None:
    switched(host)
    host.plan = [RESTART]
    assert host.run().why is None
    outcome = host.run(
        holds=True, serve_current=True, store_change={"state": "rolled_back", "models": [], "to": "previous", "why": "wrong"}
    )
    assert (outcome.why, host.serves()["digits"]) == (None, "a")
    assert {move["what"] for move in outcome.moves.values()} == {"rollback"}


def test_a_host_that_cannot_be_read_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: Any, **_more: Any) -> None:
        raise store.StoreError("transaction.json is not to be read")

    monkeypatch.setattr(proof, "observe", fails)
    outcome = host.run()
    assert (outcome.why, outcome.back) == ("transaction.json is not to be read", "nothing was changed")
    assert host.engine.orders == []


@pytest.mark.parametrize("fault", ["not served", "wrong answers"])
def test_a_switch_that_is_not_proven_is_put_back(host: Host, fault: str) -> None:
    switched(host)
    host.plan = [RESTART]
    host.left = [RESTART] if fault == "not served" else []
    host.answers = [RIGHT, WRONG] if fault == "wrong answers" else [RIGHT]
    outcome = host.run()
    assert outcome.why and ("label is 3, expected 7" if host.answers[1:] else "npu1 is not in sync:") in outcome.why
    assert outcome.back == "the previous releases serve again"
    assert (list(outcome.checks), host.renewed) == (host.answers if host.answers[1:] else [], 0)
    assert host.serves() == {"digits": "a", "faces": "1"}
    assert open_ends(host) == []
    assert host.looks[-1] == {"concerns": ["server"], "serve_current": True, "prove": True}
    # Once for the new ones, once for the old ones if a server that was started does not show them at once
    assert host.engine.serving() is not None


def with_name(checks: dict[str, Any], name: str) -> dict[str, Any]:
    return {**checks, "document": {**checks["document"], "checks": [{"name": name}]}}


@pytest.mark.parametrize("fault", ["wrong answers", "not accepted"])
def test_restored_releases_keep_the_checks_that_they_have_passed(host: Host, fault: str) -> None:
    old, new = with_name(CHECKS, "old"), with_name(CHECKS, "new")
    host.plan = [RESTART]
    assert host.run(checks=old, store_change={**SWITCH, "incoming": str(host.root / "incoming")}, acceptance_timeout=60).why is None
    assert accepted_checks.read(str(host.root)) == old
    host.answers = [WRONG] if fault == "wrong answers" else [RIGHT]
    host.unwanted = "twice as slow"
    changed = {"state": "released", "releases": {"digits": A["digits"]}, "withdraw": [], "incoming": str(host.root / "incoming")}
    outcome = host.run(holds=True, checks=new, store_change=changed, acceptance_timeout=60)
    assert outcome.why is not None and outcome.restored
    assert accepted_checks.read(str(host.root)) == old
    # Other releases have not passed them.
    assert released(host.root, A)["failed"] is False
    assert accepted_checks.read(str(host.root)) is None


def test_checks_that_cannot_be_kept_are_a_warning(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.root / "file").touch()
    monkeypatch.setattr(accepted_checks, "PATH", str(host.root / "file/checks"))
    host.plan = [RESTART]
    outcome = host.run()
    # Without an open transaction, the restart alone is proven, too.
    assert (outcome.why, host.engine.names()) == (None, {"triton": "running"})
    assert any(warning.startswith("the checks were not kept") for warning in outcome.warnings), outcome.warnings


def test_what_is_proven_waits_to_be_accepted(host: Host) -> None:
    switched(host)
    host.plan = [RESTART]
    outcome = host.run(acceptance_timeout=60)
    (shown,) = host.shown
    assert (shown.why, list(shown.checks), shown.accepted) == (None, [RIGHT], None)
    assert (outcome.why, outcome.accepted, host.serves()) == (None, True, {"digits": "b", "words": "2"})
    assert (open_ends(host), host.said[-2:]) == ([], ["wait to be accepted", "keep the change"])


@pytest.mark.parametrize("replaces", [True, False])
def test_what_is_not_accepted_is_put_back(host: Host, replaces: bool) -> None:
    old = host.engine.serving()
    switched(host)
    host.plan, host.unwanted = [RESTART], "twice as slow"
    if replaces:
        host.plan = [REPLACE]
        host.engine.add("triton-next", "created")
    outcome = host.run(acceptance_timeout=60)
    assert (outcome.why, outcome.accepted, list(outcome.checks)) == ("twice as slow", False, [RIGHT])
    assert outcome.back == "the previous server serves again" if replaces else "the previous releases serve again"
    assert outcome.restored
    assert (host.serves(), open_ends(host)) == ({"digits": "a", "faces": "1"}, [])
    assert not replaces or host.engine.serving() == old


@pytest.mark.parametrize("proves", [True, False])
def test_the_last_step_of_a_change_releases_the_host_if_it_is_kept(host: Host, proves: bool) -> None:
    """Also where no controller is left to do it. What is put back is told to a run that goes on."""
    switched(host)
    host.plan, host.answers = [RESTART], [RIGHT if proves else WRONG]
    assert host.run(release_host=True).released is proves
    assert (lease.read(str(host.root)) is None) is proves


def test_nobody_is_asked_about_what_is_not_proven(host: Host) -> None:
    switched(host)
    host.plan, host.answers = [RESTART], [WRONG]
    assert host.run(acceptance_timeout=60).accepted is None
    assert host.shown == []


def test_a_new_container_is_proven_and_the_one_before_it_goes(host: Host) -> None:
    new = host.engine.add("triton-next", "created")
    host.plan = [REPLACE]
    outcome = host.run()
    assert outcome.why is None
    assert (host.engine.names(), host.engine.serving()) == ({"triton": "running"}, new)
    assert open_ends(host) == []


def test_keys_that_no_container_has_any_more_go(
    host: Host, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the container before stay for as long as it is the way back."""
    keys = tmp_path_factory.mktemp("keys")
    monkeypatch.setattr(host_change.server, "CREDENTIALS_HOME", str(keys))
    for name in ("cloud-old.json", "cloud-new.json", "mine.json"):
        (keys / name).touch()
    host.plan, host.left = [REPLACE], [item("server", "container", "exited", "running", "start")]
    host.engine.add("triton-next", "created", works=False)
    assert host.run(server={"credentials": {"path": "x"}}).why is not None
    assert len(list(keys.glob("*.json"))) == 3
    host.plan, host.left = [REPLACE], []
    host.engine.add("triton-next", "created")
    host.looks.clear()
    outcome = host.run(holds=True, server={"credentials": {"path": str(keys / "cloud-new.json")}})
    assert outcome.why is None and outcome.did[-1] == f"removed {keys / 'cloud-old.json'}"
    assert sorted(path.name for path in keys.glob("*.json")) == ["cloud-new.json", "mine.json"]


def test_a_new_container_that_does_not_serve_gives_way(host: Host) -> None:
    old = host.engine.serving()
    host.engine.add("triton-next", "created", works=False)
    host.plan, host.left = [REPLACE], [item("server", "container", "exited", "running", "start")]
    outcome = host.run()
    assert outcome.back == "the previous server serves again"
    assert (host.engine.names(), host.engine.serving()) == ({"triton": "running"}, old)
    assert open_ends(host) == []


def test_what_fails_before_the_change_is_put_back_with_its_reason(host: Host) -> None:
    """A container that was made for it goes, too."""
    switched(host)
    host.plan = [REPLACE]
    host.engine.add("triton-next", "created")
    outcome = host.run(rollback_reason="no space is left")
    assert (outcome.why, outcome.back, outcome.replaces) == ("no space is left", "the previous releases serve again", True)
    assert (host.serves(), host.engine.names()) == ({"digits": "a", "faces": "1"}, {"triton": "running"})
    assert open_ends(host) == []
    assert host.run(holds=True, rollback_reason="no space is left").back == "nothing was changed"


def test_the_first_server_has_nothing_to_go_back_to(host: Host) -> None:
    host.engine.containers.clear()
    host.engine.add("triton-next", "created", works=False)
    host.plan, host.left = [item("server", "container", None, "running", "create")], [WAIT]
    assert host.run().back == "there was no server before; the next run continues from this state"


@pytest.mark.parametrize("running", [True, False])
def test_cards_that_somebody_holds_are_a_refusal_before_anything_stops(host: Host, running: bool) -> None:
    host.plan, host.held, host.running = [RESTART], ["rbln0 held by sleep (pid 30): end it (`kill 30`)"], running
    outcome = host.run()
    assert outcome.why and "kill 30" in outcome.why
    assert (outcome.back, host.engine.orders) == ("nothing was changed", [])


def test_a_container_that_sees_other_cards_does_not_take_the_place_of_the_one_that_serves(host: Host) -> None:
    old = host.engine.serving()
    host.engine.add("triton-next", "created")
    host.plan, host.engine.sees = [REPLACE], (0, '{"npus": 0, "names": []}')
    outcome = host.run()
    assert outcome.why and outcome.why.startswith("the SDK in the new container sees 0 NPUs, expected 2")
    assert (outcome.back, host.engine.names(), host.engine.serving()) == ("nothing was changed", {"triton": "running"}, old)
    assert not open_ends(host)


def test_a_host_in_maintenance_is_not_touched(host: Host) -> None:
    host.plan = [RESTART]
    host.hold()
    (host.root / "maintenance.json").write_text(json.dumps({"reason": "card 2", "by": "carol", "since": "now"}))
    with pytest.raises(lease.LeaseError, match="card 2"):
        host.run(holds=True)
    assert host.engine.orders == []


def test_a_load_that_is_refused_brings_the_old_ones_back_by_another_load(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    switched(host)
    asked: list[dict[str, str]] = []

    class Loads:
        loaded = unloaded = hung = ()

        def __init__(self, server: Any, models: dict[str, Any]) -> None:
            # A load over HTTP would keep others waiting
            assert server.run == "inside triton"
            asked.append({name: model["release"][0] for name, model in models.items()})

        def apply(self) -> None:
            self.refused = "digits: no device memory" if len(asked) == 1 else ""

        def why(self) -> str:
            return self.refused

    monkeypatch.setattr(host_change, "Change", Loads)
    monkeypatch.setattr(drivers.control, "container_runner", lambda name: f"inside {name}")
    host.plan = [LOAD]
    wanted = {name: {"release": B[name]["release"], "versions": ["1"]} for name in B}
    outcome = host.run(server={"mode": "explicit", "models": wanted, "grpc": True})
    assert outcome.why == "digits: no device memory"
    assert outcome.back == "the previous releases serve again"
    assert asked == [{"digits": "b", "words": "2"}, {"digits": "a", "faces": "1"}]
    assert (host.serves(), host.engine.orders) == ({"digits": "a", "faces": "1"}, [])


@pytest.mark.parametrize("refused", [False, True])
def test_a_load_that_hangs_is_remembered_for_the_next_run(host: Host, refused: bool) -> None:
    switched(host)
    host.plan = host.left = [WAIT]
    if refused:
        # Beside another one
        host.left = [WAIT, item("server", "words", "version 1 READY a", "version 1 READY b", "wait")]
        host.triton_says, host.loading = {"words": "no memory"}, ["digits"]
    outcome = host.run(server={"mode": "poll"})
    assert outcome.back == "the previous releases serve again; a load hangs in the server, so the next run restarts it"
    assert json.loads((host.root / store.HUNG).read_text())["models"] == ["digits"]


def test_what_cannot_be_put_back_says_both(host: Host) -> None:
    switched(host)
    host.plan, host.left, host.later = [RESTART], [RESTART], [RESTART]
    outcome = host.run()
    assert outcome.back.startswith("the previous state could not be restored, repair that and run again: npu1 is not in sync:")
    assert not outcome.restored
    # It stays open: the next run, or the host itself, goes on
    assert open_ends(host) == [store.TRANSACTION]


def every_step(host: Host, ends: Callable[[], None]) -> Iterator[int]:
    """A change that is killed before its first step, then before its second, until it ends by itself."""
    for number in range(40):
        host.looks.clear()
        host.said.clear()
        host.engine.orders.clear()
        yield number
        try:
            ends()
        except Killed:
            continue
        return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("by", ["step", "order"])
@pytest.mark.parametrize("proves", [True, False])
def test_killed_between_any_two_steps_the_host_ends_it_by_itself(host: Host, by: str, proves: bool) -> None:
    """A switch and another container at once. The host puts back what was not proven, also while it was putting back."""
    outcomes = set()

    def attempt() -> None:
        if not host.engine.named("triton-next"):
            host.engine.add("triton-next", "created", works=proves)
        host.plan, host.left = [REPLACE], ([] if proves else [WAIT])
        try:
            host.run(store_change={**SWITCH, "incoming": str(host.root / "incoming")})
        finally:
            host.dies = host.engine.kill_at = None
            lease.acquire(str(host.root), lease.Holder("host/1", "the host itself"), 0.0, SETTINGS, dead_run=ALICE["run"])
            lease.release(str(host.root), lease.Holder("host/1", "the host itself"))
            lease.acquire(str(host.root), lease.Holder(**ALICE), 0.0, SETTINGS)
            assert not resume.resume(str(host.root), host.engine).failed
            assert open_ends(host) == []
            assert host.engine.serving() is not None, host.engine.names()
            serves = host.serves()
            assert serves in ({"digits": "a", "faces": "1"}, {"digits": "b", "words": "2"})
            outcomes.add(serves["digits"])

    for number in every_step(host, attempt):
        if by == "step":
            host.dies = number
        else:
            host.engine.kill_at = number
    assert outcomes >= {"b" if proves else "a"}


STEPS = 9


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize(
    "error", [KeyError("State"), MemoryError(), RecursionError("too deep"), AssertionError(), TypeError("list")]
)
@pytest.mark.parametrize("number", range(1, STEPS))
def test_any_error_at_any_step_restores_the_previous_state(host: Host, number: int, error: Exception, replaces: bool) -> None:
    host.plan, host.fails = [REPLACE if replaces else RESTART], (number, error)
    old = host.engine.serving()
    if replaces:
        host.engine.add("triton-next", "created")
    outcome = host.run(store_change={**SWITCH, "incoming": str(host.root / "incoming")}, acceptance_timeout=60)
    if len(host.said) < number:
        assert outcome.why is None
        return
    assert outcome.why and outcome.why.startswith(f"npufleet met an unexpected error: {type(error).__name__}(")
    assert " at test_change_host.py:" in outcome.why and "playbooks/collect.yml" in outcome.why
    assert host.serves() == {"digits": "a", "faces": "1"}
    assert (open_ends(host), host.engine.serving()) == ([], old)
    # As after any other failed change: the run that holds the host goes on, and releases it
    assert lease.release(str(host.root), lease.Holder(**ALICE))


def test_an_error_of_the_first_look_changes_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: Any, **_more: Any) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(proof, "observe", fails)
    outcome = host.run()
    assert outcome.why and "RecursionError(too deep)" in outcome.why
    assert (outcome.back, host.engine.orders) == ("nothing was changed", [])


def test_an_error_while_restoring_is_reported_with_the_first_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    switched(host)
    host.plan, host.answers = [RESTART], [WRONG]

    def fails(*_given: Any) -> None:
        raise KeyError("from")

    monkeypatch.setattr(store, "restore", fails)
    outcome = host.run()
    assert outcome.why and "label is 3, expected 7" in outcome.why
    assert "could not be restored" in outcome.back and "KeyError('from')" in outcome.back
    assert not outcome.restored
    assert open_ends(host) == [store.TRANSACTION]


@pytest.mark.parametrize("error", [RecursionError("too deep"), store.StoreError("no"), OSError(28, "No space left on device")])
def test_a_clean_up_that_fails_leaves_a_proven_change_proven(host: Host, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_given: Any, **_more: Any) -> None:
        raise error

    new = host.engine.add("triton-next", "created")
    host.plan = [REPLACE]
    monkeypatch.setattr(host_change.releases.blobs, "collect", fails)
    monkeypatch.setattr(host.engine, "remove", fails)
    monkeypatch.setattr(drivers.ContainerDriver, "remove_unused_files", fails)
    monkeypatch.setattr(host_change.lease, "release", fails)
    monkeypatch.setattr(drivers.probe, "renew", fails)
    outcome = host.run(store_change={**SWITCH, "incoming": str(host.root / "incoming")}, release_host=True)
    assert (outcome.why, outcome.released, host.serves()) == (None, False, {"digits": "b", "words": "2"})
    assert host.engine.serving() == new
    assert [
        word
        for word in ("probe", "old releases", "previous container was", "files of the previous container", "lease")
        for line in outcome.warnings
        if word in line
    ]
    assert len(outcome.warnings) == 5


@pytest.mark.parametrize("by", ["the host", "the next change"])
def test_a_proven_container_is_kept_although_the_one_before_it_stayed(host: Host, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    new = host.engine.add("triton-next", "created")
    host.plan = [REPLACE]
    with monkeypatch.context() as broken:

        def fails(_identity: str) -> None:
            raise container.ContainerError("the engine refused it")

        broken.setattr(host.engine, "remove", fails)
        assert host.run().why is None
    assert host.engine.names() == {"triton": "running", "triton-previous": "exited"}
    words = resume.unfinished(str(host.root), ALICE["run"], True)[0]["current"]
    assert words and words.startswith("the container before the replacement by alice@ops1")
    if by == "the host":
        lease.release(str(host.root), lease.Holder(**ALICE))
        lease.acquire(str(host.root), lease.Holder("bob/2/2", "bob@ops2"), 0.0, SETTINGS)
        assert not resume.resume(str(host.root), host.engine).failed
    else:
        newest = host.engine.add("triton-next", "created", works=False)
        host.left = [item("server", "container", "exited", "running", "start")]
        host.looks.clear()
        assert host.run(holds=True).back == "the previous server serves again"
        assert newest not in host.engine.containers
    assert (host.engine.names(), host.engine.serving()) == ({"triton": "running"}, new)
    assert open_ends(host) == []


def test_models_that_the_previous_server_read_elsewhere_are_expected_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory may want other ones by now, and the container before this one does not know them."""
    switched(host)
    host.plan, host.answers = [RESTART], [WRONG]
    ready = {"state": "READY", "reason": ""}
    before = {
        "cloudy": {"1": {**ready, "release": None}},
        "digits": {"1": {**ready, "release": A["digits"]["release"]}},
        "torn": {"-": {"state": "UNAVAILABLE", "reason": "x", "release": None}},
    }
    real = host.see
    asked: list[dict[str, Any]] = []

    def see(desired: dict[str, Any], *given: Any, **more: Any) -> Any:
        asked.append(desired["server"]["models"])
        seen = real(desired, *given, **more)
        seen.actual["server"]["served"] = before
        return seen

    monkeypatch.setattr(proof, "observe", see)
    cloud = {"release": None, "versions": None, "source": None}
    outcome = host.run(server={"models": {"rainy": cloud, "digits": {"release": B["digits"]["release"], "versions": ["1"]}}})
    assert outcome.back == "the previous releases serve again"
    assert "rainy" in asked[0]
    assert sorted(asked[-1]) == ["cloudy", "digits", "faces"]
    assert asked[-1]["cloudy"]["release"] is None


# Loads that are stuck


class PlayedGuard(stuck_load.Guard):
    """Ends a stub whenever it is told to; no thread looks at this machine."""

    def __init__(self) -> None:
        super().__init__(lambda: None, 0)

    def ends(self) -> None:
        self._rounds += 1
        wait = stuck_load.Wait(stuck_load.Process(7, 1), stuck_load.Process(5, 1), 6, "digits_0", "/m/digits/1/model.py")
        self.ended_loads.append(wait)


ENDED = "ended process 7 of digits_0, whose load was stuck"
HTTP = item("server", "http", "no answer on port 8000", "the model index", "wait")


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> PlayedGuard:
    found = PlayedGuard()
    monkeypatch.setattr(container, "guard", lambda *_given: found)
    return found


def proofs(host: Host, monkeypatch: pytest.MonkeyPatch, *left: Callable[[], list[Any]]) -> list[str]:
    """What each proof leaves; returns the containers' states at each of them."""
    plans, states = list(left), []

    def see(*given: Any, **more: Any) -> Any:
        seen = host.see(*given, **more)
        if not more.get("prove"):
            return seen
        states.append(host.engine.names()["triton"])
        return seen._replace(plan=plans.pop(0)() if plans else [])

    monkeypatch.setattr(proof, "observe", see)
    return states


def test_a_load_that_was_stuck_is_repeated(host: Host, guard: PlayedGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = [guard.ends, lambda: None]

    class Change:
        hung: ClassVar[list[str]] = []
        unloaded: ClassVar[list[str]] = []

        def __init__(self, *_given: Any) -> None:
            self.loaded: list[str] = []

        def apply(self) -> None:
            before = len(guard.ended_loads)
            loads.pop(0)()
            self.failed = len(guard.ended_loads) > before
            self.loaded += [] if self.failed else ["digits"]

        def why(self) -> str:
            return "Triton refused digits: not healthy" if self.failed else ""

    monkeypatch.setattr(host_change, "Change", Change)
    switched(host)
    host.plan = [LOAD]
    outcome = host.run(server={"mode": "explicit"})
    assert (outcome.why, loads, host.serves()["digits"]) == (None, [], "b")
    assert outcome.did[-1] == ENDED
    assert "loaded digits" in outcome.did


def test_loads_are_requested_where_the_container_publishes_its_server(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory may already describe the next container."""
    asked: list[tuple[str, int]] = []

    class Change:
        hung, loaded, unloaded = ((),) * 3

        def __init__(self, triton: Any, _models: Any) -> None:
            asked.append((triton.address, triton.port))

        def apply(self) -> None:
            pass

        def why(self) -> str:
            return ""

    monkeypatch.setattr(host_change, "Change", Change)
    switched(host)
    host.plan = [LOAD]
    outcome = host.run(server={"mode": "explicit", "address": "192.0.2.1", "http_port": 9500}, serve_current=True)
    assert (outcome.why, asked) == (None, [("127.0.0.1", 8000)])


@pytest.mark.parametrize("restarted", [True, False], ids=["started again by its engine", "left ended by its engine"])
def test_a_start_that_was_stuck_is_repeated(
    host: Host, guard: PlayedGuard, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    def stuck() -> list[Any]:
        guard.ends()
        if not restarted:
            there = host.engine.named("triton")
            assert there
            there["State"].update(Status="exited", Running=False)
        return [HTTP]

    states = proofs(host, monkeypatch, stuck, stuck)
    switched(host)
    host.plan = [RESTART]
    outcome = host.run()
    assert (outcome.why, host.serves()["digits"]) == (None, "b")
    assert outcome.did[-2:] == [ENDED, ENDED]
    assert states == ["running"] * 3


def test_a_server_that_polls_is_shown_newer_files(host: Host, guard: PlayedGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck() -> list[Any]:
        guard.ends()
        return [WAIT]

    proofs(host, monkeypatch, stuck)
    switched(host)
    renewed = store.read_transaction(str(host.root))["renewed"]  # type: ignore[index]
    places = [host.root / "served" / name for name in ("digits", "digits/1", "words")]
    for place in places:
        os.utime(place, (1, 1))
    host.plan = [WAIT]
    found: list[float] = []
    monkeypatch.setattr(
        check_client, "run_in_container", lambda *_given: found.append(store.read_transaction(str(host.root))["renewed"]) or [RIGHT]
    )
    assert host.run(server={"mode": "poll", "models": B}).why is None
    # The other model serves already: it is not to be loaded again
    assert [place.stat().st_mtime > 1 for place in places] == [True, True, False]
    assert found and found[0] > renewed


def test_what_is_always_stuck_is_put_back(host: Host, guard: PlayedGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck() -> list[Any]:
        guard.ends()
        return [HTTP]

    proofs(host, monkeypatch, *[stuck] * (stuck_load.MAX_ROUNDS + 1))
    switched(host)
    host.plan = [RESTART]
    outcome = host.run()
    assert outcome.why and "no answer on port 8000" in outcome.why
    assert (outcome.back, host.serves()["digits"]) == ("the previous releases serve again", "a")
    assert outcome.did.count(ENDED) == stuck_load.MAX_ROUNDS + 1


def test_what_is_put_back_is_repeated_as_well(host: Host, guard: PlayedGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck() -> list[Any]:
        guard.ends()
        return [HTTP]

    # The change is not proven; the server shows the old releases after a restart alone, whose first proof is stuck
    proofs(host, monkeypatch, lambda: [RESTART], lambda: [RESTART], stuck)
    switched(host)
    host.plan = [RESTART]
    outcome = host.run()
    assert outcome.why and outcome.back == "the previous releases serve again"
    assert open_ends(host) == []
    assert outcome.did[-1] == ENDED


def test_the_guard_looks_at_the_container_of_the_change(host: Host) -> None:
    there = host.engine.named("triton")
    assert there
    there["State"]["Pid"] = 4711
    found = container.guard(host.engine, "triton", {**SETTINGS, "stuck_load_limit": 7})
    assert (found._root(), found._history.limit) == (4711, 7.0)
    there["State"]["Pid"] = 0
    assert found._root() is None
    host.engine.inspect = lambda _name: {"State": {"Pid": "?"}}  # type: ignore[assignment]
    assert found._root() is None
    assert container.guard(host.engine, "triton", SETTINGS)._history.limit == stuck_load.DEFAULT_LIMIT
