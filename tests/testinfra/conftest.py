"""The running lab as testinfra hosts, and a way to run the playbooks on it."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import testinfra.host
import yaml
from testinfra.backend.base import BaseBackend, CommandResult

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventories/lab"
# What tests share: where it asserts, it says why
pytest.register_assert_rewrite("fleet", "rows")
# For the project's own ways to ask an engine, and what it sees in a container
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine  # noqa: E402


def _inventory() -> dict:
    done = subprocess.run([str(INVENTORY / "hosts.py")], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


LAB = _inventory()
# Release rows of the lab, by name
ROWS = yaml.safe_load((INVENTORY / "group_vars/all.yml").read_text())["npufleet_extra_releases"]
NPU_HOSTS = LAB.get("npu_hosts", {}).get("hosts", [])
CACHE = Path(LAB["all"]["vars"]["lab_cache"]) if "all" in LAB else Path()
# What playbooks leave of this lab
OUTPUT = Path(LAB["all"]["vars"]["npufleet_output_dir"]) if "all" in LAB else Path()


class Namespaces(BaseBackend):
    """A host of the lab by the namespaces of its first process, as root.

    `docker exec` takes ten times as long, and tests that wait ask often.
    """

    NAME = "namespaces"
    ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root"

    def __init__(self, container: str) -> None:
        super().__init__(container)
        engine = shlex.join(LAB["all"]["vars"]["lab_docker"])
        self.container = container
        self.find = engine + " inspect --format '{{.State.Pid}}' " + container
        # Numbers of processes come again, the time of their start does not
        self.pid, self.since = 0, ""

    def run(self, command: str, *args: str, **_options: Any) -> CommandResult:
        asked = self.get_command(command, *args)
        if not self.process():
            return self.result(1, self.encode(asked), b"", f"{self.container} is not running".encode())
        enter = f"nsenter --target {self.pid} --all env -i {self.ENVIRONMENT} /bin/sh -c %s"
        result = self.run_local(enter, asked)
        result.command = self.encode(asked)
        return result

    def process(self) -> int:
        """The number of its first process; 0 where it does not run."""
        if not self.pid or started(self.pid) != self.since:
            self.pid = int(self.run_local(self.find).stdout or 0)
            self.since = started(self.pid)
        return self.pid


def started(pid: int) -> str:
    """When a process was started, in ticks of this machine; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


@cache
def connect(name: str) -> testinfra.host.Host:
    """A host as root by way of the machine under it: quicker than ssh and sudo, which the playbooks prove."""
    return testinfra.host.Host(Namespaces(LAB["_meta"]["hostvars"][name]["lab_container"]))


@pytest.fixture(scope="session", params=NPU_HOSTS)
def npu(request: pytest.FixtureRequest) -> testinfra.host.Host:
    """Each NPU host in turn."""
    host = connect(request.param)
    host.inventory_name = request.param
    return host


@pytest.fixture(scope="session")
def ops() -> testinfra.host.Host:
    """The operations host: artefacts and Prometheus."""
    return connect("ops1")


@pytest.fixture(scope="session")
def lock() -> dict:
    """What the image lock of this lab pins for its release."""
    return json.loads((CACHE / "npufleet.lock.json").read_text())[LAB["all"]["vars"]["lab_release"]]


