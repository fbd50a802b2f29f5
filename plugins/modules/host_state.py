#!/usr/bin/python
"""Module host_state: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_state
short_description: Read everything that matters of a host once, and say how it differs from what is wanted
description:
  - Reads kernel, vendor tool, Docker engine, model store, Triton server and Prometheus of a host in one call and compares
    them with what inventory, release row and model manifests ask for. It changes nothing.
  - In check mode the result is C(changed) when the plan is not empty and the host is not in maintenance, and C(--diff) prints the
    plan. This is how the whole project answers C(--check).
  - What is wanted is computed on the controller, out of the variables of the host.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  concerns:
    description:
      - What to look at, out of C(driver), C(engine), C(image), C(models), C(server), C(watchdog), C(probe),
        C(monitoring).
      - V([]) reads no more than whether the host is in maintenance.
      - Default is every concern of the groups that the host is in; with O(preflight), those of the variable
        C(preflight_concerns) where it has any.
    type: list
    elements: str
  prove:
    description:
      - Fail when a difference is left, naming every one. Before that, read again until there is none or O(timeout) is over.
    type: bool
    default: false
  linked:
    description:
      - Compare the server with what the store links, whatever container and models the inventory wants, as is right for one that
        was rolled or put back.
    type: bool
    default: false
  timeout:
    description: Seconds that O(prove) waits for the host to become as wanted.
    type: int
    default: 0
  known:
    description: >-
      Name of the variable with what it has returned before. The host is asked nothing, and this is returned with RV(known).
    type: str
  preflight:
    description: Also say what stands in the way of the plan, as RV(refusals).
    type: bool
    default: false
  rollback:
    description:
      - Also say which models would go back to which release, as RV(moves), and what stands in the way, as RV(refusals).
      - Of no model named, every served one that has such a release.
    type: dict
    suboptions:
      models:
        description: Names of the models.
        type: list
        elements: str
        default: []
      to:
        description: V(previous), a label, or the first digits of a digest.
        type: str
        required: true
  unsealed:
    description:
      - Ask the host nothing, and return RV(desired) alone, with every secret in the clear. For a task that makes what is wanted;
        it has C(no_log), and so has this one.
      - Everywhere else values that may be secret are digests, under a key of that one call.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Reads, and reports a plan that is not empty as a change.
  diff_mode:
    support: full
    description: Prints the plan.
"""

EXAMPLES = r"""
- name: Ask what differs
  npufleet.triton.host_state:
  register: state

- name: Ask what differs, and what stands in the way of changing it
  npufleet.triton.host_state:
    preflight: true
  register: state

- name: Ask what a rollback would change
  npufleet.triton.host_state:
    concerns: [models, server]
    linked: true
    rollback: {to: previous}
  register: state

- name: Wait until the server serves what is wanted of it, and fail if it does not
  npufleet.triton.host_state:
    concerns: [server]
    prove: true
    timeout: 120
"""

RETURN = r"""
plan:
  description: The differences in the order in which they would be applied.
  returned: success
  type: list
  elements: dict
  contains:
    concern: {description: The part of the host that differs., type: str}
    name: {description: What in it differs., type: str}
    current: {description: "What was found, null for nothing.", type: raw}
    desired: {description: "What is wanted, null for nothing.", type: raw}
    action: {description: "What would be done, C(inspect) where only hands can.", type: str}
report:
  description: The plan as sentences.
  returned: success
  type: list
  elements: str
maintenance:
  description: The mark of a host in maintenance, C(reason), C(by) and C(since); null for a host that is not.
  returned: success
  type: dict
mark:
  description: The file that holds it.
  returned: success
  type: str
seen:
  description: When this was seen and after which run, for M(npufleet.triton.host_lease). Empty in the midst of another run.
  returned: success
  type: dict
actual:
  description: What was read, by concern.
  returned: success
  type: dict
desired:
  description: What is wanted, by concern.
  returned: success
  type: dict
untested:
  description: Why nobody upstream vouches for the release row, which is a warning too; null for a row that its vendor names.
  returned: for an NPU host as a whole, without O(concerns) and O(preflight)
  type: str
known:
  description: That this is what was handed over as O(known).
  returned: with O(known)
  type: bool
held:
  description:
    - Models that a rollback by hand holds at an older release while the inventory wants what was rolled back, with C(by), C(when),
      C(why), and the facts of the release. They count as wanted, and each is a warning.
  returned: success
  type: dict
held_by:
  description: The run that is changing the host, C(run), C(by) and C(since).
  returned: when it is another run
  type: dict
refusals:
  description:
    - Every reason why the plan cannot be applied, each with what was found, what is wanted and what to do. Nothing was changed.
    - A host whose variables are wrong, or that could not be read as root, has its reasons here and an empty plan.
  returned: with O(preflight) or O(rollback); otherwise where a variable that playbooks read of the host is wrong
  type: list
  elements: str
as_wanted:
  description: Whether nothing is to be done or refused, and the host is not in maintenance.
  returned: with O(preflight)
  type: bool
moves:
  description: For each model that a rollback would change C(from) and C(to) as labels, and C(what) is done.
  returned: with O(rollback)
  type: dict
clock:
  description: What the host's clock said, in seconds since 1970.
  returned: with O(preflight)
  type: float
protected:
  description: The name of the environment that the host is in, where people are asked before it is changed; empty for none.
  returned: success, where the variable C(npufleet_protected) can be evaluated
  type: str
serial:
  description: The sizes of batches of the variable C(npufleet_rollout_serial), as numbers of hosts and percentages.
  returned: with O(preflight), O(rollback) or O(linked), where that variable is valid
  type: list
  elements: raw
origins:
  description:
    - Where the controller finds each large file of the models, by its SHA-256, without logins and signatures of addresses.
  returned: success
  type: dict
"""

