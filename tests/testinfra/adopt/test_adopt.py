"""A container that hands started, as the vendor's guide says, becomes a managed one: answers go on, and are the same."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import conftest
import pytest
import yaml
from conftest import INVENTORY, NPU_HOSTS, ROOT, ask, connect, containers, events, inspect, now, playbook, well
from test_3_reboot import wait_for

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
# A copy of the inventory, as deep, for adopt.yml to write into: other scenarios read the lab's own meanwhile
SITE = ROOT / "build/adopting"
HOST_VARS = SITE / "host_vars" / f"{FIRST}.yml"
ONLY = ["--limit", FIRST]
REPOSITORY = "/opt/tritonserver/python_backend/examples/rbln"
PLACE = "/home/guide/python_backend/examples/rbln/resnet50"
SERVER = f"tritonserver --model-repository {REPOSITORY}"
# The guide's command, but for the terminal that is watched, and the card that the stand-in SDK has to be told of
GUIDE = (
    "docker run --detach --privileged --shm-size=1g --ulimit memlock=-1 "
    "-v /home/guide/python_backend:/opt/tritonserver/python_backend "
    "-p 8000:8000 -p 8001:8001 -p 8002:8002 --ulimit stack=67108864 -ti --env RBLN_LAB_NPU_NAME=RBLN-CA12 "
)
IMAGE = "docker images -q npufleet/triton"
# In the guide's form for two devices: what a restart loads is then what the managed server loads
CONFIG = """
name: "resnet50"
backend: "python"
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] } ]
instance_group [ { count: 2 kind: KIND_MODEL } ]
max_batch_size: 1
"""
# One request every 50 ms, each on a connection of its own: a line of time and answer for each that was answered
CLIENT = """
import hashlib, json, os, time, urllib.request
body = json.dumps({"inputs": [{"name": "INPUT__0", "shape": [1, 64], "datatype": "FP32", "data": [n % 17 for n in range(64)]}]})
url = "http://127.0.0.1:8000/v2/models/resnet50/infer"
with open("/run/client.log", "w") as log:
    while not os.path.exists("/run/client.stop"):
        began = time.monotonic()
        try:
            answer = json.loads(urllib.request.urlopen(url, body.encode(), timeout=30).read())["outputs"][0]["data"]
            print(time.monotonic(), hashlib.sha256(json.dumps(answer).encode()).hexdigest(), file=log, flush=True)
        except (OSError, ValueError):
            pass
        time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))
"""


class Client:
    """The client beside the server: starts with the block, and knows afterwards what it was answered."""

    def __init__(self, host) -> None:
        self.host = host
        self.answers: set[str] = set()
        self.pause = 0.0

    def __enter__(self) -> Client:
        self.host.check_output("rm -f /run/client.stop /run/client.log")
        self.host.check_output("printf %%s %s > /run/client.py", CLIENT)
        self.host.check_output("setsid --fork python3 /run/client.py > /run/client.err 2>&1 < /dev/null")
        self.wait(5)
        return self

    def lines(self) -> list[str]:
        return self.host.run("cat /run/client.log").stdout.splitlines()

    def wait(self, more: int) -> None:
        """Until it has been answered this many times more."""
        wanted, deadline = len(self.lines()) + more, time.monotonic() + 600
        while len(self.lines()) < wanted:
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.1)

    def __exit__(self, *_reason: object) -> None:
        self.wait(5)
        self.host.check_output("touch /run/client.stop")
        lines = [line.split() for line in self.lines()]
        times = [float(when) for when, _digest in lines]
        self.answers = {digest for _when, digest in lines}
        self.pause = max(later - earlier for earlier, later in zip(times, times[1:], strict=False))


READY = "/v2/models/resnet50/ready"


def wait_until_ready(host) -> None:
    wait_for(lambda: well(host, READY))


def serve(host, name: str) -> None:
    """The guide's last step: the server is started inside the container that runs a shell."""

    def served() -> bool:
        if well(host, READY):
            return True
        # On a slow machine a stub may miss Triton's time limit for its start, which ends the server: hands start it again
        if host.run("pgrep --exact tritonserver").rc:
            host.check_output(f"docker exec --detach {name} {SERVER}")
        return False

    wait_for(served)


def clear(host) -> None:
    """No container is left on the host."""
    host.run("docker rm --force $(docker ps --all --quiet)")


