"""A connection to a simulated host, which answers each call of a module at once.

Ansible, playbooks, roles and actions are the real ones. No process runs for a host, so a run shows what the controller needs. The
file `fleet.json` in the directory NPUFLEET_SIMULATION has `actual` (the state) and `plan` of all hosts, and `bad`, which is {host:
unreachable, broken, drift or refused}.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: simulated
short_description: A host of a benchmark
description: Answers for the modules that would run on the host.
author: The npufleet developers (@npufleet)
options: {}
"""

import json
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DIRECTORY = Path(os.environ["NPUFLEET_SIMULATION"])
# The main process reads the file once and forks the processes of the hosts.
FLEET: dict[str, Any] = json.loads((DIRECTORY / "fleet.json").read_text())
DRIFT = [
    {"concern": "server", "name": "container.ulimits", "current": "33554432", "desired": "67108864", "action": "replace"},
    {"concern": "models", "name": "digits", "current": "nothing", "desired": "0001-04b87ec34adc", "action": "release"},
]
CHANGED = {
    "changed": True,
    "proven": True,
    "moves": {"digits": {"from": "0001-a", "to": "0002-b"}},
    "did": [],
    "checks": [],
    "under_way": False,
    "released": True,
}
LEASE = {"changed": False, "taken": True, "taken_over": None, "settled": None, "maintenance": None, "released": True, "fresh": True}


@cache
def actual_state() -> str:
    """Return the actual state of a host as JSON. All hosts share this text, because encoding it takes longer than a call."""
    return json.dumps(FLEET["actual"])


def host_state(host: str, bad: str | None, parameters: dict[str, Any]) -> str:
    """Return the result of the module host_state as JSON."""
    if bad == "broken":
        return json.dumps({"failed": True, "msg": f"{host}: the driver answers no query within 60 s. See dmesg."})
    plan = DRIFT if bad == "drift" else FLEET["plan"]
    refusals = ["2 cards are missing, expected 2 of 2: see lspci -d 1eff:"] if bad == "refused" else []
    now = time.time()
    rest = {
        "changed": False,
        "plan": plan,
        "report": ["{concern} {name}: is {current}, expected {desired}".format(**item) for item in plan],
        "maintenance": None,
        "held": {},
        "clock": now,
        "seen": {"at": now, "after": "", "linked": False},
        "refusals": refusals,
    }
    return f'{json.dumps(rest)[:-1]}, "actual": {actual_state()}}}'


def answer(host: str, source: str) -> str:
    """Return the result of the module whose source Ansible sends."""
    bad = FLEET["bad"].get(host)
    if bad == "unreachable":
        raise AnsibleConnectionFailure(f"ssh: connect to host {host} port 22: No route to host")
    # library_call contains its arguments as such a text. Any other module is Ansible's ping.
    arguments = re.search(r'^ *text = r"""(.*)"""$', source, re.MULTILINE)
    if arguments is None:
        return json.dumps({"changed": False, "ping": "pong"})
    call = json.loads(arguments[1])
    if call["module"] == "host_state":
        return host_state(host, bad, call["parameters"])
    return json.dumps({"host_lease": LEASE, "server_change": CHANGED}.get(call["module"], {"changed": False}))


class Connection(ConnectionBase):
    """A connection without a process: it reads which module Ansible sends, and returns an answer."""

    transport = "simulated"
    has_pipelining = True
    always_pipeline_modules = True

    def _connect(self) -> Connection:
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        if not in_data:
            raise AssertionError(f"unexpected command for a simulated host: {cmd}")
        return 0, answer(self._play_context.remote_addr, in_data.decode()).encode(), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        raise AssertionError(f"unexpected file for a simulated host: {out_path}")

    def fetch_file(self, in_path: str, out_path: str) -> None:
        raise AssertionError(f"unexpected file of a simulated host: {in_path}")

    def close(self) -> None:
        pass
