"""Faults of two hosts behind a load balancer, whose alerts have to reach a webhook receiver, and a rollout without an alert."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alert_faults import CASES, DISK_ALERTS, WARNING, AlertLab, NotObserved, Observation, play, wait_for_value
from balancer_certificate import CERTIFICATE
from conftest import LAB, ROOT, Run, playbook
from open_loop import OpenLoop

MORE = ("--inventory", str(ROOT / "molecule/monitoring/inventory/hosts.yml"))
RATES = {"http": 5.0, "grpc": 5.0, "stream": 1.0}
# Tests of other scenarios run on the same machine, so an alert may take longer than its target. `make bench-alerts` measures.
PATIENCE = 2
ACTIVE = f'ALERTS{{alertname!~"{DISK_ALERTS}"}}'


@pytest.fixture(scope="session")
def clients() -> Iterator[OpenLoop]:
    with OpenLoop(LAB["_meta"]["hostvars"]["lb1"]["ansible_host"], RATES, CERTIFICATE) as found:
        yield found


@pytest.fixture(scope="session")
def lab(clients: OpenLoop) -> AlertLab:
    """The lab with Alertmanager and a receiver, under the requests of clients."""
    found = AlertLab(LAB)
    found.install()
    return found


@pytest.fixture(scope="session")
def outcomes(lab: AlertLab) -> dict[str, list[Observation] | Exception]:
    """The alerts of each fault. The faults of a host follow each other. All hosts have their faults at the same time."""

    def play_all(host: str) -> dict[str, list[Observation] | Exception]:
        found: dict[str, list[Observation] | Exception] = {}
        for case in CASES:
            if case.host == host:
                try:
                    found[case.name] = play(lab, case)
                # The other faults are played, too.
                except Exception as error:
                    found[case.name] = error
        return found

    with ThreadPoolExecutor() as pool:
        played = pool.map(play_all, sorted({case.host for case in CASES}))
    return {name: outcome for found in played for name, outcome in found.items()}


def run(name: str, **variables: object) -> Run:
    done = playbook(name, *MORE, "-e", json.dumps(variables))
    assert done.code == 0, done.output
    return done


def second_edition(directory: Path) -> str:
    """Return a repository with another edition of alpha."""
    repository = directory / "models"
    shutil.copytree(ROOT / "tests/faults/models", repository)
    file = repository / "alpha/1/model.py"
    text = file.read_text()
    assert text.count("EDITION = 1") == 1
    file.write_text(text.replace("EDITION = 1", "EDITION = 2"))
    return str(repository)


def test_every_target_of_the_inventory_is_up(lab: AlertLab) -> None:
    hosts = {"npufleet-triton": ["npu1", "npu2"], "npufleet-node": ["npu1", "npu2", "lb1", "ops1"], "npufleet-balancer": ["lb1"]}
    expected = {(job, host): "1" for job, names in hosts.items() for host in names}
    found: dict[tuple[str, str], str] = {}

    def all_up() -> bool | None:
        entries = lab.series('up{job=~"npufleet-.*"}')
        found.clear()
        found.update({(entry["metric"]["job"], entry["metric"]["host"]): entry["value"][1] for entry in entries})
        return found == expected or None

    with contextlib.suppress(NotObserved):
        wait_for_value(all_up, 120, "all targets are up")
    assert found == expected


def test_no_alert_fires_during_a_clean_rollout(lab: AlertLab, clients: OpenLoop, tmp_path: Path) -> None:
    lab.wait_until_quiet(ACTIVE)
    began = time.time()
    with clients.span() as span:
        run("models.yml", alerts_repository=second_edition(tmp_path))
        # The new containers serve the first edition again.
        run("site.yml", triton_server_extra_args=["--http-thread-count=9"])
        run("site.yml")
    ended = time.time()
    # The alerts of the hosts are silent for a minute after a change, and the next probe proves the hosts.
    proven = f"count(npufleet_probe_last_run_timestamp_seconds > {ended}) == 2 unless on () npufleet:host_silent:bool == 1"
    wait_for_value(lambda: lab.series(proven) or None, 600, "a probe of each host after its change")
    lab.wait_until_quiet(ACTIVE)
    fired = [found["labels"] for found in lab.firing_since(began, {})]
    assert [labels for labels in fired if labels["alertname"] not in DISK_ALERTS.split("|")] == []
    received = [entry["labels"] for entry in lab.received() if entry["received"] >= began and entry["status"] == "firing"]
    assert [labels for labels in received if labels["alertname"] not in DISK_ALERTS.split("|")] == []
    assert (span.failed, span.wrong) == ([], [])


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_alerts_of_a_fault_reach_the_receiver(outcomes: dict[str, list[Observation] | Exception], name: str) -> None:
    outcome = outcomes[name]
    if isinstance(outcome, Exception):
        raise NotObserved(f"{name}: {outcome!r}") from outcome
    (case,) = [case for case in CASES if case.name == name]
    assert [found.alert for found in outcome] == [expected.alert for expected in case.expected]
    late = [found for found in outcome if found.to_firing > PATIENCE * found.target]
    assert late == []


def test_a_difference_that_status_found_fires_an_alert_until_the_next_status(lab: AlertLab) -> None:
    began = time.time()
    playbook("status.yml", *MORE, "-e", json.dumps({"triton_server_extra_args": ["--http-thread-count=7"]}))

    def fired() -> bool | None:
        found = [alert["labels"]["inventory_host"] for alert in lab.firing_since(began, {"alertname": "NpufleetDrift"})]
        return {"npu1", "npu2"} <= set(found) or None

    wait_for_value(fired, PATIENCE * WARNING, "NpufleetDrift of both hosts fires")
    status = playbook("status.yml", *MORE)
    assert status.code == 0, status.output
    lab.wait_until_quiet('ALERTS{alertname="NpufleetDrift"}')


def test_after_all_faults_the_hosts_are_in_sync(outcomes: dict[str, list[Observation] | Exception]) -> None:
    assert outcomes
    status = playbook("status.yml", *MORE)
    assert status.code == 0, status.output
