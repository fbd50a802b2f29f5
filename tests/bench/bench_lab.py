"""A lab of its own for a bench, and what is measured on its hosts from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/bench"
INVENTORY = ROOT / "inventories/lab"


class BenchError(Exception):
    """Why there is no figure."""


def longest(output: str) -> List[Tuple[float, str]]:
    """(seconds, task) of what `profile_tasks` lists at the end of a playbook, longest first."""
    found = re.findall(r"^(\S.*?) -{2,} *([\d.]+)s$", output, re.MULTILINE)
    return [(float(seconds), name.rpartition(" : ")[2]) for name, seconds in found]


def calls_of(journal: str) -> int:
    """How many modules were called, by what a host's journal has of sudo: each call is one command of it."""
    return sum("COMMAND=" in line and "BECOME-SUCCESS" in line for line in journal.splitlines())


class Lab:
    """The lab of a bench, which goes when it ends. `variables` are those of each playbook."""

    def __init__(self, hosts: int, variables: Mapping[str, Any]) -> None:
        self.variables = variables
        self.environment = {**os.environ, "LAB": "bench", "HOSTS": str(hosts), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        self.environment.update(ANSIBLE_CALLBACKS_ENABLED="ansible.posix.profile_tasks", PROFILE_TASKS_TASK_OUTPUT_LIMIT="6")
        self.hosts: Dict[str, Mapping[str, Any]] = {}
        self.shared: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._lab("up")
        said = json.loads(self.run([str(INVENTORY / "hosts.py")]))
        self.shared = said["all"]["vars"]
        self.hosts = {name: said["_meta"]["hostvars"][name] for name in said["npu_hosts"]["hosts"]}
        return self

    def __exit__(self, *_why: object) -> None:
        self._lab("down")

    def _lab(self, command: str) -> None:
        self.run([sys.executable, str(ROOT / "lab/lab.py"), command])

    def run(self, command: Sequence[str]) -> str:
        """Output of a command that has to succeed."""
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def playbook(self, name: str, *options: str) -> Tuple[float, List[Tuple[float, str]]]:
        """(seconds that a playbook takes, as its operator sees it, its longest tasks)."""
        command = ["ansible-playbook", "-i", str(INVENTORY), str(ROOT / "playbooks" / name)]
        began = time.monotonic()
        output = self.run([*command, "-e", json.dumps(self.variables), *options])
        return time.monotonic() - began, longest(output)

    def inside(self, host: str, *command: str) -> str:
        """Output of a command on a host, as root, through the engine under the lab."""
        return self.run([*self.shared["lab_docker"], "exec", self.hosts[host]["lab_container"], *command])

    def everywhere(self, *command: str) -> float:
        """Seconds of a command on all hosts at once."""
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: self.inside(host, *command), self.hosts))
        return time.monotonic() - began

    @staticmethod
    def now() -> str:
        """The clock of the hosts, which is one, as their journal takes it."""
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())

    def calls(self, since: str) -> int:
        """How many modules were called on a host since then, on the one with most."""
        return max(
            calls_of(self.inside(host, "journalctl", "--since", since, "--output", "cat", "_COMM=sudo")) for host in self.hosts
        )

    def ssh_options(self) -> str:
        """What ssh needs to reach the hosts, for a shell."""
        return f"-i {self.shared['ansible_ssh_private_key_file']} {self.shared['ansible_ssh_common_args']}"
