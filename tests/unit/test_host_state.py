"""Module host_state: what it reads and compares, when it waits, and how it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, proof
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import registry
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from ansible_collections.npufleet.triton.plugins.modules import host_state
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import of_concern
from helpers import run_module, time_of

LOADING = item("server", "digits", "version 1 LOADING", "version 1 READY 0123456789ab", "wait")
PACKAGE = item("driver", "package", None, "1.2.92", "install")
WORDS = "server digits is version 1 LOADING, expected version 1 READY 0123456789ab (wait)"


class Concern:
    """A concern whose plans come one after the other; the last one stays."""

    def __init__(self, *plans: list[dict[str, Any]]) -> None:
        self.plans = list(plans)
        self.wanted: list[Any] = []

    def read(self, wanted: Any) -> dict[str, Any]:
        self.wanted.append(wanted)
        return {"reading": len(self.wanted)}

    def diff(self, wanted: Any, actual: dict[str, Any]) -> list[dict[str, Any]]:
        assert actual == {"reading": len(self.wanted)}
        return self.plans[min(len(self.wanted), len(self.plans)) - 1]


def registered(**parts: Any) -> dict[str, registry.Concern]:
    """Return the registry with other files for some of its concerns."""
    return {name: registry.CONCERNS[name]._replace(host_side=part) for name, part in parts.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return time_of(proof, monkeypatch)


def run(monkeypatch: pytest.MonkeyPatch, concerns: dict[str, Concern], check: bool = False, **arguments: Any) -> dict[str, Any]:
    monkeypatch.setattr(proof, "CONCERNS", registered(**concerns))
    arguments = {"host": "npu1", "desired": {name: {"of": name} for name in concerns}, **arguments}
    return run_module(host_state, arguments, check)


def test_concerns_are_in_the_order_in_which_they_are_applied() -> None:
    """Each of these needs those before it; another concern may have any position."""
    needed = ["driver", "engine", "image", "models", "server", "watchdog", "probe", "traffic"]
    assert [name for name in registry.CONCERNS if name in needed] == needed
    for name, concern in registry.CONCERNS.items():
        assert (concern.host_side.CONCERN, callable(concern.host_side.read), callable(concern.host_side.diff)) == (name, True, True)
        assert callable(of_concern(name).desired) and hasattr(of_concern(name), "sealed") is concern.sealed


def test_only_what_is_wanted_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, server = Concern([PACKAGE]), Concern([LOADING])
    monkeypatch.setattr(proof, "CONCERNS", registered(driver=driver, server=server))
    assert proof.read_host({"server": {"of": "server"}}) == ({"server": {"reading": 1}}, [LOADING])
    assert (driver.wanted, server.wanted) == ([], [{"of": "server"}])


def test_units_of_systemd_are_read_with_their_concerns_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        proof.system, "unit_states", lambda *names: asked.append(names) or {name: {"active": name} for name in names}
    )
    part = SimpleNamespace(read=lambda wanted: {"of": wanted}, diff=lambda _wanted, actual: [actual])
    monkeypatch.setattr(proof, "CONCERNS", registered(driver=part, watchdog=part, probe=part))
    actual, plan = proof.read_host({"driver": 1, "watchdog": 2, "probe": 3})
    assert actual == {
        "driver": {"of": 1},
        "watchdog": {"of": 2, "active": "npufleet-watchdog.service"},
        "probe": {"of": 3, "active": "npufleet-probe.timer"},
    }
    assert plan == list(actual.values())
    proof.read_host({"driver": 1})
    assert asked == [("npufleet-watchdog.service", "npufleet-probe.timer"), ()]


def test_plans_come_in_the_order_of_the_concerns(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    result = run(monkeypatch, {"driver": Concern([PACKAGE]), "server": Concern([LOADING])})
    assert result == {
        "failed": False,
        "changed": False,
        "plan": [PACKAGE, LOADING],
        "report": ["driver package is missing, expected 1.2.92 (install)", WORDS],
        "maintenance": None,
        "held": {},
        "seen": {},
        "actual": {"driver": {"reading": 1}, "server": {"reading": 1}},
        "diff": {
            "before_header": "actual",
            "after_header": "desired",
            "before": "driver package: nothing\nserver digits: version 1 LOADING\n",
            "after": "driver package: 1.2.92\nserver digits: version 1 READY 0123456789ab\n",
        },
    }
    assert clock.slept == []


def test_host_as_wanted_changes_nothing_and_has_no_diff(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    for check in (False, True):
        result = run(monkeypatch, {"server": Concern([])}, check)
        assert (result["failed"], result["changed"], result["plan"], result["report"], result["diff"]) == (False, False, [], [], {})


def test_check_mode_reports_a_plan_as_a_change(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    assert run(monkeypatch, {"server": Concern([LOADING])}, check=True)["changed"] is True


def test_without_prove_nobody_waits(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    concern = Concern([LOADING], [])
    assert run(monkeypatch, {"server": concern}, timeout=60)["plan"] == [LOADING]
    assert (len(concern.wanted), clock.slept) == (1, [])


# The proof


def test_prove_reads_again_until_there_is_no_difference(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    concern = Concern([LOADING], [LOADING], [])
    result = run(monkeypatch, {"server": concern}, prove=True, timeout=60)
    assert (result["failed"], result["changed"], result["plan"]) == (False, False, [])
    assert result["actual"] == {"server": {"reading": 3}}
    assert clock.slept == [0.5, 0.5]


def test_prove_ends_in_time_and_names_every_difference(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    slow = item("server", "faces", None, "version 2 READY 0123456789ab", "load")
    concern = Concern([LOADING, slow])
    result = run(monkeypatch, {"server": concern}, prove=True, timeout=2)
    assert result == {
        "failed": True,
        "msg": f"npu1 is not in sync:\n  - {WORDS}\n  - server faces is missing, expected version 2 READY 0123456789ab (load)",
        "plan": [LOADING, slow],
        "actual": {"server": {"reading": 5}},
    }
    assert sum(clock.slept) == 2


def test_prove_without_timeout_reads_once(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    concern = Concern([LOADING], [])
    assert run(monkeypatch, {"server": concern}, prove=True)["failed"] is True
    assert len(concern.wanted) == 1


@pytest.mark.parametrize(
    ("concern", "action", "hopeless"),
    [
        ("driver", "inspect", True),
        ("server", "create", True),
        ("server", "replace", True),
        ("server", "start", True),
        ("monitoring", "start", False),
        ("engine", "start", False),
        ("server", "wait", False),
        ("server", "load", False),
        ("models", "release", False),
    ],
)
def test_prove_does_not_wait_for_what_time_cannot_mend(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, concern: str, action: str, hopeless: bool
) -> None:
    entry = item(concern, "x", "found", "wanted", action)
    assert proof.cannot_recover([LOADING, entry]) is hopeless
    fake = Concern([LOADING, entry], [])
    result = run(monkeypatch, {concern: fake}, prove=True, timeout=60)
    assert (result["failed"], clock.slept) == (hopeless, [] if hopeless else [0.5])


def test_a_container_that_ends_while_it_is_waited_for_ends_the_proof(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    dead = item("server", "container", "exited (1): no NPU", "running", "start")
    result = run(monkeypatch, {"server": Concern([LOADING], [dead])}, prove=True, timeout=300)
    assert result["msg"] == "npu1 is not in sync:\n  - server container is exited (1): no NPU, expected running (start)"
    assert clock.slept == [0.5]


@pytest.mark.parametrize(
    ("state", "restarts", "cut_off", "seconds"),
    [
        ("restarting (139)", 1, ["digits"], 2.0),
        ("restarting (139)", 2, ["digits"], 0.5),
        ("restarting (1)", 1, [], 0.5),
        ("exited (139)", 0, ["digits"], 0.5),
        # By hands, that no wait mends
        ("paused (0)", 0, ["digits"], 0.5),
    ],
)
def test_a_server_that_crashed_in_its_loads_has_one_more_life_to_say_why(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, state: str, restarts: int, cut_off: list[str], seconds: float
) -> None:
    dead = item("server", "container", state, "running", "start")
    looks = iter([({"state": "running", "served": None, "restarts": 0}, [LOADING])])
    later = ({"state": state, "served": None, "restarts": restarts, "cut_off": cut_off}, [dead])
    now: list[Any] = []

    def read(_wanted: Any) -> dict[str, Any]:
        now[:] = next(looks, later)
        return dict(now[0])

    concern = SimpleNamespace(read=read, diff=lambda _wanted, _actual: now[1])
    assert run(monkeypatch, {"server": concern}, prove=True, timeout=2)["failed"] is True  # type: ignore[dict-item]
    assert sum(clock.slept) == seconds


@pytest.mark.parametrize(
    ("later", "seconds"),
    [
        ({"served": None, "restarts": 4}, 2.0),
        ({"served": None, "restarts": 5}, 0.5),
        ({"served": {}, "restarts": 5}, 2.0),
        # In the middle of its loads: its next life says why the others do not load
        ({"served": None, "restarts": 5, "cut_off": ["digits"]}, 2.0),
        ({"served": None, "restarts": 6, "cut_off": ["digits"]}, 0.5),
    ],
)
def test_a_server_that_ends_before_it_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, later: dict[str, Any], seconds: float
) -> None:
    looks = iter([{"state": "running", "served": None, "restarts": 4}])
    concern = SimpleNamespace(
        read=lambda _wanted: next(looks, {"state": "running", **later}), diff=lambda _wanted, _actual: [LOADING]
    )
    assert run(monkeypatch, {"server": concern}, prove=True, timeout=2)["failed"] is True  # type: ignore[dict-item]
    assert sum(clock.slept) == seconds


@pytest.mark.parametrize(("ends", "slept"), [(True, 1.0), (False, 2.0)])
def test_a_refusal_ends_the_proof_when_all_other_loads_have_ended(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, ends: bool, slept: float
) -> None:
    """Every reason at once, also of a model that takes longer to fail."""
    logs = ["loading: digits:1", "failed to load 'words' version 1: no"]
    last = ["failed to load 'digits' version 1: no memory"] * ends
    written = iter([logs, logs + last])
    stamp = "E1124 20:15:43.494741 1 model_lifecycle.cc:642] "
    monkeypatch.setattr(proof.log, "log_lines", lambda *_given: [stamp + line for line in next(written, logs + last)])
    monkeypatch.setattr(proof.store, "read_transaction", lambda _root: {"renewed": 5.0})
    concern = Concern([LOADING, item("server", "words", None, "version 2", "wait")])
    wanted = {"server": {"name": "triton", "root": "/nowhere", "mode": "poll"}}
    result = run(monkeypatch, {"server": concern}, desired=wanted, prove=True, timeout=2)
    assert "Triton says: failed to load 'words' version 1: no" in result["msg"]
    assert ("no memory" in result["msg"], sum(clock.slept)) == (ends, slept)


def test_a_proof_tells_all_that_triton_says(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    long = "failed to load " + "x" * 400
    entry = item("server", "http", long, "the model index", "wait")
    assert long in run(monkeypatch, {"server": Concern([entry])}, prove=True)["msg"]


def test_prove_in_check_mode_tells_and_does_not_fail(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    result = run(monkeypatch, {"server": Concern([LOADING])}, check=True, prove=True)
    assert (result["failed"], result["changed"], result["plan"]) == (False, False, [LOADING])


@pytest.mark.parametrize("desired", [None, {}])
def test_without_desired_state_it_says_how_to_call_it(monkeypatch: pytest.MonkeyPatch, desired: dict[str, Any] | None) -> None:
    arguments = {} if desired is None else {"desired": desired}
    result = run_module(host_state, arguments)
    assert result == {
        "failed": True,
        "msg": "host_state starts on the controller. Call it as npufleet.triton.host_state.",
    }


# A look that counts for a while


@pytest.mark.parametrize("current_releases", [False, True])
def test_a_look_says_after_which_run_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, current_releases: bool) -> None:
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "watchdog"))
    root, mark = str(tmp_path), str(tmp_path / "maintenance.json")
    desired = {"server": {"root": root, "models": {}}}

    def seen() -> dict[str, Any]:
        found: dict[str, Any] = run(
            monkeypatch, {"server": Concern([])}, mark=mark, desired=desired, current_releases=current_releases, run="me"
        )["seen"]
        return {name: value for name, value in found.items() if name not in ("boot", "uptime")}

    assert seen() == {"after": "", "current_releases": current_releases}
    lease.acquire(root, lease.Holder("alice/1/1", "alice@ops1"), 60.0, {})
    # In the midst of that run it tells nothing of what comes after
    assert seen() == {}
    lease.release(root, lease.Holder("alice/1/1", "alice@ops1"))
    assert seen() == {"after": "alice/1/1", "current_releases": current_releases}


# A rollback


@pytest.mark.parametrize("out", [False, True])
def test_what_a_rollback_would_move_and_what_stands_in_its_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: bool) -> None:
    def moves(root: str, models: list[str], to: str) -> dict[str, Any]:
        if to != "previous":
            raise store.StoreError("model faces: found no release; model words is not served here")
        return {name: {"from": root, "to": "0001-a", "what": "rollback"} for name in models}

    monkeypatch.setattr(store, "rollback_moves", moves)
    if out:
        (tmp_path / "maintenance.json").write_text('{"reason": "swap card 2", "by": "kim", "since": "now"}')

    def asked(**rollback: Any) -> tuple[Any, Any]:
        found = run(monkeypatch, {}, mark=str(tmp_path / "maintenance.json"), rollback=rollback)
        return found["moves"], found["refusals"]

    moved = {"faces": {"from": str(tmp_path), "to": "0001-a", "what": "rollback"}}
    assert asked(models=["faces"], to="previous") == (({}, []) if out else (moved, []))
    reason = f"model store {tmp_path}: model faces: found no release; model words is not served here"
    assert asked(to="0042") == (({}, []) if out else ({}, [reason]))


# Maintenance


def test_mark_of_a_host_in_maintenance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "maintenance.json"
    concerns = {"server": Concern([LOADING])}
    assert run(monkeypatch, concerns, check=True, mark=str(path))["maintenance"] is None
    path.write_text('{"reason": "swap card 2", "by": "kim", "since": "2026-01-02T03:04:05Z"}')
    result = run(monkeypatch, concerns, check=True, mark=str(path))
    assert result["maintenance"] == {"reason": "swap card 2", "by": "kim", "since": "2026-01-02T03:04:05Z"}
    # It has a plan, but no run would apply it.
    assert (result["plan"], result["changed"]) == ([LOADING], False)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"reason": 5, "by": "kim", "since": ""}'])
def test_mark_that_cannot_be_read_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    path = tmp_path / "maintenance.json"
    path.write_text(content)
    mark = run(monkeypatch, {}, mark=str(path))["maintenance"]
    assert mark == {"reason": f"unreadable, see {path}", "by": "unknown", "since": "unknown"}
