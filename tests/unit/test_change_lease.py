"""The lease of a host: one run at a time, live while a call is at work, and not for ever after its run is gone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, proof
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock, locks
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from ansible_collections.npufleet.triton.plugins.modules import host_lease
from helpers import ROOT, run_module

ALICE, BOB = lease.Holder("alice/1/1", "alice@ops1"), lease.Holder("bob/2/2", "bob@ops2")
CONTAINER = {"name": "triton"}


@pytest.fixture(autouse=True)
def watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A watchdog's lock of this test's own."""
    path = tmp_path / "watchdog.lock"
    monkeypatch.setattr(lease, "WATCHDOG", str(path))
    return path


def take(root: Path, holder: lease.Holder, patience: float = 60.0, **more: Any) -> tuple[bool, Any]:
    return lease.acquire(str(root), holder, patience, CONTAINER, **more)


def by(root: Path) -> str | None:
    found = lease.read(str(root))
    return found["by"] if found else None


def edit(root: Path, **changes: Any) -> None:
    path = root / lease.LEASE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[None]:
    """A call of alice's run, in a process of its own, that has not ended."""
    take(tmp_path, ALICE, patience=0.0)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.npufleet.triton.plugins.module_utils.change import lease\n"
        "with lease.working(sys.argv[2]): print('at work', flush=True); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script, str(ROOT / "collections"), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "at work\n"
        yield
        process.communicate("\n")


# Taken and released


def test_it_is_taken_renewed_and_released_by_its_own_run(tmp_path: Path) -> None:
    assert take(tmp_path, ALICE) == (True, None)
    since = lease.read(str(tmp_path))["since"]
    edit(tmp_path, since="then")
    assert take(tmp_path, ALICE) == (False, None)
    assert lease.read(str(tmp_path))["since"] == "then" != since
    assert lease.release(str(tmp_path), ALICE) is True
    assert by(tmp_path) is None
    assert lease.release(str(tmp_path), ALICE) is False


def test_another_run_is_refused_by_name_and_does_not_release_it(tmp_path: Path) -> None:
    take(tmp_path, ALICE)
    with pytest.raises(lease.Held, match=r"alice@ops1 since .* its lease ends in \d+ s") as refused:
        take(tmp_path, BOB)
    assert refused.value.run == ALICE.run
    assert lease.release(str(tmp_path), BOB) is False
    assert by(tmp_path) == "alice@ops1"


def test_another_run_waits_until_it_is_released(tmp_path: Path) -> None:
    take(tmp_path, ALICE)
    looked = threading.Event()

    def give_up() -> None:
        looked.wait(30)
        lease.release(str(tmp_path), ALICE)

    other = threading.Thread(target=give_up)
    other.start()
    looked.set()
    assert take(tmp_path, BOB, wait=60.0) == (True, None)
    other.join()


def test_what_is_no_longer_live_is_taken_over_and_told(tmp_path: Path) -> None:
    take(tmp_path, ALICE, patience=60.0)
    edit(tmp_path, uptime=clock.uptime() - 61)
    taken, before = take(tmp_path, BOB)
    assert (taken, before["by"]) == (True, "alice@ops1")
    assert by(tmp_path) == "bob@ops2"


def test_a_run_that_is_known_to_be_dead_is_not_waited_for(tmp_path: Path) -> None:
    take(tmp_path, ALICE, patience=3600.0)
    assert take(tmp_path, BOB, dead_run=ALICE.run)[0] is True


def test_a_lease_of_another_boot_is_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path, ALICE, patience=3600.0)
    monkeypatch.setattr(lease, "boot", lambda: "another")
    assert take(tmp_path, BOB)[1]["by"] == "alice@ops1"


@pytest.mark.parametrize("step", [-86400.0, -30.0, -0.5, 0.5, 30.0, 86400.0])
def test_a_step_of_the_clock_changes_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    take(tmp_path, ALICE, patience=60.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    with pytest.raises(lease.Held, match=r"ends in (59|60) s"):
        take(tmp_path, BOB)
    with lease.working(str(tmp_path), ALICE):
        pass
    edit(tmp_path, uptime=clock.uptime() - 61)
    assert take(tmp_path, BOB)[1]["by"] == "alice@ops1"


@pytest.mark.parametrize(
    ("renewed", "live"), [(0.0, True), (-59.0, True), (-61.0, False), (0.5, True), (59.0, True), (61.0, False), (86400.0, False)]
)
def test_a_lease_of_the_version_before_is_understood(tmp_path: Path, renewed: float, live: bool) -> None:
    take(tmp_path, ALICE, patience=60.0)
    old = lease.read(str(tmp_path))
    del old["uptime"]
    (tmp_path / lease.LEASE).write_text(json.dumps({**old, "renewed": time.time() + renewed}))
    assert lease.live(str(tmp_path), lease.read(str(tmp_path))) is live
    # Its own run renews it as one of this version
    take(tmp_path, ALICE)
    assert clock.since(lease.read(str(tmp_path))) < 60


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_nobody_else_can_open_a_lock(tmp_path: Path, umask: int, before: int | None) -> None:
    names = (lease.LOCK, lease.CALLS, "watchdog.lock")
    for name in names if before is not None else ():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(before or 0)
    old = os.umask(umask)
    try:
        take(tmp_path, ALICE)
        with lease.working(str(tmp_path), ALICE):
            pass
    finally:
        os.umask(old)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in names} == {0o600}


