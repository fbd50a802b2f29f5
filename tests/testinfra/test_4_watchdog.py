"""The watchdog of a running host: a dead process, a mark that holds it off, and a container stopped on purpose.

A model that hangs is in models/test_faults.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import LEASE, NPU_HOSTS, connect, hold, inspect, playbook
from test_3_reboot import ready, shown, wait_for

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
UNIT = "npufleet-watchdog"
STATE = "/var/lib/npufleet/watchdog.json"
STUB = "/opt/tritonserver/backends/python/triton_python_backend_stub"
PROBE = "npufleet-probe.timer"
# Seconds instead of those that a site wants
QUICK = {"interval": 1, "process_timeout": 2, "backoff": 1}
ASK = """
import json, sys, urllib.request as u
url = "http://127.0.0.1:8000/v2/models/" + sys.argv[1]
one = json.load(u.urlopen(url))["inputs"][0]
shape = [1, *one["shape"][1:]]
count = 1
for size in shape:
    count *= size
body = {"inputs": [{"name": one["name"], "shape": shape, "datatype": one["datatype"], "data": [0] * count}]}
print(len(u.urlopen(url + "/infer", json.dumps(body).encode(), timeout=float(sys.argv[2])).read()))
"""


# Options of site.yml for the first host with a watchdog in a hurry
HURRY = [
    "--limit",
    f"{FIRST},localhost",
    "-e",
    json.dumps({f"triton_server_watchdog_{name}": value for name, value in QUICK.items()}),
]


@pytest.fixture(scope="module")
def first() -> Iterator[Any]:
    """The first host so, without its probe: Triton 24.01 starts a dead process anew for the next request, of whomever.

    Afterwards as the inventory has it.
    """
    host = connect(FIRST)
    run = playbook("site.yml", *HURRY)
    assert run.code == 0, run.output
    host.check_output("printf %%s %s > /run/ask.py", ASK)
    host.check_output("systemctl stop %s", PROBE)
    wait_for(lambda: shown(host, "npufleet-probe.service", "ActiveState") in ("inactive", "failed"))
    yield host
    host.check_output("rm -f /run/ask.py %s", LEASE)
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert playbook("status.yml").code == 0
    assert shown(host, UNIT, "ActiveState") == "active"


@pytest.fixture(autouse=True)
def forgotten(first) -> None:
    """Nothing was done yet in this hour."""
    first.check_output("systemctl stop %s && rm -f %s && systemctl start %s", UNIT, STATE, UNIT)


def actions(host) -> list[dict[str, Any]]:
    return json.loads(host.check_output("cat %s", STATE))["actions"]


def said(host, words: str) -> list[str]:
    """The lines with these words since the service was last started."""
    invocation = shown(host, UNIT, "InvocationID")
    lines = host.check_output("journalctl --output cat _SYSTEMD_INVOCATION_ID=%s", invocation).splitlines()
    return [line for line in lines if words in line]


def stubs(host, instance: str) -> list[str]:
    """Processes of an instance."""
    return host.run("pgrep --full %s", f"^{STUB} .* {instance}( |$)").stdout.split()


def signal(host, name: str, *instances: str) -> None:
    pids = [pid for instance in instances for pid in stubs(host, instance)]
    assert len(pids) == len(instances)
    host.check_output(f"kill -{name} {' '.join(pids)}")


def answers(host, model: str) -> bool:
    return host.run("python3 /run/ask.py %s 60", model).rc == 0


def test_it_is_part_of_the_plan(first):
    assert (shown(first, UNIT, "ActiveState"), shown(first, UNIT, "UnitFileState")) == ("active", "enabled")
    first.check_output("systemctl disable --now %s", UNIT)
    status = playbook("status.yml", "--limit", FIRST)
    assert status.code == 2, status.output
    assert "watchdog npufleet-watchdog.service is " in status.output
    first.check_output("systemctl enable --now %s", UNIT)


def test_a_dead_process_is_replaced_by_a_reload_of_its_model_alone(first):
    started, neighbour = inspect(first)["State"]["StartedAt"], stubs(first, "digits_guide_0_0")
    signal(first, "KILL", "digits_0_1")
    # No probe tells
    assert ready(first)
    wait_for(lambda: len(actions(first)) == 1)
    (line,) = said(first, "Action:")
    assert "model digits: no process of digits_0_1 for" in line
    assert "expected a process of every instance. Action: unloaded" in line
    assert actions(first)[0]["worked"]
    assert inspect(first)["State"]["StartedAt"] == started
    assert stubs(first, "digits_guide_0_0") == neighbour
    assert all(answers(first, "digits") for _time in range(4))
    # What it does not help is restarted
    signal(first, "KILL", "digits_0_1")
    wait_for(lambda: len(actions(first)) == 2)
    assert actions(first)[1]["did"] == "restarted the container (the model was reloaded a short while ago)"
    wait_for(lambda: ready(first))
    wait_for(lambda: said(first, "the server answers again") != [])
    assert inspect(first)["State"]["StartedAt"] != started
    assert all(answers(first, "digits") for _time in range(4))


def test_nothing_is_done_while_a_run_changes_the_host(first):
    wait_for(lambda: ready(first))
    hold(first)
    try:
        wait_for(lambda: json.loads(first.check_output("cat %s", STATE))["paused"] == "deployment")
        signal(first, "KILL", "digits_guide_0_0")
        # Where the cores are busy, it ends when its turn comes
        wait_for(lambda: stubs(first, "digits_guide_0_0") == [])
        deadline = time.monotonic() + 4 * (QUICK["interval"] + QUICK["process_timeout"])
        while time.monotonic() < deadline:
            assert actions(first) == []
            assert stubs(first, "digits_guide_0_0") == []
    finally:
        first.check_output("rm %s", LEASE)
    wait_for(lambda: len(actions(first)) == 1)
    assert answers(first, "digits_guide")


def test_a_container_stopped_on_purpose_stays_stopped_until_a_run(first):
    first.check_output("docker stop triton")
    looks = time.monotonic() + 5 * QUICK["interval"]
    while time.monotonic() < looks:
        assert not inspect(first)["State"]["Running"]
    assert actions(first) == []
    run = playbook("site.yml", *HURRY)
    assert run.code == 0, run.output
    assert ready(first)
    assert not first.file(LEASE).exists
