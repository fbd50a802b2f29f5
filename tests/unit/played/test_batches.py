"""Batches of a rollout: an invalid size is refused before anything changes, and the announced batches are the batches that run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from stage import HOSTS, Run, differs, run

MODEL = [differs("models")]
PLAN: dict[str, Any] = {host: {"plan": MODEL} for host in HOSTS}
ROLLBACK = ("-e", "rollback_to=previous")
STOPPED = {host: {"plan": [differs("server", "start", name="container", until="server_change")]} for host in HOSTS}
# {playbook: (options, scenario)}
ROLLOUTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "models.yml": ((), PLAN),
    "site.yml": ((), PLAN),
    "rollback.yml": (ROLLBACK, PLAN),
    "recover.yml": ((), STOPPED),
}


def extra(value: Any) -> str:
    return json.dumps({"npufleet_rollout_serial": value})


def announced(ran: Run) -> list[list[str]]:
    """Return the batches as the run announces them before the first batch."""
    (words,) = re.findall(r"the rollout changes \d+ hosts?: (.*?) \(", ran.words)[:1]
    return [part.split(", ") for part in words.split("; then ")]


def ran_in(ran: Run) -> list[list[str]]:
    """Return the batches that ran: the leases of all hosts of a batch are taken before the first of these leases is released."""
    batches: list[list[str]] = [[]]
    released = False
    for host, what in (call.split(" ", 1) for call in ran.calls):
        if what == "host_lease":
            batches += [[]] if released else []
            batches[-1].append(host)
            released = False
        released = released or what == "host_lease released"
    return [sorted(batch) for batch in batches]


@pytest.mark.parametrize("playbook", ROLLOUTS)
@pytest.mark.parametrize("serial", [0, [1, 0], "101%"], ids=str)
def test_an_invalid_serial_changes_nothing(tmp_path: Path, playbook: str, serial: Any) -> None:
    options, scenario = ROLLOUTS[playbook]
    ran = run(tmp_path, playbook, scenario, *options, npufleet_rollout_serial=serial)
    assert ran.code == 2, ran.output
    assert "host_lease" not in " ".join(ran.calls)
    assert "hosts refused" in ran.words and "npufleet_rollout_serial is " in ran.words
    assert "Traceback" not in ran.output


@pytest.mark.parametrize("serial", [None, "", -1, [], True, "0%", {}, "many"], ids=str)
def test_an_invalid_serial_of_the_command_line_changes_nothing(tmp_path: Path, serial: Any) -> None:
    ran = run(tmp_path, "models.yml", PLAN, "-e", extra(serial))
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "hosts refused" in ran.words and "npufleet_rollout_serial is " in ran.words


@pytest.mark.parametrize(
    ("option", "sizes"),
    [(extra([1, "50%"]), [1, 2, 1]), ("npufleet_rollout_serial=[2,1]", [2, 1, 1]), ("npufleet_rollout_serial=75%", [3, 1])],
)
def test_the_announced_batches_are_the_batches_that_run(tmp_path: Path, option: str, sizes: list[int]) -> None:
    ran = run(tmp_path, "models.yml", PLAN, "-e", option)
    assert ran.code == 0, ran.output
    assert announced(ran) == ran_in(ran)
    assert [len(batch) for batch in ran_in(ran)] == sizes


RACK = "{{ [2, '100%'] if inventory_hostname in ['npu-3', 'npu-4'] else [1, '100%'] }}"


def test_a_limit_uses_the_serial_of_its_hosts(tmp_path: Path) -> None:
    ran = run(tmp_path, "models.yml", PLAN, "--limit", "npu-3,npu-4", npufleet_rollout_serial=RACK)
    assert ran.code == 0, ran.output
    assert announced(ran) == ran_in(ran) == [["npu-3", "npu-4"]]


@pytest.mark.parametrize("playbook", ROLLOUTS)
def test_different_serials_of_changing_hosts_are_refused(tmp_path: Path, playbook: str) -> None:
    options, scenario = ROLLOUTS[playbook]
    ran = run(tmp_path, playbook, scenario, *options, npufleet_rollout_serial=RACK)
    assert ran.code != 0, ran.output
    assert "host_lease" not in " ".join(ran.calls)
    assert 'npufleet_rollout_serial is [1, "100%"] of npu-1, npu-2; [2, "100%"] of npu-3, npu-4' in ran.words


def test_the_serial_of_an_unchanged_host_is_ignored(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": []}, "npu-3": {"plan": MODEL}, "npu-4": {"plan": MODEL}}
    ran = run(tmp_path, "models.yml", scenario, npufleet_rollout_serial=RACK)
    assert ran.code == 0, ran.output
    assert announced(ran) == [["npu-3", "npu-4"]]