@pytest.mark.parametrize("content", ["", "{", "[1]", "7", '{"run": 1}', '{"run": "alice/1/1"}'])
def test_one_that_cannot_be_read_is_taken_over_and_told(tmp_path: Path, content: str) -> None:
    (tmp_path / lease.LEASE).write_text(content)
    taken, before = take(tmp_path, BOB)
    assert (taken, before["by"]) == (True, "unknown")


# Calls


def test_a_call_at_work_keeps_it_live_however_long_it_takes(tmp_path: Path, at_work: None) -> None:
    with pytest.raises(lease.Held, match="ends with its last call on the host"):
        take(tmp_path, BOB)
    # Its controller is gone, the call is not
    with pytest.raises(lease.Held):
        take(tmp_path, BOB, dead_run=ALICE.run)


def test_whoever_looks_at_the_same_time_is_no_call(tmp_path: Path) -> None:
    take(tmp_path, ALICE)
    with lease.working(str(tmp_path), ALICE):
        pass
    with open(tmp_path / lease.CALLS, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        moment = threading.Timer(locks.POLL_SECONDS / 4, fcntl.flock, (looking, fcntl.LOCK_UN))
        moment.start()
        assert not lease.at_work(str(tmp_path))
        moment.join()


def test_a_call_that_is_killed_is_no_longer_at_work(tmp_path: Path) -> None:
    take(tmp_path, ALICE, patience=0.0)
    pid = os.fork()
    if pid == 0:
        with lease.working(str(tmp_path), ALICE):
            os._exit(9)
    os.waitpid(pid, 0)
    assert lease.at_work(str(tmp_path)) is False
    assert take(tmp_path, BOB)[0] is True


def test_its_patience_counts_from_the_end_of_a_call(tmp_path: Path) -> None:
    take(tmp_path, ALICE, patience=60.0)
    with lease.working(str(tmp_path)):
        edit(tmp_path, renewed=time.time() - 3600)
    assert lease.live(str(tmp_path), lease.read(str(tmp_path)))


def test_a_run_that_lost_its_lease_changes_nothing_more(tmp_path: Path) -> None:
    take(tmp_path, BOB)
    with pytest.raises(lease.LeaseError, match=r"lost the lease of the host \(bob@ops2 has"), lease.working(str(tmp_path), ALICE):
        raise AssertionError("it went on")
    lease.release(str(tmp_path), BOB)
    with (
        pytest.raises(lease.LeaseError, match=r"lost the lease of the host \(no run has it\)"),
        lease.working(str(tmp_path), ALICE),
    ):
        raise AssertionError("it went on")


def test_a_call_without_a_lease_is_nobodys(tmp_path: Path) -> None:
    with lease.working(str(tmp_path)) as found:
        assert found is None
    assert not (tmp_path / lease.LEASE).exists()


def test_a_lease_that_was_released_during_a_call_does_not_come_back(tmp_path: Path) -> None:
    take(tmp_path, ALICE)
    with lease.working(str(tmp_path), ALICE):
        lease.release(str(tmp_path), ALICE)
    assert by(tmp_path) is None


# Maintenance and the watchdog


def test_a_host_in_maintenance_is_left_alone(tmp_path: Path) -> None:
    mark = tmp_path / "maintenance.json"
    mark.write_text(json.dumps({"reason": "swap card 2", "by": "carol", "since": "2026-01-02T03:04:05Z"}))
    with pytest.raises(lease.LeaseError, match=r"the host is in maintenance: swap card 2 \(carol since 2026-01-02T03:04:05Z\)"):
        take(tmp_path, ALICE)
    mark.write_text("{")
    with pytest.raises(lease.LeaseError, match="the host is in maintenance: unreadable, see"):
        take(tmp_path, ALICE)
    assert take(tmp_path, ALICE._replace(maintenance=True))[0] is True


def test_a_turn_is_told_of_maintenance_and_holds_nothing(tmp_path: Path) -> None:
    mark = {"reason": "swap card 2", "by": "carol", "since": "2026-01-02T03:04:05Z"}
    given = {"root": str(tmp_path), "install": False, "unless_maintenance": True, **ALICE._asdict(), "host": "npu1"}
    given.pop("maintenance")
    assert (run_module(host_lease, given)["maintenance"], by(tmp_path)) == (None, ALICE.by)
    (tmp_path / "maintenance.json").write_text(json.dumps(mark))
    found = run_module(host_lease, {**given, "run": "bob/1/1"})
    assert (found["failed"], found["taken"], found["maintenance"]) == (False, False, mark)
    assert by(tmp_path) == ALICE.by
    assert run_module(host_lease, {**given, "unless_maintenance": False})["failed"] is True


def test_it_is_not_taken_while_the_watchdog_is_at_work(tmp_path: Path, watchdog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(lease, "WATCHDOG_WAIT", 0.0)
    with watchdog.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(lease.Held, match="the watchdog has been working"):
            take(tmp_path, ALICE)
    assert take(tmp_path, ALICE)[0] is True


def test_the_lock_of_the_watchdog_keeps_its_name() -> None:
    """A run of another version takes the same."""
    source = (ROOT / "plugins/module_utils/change/lease.py").read_text()
    assert 'WATCHDOG = "/run/npufleet-watchdog.lock"' in source


@pytest.mark.parametrize(
    ("seen", "fresh"),
    [
        ({"after": "", "uptime": 0}, True),
        ({"after": "bob/1/1", "uptime": 0}, False),
        ({"after": "", "uptime": -61}, False),
        ({"after": "", "uptime": 5}, False),
        ({"after": "", "uptime": 0, "boot": "another"}, False),
        ({"after": ""}, False),
        ({"after": "", "uptime": "now"}, False),
        ({}, False),
    ],
)
def test_a_look_counts_where_nobody_has_held_the_host_since(tmp_path: Path, seen: dict[str, Any], fresh: bool) -> None:
    if isinstance(seen.get("uptime"), int):
        seen = {"boot": clock.boot(), **seen, "uptime": clock.uptime() + seen["uptime"]}
    given = {"root": str(tmp_path), "run": ALICE.run, "by": ALICE.by, "host": "npu1", "install": False, "seen": seen}
    assert run_module(host_lease, given)["fresh"] is fresh
    assert lease.last_run(str(tmp_path)) == ALICE.run
    # One's own lease that is renewed tells nothing of what one did in between
    assert run_module(host_lease, given)["fresh"] is False


def test_a_call_that_hangs_is_ended_and_the_lease_with_it(tmp_path: Path) -> None:
    take(tmp_path, ALICE, patience=0.0)
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.npufleet.triton.plugins.module_utils.change import lease\n"
        "lease.CALL_LIMIT = 1.0\n"
        "with lease.working(sys.argv[2]):\n"
        "    print('at work', flush=True)\n"
        "    while True: time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(ROOT / "collections"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "at work\n"
        assert process.wait(60) == -signal.SIGALRM
    assert not lease.at_work(str(tmp_path))
    assert take(tmp_path, BOB)[1]["by"] == ALICE.by


def test_a_call_that_ends_leaves_no_alarm(tmp_path: Path) -> None:
    take(tmp_path, ALICE)
    for limit in (9000.0, 1e300):
        with lease.working(str(tmp_path), ALICE, limit), lease.working(str(tmp_path), ALICE):
            pass
        assert signal.alarm(0) == 0


def test_a_step_of_a_call_does_not_shorten_the_limit_of_the_call(tmp_path: Path) -> None:
    take(tmp_path, ALICE)
    # The second one as a proof takes it, which is a step of a change
    with lease.working(str(tmp_path), ALICE, 9000.0), lease.working(str(tmp_path)):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > lease.CALL_LIMIT + 1000


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_call_has_the_time_that_its_container_has(tmp_path: Path, patience: float) -> None:
    times = {"name": "triton", "free_timeout": 60, "stop_timeout": 120, "ready_timeout": 7200}
    lease.acquire(str(tmp_path), ALICE, patience, times)
    with lease.working(str(tmp_path)):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 3 * 7200


def test_a_proof_has_the_time_that_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a driver after a boot, of which the times of the container tell nothing."""
    take(tmp_path, ALICE)
    limits: list[float] = []

    def look(*_given: Any) -> Any:
        limits.append(signal.getitimer(signal.ITIMER_REAL)[0])
        return {}, [item("driver", "module", "none", "loaded", "load")] if len(limits) == 1 else []

    monkeypatch.setattr(proof, "read_host", look)
    assert not proof.observe({"driver": {}}, str(tmp_path), ALICE.run, prove=True, timeout=50000).plan
    assert limits[1] > 50000
