"""A bad verdict about the requests of clients stops a rollout and is recorded. Real playbooks on simulated hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stage import HOSTS, MODEL, Run, run

PROVEN = {"changed": True, "proven": True, "answered": True, "did": [], "checks": [], "moves": {}, "seconds_to_accept": 600}
RESTORED = {"failed": True, "msg": "the previous releases serve again", "back": "the releases before", "restored": True}
HOST = {"plan": MODEL, "results": {"server_change restored": RESTORED, "server_change with_checks": PROVEN}}
NEW_CHECKS = "restore the previous release and its checks in the inventory, and run again"
# Of the 200 requests that the simulated balancer counts, 100 fail on npu-1 after its change.
SCENARIO: dict[str, Any] = {**dict.fromkeys(HOSTS[:3], HOST), "lb-1": {"balancer": True, "failed": {"npu-1": 100}}}


def go(directory: Path, scenario: dict[str, Any], *options: str, playbook: str = "models.yml") -> Run:
    variables = {"npufleet_judge_seconds": 1, "npufleet_rollout_serial": [1, "100%"]}
    return run(directory, playbook, scenario, *options, balancers=("lb-1",), **variables)


@pytest.mark.parametrize(
    ("playbook", "options"),
    [
        ("models.yml", ()),
        ("models.yml", ("--limit", "npu-1,npu-2")),
        ("models.yml", ("--skip-tags", "check")),
        ("site.yml", ("--tags", "models")),
    ],
    ids=str,
)
def test_bad_verdict_restores_the_host_and_stops_the_rollout(tmp_path: Path, playbook: str, options: tuple[str, ...]) -> None:
    ran = go(tmp_path, SCENARIO, *options, playbook=playbook)
    assert ran.code == 2, ran.output
    assert "the verdict about the requests of clients is bad" in ran.words
    assert ran.touched() == ["npu-1"]
    calls = [call for call in ran.calls if call.startswith(("npu-1 server_change", "lb-1 balancer_server"))]
    assert "npu-1 server_change restored" in calls and "npu-1 server_change accepted" not in calls
    assert calls[-1] == "lb-1 balancer_server ready npu-1"
    # The restored release is proven with the checks that it has passed, if the host has stored them.
    assert "npu-1 inference_check accepted" in ran.calls
    (path,) = (tmp_path / "rollouts").iterdir()
    record = json.loads(path.read_text())
    (batch,) = record["batches"]
    entry = batch["hosts"]["npu-1"]
    assert entry["verdict"]["verdict"] == "bad" and entry["verdict"]["numbers"]
    assert (entry["failure"], entry["release"]) == (RESTORED["msg"], "25.08")
    assert record["planned"][0] == ["npu-1"] and "npu-2" in record["planned"][1]


def test_restored_host_that_fails_the_new_checks_stays_drained_with_a_next_step(tmp_path: Path) -> None:
    ran = go(tmp_path, {**SCENARIO, "npu-1": {**HOST, "fails": "inference_check"}})
    assert ran.code == 2, ran.output
    calls = [call for call in ran.calls if call.startswith("lb-1 balancer_server")]
    assert calls[-1] == "lb-1 balancer_server drained npu-1"
    assert NEW_CHECKS in ran.words, ran.output


def test_restored_host_that_fails_its_own_checks_stays_drained(tmp_path: Path) -> None:
    played = {**HOST, "fails": "inference_check", "failure": {"accepted": True, "proven": False}}
    ran = go(tmp_path, {**SCENARIO, "npu-1": played})
    assert ran.code == 2, ran.output
    assert [call for call in ran.calls if call.startswith("lb-1 balancer_server")][-1] == "lb-1 balancer_server drained npu-1"
    assert "the host stays out of the traffic: npu-1 is played to fail)" in ran.words, ran.output
    assert NEW_CHECKS not in ran.words


@pytest.mark.parametrize("playbook", ["models.yml", "site.yml"])
def test_skipped_tags_of_the_gate_change_nothing(tmp_path: Path, playbook: str) -> None:
    ran = go(tmp_path, SCENARIO, "--skip-tags", "always", playbook=playbook)
    assert ran.touched() == [], ran.output
    assert "balancer_server" not in " ".join(ran.calls)


def test_history_shows_verdicts_and_drains(tmp_path: Path) -> None:
    ran = go(tmp_path, {**SCENARIO, "lb-1": {"balancer": True}})
    assert ran.code == 0, ran.output
    shown = run(tmp_path, "history.yml", {host: {"results": {"host_state": STORE}} for host in HOSTS[:2]})
    assert shown.code == 0, shown.output
    assert "models.yml by" in shown.words and "3 hosts in 2 batches" in shown.words
    assert "batch 1: npu-1: changed; models; release 25.08;" in shown.words
    assert "good: 0 of 200 requests failed" in shown.words
    assert "rollout 2026-01-01T00:00:00Z site.yml by kim@ops2, batch 1 of 3: no end is recorded" in shown.words


# An entry in the record of a host about a rollout of another controller
ENTRY: dict[str, Any] = {
    "run": "r",
    "by": "kim@ops2",
    "began": "2026-01-01T00:00:00Z",
    "ended": None,
    "playbook": "site.yml",
    "commit": None,
    "release": None,
    "concerns": [],
    "batch": 1,
    "batches": 3,
    "failure": "",
    "verdict": None,
    "in_flight": None,
    "closed": None,
}
STORE = {
    "changed": False,
    "plan": [],
    "report": [],
    "maintenance": None,
    "actual": {},
    "held": {},
    "refusals": [],
    "clock": 0.0,
    "store": {"history": [], "transaction": None, "holds": {}, "rollouts": [ENTRY, {"lie": 1}]},
}
