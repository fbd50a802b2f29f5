"""A driver that has lost its cards, and one that only a reboot helps."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from conftest import LAB, NPU_HOSTS, Run, inspect, playbook
from rows import BY_INSTALLER, FACTS, ready

# The fixture `first`
pytest_plugins = ["rows"]
pytestmark = pytest.mark.skipif(BY_INSTALLER, reason="told alike whatever the driver's form")
STALE = "/run/npufleet-lab/stale"
STAYS = "/run/npufleet-lab/stale-until-reboot"


def recover(*arguments: str) -> Run:
    return playbook("recover.yml", *arguments)


def life(host: Any) -> tuple[str, str]:
    found = inspect(host)
    return found["Id"], found["State"]["StartedAt"]


def test_a_host_that_is_well_is_left_alone(first):
    before = life(first)
    run = recover()
    assert run.code == 0, run.output
    assert "no difference from the current releases, and every answer was right" in run.output
    assert set(run.changed().values()) == {0}
    assert life(first) == before


def test_a_driver_that_has_lost_its_cards_is_seen_and_loaded_anew(first):
    before = life(first)
    first.check_output("echo numbers > %s", STALE)
    status = playbook("status.yml")
    assert status.code == 2, status.output
    numbers = f"is stale: the vendor's tool numbers each of {FACTS['lab_npus']} cards 0, expected reloaded (reload)"
    assert f"driver module {numbers}" in status.output
    first.check_output("systemctl start npufleet-probe.service")
    assert "npufleet_driver_stale 1" in first.check_output("cat /var/lib/prometheus/node-exporter/npufleet.prom")
    run = recover()
    assert run.code == 0, run.output
    assert "serves again and is proven, after the step reload" in run.output
    assert not first.file(STALE).exists
    assert (life(first)[0], ready(first)) == (before[0], True)
    after = playbook("status.yml")
    assert after.code == 0, after.output


def test_what_only_a_reboot_helps_is_told_and_the_server_serves_as_it_did(first):
    first.check_output("echo none > %s; touch %s", STALE, STAYS)
    run = recover()
    assert run.code == 2, run.output
    assert f"{NPU_HOSTS[0]} needs a reboot" in " ".join(run.output.split())
    status = playbook("status.yml")
    assert status.code == 2, status.output
    assert "driver reboot is required, expected rebooted (inspect)" in " ".join(status.output.split())
    assert ready(first)


def test_a_host_that_may_be_rebooted_comes_back_serving(first):
    update = [*FACTS["lab_docker"], "update", "--restart", "{}", LAB["_meta"]["hostvars"][NPU_HOSTS[0]]["lab_container"]]

    def restarts(policy: str) -> None:
        subprocess.run([word.format(policy) for word in update], check=True, capture_output=True)

    first.check_output("echo none > %s; touch %s", STALE, STAYS)
    began = first.check_output("cut -d' ' -f22 /proc/1/stat")
    restarts("always")
    run = recover("-e", "rbln_driver_reboot=true")
    restarts("no")
    assert run.code == 0, run.output
    assert first.check_output("cut -d' ' -f22 /proc/1/stat") != began
    assert ready(first)
    status = playbook("status.yml")
    assert status.code == 0, status.output