class Run:
    """One playbook run: exit code, output, and the recap by host."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output
        self.recap = {
            found[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", found[2])}
            for found in re.finditer(r"^(\S+)\s+: (ok=.*)$", output, re.MULTILINE)
        }

    def changed(self) -> dict[str, int]:
        """Changed tasks by host."""
        return {host: counts["changed"] for host, counts in self.recap.items()}


def command_of(name: str, *arguments: str) -> list[str]:
    """A playbook of the project on the lab."""
    return ["ansible-playbook", "-i", str(INVENTORY), str(ROOT / "playbooks" / name), *arguments]


def environment() -> dict[str, str]:
    """Molecule asks for colours, which would hide the recap from the tests."""
    given = {name: value for name, value in os.environ.items() if name != "ANSIBLE_FORCE_COLOR"}
    return {**given, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}


def playbook_process(name: str, *arguments: str, output: Path | None = None) -> subprocess.Popen[str]:
    """Start a run in a process group of its own, without a terminal. `output` is the file for its output."""
    # Ansible does not flush what it prints, so a file would get its output in blocks.
    unbuffered = {"PYTHONUNBUFFERED": "1"} if output else {}
    with open(output or os.devnull, "w") as sink:
        return subprocess.Popen(
            command_of(name, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(), **unbuffered},
            cwd=ROOT,
            start_new_session=True,
        )


def lose_power(process: subprocess.Popen[str]) -> None:
    """Kill a run with all of its workers, which have process groups of their own."""
    family = [process.pid]
    for pid in family:
        # Stopped before its children are counted, it has no more of them.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        family += map(int, subprocess.run(["pgrep", "--parent", str(pid)], capture_output=True, text=True).stdout.split())
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def playbook(name: str, *arguments: str) -> Run:
    """Run a playbook to its end."""
    done = subprocess.run(command_of(name, *arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    return Run(done.returncode, done.stdout + done.stderr)


# Of whoever changes a host (plugins/module_utils/change/lease.py)
LEASE = "/var/lib/npufleet/lease.json"
HELD = """
import json, time
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
started = open("/proc/1/stat").read().rpartition(")")[2].split()[19]
lease = {"run": "elsewhere/1/1", "by": "somebody@elsewhere", "since": "2026-01-01T00:00:00Z", "boot": boot + "/" + started}
lease.update(renewed=time.time(), patience=3600, maintenance=False, container={})
open("/var/lib/npufleet/lease.json", "w").write(json.dumps(lease))
"""


def hold(host: testinfra.host.Host) -> None:
    """A run of somebody else has the host, and made its last call just now."""
    host.check_output("python3 -c %s", HELD)


def engine(host: testinfra.host.Host) -> Engine:
    """The host's, by its socket: the client of Docker takes ten times as long."""
    return Engine(f"/proc/{host.backend.process()}/root/run/docker.sock", timeout=60)


def inspect(host: testinfra.host.Host, name: str = "triton") -> dict:
    """What `docker inspect` says of a container."""
    found = engine(host).get(f"/containers/{name}/json")
    assert found is not None, f"{host.backend.container} has no container {name}"
    return found


def containers(host: testinfra.host.Host) -> list[str]:
    """The names of the containers that stay, running or not: the probe's comes and goes with each look."""
    names = [name.removeprefix("/") for container in engine(host).get("/containers/json?all=1") for name in container["Names"]]
    return sorted(name for name in names if name != "npufleet-probe")


def now(host: testinfra.host.Host) -> str:
    """The host's clock, as `events` takes it."""
    return host.check_output("date +%s.%N")


def events(host: testinfra.host.Host, since: str) -> list[tuple[str, str]]:
    """(what, name of the container) of all that the engine did since then, in order."""
    line = "{{.Action}} {{.Actor.Attributes.name}}"
    found = host.check_output("docker events --since %s --until %s --filter type=container --format %s", since, now(host), line)
    return [(what, name) for what, _space, name in (entry.rpartition(" ") for entry in found.splitlines())]


KEY = "/etc/npufleet/server/key"
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


def page(host: testinfra.host.Host, port: int, resource: str, method: str = "GET", headers: dict[str, str] | None = None) -> str:
    """What a server of the host answers on the host itself; AssertionError where it does not, or not with success.

    By a thread in the host's network: a Python of its own takes a tenth of a second there, and tests that wait ask often.
    """
    process = host.backend.process()
    assert process, f"{host.backend.container} is not running"

    def exchange() -> tuple[int, str]:
        with open(f"/proc/{process}/ns/net") as network:
            if LIBC.setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, resource, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    try:
        # Its network is the thread's own, which ends with this
        with ThreadPoolExecutor(1) as beside:
            status, text = beside.submit(exchange).result()
    except (OSError, http.client.HTTPException) as error:
        raise AssertionError(f"{method} {resource} of {host.backend.container}:{port}: {error!r}") from error
    assert status < 400, f"{method} {resource} of {host.backend.container}:{port}: {status}\n{text}"
    return text


def ask(host: testinfra.host.Host, resource: str, method: str = "GET") -> dict | list:
    """One JSON answer of the host's Triton, which is sent the host's key."""
    try:
        key = Path(f"/proc/{host.backend.process()}/root{KEY}").read_text().strip()
    except OSError as error:
        raise AssertionError(f"{host.backend.container} has no {KEY}: {error!r}") from error
    return json.loads(page(host, 8000, resource, method, {"npufleet-key": key}))


def well(host: testinfra.host.Host, resource: str = "/v2/health/ready") -> bool:
    """Whether the host's Triton says so."""
    try:
        page(host, 8000, resource)
    except AssertionError:
        return False
    return True
