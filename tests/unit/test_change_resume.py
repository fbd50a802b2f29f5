"""What a host does by itself about a change whose run is gone: what was proven last serves again, and nobody's turn is taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import container, lease, replacement, resume
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from played_engine import PlayedEngine
from test_model_store import owners  # noqa: F401 (a fixture)
from test_store_transaction import A, B, proven, released, served  # noqa: F401 (a fixture)

SETTINGS = {"name": "triton", "free_timeout": 1, "stop_timeout": 1, "ready_timeout": 5, "key": None}
ALICE = lease.Holder("alice/1/1", "alice@ops1")


@pytest.fixture(autouse=True)
def watchdog(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path_factory.mktemp("watchdog") / "lock"))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PlayedEngine:
    played = PlayedEngine()
    monkeypatch.setattr(container, "_is_ready", lambda _address, port, *_more: played.serving(str(port)) is not None)
    return played


def hold(root: Path, patience: float = 0.0, holder: lease.Holder = ALICE) -> None:
    lease.acquire(str(root), holder, patience, SETTINGS)


def exchange(engine: PlayedEngine, root: Path, works: bool = False, run: lease.Holder = ALICE) -> str:
    """A replacement up to its proof; returns the container that was proven."""
    old = engine.add("triton")
    engine.add("triton-next", "created", works=works)
    container.replace(engine, str(root), run, "triton", SETTINGS, {})
    return old


def broken_off(root: Path, **changes: Any) -> None:
    path = root / replacement.REPLACEMENT
    path.write_text(json.dumps({**json.loads(path.read_text()), "phase": replacement.SWAPPING, **changes}))


def nothing_is_left(root: Path) -> bool:
    return not any((root / entry).exists() for entry in (lease.LEASE, replacement.REPLACEMENT, store.TRANSACTION))


def test_without_a_lease_there_is_nothing_to_do(engine: PlayedEngine, tmp_path: Path) -> None:
    assert resume.resume(str(tmp_path), engine) == resume.Outcome()
    assert engine.orders == []


def test_a_run_that_may_still_be_at_it_is_left_alone(engine: PlayedEngine, tmp_path: Path) -> None:
    hold(tmp_path, patience=60.0)
    exchange(engine, tmp_path)
    engine.orders.clear()
    assert resume.resume(str(tmp_path), engine).busy.startswith("alice@ops1 since ")
    assert engine.orders == []


def test_a_lease_under_which_nothing_was_begun_is_ended(engine: PlayedEngine, tmp_path: Path) -> None:
    hold(tmp_path)
    engine.add("triton")
    assert "whose run had changed nothing" in resume.resume(str(tmp_path), engine).did
    assert nothing_is_left(tmp_path)
    assert engine.orders == []


@pytest.mark.parametrize("works", [True, False])
def test_a_container_that_nobody_proved_gives_way_to_the_one_before(engine: PlayedEngine, tmp_path: Path, works: bool) -> None:
    hold(tmp_path)
    old = exchange(engine, tmp_path, works)
    assert f"the container {old[:12]} serves again" in resume.resume(str(tmp_path), engine).did
    assert (engine.serving(), engine.names()) == (old, {"triton": "running"})
    assert nothing_is_left(tmp_path)


def test_in_the_midst_of_an_exchange_nobody_is_waited_for(engine: PlayedEngine, tmp_path: Path) -> None:
    hold(tmp_path, patience=3600.0)
    old = exchange(engine, tmp_path)
    broken_off(tmp_path)
    resume.resume(str(tmp_path), engine)
    assert engine.serving() == old
    assert nothing_is_left(tmp_path)


def test_what_a_run_before_it_left_takes_no_run_its_lease(engine: PlayedEngine, tmp_path: Path) -> None:
    hold(tmp_path, patience=3600.0)
    exchange(engine, tmp_path)
    broken_off(tmp_path, run="bob/2/2")
    assert resume.resume(str(tmp_path), engine).busy


def test_at_boot_a_lease_counts_for_nothing(engine: PlayedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(tmp_path, patience=3600.0)
    old = exchange(engine, tmp_path)
    monkeypatch.setattr(lease, "boot", lambda: "the next one")
    resume.resume(str(tmp_path), engine)
    assert engine.serving() == old


def test_a_host_in_maintenance_is_somebodys(engine: PlayedEngine, tmp_path: Path) -> None:
    hold(tmp_path)
    exchange(engine, tmp_path)
    (tmp_path / "maintenance.json").write_text(json.dumps({"reason": "card 2", "by": "carol", "since": "now"}))
    engine.orders.clear()
    assert "the host is in maintenance: card 2" in resume.resume(str(tmp_path), engine).busy
    assert engine.orders == []


def test_what_cannot_be_put_back_is_told_once_and_stays_a_difference(engine: PlayedEngine, tmp_path: Path) -> None:
    hold(tmp_path)
    old = exchange(engine, tmp_path)
    engine.containers[old]["works"] = False
    outcome = resume.resume(str(tmp_path), engine)
    assert "could not be rolled back, run playbooks/site.yml: its process ended repeatedly" in outcome.failed
    assert resume.resume(str(tmp_path), engine) == resume.Outcome()
    (item,) = resume.unfinished(str(tmp_path), "", False)
    assert (item["name"], item["action"]) == ("replacement", "prove")


def test_models_that_nobody_proved_give_way_too(
    engine: PlayedEngine,
    proven: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.add("triton")
    released(proven, B)
    lease.acquire(str(proven), ALICE, 0.0, SETTINGS)

    def read_served(_wanted: Any) -> dict[str, Any]:
        return {
            name: {version: {"state": "READY", "reason": "", "release": release["release"]} for version in release["versions"]}
            for name, release in store.current_models(str(proven), {}).items()
        }

    monkeypatch.setattr(resume, "read_served", read_served)
    did = resume.resume(str(proven), engine).did
    assert "digits serves 0" in did and "words serves no more" in did
    assert served(proven, "digits/config.pbtxt") == b"digits a"
    assert nothing_is_left(proven)
    last = store.read_history(str(proven))[-1]
    assert (last["who"], last["what"], last["result"]) == ("the host itself", "put back", "proven")
    assert A["digits"]["release"] == store.current_models(str(proven), {})["digits"]["release"]


# What is told of it, and what runs it


def test_what_a_run_left_that_is_gone_is_a_difference(engine: PlayedEngine, tmp_path: Path) -> None:
    assert resume.unfinished(str(tmp_path), "", False) == []
    hold(tmp_path)
    exchange(engine, tmp_path)
    found = [(item["name"], item["action"]) for item in resume.unfinished(str(tmp_path), "bob/2/2", True)]
    assert found == [("replacement", "prove"), ("lease", "prove")]
    # One that is live may be at it, unless it is known to be gone
    hold(tmp_path, patience=3600.0)
    assert [item["name"] for item in resume.unfinished(str(tmp_path), "bob/2/2", True)] == ["replacement"]
    assert [item["name"] for item in resume.unfinished(str(tmp_path), "bob/2/2", True, ALICE.run)] == ["replacement", "lease"]
    # To the run itself its own lease is none
    assert [item["name"] for item in resume.unfinished(str(tmp_path), ALICE.run, True)] == ["replacement"]
    (tmp_path / replacement.REPLACEMENT).unlink()
    # A container that was left aside without a word is one all the same
    assert [item["name"] for item in resume.unfinished(str(tmp_path), ALICE.run, True)] == ["replacement"]


def test_the_library_does_it_on_a_host_without_ansible(tmp_path: Path, hosts_library: Path) -> None:
    command = [sys.executable, "-IS", str(hosts_library / library.CURRENT), "resume"]
    empty = subprocess.run([*command, str(tmp_path / "store")], capture_output=True, text=True, check=False)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "")
    (tmp_path / "store").mkdir()
    hold(tmp_path / "store", patience=60.0)
    assert subprocess.run([*command, str(tmp_path / "store")], capture_output=True, check=False).returncode == 75


# Errors, and what only the server knows


@pytest.mark.parametrize("error", [KeyError("State"), MemoryError(), RecursionError("too deep"), TypeError("list")])
def test_any_error_is_reported_and_the_lease_ends(
    engine: PlayedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    hold(tmp_path)
    exchange(engine, tmp_path)

    def fails(*_given: Any, **_more: Any) -> None:
        raise error

    monkeypatch.setattr(container, "restore", fails)
    outcome = resume.resume(str(tmp_path), engine)
    assert f"{type(error).__name__}(" in outcome.failed and "run playbooks/site.yml" in outcome.failed
    assert lease.read(str(tmp_path)) is None


def test_links_that_cannot_be_restored_do_not_keep_the_container_from_it(
    engine: PlayedEngine,
    proven: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released(proven, B)
    old = exchange(engine, proven, works=False)
    lease.acquire(str(proven), ALICE, 0.0, SETTINGS, dead_run=lease.last_run(str(proven)))

    def fails(*_given: Any) -> None:
        raise store.StoreError("release 0001 is no longer complete")

    monkeypatch.setattr(store, "restore", fails)
    assert "is no longer complete" in resume.resume(str(proven), engine).failed
    assert engine.serving() == old
    # It stays open, as nobody has put it right
    assert store.read_transaction(str(proven)) is not None


@pytest.mark.parametrize("state", ["READY", "LOADING"])
def test_models_of_an_object_store_are_not_superfluous(
    engine: PlayedEngine,
    proven: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    state: str,
) -> None:
    engine.add("triton")
    released(proven, B)
    lease.acquire(str(proven), ALICE, 0.0, SETTINGS)
    looks: list[None] = []

    def read_served(_wanted: Any) -> dict[str, Any]:
        looks.append(None)
        linked = {
            name: {version: {"state": "READY", "reason": "", "release": release["release"]} for version in release["versions"]}
            for name, release in store.current_models(str(proven), {}).items()
        }
        # One of the store that is not linked any more is still loaded at first
        old = {"words": {"1": {"state": "READY", "reason": "", "release": B["words"]["release"]}}} if len(looks) < 3 else {}
        return {**linked, **old, "cloudy": {"3": {"state": state, "reason": "", "release": None}}}

    monkeypatch.setattr(resume, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(resume, "read_served", read_served)
    outcome = resume.resume(str(proven), engine)
    assert not outcome.failed and "digits serves 0" in outcome.did
    assert len(looks) == 3
    assert nothing_is_left(proven)
