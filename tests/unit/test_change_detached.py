"""A turn in a process of its own, as real processes: it outlives who started it, and leaves what came of it for its owner alone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached, lease, program
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables
from helpers import ROOT, fleet

ALICE = {"run": "alice/1/1", "by": "alice@ops1"}
SETTINGS = {
    "name": "no-such-container",
    "vendor_tool": "/nowhere/x",
    "free_timeout": 0,
    "stop_timeout": 1,
    "ready_timeout": 1,
    "key": None,
}
# Whoever starts it: a module on a connection
MODULE = """
import json, sys
from pathlib import Path
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached
root = sys.argv[1]
process = detached.begin(root, json.loads(Path(root, "given").read_text()), root + "/change.pyz")
Path(root, "begun").write_text(str(process.pid))
detached.wait(root, process)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "watchdog"))
    (tmp_path / "change.pyz").write_bytes(program.program())
    return tmp_path


def order(root: Path, **more: Any) -> dict[str, Any]:
    """A change of a server that is not there, on a host without an engine."""
    given = fleet(
        npufleet_lock={"24.01": {"id": "sha256:1", "options": []}}, npufleet_root=str(root), triton_server_name=SETTINGS["name"]
    )
    desired = {"models": {"root": str(root), "incoming": "", "verify": False, "models": {}}}
    server, _manifests = variables.desired(given, ["server"])
    return {
        "host": "npu1",
        "root": str(root),
        **ALICE,
        "desired": {**desired, **server},
        "linked": False,
        "container": SETTINGS,
        "inside": {},
        "poll_seconds": 1,
        "checks": None,
        "keep": 3,
        **more,
    }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_came_of_it_is_for_root_alone_and_the_order_is_gone(root: Path) -> None:
    lease.acquire(str(root), lease.Holder(**ALICE), 60.0, SETTINGS)
    result = detached.wait(str(root), detached.begin(str(root), order(root), str(root / "change.pyz")))
    assert (result["run"], result["refused"]) == (ALICE["run"], None)
    assert result["why"].startswith("the cards are not free")
    assert result["back"] == "there was none before; the next run goes on from here"
    assert not (root / detached.ORDER).exists()
    for name in (detached.RESULT, detached.STEPS):
        assert (root / name).stat().st_mode & 0o777 == 0o600
    steps = [json.loads(line)["step"] for line in (root / detached.STEPS).read_text().splitlines()]
    assert steps == ["wait for the cards", "put back what served before"]


def test_who_does_not_hold_the_host_is_refused(root: Path) -> None:
    result = detached.wait(str(root), detached.begin(str(root), order(root), str(root / "change.pyz")))
    assert result["refused"].startswith("found none, wanted this run's own lease of the host")


def test_a_process_that_ends_without_a_result_is_told_with_its_last_words(root: Path) -> None:
    (root / "change.pyz").write_text("raise SystemExit('no such program')")
    with pytest.raises(detached.Ended, match="ended with 1 and without a result: no such program: the next run goes on from here"):
        detached.wait(str(root), detached.begin(str(root), order(root), str(root / "change.pyz")))


def test_it_outlives_its_connection(root: Path) -> None:
    """Whoever waits is killed with everything of its session while the turn is held up; the turn ends all the same."""
    lease.acquire(str(root), lease.Holder(**ALICE), 60.0, SETTINGS)
    (root / "given").write_text(json.dumps(order(root)))
    with (root / lease.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        module = subprocess.Popen(
            [sys.executable, "-c", MODULE, str(root)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            start_new_session=True,
        )
        until((root / "begun").exists)
        until(lambda: not (root / detached.ORDER).exists())
        os.killpg(module.pid, signal.SIGHUP)
        os.killpg(module.pid, signal.SIGKILL)
        module.wait()
        assert not (root / detached.RESULT).exists()
    until((root / detached.RESULT).exists)
    assert json.loads((root / detached.RESULT).read_text())["why"].startswith("the cards are not free")
    assert not lease.at_work(str(root))
