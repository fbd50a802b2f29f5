"""Helpers that run the real playbooks on simulated hosts: a scenario provides the results of all modules (connection/played.py)."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import ROOT, ansible_playbook

# With the serial in VARIABLES, the batches are npu-1, then npu-2 and npu-3, then npu-4.
HOSTS = ["npu-1", "npu-2", "npu-3", "npu-4"]
# Calls of every plan and of every host change: they read the host, and take and release its lease.
READING = (
    "host_state preflight",
    "host_state",
    "host_state traffic",
    "host_state models server traffic",
    "host_state driver engine models server traffic",
    "host_lease",
    "host_lease released",
)
VARIABLES = {
    "ansible_connection": "played",
    "ansible_become": False,
    "ansible_python_interpreter": sys.executable,
    "rbln_release": "25.08",
    "npufleet_npus": 1,
    "npufleet_card": "RBLN-CA22",
    "npufleet_rollout_serial": [1, 2, "100%"],
    "triton_models": [{"name": "add"}],
    "inference_check_image": "sha256:1",
    # No host of the scenario builds the image
    "npufleet_build_host": "elsewhere",
}


def differs(concern: str, action: str = "change", **more: Any) -> dict[str, Any]:
    """Return an item of a plan. `until` in `more` is a pattern of a call, after which the item is no longer in the plan."""
    return {"concern": concern, "name": concern, "current": "old", "desired": "new", "action": action, **more}


MODEL = [differs("models", "release", name="add", until="server_change")]
STOPPED = [differs("server", "start", name="container", until="server_change")]
# {playbook of a fleet: (options, plan of each host)}. With these, the playbook does its work. Tests of all playbooks use them.
PLAYBOOKS: dict[str, tuple[tuple[str, ...], list[dict[str, Any]]]] = {
    "adopt.yml": (("-e", "adopt_replace=true"), []),
    "check.yml": ((), []),
    "collect.yml": ((), []),
    "compile.yml": ((), []),
    "compose.yml": ((), []),
    "history.yml": ((), []),
    "lint_models.yml": ((), []),
    "maintenance.yml": (("-e", "maintenance=out", "-e", "maintenance_reason=x", "--limit", "npu_hosts"), []),
    "models.yml": ((), MODEL),
    "preflight.yml": ((), []),
    "recover.yml": ((), STOPPED),
    "rollback.yml": (("-e", "rollback_to=previous"), MODEL),
    "site.yml": ((), MODEL),
    "status.yml": ((), []),
    "teardown.yml": ((), []),
    "upgrade.yml": (("-e", "upgrade_to=26.07-sdk0.9", "-e", "upgrade_confirm=true"), MODEL),
}
# Playbooks that call no host of a fleet
LOCAL = {"in_container.yml", "report.yml"}


@dataclass
class Run:
    """The result of a run of ansible-playbook, with the recorded calls of modules, each as `host module words`."""

    code: int
    output: str
    calls: list[str]

    @property
    def words(self) -> str:
        """The output in one line, because Ansible breaks messages into several lines."""
        return " ".join(self.output.split())

    def calls_on(self, host: str) -> list[str]:
        """Return the calls on a host without those in READING and those in check mode."""
        own = [call.partition(" ")[2] for call in self.calls if call.startswith(host + " ")]
        return [call for call in own if call not in READING and not call.endswith(" check_mode")]

    def touched(self) -> list[str]:
        """Return the hosts with other calls than those in READING."""
        return [host for host in HOSTS if self.calls_on(host)]

    def recap(self, host: str) -> dict[str, int]:
        """Return the counts of a host in the recap of Ansible."""
        (line,) = re.findall(rf"^{host} +: (.*)$", self.output, re.MULTILINE)
        return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", line)}


def run(
    directory: Path,
    playbook: str,
    scenario: dict[str, Any],
    *options: str,
    group: str = "npu_hosts",
    by_name: str = "",
    installed: Path | None = None,
    balancers: tuple[str, ...] = (),
    monitoring: tuple[str, ...] = (),
    **variables: Any,
) -> Run:
    """Run a playbook of this checkout on the hosts of a scenario, and return the result. Files of the run are in `directory`.

    The scenario is {host: fields}; connection/played.py describes the fields. The hosts are in the inventory group `group`, except
    the hosts in `balancers` (load balancers that have all hosts of the group as servers) and in `monitoring` (monitoring hosts).
    With `by_name`, the playbook is called by this name in the collection. `installed` is a directory of collections: with it, the
    run belongs to another project in `directory`, which has neither the settings of this checkout nor a group of monitoring hosts.
    `variables` are variables of the inventory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "calls").write_text("")
    (directory / "scenario.json").write_text(json.dumps(scenario))
    host_variables = {
        **VARIABLES,
        "npufleet_lock_file": str(directory / "lock.json"),
        "npufleet_output_dir": str(directory),
        **variables,
    }
    fleet = [host for host in scenario if host not in (*balancers, *monitoring)]
    inventory: dict[str, Any] = {group: {"hosts": {host: {} for host in fleet}, "vars": host_variables}}
    inventory.update(
        {"load_balancer_hosts": {"hosts": {name: {} for name in balancers}, "vars": host_variables}} if balancers else {}
    )
    inventory.update(
        {} if installed else {"monitoring_hosts": {"hosts": {name: {} for name in monitoring}, "vars": host_variables}}
    )
    (directory / "hosts.json").write_text(json.dumps(inventory))
    plugins = {"ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"), "NPUFLEET_STAGE": str(directory)}
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(installed or ROOT / "collections")}
    if installed:
        (directory / "ansible.cfg").touch()
        settings["ANSIBLE_CONFIG"] = str(directory / "ansible.cfg")
    arguments = ["-i", directory / "hosts.json", by_name or ROOT / "playbooks" / playbook, *options]
    done = ansible_playbook(directory, *arguments, cwd=directory if installed else ROOT, **plugins, **settings)
    return Run(done.returncode, done.stdout + done.stderr, (directory / "calls").read_text().splitlines())
