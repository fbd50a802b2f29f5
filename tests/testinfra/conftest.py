"""The running lab as testinfra hosts, and a way to run the playbooks on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest
import testinfra
import yaml
from testinfra.backend.base import BaseBackend, CommandResult

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventories/lab"
# What tests share: where it asserts, it says why
pytest.register_assert_rewrite("fleet", "rows")
# For what the project itself sees in a container
sys.path.insert(0, str(ROOT / "collections"))


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
        if not self.pid or started(self.pid) != self.since:
            self.pid = int(self.run_local(self.find).stdout or 0)
            self.since = started(self.pid)
        if not self.pid:
            return self.result(1, self.encode(asked), b"", f"{self.container} is not running".encode())
        enter = f"nsenter --target {self.pid} --all env -i {self.ENVIRONMENT} /bin/sh -c %s"
        result = self.run_local(enter, asked)
        result.command = self.encode(asked)
        return result


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


def playbook_process(name: str, *arguments: str) -> subprocess.Popen[str]:
    """A run in a process group of its own."""
    return subprocess.Popen(
        command_of(name, *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
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
    """A whole run. It is a fork of a process that has Ansible's imports; the scenarios' own runs are the program itself."""
    given = environment()
    # The run of one host needs no process for it; several are at a task together
    request = {
        "arguments": command_of(name, *arguments)[1:],
        "environment": given,
        "directory": str(ROOT),
        "alone": len(NPU_HOSTS) == 1,
    }
    code, output, errors = forked.ask(forked.settled(given), request)
    return Run(code, (output + errors).decode())


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


def inspect(host: testinfra.host.Host, name: str = "triton") -> dict:
    """`docker inspect` of a container."""
    return json.loads(host.check_output("docker inspect %s", name))[0]


def containers(host: testinfra.host.Host) -> list[str]:
    """The names of the containers that stay, running or not: the probe's comes and goes with each look."""
    names = host.check_output("docker ps --all --format '{{.Names}}'").split()
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


def ask(host: testinfra.host.Host, resource: str, method: str = "GET") -> dict | list:
    """One JSON answer of the host's Triton, which is sent the host's key."""
    script = (
        f"import sys, urllib.request as u; key = {{'npufleet-key': open('{KEY}').read().strip()}}; "
        "print(u.urlopen(u.Request('http://127.0.0.1:8000' + sys.argv[1], method=sys.argv[2], headers=key)).read().decode())"
    )
    return json.loads(host.check_output("python3 -c %s %s %s", script, resource, method))