def by_hand(host, options: str = "", command: str = "bash") -> str:
    """Start a container as the guide does, in the place of the managed one. Returns its name."""
    clear(host)
    container = host.check_output(f"{GUIDE} {options} {host.check_output(IMAGE)} {command}")
    if command == "bash":
        serve(host, container)
    wait_until_ready(host)
    return inspect(host, container)["Name"].lstrip("/")


@pytest.fixture(scope="module", autouse=True)
def site() -> Iterator[None]:
    """Playbooks read the copy."""
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(INVENTORY, SITE)
    # What is answered here lies apart from what other scenarios are answered meanwhile, and from the inventory
    with (SITE / "group_vars/all.yml").open("a") as sink:
        sink.write('\ninference_check_results_dir: "{{ inventory_dir }}-check"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest, "INVENTORY", SITE)
        yield


@pytest.fixture(scope="module")
def host() -> Iterator:
    """The first host with the guide's directory on it; afterwards it is as the inventory has it."""
    host = connect(FIRST)
    run = playbook("site.yml")
    assert run.code == 0, run.output
    guide = "/var/lib/npufleet/served/digits_guide/1"
    host.check_output(f"mkdir -p {PLACE}/1")
    host.check_output(f"cp --dereference {guide}/model.rbln {PLACE}/1/resnet50.rbln")
    host.check_output(f'sed \'s/"model.rbln"/args["model_name"] + ".rbln"/\' {guide}/model.py > {PLACE}/1/model.py')
    host.check_output("printf %%s %s > %s", CONFIG, f"{PLACE}/config.pbtxt")
    # Large enough to travel in pieces
    host.check_output(f"head --bytes 3000000 /dev/urandom > {PLACE}/1/weights.bin")
    yield host
    HOST_VARS.unlink(missing_ok=True)
    clear(host)
    host.check_output("rm -rf /home/guide /run/client.*")
    run = playbook("site.yml")
    assert run.code == 0, run.output
    again = playbook("site.yml")
    assert (again.code, set(again.changed().values())) == (0, {0}), again.output


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where models and checks are kept; the inventory has no variables of the host before and after."""
    HOST_VARS.unlink(missing_ok=True)
    yield tmp_path / "adopted"
    HOST_VARS.unlink(missing_ok=True)


def adopt(*options: str):
    return playbook("adopt.yml", *ONLY, *options)


def written(place: Path) -> list[str]:
    return ["-e", "adopt_write=true", "-e", f"adopt_dest={place}"]


def test_a_look_changes_nothing_and_says_everything(host, place):
    name = by_hand(host)
    before = inspect(host, name)
    run = adopt()
    assert run.code == 0, run.output
    assert run.changed() == {FIRST: 0}
    assert inspect(host, name)["State"]["StartedAt"] == before["State"]["StartedAt"]
    assert not HOST_VARS.exists()
    for words in (name, "started_manually: true", "1/resnet50.rbln", "container.command", "obstacles: []"):
        assert words in run.output, run.output
    assert ask(host, "/v2/models/resnet50/config")["instance_group"][0]["count"] == 2


def test_models_in_the_containers_own_layer_are_read_too(host, place):
    name = by_hand(host)
    host.check_output(f"docker exec {name} cp --recursive {REPOSITORY} /models")
    host.check_output("pkill --signal INT --exact tritonserver")
    host.check_output("timeout 600 sh -c 'while pgrep --exact tritonserver; do sleep 0.05; done'")
    host.check_output(f"docker exec --detach --workdir / {name} tritonserver --model-repository models")
    wait_until_ready(host)
    run = adopt(*written(place))
    assert run.code == 0, run.output
    model = place / FIRST / "models/resnet50"
    assert sorted(str(path.relative_to(model)) for path in model.rglob("*.*")) == ["1/model.py", "1/weights.bin", "config.pbtxt"]
    digest = hashlib.sha256((model / "1/weights.bin").read_bytes()).hexdigest()
    assert host.check_output(f"sha256sum {PLACE}/1/weights.bin").split()[0] == digest


def test_the_guides_container_is_adopted_within_one_restart(host, place):
    name = by_hand(host)
    with Client(host) as restart:
        # As hands do it: Ctrl-C, and the same command again. The engine's restart would not tell the server, but kill it.
        host.check_output("pkill --signal INT --exact tritonserver")
        host.check_output("timeout 600 sh -c 'while pgrep --exact tritonserver; do sleep 0.05; done'")
        serve(host, name)
    since = now(host)
    with Client(host) as adoption:
        run = adopt(*written(place), "-e", "adopt_replace=true")
    assert run.code == 0, run.output
    print(f"restart by hand {restart.pause:.1f} s, adoption {adoption.pause:.1f} s")
    # Nobody waits for more than the old server's end and the new one's start: what takes time lies before.
    trail = [(what, container) for what, container in events(host, since) if container.startswith("triton")]
    # It has the managed one's name by then
    ended, started = trail.index(("die", "triton")), trail.index(("start", "triton"))
    assert ("create", "triton-next") in trail[:ended]
    assert {what for what, _name in trail[ended + 1 : started]} <= {"rename", "kill", "stop", "exec_die"}, trail
    assert adoption.answers == restart.answers
    assert len(adoption.answers) == 1
    assert containers(host) == ["triton"]
    assert "tritonserver" in inspect(host)["Config"]["Cmd"]
    assert yaml.safe_load(HOST_VARS.read_text())["triton_models"][0]["name"] == "resnet50"
    second = playbook("site.yml")
    assert second.code == 0, second.output
    assert set(second.changed().values()) == {0}, second.output
    third = adopt()
    assert "is managed already" in third.output, third.output


def test_a_server_that_is_its_containers_command_is_adopted_with_the_same_answers(host, place):
    assert by_hand(host, "--name serving", SERVER) == "serving"
    with Client(host) as adoption:
        run = adopt(*written(place), "-e", "adopt_replace=true")
    assert run.code == 0, run.output
    assert len(adoption.answers) == 1
    assert containers(host) == ["serving"]


def test_a_container_that_does_not_serve_gives_way_to_the_hand_made_one(host, place):
    name = by_hand(host)
    before = inspect(host, name)["Id"]
    with Client(host) as client:
        run = adopt(*written(place), "-e", "adopt_replace=true", "-e", '{"triton_server_extra_args": ["--no-such-option"]}')
        wait_until_ready(host)
    assert run.code == 2, run.output
    assert "the previous server serves again" in run.output
    assert "was not adopted" in run.output
    assert containers(host) == [name]
    assert inspect(host, name)["Id"] == before
    assert len(client.answers) == 1


def test_other_answers_bring_the_hand_made_container_back(host, place):
    name = by_hand(host, "--name byhand")
    run = adopt(*written(place))
    assert run.code == 0, run.output
    model = place / FIRST / "models/resnet50/1/model.py"
    model.write_text(model.read_text().replace("self.runtime.run(image)", "self.runtime.run(image) * 2"))
    with Client(host) as client:
        run = adopt("-e", "adopt_replace=true")
        wait_until_ready(host)
    assert run.code == 2, run.output
    assert "resnet50/http/as before adoption" in run.output
    assert "values are off" in run.output
    assert containers(host) == [name]
    # What was served for a moment was the new one; what is served again is the old.
    assert len(client.answers) == 2
    second = adopt()
    assert second.code == 0, second.output
    assert "started_manually: true" in second.output


def test_what_could_not_be_undone_is_refused(host, place):
    name = by_hand(host, "--rm")
    started = inspect(host, name)["State"]["StartedAt"]
    run = adopt(*written(place), "-e", "adopt_replace=true")
    assert run.code == 2, run.output
    assert "--rm" in run.output
    assert inspect(host, name)["State"]["StartedAt"] == started
    again = adopt(*written(place))
    assert again.code == 2, again.output
    assert "exists already" in again.output


def test_models_that_the_inventory_does_not_have_are_not_dropped(host, place):
    name = by_hand(host)
    run = adopt("-e", "adopt_replace=true")
    assert run.code == 2, run.output
    assert "would no longer serve" in run.output
    assert "resnet50" in run.output
    assert containers(host) == [name]


def test_of_two_containers_one_has_to_be_named(host, place):
    by_hand(host, "--name one")
    host.check_output("docker run --detach -ti --name two " + host.check_output(IMAGE) + " bash")
    host.check_output("docker exec --detach two tritonserver --model-repository /tmp")
    wait_for(lambda: host.run("docker top two | grep tritonserver").rc == 0)
    run = adopt()
    assert run.code == 2, run.output
    assert "more than one container: one, two" in run.output
    assert adopt("-e", "adopt_container=one").code == 0
