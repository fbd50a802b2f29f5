"""A host with an incomplete result counts neither as in sync nor as changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stage import differs, run

BARE: dict[str, Any] = {"changed": False}
EMPTY = {**BARE, "plan": [], "report": [], "maintenance": None, "actual": {}, "held": {}}
MODEL = [differs("models", "release", name="add", until="server_change")]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (BARE, "plan and report and maintenance and actual and held are missing"),
        ({**BARE, "report": []}, "plan and maintenance"),
        ({**EMPTY, "plan": MODEL}, "report has 0 lines about 1 differences"),
        ({**EMPTY, "maintenance": "on"}, "maintenance is on, expected a mapping or nothing"),
    ],
)
def test_a_host_without_a_plan_is_not_in_sync(tmp_path: Path, answer: dict[str, Any], found: str) -> None:
    scenario = {"npu-1": {"results": {"host_state": answer}}, "npu-2": {"plan": []}}
    ran = run(tmp_path, "status.yml", scenario)
    assert ran.code == 2, ran.output
    assert f"npu-1 gave an answer that cannot be used ({found}" in ran.words
    states = {entry["host"]: entry["state"] for entry in json.loads((tmp_path / "status.json").read_text())["hosts"]}
    assert states == {"npu-1": "failed", "npu-2": "in sync"}


@pytest.mark.parametrize("playbook", ["check.yml", "models.yml", "site.yml", "teardown.yml", "recover.yml"])
def test_an_incomplete_answer_changes_nothing(tmp_path: Path, playbook: str) -> None:
    scenario = {"npu-1": {"results": {"host_state": {**BARE, "report": []}}}, "npu-2": {"plan": MODEL}}
    ran = run(tmp_path, playbook, scenario)
    assert ran.code == 2, ran.output
    assert "npu-1 gave an answer that cannot be used (plan and" in ran.words
    assert [call for call in ran.calls_on("npu-1") if not call.startswith("host_state")] == []


@pytest.mark.parametrize("playbook", ["models.yml", "site.yml", "rollback.yml"])
def test_a_change_without_a_result_fails(tmp_path: Path, playbook: str) -> None:
    scenario = {host: {"plan": MODEL, "results": {"server_change": BARE}} for host in ("npu-1", "npu-2")}
    ran = run(tmp_path, playbook, scenario, "-e", "rollback_to=previous", npufleet_rollout_serial=1)
    assert ran.code == 2, ran.output
    assert "npu-1 gave an answer that cannot be used (proven" in ran.words
    assert ran.calls_on("npu-2") == []


def test_an_answer_without_check_results_fails(tmp_path: Path) -> None:
    ran = run(tmp_path, "check.yml", {"npu-1": {"results": {"inference_check": BARE}}})
    assert ran.code == 2, ran.output
    assert "npu-1 gave an answer that cannot be used (msg" in ran.words
