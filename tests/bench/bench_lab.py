"""A separate lab for a bench, and measurements of its hosts from outside."""

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
    """A reason why a bench has no result."""


def longest(output: str) -> List[Tuple[float, str]]:
    """Return (seconds, task) of the tasks that `profile_tasks` lists at the end of a playbook, longest first."""
    entries = re.findall(r"^(\S.*?) -{2,} *([\d.]+)s$", output, re.MULTILINE)
    return [(float(seconds), name.rpartition(" : ")[2]) for name, seconds in entries]


def calls_of(journal: str) -> int:
    """Return the number of module calls on a host. Its journal has an entry of sudo for each call."""
    return sum("COMMAND=" in line and "BECOME-SUCCESS" in line for line in journal.splitlines())


class Lab:
    """The lab of a bench, which is removed at the end of the block. `variables` are extra variables of each playbook."""

    def __init__(self, hosts: int, variables: Mapping[str, Any]) -> None:
        self.variables = variables
        self.environment = {**os.environ, "LAB": "bench", "HOSTS": str(hosts), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        self.environment.update(ANSIBLE_CALLBACKS_ENABLED="ansible.posix.profile_tasks", PROFILE_TASKS_TASK_OUTPUT_LIMIT="6")
        self.hosts: Dict[str, Mapping[str, Any]] = {}
        self.shared: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._lab("up")
        inventory = json.loads(self.run([str(INVENTORY / "hosts.py")]))
        self.shared = inventory["all"]["vars"]
        self.hosts = {name: inventory["_meta"]["hostvars"][name] for name in inventory["npu_hosts"]["hosts"]}
        return self

    def __exit__(self, *_why: object) -> None:
        self._lab("down")

    def _lab(self, command: str) -> None:
        self.run([sys.executable, str(ROOT / "lab/lab.py"), command])

    def run(self, command: Sequence[str]) -> str:
        """Return the output of a command. Raises BenchError if the command fails."""
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def playbook(self, name: str, *options: str) -> Tuple[float, List[Tuple[float, str]]]:
        """Run a playbook. Return (its seconds, including the start of Ansible, and its longest tasks)."""
        command = ["ansible-playbook", "-i", str(INVENTORY), str(ROOT / "playbooks" / name)]
        began = time.monotonic()
        output = self.run([*command, "-e", json.dumps(self.variables), *options])
        return time.monotonic() - began, longest(output)

    def inside(self, host: str, *command: str) -> str:
        """Return the output of a command on a host. The lab's engine runs the command as root."""
        return self.run([*self.shared["lab_docker"], "exec", self.hosts[host]["lab_container"], *command])

    def everywhere(self, *command: str) -> float:
        """Return the seconds that a command takes on all hosts at once."""
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: self.inside(host, *command), self.hosts))
        return time.monotonic() - began

    @staticmethod
    def now() -> str:
        """Return the time of the hosts, which share a clock, in the form of `journalctl --since`."""
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())

    def calls(self, since: str) -> int:
        """Return the number of module calls since a time, on the host with the most calls."""
        return max(
            calls_of(self.inside(host, "journalctl", "--since", since, "--output", "cat", "_COMM=sudo")) for host in self.hosts
        )

    def ssh_options(self) -> str:
        """Return the options with which ssh reaches the hosts, as text for a shell."""
        return f"-i {self.shared['ansible_ssh_private_key_file']} {self.shared['ansible_ssh_common_args']}"
