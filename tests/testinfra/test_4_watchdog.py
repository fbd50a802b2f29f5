"""The watchdog of a running host: a dead process, a hung one, a mark that holds it off, and a container stopped on purpose."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NPU_HOSTS, ROOT, connect, inspect, playbook
from test_3_reboot import ready, shown, wait_for

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
UNIT = "npufleet-watchdog"
STATE = "/var/lib/npufleet/watchdog.json"
HOLD = "/run/npufleet-deployment"
# Below the store, which the container sees
HANG = "/var/lib/npufleet/hang"
# Seconds instead of those that a site wants
QUICK = {"interval": 1, "stub_limit": 2, "stall_limit": 4, "backoff": 1}
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


def repository(path: Path) -> Path:
    """The model repository with a digits_guide whose `execute` does not come back while there is a file on the host."""
    shutil.copytree(ROOT / "model_repository", path)
    code = path / "digits_guide/1/model.py"
    before = "    def execute(self, requests):\n"
    assert before in code.read_text()
    code.write_text(
        code.read_text().replace(before, before + f"        while __import__('os').path.exists('{HANG}'):\n            pass\n")
    )
    return path


def changed(**variables: Any) -> list[str]:
    """Options of site.yml for the first host with a watchdog in a hurry."""
    quick = {f"triton_server_watchdog_{name}": value for name, value in QUICK.items()}
    return ["--limit", f"{FIRST},localhost", "-e", json.dumps({**quick, **variables})]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(repository(tmp_path_factory.mktemp("watchdog") / "models"))


@pytest.fixture(scope="module")
def first(models: str) -> Iterator[Any]:
    """The first host so; afterwards as the inventory has it."""
    host = connect(FIRST)
    run = playbook("site.yml", *changed(npufleet_model_repository=models))
    assert run.code == 0, run.output
    host.check_output("printf %%s %s > /run/ask.py", ASK)
    yield host
    host.check_output("rm -f /run/ask.py %s %s", HOLD, HANG)
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert playbook("status.yml").code == 0


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
    script = (
        "for p in $(pgrep --exact triton_python_b); do tr '\\0' ' ' < /proc/$p/cmdline | grep -q \" %s \" && echo $p; done; true"
    )
    return host.check_output(script % instance).split()


def signal(host, name: str, *instances: str) -> None:
    pids = [pid for instance in instances for pid in stubs(host, instance)]
    assert len(pids) == len(instances)
    host.check_output(f"kill -{name} {' '.join(pids)}")


def answers(host, model: str) -> bool:
    return host.run("python3 /run/ask.py %s 5", model).rc == 0


def test_it_is_part_of_the_plan(first):
    assert (shown(first, UNIT, "ActiveState"), shown(first, UNIT, "UnitFileState")) == ("active", "enabled")
    first.check_output("systemctl disable --now %s", UNIT)
    status = playbook("status.yml", "--limit", FIRST)
    assert status.code == 2, status.output
    assert "watchdog npufleet-watchdog.service: found" in status.output
    first.check_output("systemctl enable --now %s", UNIT)


def test_a_dead_process_is_replaced_by_a_reload_of_its_model_alone(first):
    started, neighbour = inspect(first)["State"]["StartedAt"], stubs(first, "digits_guide_0_0")
    signal(first, "KILL", "digits_0_1")
    # No probe tells
    assert ready(first)
    wait_for(lambda: len(actions(first)) == 1, 60)
    (line,) = said(first, "did:")
    assert "model digits: found no process of digits_0_1 for" in line
    assert "wanted a process of every instance, did: unloaded" in line
    assert actions(first)[0]["worked"]
    assert inspect(first)["State"]["StartedAt"] == started
    assert stubs(first, "digits_guide_0_0") == neighbour
    assert all(answers(first, "digits") for _time in range(4))
    # What it does not help is restarted
    signal(first, "KILL", "digits_0_1")
    wait_for(lambda: len(actions(first)) == 2, 120)
    assert actions(first)[1]["did"] == "restarted the container (it was reloaded a short while ago)"
    wait_for(lambda: ready(first), 60)
    wait_for(lambda: said(first, "the server answers again") != [], 30)
    assert inspect(first)["State"]["StartedAt"] != started
    assert all(answers(first, "digits") for _time in range(4))


def test_a_model_that_hangs_is_brought_back_although_every_probe_is_well(first):
    first.check_output("touch %s", HANG)
    for _request in range(8):
        first.check_output("sh -c 'setsid --fork python3 /run/ask.py digits_guide 90 > /dev/null 2>&1 < /dev/null'")
    wait_for(lambda: len(actions(first)) == 1, 120)
    (action,) = actions(first)
    assert (action["rule"], action["model"], action["worked"]) == ("stall", "digits_guide", True)
    (line,) = said(first, "did:")
    assert "requests waiting and none answered for" in line
    first.check_output("rm %s", HANG)
    wait_for(lambda: answers(first, "digits_guide") and answers(first, "digits"), 60)
    assert len(actions(first)) == 1


def test_nothing_is_done_while_a_run_changes_the_host(first):
    wait_for(lambda: ready(first), 60)
    first.check_output("touch %s", HOLD)
    wait_for(lambda: json.loads(first.check_output("cat %s", STATE))["paused"] == "deployment", 10)
    signal(first, "KILL", "digits_guide_0_0")
    deadline = time.monotonic() + 4 * (QUICK["interval"] + QUICK["stub_limit"])
    while time.monotonic() < deadline:
        assert actions(first) == []
        assert stubs(first, "digits_guide_0_0") == []
    first.check_output("rm %s", HOLD)
    wait_for(lambda: len(actions(first)) == 1, 60)
    assert answers(first, "digits_guide")


def test_a_container_stopped_on_purpose_stays_stopped_and_a_run_starts_it(first, models):
    first.check_output("docker stop triton")
    looks = time.monotonic() + 5 * QUICK["interval"]
    while time.monotonic() < looks:
        assert not inspect(first)["State"]["Running"]
    assert actions(first) == []
    run = playbook("site.yml", *changed(npufleet_model_repository=models), "--tags", "server")
    assert run.code == 0, run.output
    assert not first.file(HOLD).exists
    assert ready(first)


def test_a_run_that_fails_lets_it_go_on(first, models):
    run = playbook("site.yml", *changed(npufleet_model_repository=models, triton_server_extra_args=["--no-such-option"]))
    assert run.code == 2, run.output
    assert not first.file(HOLD).exists
    wait_for(lambda: json.loads(first.check_output("cat %s", STATE))["paused"] is None, 10)


def test_it_can_be_switched_off(first, models):
    run = playbook("site.yml", *changed(npufleet_model_repository=models, triton_server_watchdog=False))
    assert run.code == 0, run.output
    assert shown(first, UNIT, "LoadState") == "not-found"
    assert not first.file(f"/etc/systemd/system/{UNIT}.service").exists
    run = playbook("site.yml", *changed(npufleet_model_repository=models))
    assert run.code == 0, run.output
    assert shown(first, UNIT, "ActiveState") == "active"
