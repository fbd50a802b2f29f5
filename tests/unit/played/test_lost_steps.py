"""Tasks whose process does not start on the controller. Ansible does not report such a lost task, but the run must fail."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ANSIBLE_PLAYBOOK, ROOT
from stage import HOSTS, LOCAL, MODEL, PLAYBOOKS, VARIABLES, Run, differs, run

READS = ("adoption", "host_state", "inference_check", "support_bundle")
LOST = "has no result, expected one: its process could not start on the controller"


def fleet(plan: list[dict[str, Any]], **more: dict[str, Any]) -> dict[str, Any]:
    return {host: {"plan": plan, **more.get(host.replace("-", "_"), {})} for host in HOSTS}


def changed(ran: Run) -> set[str]:
    """Return the hosts on which a module ran that does more than read or take the lease."""
    return {call.split()[0] for call in ran.calls if call.split()[1] not in (*READS, "host_lease")}


def test_every_playbook_is_tested() -> None:
    assert {path.name for path in (ROOT / "playbooks").glob("*.yml")} == {*PLAYBOOKS, *LOCAL}
    # Without `until`, only the first read returns the difference, so no role would repair it.
    assert [name for name, (_options, plan) in PLAYBOOKS.items() for item in plan if "until" not in item] == []


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.name)
def test_the_first_and_the_last_play_of_a_playbook_are_guarded(path: Path) -> None:
    """The next play finds the lost tasks of a play. So the last play only prints messages."""
    plays = yaml.safe_load(path.read_text())
    # The last import of a playbook may end with an import itself.
    while "ansible.builtin.import_playbook" in plays[-1]:
        path = path.parent / plays[-1]["ansible.builtin.import_playbook"]
        plays += yaml.safe_load(path.read_text())
    for play in (plays[0], plays[-1]):
        assert "npufleet.triton.fleet_group" in play["hosts"] or "npufleet.triton.play_hosts" in play["hosts"]
    assert all(set(task) & {"ansible.builtin.debug"} for task in plays[-1].get("tasks", []))
    assert plays[-1]["tags"] == ["always"]


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_host_that_was_not_queried_fails_the_run_by_name(tmp_path: Path, playbook: str) -> None:
    options, plan = PLAYBOOKS[playbook]
    ran = run(tmp_path, playbook, fleet(plan, npu_3={"not_started": "."}), *options)
    assert ran.code != 0, ran.output
    assert "npu-3: the step " in ran.words and LOST in ran.words, ran.output
    assert "npu-3" not in {call.split()[0] for call in ran.calls}
    assert changed(ran) == set(), ran.output


@pytest.mark.parametrize(
    "step",
    [
        "Acquire the lease of the host",
        "Release the lease, record",
        "npufleet.triton.triton_server : ",
    ],
)
def test_a_lost_step_of_a_batch_starts_no_further_batch(tmp_path: Path, step: str) -> None:
    """npu-2 is in the second batch, npu-4 in the third."""
    ran = run(tmp_path, "models.yml", fleet(MODEL, npu_2={"not_started": f"^({step})"}))
    assert ran.code != 0, ran.output
    # Without the lease, the step of the change is unknown, so only Ansible's own message names the host.
    assert ("npu-2" in ran.words and LOST in ran.words) or "fatal: [npu-2]: FAILED!" in ran.words, ran.output
    assert "npu-4" not in changed(ran)


@pytest.mark.parametrize("playbook", ["status.yml", "check.yml"])
def test_a_lost_last_step_fails_the_run(tmp_path: Path, playbook: str) -> None:
    scenario = fleet([differs("server", until="never")], npu_2={"not_started": "^Fail a", "fails": "inference_check"})
    ran = run(tmp_path, playbook, {"npu-2": scenario["npu-2"]})
    assert ran.code != 0, ran.output
    assert LOST in ran.words


def test_a_lost_refusal_changes_no_host(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": MODEL, "refusals": ["found no card"], "not_started": "Refuse"}, "npu-2": {"plan": MODEL}}
    for playbook in ("models.yml", "site.yml", "rollback.yml"):
        ran = run(tmp_path / playbook, playbook, scenario, *PLAYBOOKS[playbook][0])
        assert ran.code != 0, ran.output
        assert changed(ran) == set(), ran.output


# The limit of open files


def limited(directory: Path, limit: str, forks: int, hosts: int = 24) -> tuple[int, str, set[str]]:
    """Run status.yml under `ulimit`, with drift on the last host. Return (exit code, output, queried hosts)."""
    names = [f"npu-{number:02}" for number in range(hosts)]
    (directory / "calls").write_text("")
    scenario = {name: {"plan": [differs("server", until="never")] if name == names[-1] else []} for name in names}
    (directory / "scenario.json").write_text(json.dumps(scenario))
    variables = {**VARIABLES, "npufleet_lock_file": f"{directory}/lock.json", "npufleet_output_dir": str(directory)}
    fleet = {"npu_hosts": {"hosts": {name: {} for name in names}, "vars": variables}, "monitoring_hosts": {"hosts": {}}}
    (directory / "hosts.json").write_text(json.dumps(fleet))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(directory / "ansible"),
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "NPUFLEET_STAGE": str(directory),
    }
    arguments = f"-i {directory}/hosts.json {ROOT}/playbooks/status.yml --forks {forks}"
    command = ["bash", "-c", f"ulimit {limit} && exec {ANSIBLE_PLAYBOOK} {arguments}"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    calls = (directory / "calls").read_text().splitlines()
    return done.returncode, " ".join((done.stdout + done.stderr).split()), {call.split()[0] for call in calls}


def test_a_run_that_cannot_open_its_files_is_refused(tmp_path: Path) -> None:
    code, words, queried = limited(tmp_path, "-n 80", 24)
    assert code != 0 and queried == set(), words
    assert "The limit of open files (RLIMIT_NOFILE) is 80, expected 160 for 24 processes at once" in words
    assert "Run with --forks 4 or fewer" in words


def test_a_soft_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    code, words, queried = limited(tmp_path, "-S -n 80", 24)
    assert code == 2 and len(queried) == 24, words
    assert "npu-23: 1 differences" in words


def test_fewer_forks_need_fewer_files(tmp_path: Path) -> None:
    code, words, queried = limited(tmp_path, "-n 80", 4)
    assert code == 2 and len(queried) == 24, words


def test_a_playbook_that_imports_one_of_ours_is_guarded(tmp_path: Path) -> None:
    wrapper = str(Path(__file__).with_name("protected.yml"))
    ran = run(tmp_path, wrapper, fleet(MODEL, npu_3={"not_started": "."}), "-e", "npufleet_confirm=prod")
    assert ran.code != 0, ran.output
    assert "npu-3: the step " in ran.words and LOST in ran.words, ran.output
    assert changed(ran) == set()


def test_a_playbook_with_its_collection_name_is_guarded(tmp_path: Path) -> None:
    ran = run(tmp_path, "status.yml", fleet([], npu_3={"not_started": "."}), by_name="npufleet.triton.status")
    assert ran.code != 0, ran.output
    assert "npu-3: the step " in ran.words and LOST in ran.words, ran.output
