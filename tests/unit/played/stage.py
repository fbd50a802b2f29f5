"""Runs the real playbooks on hosts that are played (connection/played.py)."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import ROOT, ansible_playbook

# In batches of one, of two, and of what is left
HOSTS = ["npu-1", "npu-2", "npu-3", "npu-4"]
# What a plan and a turn read of a host, and that a turn holds it
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
    # Nobody builds: the image is there, or is not asked for
    "npufleet_build_host": "elsewhere",
}


def differs(concern: str, action: str = "change", **more: Any) -> dict[str, Any]:
    """One item of a plan."""
    return {"concern": concern, "name": concern, "current": "old", "desired": "new", "action": action, **more}


MODEL = [differs("models", "release", name="add", until="server_change")]
STOPPED = [differs("server", "start", name="container", until="server_change")]
# Each playbook of a fleet, with options and a plan with which it does its work. Tests of all playbooks run these.
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
# Playbooks that query no host of a fleet
LOCAL = {"in_container.yml", "report.yml"}


@dataclass
class Run:
    """What a run of ansible-playbook came to."""

    code: int
    output: str
    calls: list[str]

    @property
    def words(self) -> str:
        """The output in one line, as messages are broken into several."""
        return " ".join(self.output.split())

    def of(self, host: str) -> list[str]:
        """What was called on a host, apart from what a plan or a turn reads."""
        mine = [call.partition(" ")[2] for call in self.calls if call.startswith(host + " ")]
        return [call for call in mine if call not in READING and not call.endswith(" looking")]

    def touched(self) -> list[str]:
        """The hosts at which more was done than to read their plan or their mark."""
        return [host for host in HOSTS if self.of(host)]

    def recap(self, host: str) -> dict[str, int]:
        """A host's line of the recap."""
        (line,) = re.findall(rf"^{host} +: (.*)$", self.output, re.MULTILINE)
        return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", line)}


def run(
    place: Path,
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
    """Return one run of a playbook of this checkout on the hosts of a scenario, which are in a group of this name.

    `by_name` is the name of the playbook in the collection. With `installed`, a directory of collections, the run is that of a
    project in `place`, which has neither the settings of this checkout nor a group of monitoring hosts. `balancers` are the
    names of load balancers, which have all hosts of the group as servers, and `monitoring` those of monitoring hosts.
    """
    place.mkdir(parents=True, exist_ok=True)
    (place / "calls").write_text("")
    (place / "scenario.json").write_text(json.dumps(scenario))
    given = {
        **VARIABLES,
        "npufleet_lock_file": str(place / "lock.json"),
        "npufleet_output_dir": str(place),
        **variables,
    }
    fleet = [host for host in scenario if host not in (*balancers, *monitoring)]
    inventory: dict[str, Any] = {group: {"hosts": {host: {} for host in fleet}, "vars": given}}
    inventory.update({"load_balancer_hosts": {"hosts": {name: {} for name in balancers}, "vars": given}} if balancers else {})
    inventory.update({} if installed else {"monitoring_hosts": {"hosts": {name: {} for name in monitoring}, "vars": given}})
    (place / "hosts.json").write_text(json.dumps(inventory))
    plugins = {"ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"), "NPUFLEET_STAGE": str(place)}
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(installed or ROOT / "collections")}
    if installed:
        (place / "ansible.cfg").touch()
        settings["ANSIBLE_CONFIG"] = str(place / "ansible.cfg")
    arguments = ["-i", place / "hosts.json", by_name or ROOT / "playbooks" / playbook, *options]
    done = ansible_playbook(place, *arguments, cwd=place if installed else ROOT, **plugins, **settings)
    return Run(done.returncode, done.stdout + done.stderr, (place / "calls").read_text().splitlines())
