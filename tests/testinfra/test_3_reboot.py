"""A host that starts again: cards before engine before container, serving by itself; and a start on cards that are taken."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from datetime import datetime

import pytest
import testinfra
from conftest import (
    LAB,
    LEASE,
    NPU_HOSTS,
    OUTPUT,
    ROWS,
    ask,
    connect,
    containers,
    inspect,
    lose_power,
    page,
    playbook,
    playbook_process,
)

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
REPLACEMENT = "/var/lib/npufleet/replacement.json"
# The steps of the change that is under way
STEPS = "/var/lib/npufleet/change.steps"
CARDS = "/etc/npufleet-lab/cards.json"
# Two seconds instead of two minutes for cards that do not come
IMPATIENT = "/etc/systemd/system/npufleet-cards.service.d/test.conf"


@pytest.fixture(scope="module")
def first():
    return connect(FIRST)


def power(action: str, *options: str) -> None:
    """Restart, or kill and start, the container that is the host."""
    container = LAB["_meta"]["hostvars"][FIRST]["lab_container"]
    subprocess.run([*LAB["all"]["vars"]["lab_docker"], action, *options, container], check=True, capture_output=True)


def wait_for(condition: Callable[[], bool], seconds: float = 600) -> None:
    """Ten minutes at most, unless told otherwise: only what never comes takes so long, however slow the machine is."""
    deadline, pause = time.monotonic() + seconds, 0.2
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {condition}"
        time.sleep(pause)
        # Each look takes the processor from what is waited for
        pause = min(1.1 * pause, 1.0)


def wait_until_booted(host: testinfra.host.Host) -> None:
    wait_for(lambda: host.run("test -S /run/systemd/private").rc == 0)
    host.run("systemctl is-system-running --wait")


def ready(host: testinfra.host.Host) -> bool:
    """Whether the server answers, with every model READY."""
    try:
        index = ask(host, "/v2/repository/index", "POST")
    except AssertionError:
        return False
    return len(index) == 2 and {model.get("state") for model in index} == {"READY"}


def shown(host: testinfra.host.Host, unit: str, name: str) -> str:
    return host.check_output("systemctl show %s --property %s --value", unit, name)


def up(ops: testinfra.host.Host) -> str:
    """Prometheus' last word on the first host's server."""
    answer = json.loads(page(ops, 9090, "/api/v1/query?query=up"))["data"]["result"]
    return next(entry["value"][1] for entry in answer if entry["metric"].get("host") == FIRST)


@pytest.fixture
def missing_card(first):
    """The second NPU gone at the next boot, and a unit that does not wait long for it; undone by the boot after that."""
    before = first.file(CARDS).content_string
    faulty = {**json.loads(before), "faults": [{"kind": "missing", "npu": 1}]}
    first.check_output("printf %%s %s > %s", json.dumps(faulty), CARDS)
    first.check_output("mkdir -p $(dirname %s) && printf '[Service]\\nEnvironment=TIMEOUT=2\\n' > %s", IMPATIENT, IMPATIENT)
    yield
    first.check_output("printf %%s %s > %s", before, CARDS)
    first.check_output("rm -r $(dirname %s)", IMPATIENT)


def test_the_unit_waits_for_a_card_that_comes_late(first):
    first.check_output("mv /dev/rbln1 /dev/late")
    try:
        first.check_output("systemctl restart --no-block npufleet-cards")
        wait_for(lambda: shown(first, "npufleet-cards", "ActiveState") == "activating")
    finally:
        first.check_output("mv /dev/late /dev/rbln1")
    wait_for(lambda: shown(first, "npufleet-cards", "ActiveState") == "active")


def test_a_boot_without_a_card_is_named_and_the_engine_comes_up_all_the_same(first, missing_card):
    power("restart")
    wait_until_booted(first)
    assert shown(first, "npufleet-cards", "ActiveState") == "failed"
    journal = first.check_output("journalctl --boot --unit npufleet-cards --output cat")
    assert "after 2 s: found 1 of 2 NPUs (/dev/rbln0), /dev/rsd0 there: see dmesg" in journal
    assert shown(first, "docker", "ActiveState") == "active"
    # On the card that is left
    wait_for(lambda: ready(first))
    status = playbook("status.yml")
    assert status.code == 2, status.output
    report = {host["host"]: host["report"] for host in json.loads((OUTPUT / "status.json").read_text())["hosts"]}
    assert any("driver /dev/rbln*" in line for line in report[FIRST]), report


def test_a_host_that_lost_its_power_comes_back_serving(first, ops):
    before = inspect(first)["Id"]
    power("kill")
    power("start")
    wait_until_booted(first)
    wait_for(lambda: ready(first))
    assert inspect(first)["Id"] == before
    cards, engine = (int(shown(first, unit, "ActiveEnterTimestampMonotonic")) for unit in ("npufleet-cards", "docker"))
    started = int(shown(first, "docker", "ExecMainStartTimestampMonotonic"))
    assert 0 < cards <= started <= engine
    # The container: by the wall clock, as the engine tells it, like the timestamp of the unit
    awaited = int(first.check_output('date --date="$(systemctl show npufleet-cards -p ActiveEnterTimestamp --value)" +%s'))
    container = inspect(first)["State"]["StartedAt"][:19] + "+00:00"
    assert datetime.fromisoformat(container).timestamp() >= awaited
    wait_for(lambda: up(ops) == "1")
    status = playbook("status.yml")
    assert status.code == 0, status.output


@pytest.fixture
def holder(first):
    """A process of somebody else that has the first card open; its number."""
    pid = first.check_output("sh -c 'exec sleep 3600 < /dev/rbln0 > /dev/null 2>&1 & echo $!'")
    wait_for(lambda: "/dev/rbln0" in first.run("readlink /proc/%s/fd/0", pid).stdout)
    yield pid
    first.run("kill %s", pid)


def test_a_start_on_a_card_that_is_taken_is_refused_before_anything_changes(first, holder):
    before = inspect(first)["State"]["StartedAt"]
    run = playbook("site.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=1")
    assert run.code == 2, run.output
    assert f"{FIRST}: the cards are not free" in run.output
    assert f"rbln0 held by sleep (pid {holder}): end it (`kill {holder}`)" in run.output
    assert inspect(first)["State"]["StartedAt"] == before
    assert ready(first)


def test_a_driver_is_not_changed_below_somebody_elses_process(first, holder):
    row = ROWS[LAB["all"]["vars"]["lab_release"]]
    other = {**row, "driver": {**row["driver"], "version": "1.2.92"}}
    rows = {LAB["all"]["vars"]["lab_release"]: other}
    run = playbook("site.yml", "--limit", FIRST, "-e", json.dumps({"npufleet_extra_releases": rows}))
    assert run.code == 2, run.output
    assert f"rbln0 held by sleep (pid {holder}): end it (`kill {holder}`)" in run.output
    assert run.changed() == {FIRST: 0}
    assert first.package("rebellions").version == "1.1.67"
    assert ready(first)


def test_a_start_waits_until_the_cards_are_free(first, holder):
    first.check_output("docker kill triton")
    # However long the run takes to come to it: the cards get free when the change waits for them, and not before.
    waits = f'until grep -q "wait for the cards" {STEPS}; do sleep 0.2; done'
    first.check_output(f"rm -f {STEPS}")
    first.check_output(f"sh -c '({waits}; kill {holder}) > /dev/null 2>&1 &'")
    run = playbook("site.yml", "--limit", FIRST)
    assert run.code == 0, run.output
    assert first.run("kill -0 %s", holder).rc != 0, "the server was started while the card was taken"
    assert ready(first)


def test_a_host_that_loses_its_power_in_a_replacement_serves_again_by_itself(first):
    """The controller is gone with it: what was proven last comes back at boot, and the next run finds nothing left over."""
    before = inspect(first)["Id"]
    run = playbook_process("site.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=1")
    wait_for(lambda: first.file(REPLACEMENT).exists or run.poll() is not None)
    assert run.poll() is None, "the run was over before the replacement began"
    power("kill")
    lose_power(run)
    power("start")
    wait_until_booted(first)
    wait_for(lambda: ready(first))
    wait_for(lambda: not first.file(LEASE).exists)
    assert inspect(first)["Id"] == before
    assert not first.file(REPLACEMENT).exists
    assert containers(first) == ["triton"]
    status = playbook("status.yml", "--limit", FIRST)
    assert status.code == 0, status.output


def test_a_replacement_whose_controller_is_gone_is_finished_by_the_host(first):
    """It proves the new container and takes the old one away; the next run has only the lease of the dead one to release."""
    before = inspect(first)["Id"]
    run = playbook_process("site.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=1")
    wait_for(lambda: first.run("grep swapped %s", REPLACEMENT).rc == 0 or run.poll() is not None)
    assert run.poll() is None, "the run was over before the replacement began"
    lose_power(run)
    wait_for(lambda: not first.file(REPLACEMENT).exists)
    assert inspect(first)["Id"] != before
    assert containers(first) == ["triton"]
    assert ready(first)
    proven = inspect(first)["State"]["StartedAt"]
    status = playbook("status.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=1")
    assert status.code == 2, status.output
    assert "server lease is held by " in status.output
    again = playbook("site.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=1")
    assert again.code == 0, again.output
    assert inspect(first)["State"]["StartedAt"] == proven
    assert not first.file(LEASE).exists


def test_a_container_that_restarts_in_a_loop_is_replaced(first):
    image = inspect(first)["Image"]
    first.check_output("docker rm --force triton")
    first.check_output("docker run --detach --name triton --restart unless-stopped --entrypoint sh %s -c 'exit 3'", image)
    wait_for(lambda: inspect(first)["State"]["Status"] == "restarting")
    run = playbook("site.yml", "--limit", FIRST)
    assert run.code == 0, run.output
    assert ready(first)
    assert containers(first) == ["triton"]


def test_two_runs_at_once_take_turns(first):
    """The second one waits for the first, by name, or is refused by it; and only whoever put something back says so."""
    entry = playbook_process("site.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=1")
    wait_for(lambda: first.file(LEASE).exists or entry.poll() is not None)
    other = playbook("site.yml", "--limit", FIRST, "-e", "triton_server_log_verbose=2", "-e", "npufleet_lease_wait=0")
    assert other.code == 2, other.output
    assert "another run is changing this host: " in other.output
    assert "serves again" not in other.output
    assert entry.wait() == 0
    assert "--log-verbose=1" in inspect(first)["Config"]["Cmd"]
    assert containers(first) == ["triton"]
    back = playbook("site.yml", "--limit", FIRST)
    assert back.code == 0, back.output
