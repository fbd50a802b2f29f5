"""The summary at the end of a run over many hosts: only the hosts that differ, each with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stage import HOSTS, MODEL, Run, differs, run

ULIMITS = [
    differs("server", "replace", name="container.ulimits", until="never"),
    differs("models", "release", name="add", until="never"),
]
GOOD: dict[str, Any] = {"plan": []}


def after_recap(ran: Run) -> list[str]:
    """Return the lines after the recap of Ansible."""
    assert ran.output.count("SUMMARY") == 1, ran.output
    # The standard error follows, which begins with a warning about the release row.
    return [line for line in ran.output.partition("SUMMARY")[2].partition("\n[")[0].splitlines()[1:] if line]


def shown(ran: Run) -> str:
    """Return the output of the task that shows the differences."""
    return ran.output.partition("TASK [Show the differences of all hosts]")[2].partition("\nTASK")[0].partition("\nPLAY")[0]


def test_status_names_only_hosts_that_differ(tmp_path: Path) -> None:
    scenario = {"npu-1": GOOD, "npu-2": {"plan": ULIMITS}, "npu-3": {"lost": "host_state"}, "npu-4": {"plan": ULIMITS}}
    ran = run(tmp_path, "status.yml", scenario)
    assert ran.code == 4, ran.output
    assert "3 of 4 hosts differ from the desired state" in shown(ran)
    assert "npu-2, npu-4: container.ulimits" in shown(ran) and "npu-1" not in shown(ran).partition("3 of 4")[2]
    assert [ran.recap(host)["failed"] for host in HOSTS] == [0, 1, 0, 1]
    assert ran.recap("npu-3")["unreachable"] == 1
    assert after_recap(ran) == [
        "4 hosts: 1 ok, 2 failed, 1 unreachable",
        "  - npu-2, npu-4: 2 differences, the first: container.ulimits",
        "  - npu-3: unreachable: does not answer any more",
    ]


def test_status_of_a_fleet_in_sync_ends_after_the_report(tmp_path: Path) -> None:
    ran = run(tmp_path, "status.yml", dict.fromkeys(HOSTS, GOOD))
    assert ran.code == 0, ran.output
    assert "all 4 hosts are in sync" in shown(ran)
    assert "TASK [Fail a" not in ran.output
    assert after_recap(ran) == ["4 hosts: 4 ok"]


def test_a_limit_limits_the_output_and_keeps_the_rest_of_the_report(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": ULIMITS}, "npu-2": {"plan": ULIMITS}}
    assert run(tmp_path, "status.yml", scenario).code == 2
    ran = run(tmp_path, "status.yml", scenario, "--limit", "npu-2")
    assert ran.code == 2, ran.output
    assert "npu-1" not in ran.output
    assert after_recap(ran) == ["1 host: 1 failed", "  - npu-2: 2 differences, the first: container.ulimits"]
    states = {entry["host"]: entry["state"] for entry in json.loads((tmp_path / "status.json").read_text())["hosts"]}
    assert states == {"npu-1": "drift", "npu-2": "drift"}


def test_a_host_in_maintenance_is_shown_and_does_not_fail(tmp_path: Path) -> None:
    ran = run(tmp_path, "status.yml", {"npu-1": GOOD, "npu-2": {"plan": ULIMITS, "maintenance_after": "host_state"}})
    assert ran.code == 0, ran.output
    assert "1 of 2 hosts differ from the desired state or are in maintenance" in shown(
        ran
    ) and "npu-2: in maintenance: swap card 2" in shown(ran)
    assert after_recap(ran) == ["2 hosts: 1 ok, 1 in maintenance"]


def test_a_refused_site_names_each_host_with_its_reason(tmp_path: Path) -> None:
    refused = {"refusals": ["no card"]}
    scenario = {"npu-1": {"plan": MODEL}, "npu-2": {"plan": MODEL, **refused}, "npu-3": {"plan": [], **refused}}
    ran = run(tmp_path, "site.yml", scenario)
    assert ran.code == 2, ran.output
    assert after_recap(ran) == [
        "the run ended early: 2 of 3 hosts refused, 1 reason, nothing was changed",
        "3 hosts: 1 ok, 2 refused",
        "  - npu-2, npu-3: no card",
    ]


def test_preflight_shows_the_planned_changes_once(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": ULIMITS}, "npu-2": {"plan": ULIMITS[1:]}, "npu-3": GOOD}
    ran = run(tmp_path, "preflight.yml", scenario)
    assert ran.code == 0, ran.output
    task = ran.output.partition("TASK [Show the planned changes]")[2].partition("PLAY")[0]
    assert "no reason for a refusal, and 2 of 3 hosts to change:" in task
    assert "- npu-1: container.ulimits" in task and "- npu-1, npu-2: add" in task and "npu-3" not in task
    none = run(tmp_path, "preflight.yml", {"npu-3": GOOD})
    assert "no reason for a refusal, and 0 of 1 hosts to change\n" in none.output


def test_a_failed_rollout_names_its_host(tmp_path: Path) -> None:
    scenario = {host: {"plan": MODEL} for host in HOSTS}
    scenario["npu-2"]["fails"] = "server_change"
    ran = run(tmp_path, "models.yml", scenario)
    assert ran.code == 2, ran.output
    counts, reason = after_recap(ran)
    assert counts == "4 hosts: 1 ok, 2 changed, 1 failed"
    assert reason.startswith("  - npu-2: failed the gate, no further batch starts. ") and "<host> is played to fail" in reason


def test_check_mode_shows_the_totals_of_the_plan(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": ULIMITS}, "npu-2": {"plan": ULIMITS[1:]}, "npu-3": GOOD}
    ran = run(tmp_path, "site.yml", scenario, "--check")
    assert ran.code == 0, ran.output
    assert after_recap(ran) == ["3 hosts: 3 ok", "plan: 3 differences on 2 hosts: models release 2, server replace 1"]
    assert after_recap(run(tmp_path, "site.yml", scenario, "--check", "--diff")) == ["3 hosts: 3 ok"]
