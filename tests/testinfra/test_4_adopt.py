"""A container that hands started, as the vendor's guide says, becomes a managed one: answers go on, and are the same."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import INVENTORY, NPU_HOSTS, ask, connect, inspect, playbook

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
HOST_VARS = INVENTORY / "host_vars" / f"{FIRST}.yml"
ONLY = ["--limit", FIRST]
REPOSITORY = "/opt/tritonserver/python_backend/examples/rbln"
SERVER = f"tritonserver --model-repository {REPOSITORY}"
# The guide's command, but for the terminal that is watched, and the card that the stand-in SDK has to be told of
GUIDE = (
    "docker run --detach --privileged --shm-size=1g --ulimit memlock=-1 -v /home/guide/python_backend:/opt/tritonserver/python_backend "
    "-p 8000:8000 -p 8001:8001 -p 8002:8002 --ulimit stack=67108864 -ti --env RBLN_LAB_NPU_NAME=RBLN-CA12 "
)
CONFIG = """
name: "resnet50"
backend: "python"
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] } ]
instance_group [ { count: 1 kind: KIND_MODEL } ]
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
            answer = json.loads(urllib.request.urlopen(url, body.encode(), timeout=2).read())["outputs"][0]["data"]
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
        wanted, deadline = len(self.lines()) + more, time.monotonic() + 60
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


def serve(host, name: str) -> None:
    """The guide's last step: the server is started inside the container that runs a shell."""
    host.check_output(f"docker exec --detach {name} {SERVER}")
    deadline = time.monotonic() + 60
    while host.run("python3 -c \"import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/models/resnet50/ready')\"").rc:
        assert time.monotonic() < deadline, host.run(f"docker logs {name}").stdout
        time.sleep(0.2)


def by_hand(host, options: str = "", command: str = "bash") -> str:
    """Start a container as the guide does, in the place of the managed one. Returns its name."""
    image = inspect(host)["Image"] if host.run("docker inspect triton").rc == 0 else host.check_output("docker images -q npufleet/triton")
    names = host.check_output("docker ps --all --format '{{.Names}}'").split()
    host.run("docker rm --force " + " ".join(names))
    container = host.check_output(f"{GUIDE} {options} {image} {command}")
    if command == "bash":
        serve(host, container)
    else:
        deadline = time.monotonic() + 60
        while "READY" not in host.run("curl --silent --request POST http://127.0.0.1:8000/v2/repository/index").stdout:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    return inspect(host, container)["Name"].lstrip("/")


@pytest.fixture(scope="module")
def host() -> Iterator:
    """The first host with the guide's directory on it; afterwards it is as the inventory has it."""
    host = connect(FIRST)
    place = "/home/guide/python_backend/examples/rbln/resnet50"
    guide = "/var/lib/npufleet/served/digits_guide/1"
    host.check_output(f"mkdir -p {place}/1")
    host.check_output(f"cp --dereference {guide}/model.rbln {place}/1/resnet50.rbln")
    host.check_output(f"sed 's/\"model.rbln\"/args[\"model_name\"] + \".rbln\"/' {guide}/model.py > {place}/1/model.py")
    host.check_output("printf %%s %s > %s", CONFIG, f"{place}/config.pbtxt")
    yield host
    HOST_VARS.unlink(missing_ok=True)
    names = host.check_output("docker ps --all --format '{{.Names}}'").split()
    host.run("docker rm --force " + " ".join(names))
    host.check_output("rm -rf /home/guide /run/client.*")
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert playbook("status.yml").code == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where models and checks are kept; the inventory has no variables of the host before and after."""
    HOST_VARS.unlink(missing_ok=True)
    yield tmp_path / "adopted"
    HOST_VARS.unlink(missing_ok=True)
    if HOST_VARS.parent.is_dir() and not list(HOST_VARS.parent.iterdir()):
        HOST_VARS.parent.rmdir()


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
    for words in (name, "started_by_hand_inside: true", "1/resnet50.rbln", "container.command", "obstacles: []"):
        assert words in run.output, run.output
    assert ask(host, "/v2/models/resnet50/config")["instance_group"][0]["count"] == 1


def test_the_guides_container_is_adopted_within_one_restart(host, place):
    name = by_hand(host)
    with Client(host) as restart:
        host.check_output(f"docker restart {name}")
        serve(host, name)
    with Client(host) as adoption:
        run = adopt(*written(place), "-e", "adopt_replace=true")
    assert run.code == 0, run.output
    print(f"restart by hand {restart.pause:.1f} s, adoption {adoption.pause:.1f} s")
    assert adoption.pause <= restart.pause
    assert adoption.answers == restart.answers
    assert len(adoption.answers) == 1
    assert host.check_output("docker ps --all --format '{{.Names}}'") == "triton"
    assert inspect(host)["Config"]["Cmd"][0] == "tritonserver"
    assert yaml.safe_load(HOST_VARS.read_text())["triton_models"][0]["name"] == "resnet50"
    second = playbook("site.yml")
    assert second.code == 0, second.output
    assert set(second.changed().values()) == {0}, second.output
    assert "is managed already" in adopt().output


def test_a_server_that_is_its_containers_command_is_adopted_within_one_restart(host, place):
    assert by_hand(host, "--name serving", SERVER) == "serving"
    with Client(host) as restart:
        host.check_output("docker restart serving")
    with Client(host) as adoption:
        run = adopt(*written(place), "-e", "adopt_replace=true")
    assert run.code == 0, run.output
    print(f"docker restart {restart.pause:.1f} s, adoption {adoption.pause:.1f} s")
    # Between stop and start lie a rename, and the making of a container that a restart does not have to make.
    assert adoption.pause <= 1.3 * restart.pause
    assert adoption.answers == restart.answers
    assert host.check_output("docker ps --all --format '{{.Names}}'") == "serving"
