#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_process
short_description: Run tritonserver in the container in which Ansible runs
description:
  - Use this module if the host is itself a Triton container, such as a session of Backend.AI. The module needs no container engine,
    systemd or ssh. It needs root if no other user can open the device nodes of the cards.
  - A small supervisor process restarts the server if it ends. Log, process ID and start parameters are in C(run/) below O(root).
  - A change is kept if the server serves the releases and the checks pass. Otherwise the previous state is restored.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
  - npufleet.triton.project.writer
options:
  state:
    description:
      - V(planned) returns the plan and all reasons against it, without changes.
      - V(started) creates the releases, starts the server with them, and proves it.
      - V(stopped) ends server and supervisor.
    type: str
    choices: [planned, started, stopped]
    default: started
"""

EXAMPLES = r"""
- name: Start the server
  npufleet.triton.triton_process:
    root: "{{ npufleet_root }}"
"""

RETURN = r"""
plan:
  description: Differences from the desired state, in the form of M(npufleet.triton.host_state).
  returned: O(state=planned), O(state=started)
  type: list
  elements: dict
report:
  description: The plan as sentences.
  returned: O(state=planned), O(state=started)
  type: list
  elements: str
lacks:
  description: Required packages (with their versions) that the Python of the server lacks.
  returned: O(state=planned)
  type: list
  elements: str
missing:
  description: Digests of the blobs (large files of the models) that the store in the container lacks.
  returned: O(state=planned)
  type: list
  elements: str
refusals:
  description: Reasons why this container cannot serve, such as a missing program or an occupied port.
  returned: O(state=planned)
  type: list
  elements: str
python:
  description: Path of the container's own Python interpreter.
  returned: O(state=planned)
  type: str
did:
  description: The completed steps, as texts.
  returned: O(state=started), O(state=stopped)
  type: list
  elements: str
back:
  description: Text about what was restored after the change was not proven.
  returned: O(state=started), failure
  type: str
checks:
  description: The results of the checks, in the form of M(npufleet.triton.inference_check).
  returned: O(state=started)
  type: list
  elements: dict
"""

import os
import shutil
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import failures, request
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.change.drivers import ProcessDriver
from ansible_collections.npufleet.triton.plugins.module_utils.change.host_change import EXPECTED, HostChange, Outcome
from ansible_collections.npufleet.triton.plugins.module_utils.change.proof import Observation
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.process import conditions, state, supervised

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["planned", "started", "stopped"], "default": "started"},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
REQUEST = {
    **request.HOLDER_OPTIONS,
    # The desired releases and server, which plugins/action/triton_process.py builds from the inventory
    "order": {"type": "dict"},
    "api_key": {"type": "str", "no_log": True, "default": ""},
}
# Fields of a change (drivers.Order) that only hosts with an engine use
UNUSED_FIELDS: Dict[str, Any] = {
    "id": "",
    "store_change": None,
    "serve_current": False,
    "manual_server": {},
    "rollback_reason": "",
    "acceptance_timeout": 0,
    "keep_unanswered": False,
    "release_host": False,
}
# Seconds to wait for the end of another change
WAIT_SECONDS = 60.0
# Seconds after which another run can take over the lease of a change that was killed
LEASE_SECONDS = 5.0


class LocalServer:
    """The server of one project directory, and its change by this run."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        names = ("root", "run", "by", "host")
        self.root: str = params["root"]
        self.order: Dict[str, Any] = {**UNUSED_FIELDS, **(params["order"] or {}), **{name: params[name] for name in names}}
        self.key = params["api_key"]
        self.holder = lease.Holder(params["run"], params["by"])

    def change(self) -> HostChange:
        """Return the change to the desired state of the inventory."""
        return HostChange(self.order, ProcessDriver(self.order, self.key))  # type: ignore[arg-type]

    @contextmanager
    def with_lease(self) -> Iterator[None]:
        """Hold the lease of the project directory during a `with` block. Raises LeaseError."""
        os.makedirs(self.root, exist_ok=True)
        lease.acquire(self.root, self.holder, LEASE_SECONDS, {}, WAIT_SECONDS, watchdog=False)
        try:
            with lease.working(self.root, self.holder):
                yield
        finally:
            lease.release(self.root, self.holder)

    def apply(self) -> Outcome:
        """Complete or roll back an interrupted change, then make this change. Raises LeaseError if another run has the lease."""
        with self.with_lease():
            did: List[str] = []
            if replacement.interrupted(self.root):
                restore = ProcessDriver(self.order, self.key).restore  # type: ignore[arg-type]
                report = replacement.recover(self.root, self.holder, restore, lambda error: failures.reason(error, EXPECTED))
                did.append(f"a replacement of the server was interrupted: {report or 'there was no server before'}")
            observation = self.change().observe()
            missing = (observation.actual.get("models") or {}).get("missing", [])
            incoming = copy_blobs(self.root, missing, self.order["blobs"])
            self.order["store_change"] = release_change(observation.plan, self.order, incoming)
            outcome = self.change().run()
            return outcome._replace(did=[*did, *outcome.did])


