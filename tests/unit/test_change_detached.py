"""Host changes in processes of their own: each outlives its connection, and leaves a result that only its owner can read."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached, host_change, lease
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables
from helpers import ROOT, fleet, until

ALICE = {"run": "alice/1/1", "by": "alice@ops1"}
SETTINGS = {
    "name": "no-such-container",
    "free_timeout": 0,
    "stop_timeout": 1,
    "ready_timeout": 1,
    "key": None,
}
# The module that starts the change, on a connection
MODULE = """
import json, sys
from pathlib import Path
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached
root, library.HOME = sys.argv[1:]
detached.begin(root, json.loads(Path(root, "given").read_text()))
Path(root, "begun").touch()
detached.wait(root, "1", 60)
"""


@pytest.fixture
def root(tmp_path: Path, hosts_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "watchdog"))
    monkeypatch.setattr(library, "HOME", str(hosts_library))
    return tmp_path


def order(root: Path, **more: Any) -> dict[str, Any]:
    """A change of a server that is not there, on a host without an engine."""
    given = fleet(
        npufleet_lock={"24.01": {"id": "sha256:1", "options": []}}, npufleet_root=str(root), triton_server_name=SETTINGS["name"]
    )
    desired = {"models": {"root": str(root), "incoming": "", "verify": False, "models": {}}}
    server, _manifests = variables.desired(given, ["server"])
    return {
        "id": "1",
        "rollback_reason": "",
        "store_change": None,
        "host": "npu1",
        "root": str(root),
        **ALICE,
        "desired": {**desired, **server},
        "serve_current": False,
        "container": SETTINGS,
        "manual_server": {},
        "poll_seconds": 1,
        "checks": None,
        "keep": 3,
        "acceptance_timeout": 0,
        "keep_unanswered": False,
        "release_host": False,
        **more,
    }


def changed(root: Path) -> dict[str, Any]:
    """Begin a change, wait for it and return its result."""
    detached.begin(str(root), order(root))
    result = detached.wait(str(root), "1", 60)
    assert result is not None
    return result


def test_what_came_of_it_is_for_root_alone_and_the_order_is_gone(root: Path) -> None:
    lease.acquire(str(root), lease.Holder(**ALICE), 60.0, SETTINGS)
    result = changed(root)
    assert (result["run"], result["refused"]) == (ALICE["run"], None)
    assert result["why"].startswith("the cards are not free")
    assert result["back"] == "there was no server before; the next run continues from this state"
    assert not (root / detached.ORDER).exists()
    for name in (detached.RESULT, detached.STEPS):
        assert (root / name).stat().st_mode & 0o777 == 0o600
    steps = detached.steps(str(root))
    assert [step["step"] for step in steps] == ["wait for the cards", "restore the previous state"]


def test_who_does_not_hold_the_host_is_refused(root: Path) -> None:
    result = changed(root)
    assert result["refused"].startswith("this run has lost the lease of the host (no run has it)")


def test_a_process_that_ends_without_a_result_is_told_with_its_last_words(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "HOME", str(root))
    (root / library.CURRENT).mkdir()
    (root / library.CURRENT / "__main__.py").write_text("raise SystemExit('no such program')")
    with pytest.raises(
        detached.NoResult, match="the change ended without a result: no such program: the next run continues from this state"
    ):
        changed(root)


def test_it_outlives_its_connection(root: Path) -> None:
    """The waiting module is killed with its whole session while the change is held up. The change ends all the same."""
    lease.acquire(str(root), lease.Holder(**ALICE), 60.0, SETTINGS)
    (root / "given").write_text(json.dumps(order(root)))
    with (root / lease.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        module = subprocess.Popen(
            [sys.executable, "-c", MODULE, str(root), library.HOME],
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            start_new_session=True,
        )
        until((root / "begun").exists)
        until(lambda: not (root / detached.ORDER).exists())
        os.killpg(module.pid, signal.SIGHUP)
        os.killpg(module.pid, signal.SIGKILL)
        module.wait()
        assert not (root / detached.RESULT).exists()
        # Whoever asks meanwhile is told that it is at work, and begins no other one
        assert detached.wait(str(root), "1", 0) is None
        with pytest.raises(detached.NoResult, match="has not ended yet"):
            detached.begin(str(root), order(root))
    until((root / detached.RESULT).exists)
    assert detached.wait(str(root), "1", 60) == detached.last(str(root))
    with pytest.raises(detached.NoResult, match="without a result"):
        detached.wait(str(root), "2", 0)
    assert json.loads((root / detached.RESULT).read_text())["why"].startswith("the cards are not free")
    assert not lease.at_work(str(root))


class Proven(host_change.HostChange):
    """A change that is proven and waits to be accepted."""

    def run(self) -> host_change.Outcome:
        self.accepted = True
        why = self.decide(host_change.Outcome(["loaded digits"]))
        return host_change.Outcome(
            ["loaded digits"], why, "" if why is None else "the previous releases serve again", accepted=why is None
        )


class Process(threading.Thread):
    """The process of such a change, with its lock."""

    def __init__(self, root: Path, **more: Any) -> None:
        super().__init__(daemon=True)
        (root / detached.ORDER).write_text(json.dumps(order(root, **more)))
        self.root, self.lock = root, (root / detached.LOCK).open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def run(self) -> None:
        with self.lock:
            detached.perform(str(self.root))


@pytest.fixture
def begun(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any] | None]:
    """Begins one, and returns what a call hears that waits for the proof."""
    monkeypatch.setattr(host_change, "HostChange", Proven)

    def begin(**more: Any) -> dict[str, Any] | None:
        Process(root, **more).start()
        return detached.wait(str(root), "1", 60, proven=True)

    return begin


@pytest.mark.parametrize(("accepted", "why"), [(True, None), (False, "twice as slow")])
def test_what_is_proven_waits_for_a_second_call(
    root: Path, begun: Callable[..., dict[str, Any] | None], accepted: bool, why: str | None
) -> None:
    shown = begun(acceptance_timeout=60)
    assert shown is not None
    assert (shown["seconds_to_accept"], shown["did"], shown["why"]) == (60, ["loaded digits"], None)
    # It has not ended for whoever waits for that
    assert detached.wait(str(root), "1", 0) is None
    assert detached.waiting(str(root)) == shown
    detached.decide(str(root), accepted, why or "")
    result = detached.wait(str(root), "1", 60)
    assert result is not None
    assert (result["accepted"], result["why"], "seconds_to_accept" in result) == (accepted, why, False)
    assert detached.waiting(str(root)) is None


@pytest.mark.parametrize(("kept", "why"), [(True, None), (False, "nobody accepted it within 1 s")])
def test_at_its_deadline_the_host_does_what_was_declared(
    root: Path, begun: Callable[..., dict[str, Any] | None], kept: bool, why: str | None
) -> None:
    begun(acceptance_timeout=1, keep_unanswered=kept)
    result = detached.wait(str(root), "1", 60)
    assert result is not None
    assert result["why"] == why


def test_one_that_was_killed_while_it_waited_waits_no_more(root: Path) -> None:
    change = {"id": "1", "run": ALICE["run"], "did": [], "why": None, "back": "", "checks": [], "warnings": [], "refused": None}
    (root / detached.RESULT).write_text(json.dumps({**change, "seconds_to_accept": 60}))
    assert detached.last(str(root)) == {**change, "seconds_to_accept": 60}
    # A call that only looks is no change
    with (root / detached.LOCK).open("w") as looking:
        assert locks.is_held(looking) is False
        assert detached.waiting(str(root)) is None
        with pytest.raises(detached.NoResult, match="without a result"):
            detached.wait(str(root), "1", 0)


def test_it_begins_while_somebody_looks(root: Path) -> None:
    with (root / detached.LOCK).open("w") as looking:
        assert locks.is_held(looking) is False
        ended = threading.Timer(0.05, fcntl.flock, [looking, fcntl.LOCK_UN])
        ended.start()
        assert changed(root)["id"] == "1"
        ended.join()


def test_a_host_that_knows_of_no_change_says_so(root: Path) -> None:
    assert detached.last(str(root)) is None
    with pytest.raises(detached.NoResult, match="this host does not know the change that was started"):
        detached.wait(str(root), "1", 0)


def test_an_error_beside_the_change_itself_still_ends_with_a_result(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease.acquire(str(root), lease.Holder(**ALICE), 60.0, SETTINGS)
    detached.begin(str(root), order(root, container={}))
    result = detached.wait(str(root), "1", 60)
    assert result is not None and "KeyError('name')" in result["why"]
    assert result["back"] == detached.UNKNOWN


def test_a_result_may_hold_all_that_the_client_of_checks_prints(root: Path) -> None:
    pictures = [{"name": f"m/http/row {number}", "picture": "A" * 16384} for number in range(1100)]
    content = {"id": "x", "run": "r", "did": [], "why": None, "back": "", "checks": pictures, "warnings": [], "refused": None}
    (root / detached.RESULT).write_text(json.dumps(content))
    assert detached.last(str(root)) == content


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": 1}', "[" * 100_000, '{"id": Infinity}', "\udcff"])
def test_a_result_that_cannot_be_read_is_none(root: Path, content: str) -> None:
    (root / detached.RESULT).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert detached.last(str(root)) is None
    assert detached.waiting(str(root)) is None
