"""A host taken out of service by hand: left alone by every playbook, not started by a boot, and put back proven."""

from __future__ import annotations

import json

import pytest
from conftest import NPU_HOSTS, OUTPUT, Run, connect, inspect, playbook
from test_3_reboot import power, ready, up, wait_for, wait_until_booted

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
MARK = "/var/lib/npufleet/maintenance.json"
RESULTS = OUTPUT / f"check/{FIRST}.json"


@pytest.fixture(scope="module")
def first():
    return connect(FIRST)


def maintenance(**given: str) -> Run:
    """One run of maintenance.yml on the first host."""
    options = [word for name, value in given.items() for word in ("-e", json.dumps({name: value}))]
    return playbook("maintenance.yml", "--limit", FIRST, *options)


def running(host) -> bool:
    return inspect(host)["State"]["Running"]


def test_what_cannot_be_meant_is_refused_with_all_reasons(first):
    run = playbook("maintenance.yml", "-e", "maintenance=out", "-e", "maintenance_reason=' '")
    assert run.code == 2, run.output
    assert f"{FIRST} is refused, nothing was changed:" in run.output
    assert "maintenance_reason is missing" in run.output
    assert "--limit is missing" in run.output
    run = maintenance(maintenance="off")
    assert run.code == 2, run.output
    assert "maintenance is off, expected out or in" in run.output
    assert not first.file(MARK).exists
    assert running(first)


def test_a_host_that_is_not_out_is_not_put_back(first):
    before = inspect(first)["State"]["StartedAt"]
    run = maintenance(maintenance="in")
    assert run.code == 0, run.output
    assert f"{FIRST} is not in maintenance: nothing was changed." in run.output
    assert run.changed() == {FIRST: 0}
    assert inspect(first)["State"]["StartedAt"] == before


def test_out(first):
    run = maintenance(maintenance="out", maintenance_reason="swap card 2", maintenance_by="kim")
    assert run.code == 0, run.output
    assert not running(first)
    mark = json.loads(first.file(MARK).content_string)
    assert (mark["reason"], mark["by"]) == ("swap card 2", "kim")
    # A second time it keeps who was first
    run = maintenance(maintenance="out", maintenance_reason="again")
    assert run.code == 0, run.output
    assert run.changed() == {FIRST: 0}, run.output
    assert json.loads(first.file(MARK).content_string) == mark


def test_out_of_service_no_playbook_touches_it(first):
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert run.changed()[FIRST] == 0, run.output
    assert f"{FIRST} is in maintenance and was skipped: swap card 2 (kim, " in run.output
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text("{}")
    run = playbook("check.yml")
    assert run.code == 0, run.output
    assert f"{FIRST} is in maintenance and is not checked: swap card 2" in run.output
    assert not RESULTS.exists(), "answers of before speak for a host that was not asked"
    assert not running(first)


def test_status_names_it_and_is_no_drift():
    status = playbook("status.yml")
    assert status.code == 0, status.output
    assert "swap card 2" in status.output
    (mark,) = [host["maintenance"] for host in json.loads((OUTPUT / "status.json").read_text())["hosts"] if host["host"] == FIRST]
    assert mark["reason"] == "swap card 2"


def test_a_boot_does_not_start_what_is_out(first, ops):
    power("kill")
    power("start")
    wait_until_booted(first)
    assert first.check_output("systemctl is-active docker") == "active"
    assert not running(first)
    assert json.loads(first.file(MARK).content_string)["reason"] == "swap card 2"
    # Still a target, so that it is seen when it is back
    wait_for(lambda: up(ops) == "0")


def test_a_host_that_is_not_proven_stays_out(first):
    run = maintenance(maintenance="in", inference_check_image="gone:1")
    assert run.code == 2, run.output
    assert "image gone:1 is not" in run.output
    assert f"{FIRST} stays in maintenance, repair it and return it to service again." in run.output
    assert first.file(MARK).exists
    assert not running(first)


def test_in(first, ops):
    before = inspect(first)["Id"]
    run = maintenance(maintenance="in")
    assert run.code == 0, run.output
    assert f"{FIRST} is back in service." in run.output
    assert not first.file(MARK).exists
    assert inspect(first)["Id"] == before
    assert inspect(first)["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert ready(first)
    wait_for(lambda: up(ops) == "1")
    status = playbook("status.yml")
    assert status.code == 0, status.output
