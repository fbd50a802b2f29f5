#!/usr/bin/python
"""Module triton_process: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_process
short_description: Serve with the tritonserver of the container that Ansible runs in
description:
  - For a ready Triton container, such as a session of Backend.AI, in which there is no engine, no systemd and no ssh, and no root
    where the devices need none. What the inventory wants of server and models is the same as on hosts.
  - The server runs under a small supervisor that starts it again when it ends. Its log, its process id and what it was started with
    are in C(run/) of the project's directory.
  - A change that is not proven, by reading back the releases and by the checks, gives way to what served before.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description:
      - V(looked) changes nothing, and says what would be done and everything that stands in its way.
      - V(started) makes the releases, has the server serve them, and proves that.
      - V(stopped) ends server and supervisor.
    type: str
    choices: [looked, started, stopped]
    default: started
attributes:
  check_mode:
    support: full
    description: Looks, and reports a change where there would be one.
"""

EXAMPLES = r"""
- name: Say what stands in the way
  npufleet.triton.triton_process:
    state: looked
    root: "{{ npufleet_root }}"

- name: Serve here
  npufleet.triton.triton_process:
    root: "{{ npufleet_root }}"
"""

RETURN = r"""
plan:
  description: What differs from what is wanted, as M(npufleet.triton.host_state) tells it.
  returned: O(state=looked), O(state=started)
  type: list
  elements: dict
report:
  description: The same in sentences.
  returned: O(state=looked), O(state=started)
  type: list
  elements: str
lacks:
  description: Requirements that the Python of the server does not meet.
  returned: O(state=looked)
  type: list
  elements: str
python:
  description: The container's own Python.
  returned: O(state=looked)
  type: str
did:
  description: What was done, in words.
  returned: O(state=started), O(state=stopped)
  type: list
  elements: str
back:
  description: What was put back, because the change was not proven.
  returned: O(state=started), failure
  type: str
checks:
  description: The answers to the checks, as M(npufleet.triton.inference_check) returns them.
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