def copy_blobs(root: str, missing: List[str], blobs: Mapping[str, str]) -> str:
    """Copy the files of missing blobs into the directory of incoming files. Return that directory."""
    incoming = os.path.join(root, "incoming")
    os.makedirs(incoming, exist_ok=True)
    for digest in missing:
        shutil.copyfile(blobs[digest], os.path.join(incoming, digest))
    return incoming


def release_change(plan: List[Item], order: Mapping[str, Any], incoming: str) -> Dict[str, Any]:
    """Return the parameters of releases.apply for the releases and withdrawals in a plan."""
    names = {action: [entry["name"] for entry in plan if entry["action"] == action] for action in ("release", "withdraw")}
    releases = {name: order["releases"][name] for name in names["release"]}
    return {"state": "released", "releases": releases, "withdraw": names["withdraw"], "incoming": incoming}


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    root, host, server = params["root"], params["host"], LocalServer(params)
    try:
        if params["state"] == "stopped":
            stopped = supervised.holder(root) is not None
            if stopped and not module.check_mode:
                with server.with_lease():
                    supervised.stop(root)
            module.exit_json(changed=stopped, did=["stopped the server"] if stopped and not module.check_mode else [])
        if not params["order"]:
            module.fail_json(msg="triton_process starts on the controller. Call it as npufleet.triton.triton_process.")
        required = server.order["conditions"]
        # Without the program tritonserver, there is no state to compare. `refusals` reports the missing program.
        has_program = params["state"] == "started" or conditions.tritonserver()
        observation = server.change().observe() if has_program else Observation({}, [], {})
        result: Dict[str, Any] = {"plan": observation.plan, "report": [sentence(entry) for entry in observation.plan]}
        if params["state"] == "planned":
            for warning in conditions.warnings(required):
                module.warn(f"{host}: {warning}")
            lacks, unreadable = conditions.missing_packages(state.python_path(root), required["requirements"])
            module.exit_json(
                changed=False,
                missing=(observation.actual.get("models") or {}).get("missing", []),
                refusals=[*conditions.refusals(required, root, supervised.holder(root) is not None), *unreadable],
                lacks=lacks,
                python=conditions.own_python(),
                **result,
            )
        if module.check_mode or not observation.plan:
            module.exit_json(changed=bool(observation.plan), did=[], checks=[], **result)
        outcome = server.apply()
    except (supervised.ProcessError, lease.LeaseError, OSError) as error:
        module.fail_json(msg=f"{host}: {error}")
    for warning in outcome.warnings:
        module.warn(f"{host}: {warning}")
    result.update(did=outcome.did, checks=list(outcome.checks))
    if outcome.why is not None:
        module.fail_json(msg=f"{host}: {outcome.why}; {outcome.back}", back=outcome.back, **result)
    module.exit_json(changed=True, **result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