import os
import time
from typing import Any, Dict, List, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import request, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, proof
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe, watchdog
from ansible_collections.npufleet.triton.plugins.module_utils.driver.systems import remarks
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import as_diff, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import refusals

OPTIONS: Dict[str, Any] = {
    "concerns": {"type": "list", "elements": "str"},
    "prove": {"type": "bool", "default": False},
    "linked": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 0},
    "known": {"type": "str"},
    "preflight": {"type": "bool", "default": False},
    "rollback": {
        "type": "dict",
        "options": {
            "models": {"type": "list", "elements": "str", "default": []},
            "to": {"type": "str", "required": True},
        },
    },
    "unsealed": {"type": "bool", "default": False},
}
REQUEST: Dict[str, Any] = {
    # What is wanted, by concern
    "desired": {"type": "dict"},
    # The file on the host that says that it is in maintenance
    "mark": {"type": "path"},
    # Inventory name of the host, for messages
    "host": {"type": "str"},
    # This run, whose own lease is nobody else's, and one that is known to be gone, whose lease counts as left over
    "run": {"type": "str", "default": ""},
    "ended": {"type": "str", "default": ""},
    # What a host is judged by in preflight, and the servers to ask that the plan would download from
    "conditions": {"type": "dict"},
    "suppliers": {"type": "list", "elements": "dict", "default": []},
    # Passwords of the suppliers, by name, and under `addresses` what is secret in theirs
    "passwords": {"type": "dict", "default": {}, "no_log": True},
}


def _rollback(root: str, asked: Dict[str, Any]) -> Tuple[Dict[str, Any], List[str]]:
    """(what a rollback would move, why it cannot be done)."""
    try:
        return dict(store.rollback_moves(root, asked["models"], asked["to"])), []
    except (store.StoreError, OSError) as error:
        return {}, [f"model store {root}: {error}"]


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    desired = params["desired"]
    if not desired and not params["mark"]:
        module.fail_json(msg="host_state computes what is wanted on the controller: call it as npufleet.triton.host_state")
    linked = params["linked"]
    if linked:
        try:
            desired["server"]["models"] = store.linked(desired["server"]["root"], desired["server"]["models"])
        except store.StoreError as error:
            module.fail_json(msg="{}: {}".format(params["host"], error))
    held = {} if linked else store.hold_back(desired)
    for name, hold in held.items():
        module.warn(
            f"{params['host']}: model {name} is held at {hold['label']}, rolled back by {hold['by']} at {hold['when']} "
            f"({hold['why'] or 'no reason given'}): change the model in the inventory, or end it with rollback.yml "
            f"-e rollback_forget=true -e rollback_models={name}"
        )
    root, run, ended = os.path.dirname(params["mark"] or ""), params["run"], params["ended"]
    moment = {**clock.mark(), "after": lease.last(root), "linked": linked} if root and "server" in desired else {}
    seen = proof.see(desired, root, run, ended, linked, params["prove"], params["timeout"])
    actual, plan = seen.actual, seen.plan
    if params["prove"] and plan and not module.check_mode:
        module.fail_json(msg="{} is not as wanted:{}".format(params["host"], seen.words()), plan=plan, actual=actual)
    for words in (watchdog.warning(actual.get("watchdog") or {}), probe.warning(actual.get("probe") or {})):
        if words:
            module.warn("{}: {}".format(params["host"], words))
    other = lease.of_another(root, run, ended) if root and desired else None
    mark = lease.maintenance(params["mark"]) if params["mark"] else None
    changed = bool(plan) and module.check_mode and not params["prove"] and mark is None
    report = [sentence(item) for item in plan]
    answer: Dict[str, Any] = {"plan": plan, "report": report, "maintenance": mark, "actual": actual, "held": held}
    # In the midst of another run's change it tells nothing of what comes after
    answer["seen"] = {} if other else moment
    if other:
        # No warning yet: the controller may know that run to be over
        answer["held_by"] = {key: other[key] for key in ("run", "by", "since")}
    conditions = params["conditions"]
    if params["preflight"] and conditions:
        # Who takes a host out knows why: it is not judged, and keeps no other host from its change.
        suppliers, passwords = params["suppliers"], params["passwords"]
        answer["clock"] = time.time()
        answer["refusals"] = refusals(conditions, actual, plan, suppliers, passwords) if mark is None else []
        for words in remarks(conditions):
            module.warn(f"{params['host']}: {words}")
    if params["rollback"]:
        answer["moves"], answer["refusals"] = _rollback(root, params["rollback"]) if mark is None else ({}, [])
    module.exit_json(changed=changed, diff=as_diff(plan) if plan else {}, **answer)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
