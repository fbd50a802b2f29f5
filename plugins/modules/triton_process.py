#!/usr/bin/python
"""Module triton_process: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_process
short_description: Run the tritonserver of the container in which Ansible runs
description:
  - For a Triton container such as a session of Backend.AI, without an engine, systemd, ssh, and without root if the devices
    need none. Server and models use the same variables as on hosts.
  - A small supervisor restarts the server when it ends. Its log, process ID and start parameters are in C(run/) of the project's
    directory.
  - A change is proven by reading the releases back and by the checks. Otherwise it is rolled back.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description:
      - V(looked) changes nothing. It returns the plan and all reasons against it.
      - V(started) creates the releases, starts the server with them, and proves it.
      - V(stopped) ends server and supervisor.
    type: str
    choices: [looked, started, stopped]
    default: started
attributes:
  check_mode:
    support: full
    description: Reads, and reports whether there would be a change.
"""

EXAMPLES = r"""
- name: Read the plan and the reasons against it
  npufleet.triton.triton_process:
    state: looked
    root: "{{ npufleet_root }}"

- name: Start the server
  npufleet.triton.triton_process:
    root: "{{ npufleet_root }}"
"""

RETURN = r"""
plan:
  description: Differences from the desired state, in the form of M(npufleet.triton.host_state).
  returned: O(state=looked), O(state=started)
  type: list
  elements: dict
report:
  description: The plan as sentences.
  returned: O(state=looked), O(state=started)
  type: list
  elements: str
lacks:
  description: Requirements that the Python of the server does not meet.
  returned: O(state=looked)
  type: list
  elements: str
python:
  description: Path of the Python of the container.
  returned: O(state=looked)
  type: str
did:
  description: The steps that were done, as texts.
  returned: O(state=started), O(state=stopped)
  type: list
  elements: str
back:
  description: What was restored because the change was not proven.
  returned: O(state=started), failure
  type: str
checks:
  description: The results of the checks, in the form of M(npufleet.triton.inference_check).
  returned: O(state=started)
  type: list
  elements: dict
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.plan import sentence
from ansible_collections.npufleet.triton.plugins.module_utils.process import change, conditions, supervised

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["looked", "started", "stopped"], "default": "started"},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
REQUEST = {
    **request.HOLDER,
    # What is wanted of store, server and process; see plugins/action/triton_process.py
    "order": {"type": "dict"},
    "api_key": {"type": "str", "no_log": True, "default": ""},
}


def look(root: str, server: change.Server, wanted: Dict[str, Any]) -> Dict[str, Any]:
    """What would be done, and what stands in its way."""
    runs = supervised.holder(root) is not None
    refusals = conditions.refusals(wanted, root, runs)
    _seen, plan = server.look() if conditions.tritonserver() else ({}, [])
    return {
        "plan": plan,
        "report": [sentence(entry) for entry in plan],
        "missing": _seen.get("missing", []),
        "refusals": refusals,
        "lacks": conditions.python(change.python_path(root), wanted["requirements"])[1],
        "python": conditions.own_python(),
    }


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    root, host = params["root"], params["host"]
    try:
        if params["state"] == "stopped":
            runs = supervised.holder(root) is not None
            stopped = runs and (module.check_mode or supervised.stop(root))
            module.exit_json(changed=stopped, did=["stopped the server"] if stopped and not module.check_mode else [])
        if not params["order"]:
            module.fail_json(
                msg="triton_process computes what is wanted on the controller: call it as npufleet.triton.triton_process"
            )
        order = {**params["order"], "run": params["run"], "by": params["by"], "host": host, "api_key": params["api_key"]}
        server = change.Server(root, order)
        if params["state"] == "looked":
            for warning in conditions.warnings(order["conditions"]):
                module.warn(f"{host}: {warning}")
            module.exit_json(changed=False, **look(root, server, order["conditions"]))
        _seen, plan = server.look()
        report = [sentence(entry) for entry in plan]
        if module.check_mode or not plan:
            module.exit_json(changed=bool(plan), plan=plan, report=report, did=[], checks=[])
        outcome = server.change()
    except (supervised.ProcessError, OSError) as error:
        module.fail_json(msg=f"{host}: {error}")
    result = {"plan": plan, "report": report, "did": outcome.did, "checks": list(outcome.checks)}
    if outcome.why is not None:
        module.fail_json(msg=f"{host}: {outcome.why}; {outcome.back}", back=outcome.back, **result)
    module.exit_json(changed=True, **result)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
