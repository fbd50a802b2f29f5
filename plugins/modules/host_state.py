#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: host_state
short_description: Read the state of a host and compare it with the desired state
description:
  - Reads kernel, driver, engine, model store, Triton server, HAProxy and Prometheus of a host in one call. It changes nothing.
  - The controller computes the desired state from the inventory, the release row (C(files/releases.yml)) and the model files.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  concerns:
    description:
      - The concerns that the module reads. A concern is a part of the host with its own desired state.
      - With V([]), the module reads only the maintenance mark of the host.
      - Default is every concern of the host's groups. With O(preflight), a non-empty C(preflight_concerns) takes precedence.
    type: list
    elements: str
    choices: [driver, engine, image, models, server, watchdog, probe, metrics, traffic, balancer, monitoring]
  prove:
    description: Read the host repeatedly until it is in sync, and fail with the remaining differences after O(timeout).
    type: bool
    default: false
  current_releases:
    description: For a host that was rolled back, compare the server with the releases in C(served/), not with the inventory.
    type: bool
    default: false
  timeout:
    description: Longest time in seconds that O(prove) waits for the host to be in sync.
    type: int
    default: 0
  known:
    description: Name of a variable with an earlier result of this module. The task returns that result without calling the host.
    type: str
  store:
    description: Also return RV(store), the releases and the history of the model store.
    type: bool
    default: false
  preflight:
    description: Also return RV(refusals), the reasons why the plan cannot be applied.
    type: bool
    default: false
  rollback:
    description: Also return RV(moves), the models that a rollback would change, and RV(refusals), the reasons against it.
    type: dict
    suboptions:
      models:
        description: Names of the models. Default is every served model that has the release of O(rollback.to).
        type: list
        elements: str
        default: []
      to:
        description: V(previous), the label of a release, or the first digits of its digest.
        type: str
        required: true
  details:
    description:
      - V(always) also returns the details RV(actual), RV(desired) and RV(origins), which contain most of the data.
      - V(changes) leaves the details out for a host that is RV(in_sync).
      - V(report) leaves the details out, and stores the state of the host for M(npufleet.triton.fleet_report) until the run ends.
    type: str
    choices: [always, changes, report]
    default: always
  unsealed:
    description:
      - Only return RV(desired), with every secret in clear text, for a later task. Set C(no_log) for both tasks.
      - By default, values that may be secret are replaced by digests. Each call uses a new key, so the digests of two calls differ.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Reads as usual. The result is C(changed) if the plan is not empty and the host is not in maintenance.
  diff_mode:
    support: full
    description: Prints the plan.
"""

EXAMPLES = r"""
- name: Read the differences and the reasons against the plan
  npufleet.triton.host_state:
    preflight: true
  register: state

- name: Wait until the server is in sync, and fail if it is not
  npufleet.triton.host_state:
    concerns: [server]
    prove: true
    timeout: 120
"""

RETURN = r"""
plan:
  description:
    - The differences in the order in which they would be applied.
    - Each difference has C(concern), C(name), C(current), C(desired), and the C(action) that a run would take. The action
      C(inspect) needs an operator.
  returned: success
  type: list
  elements: dict
report:
  description: The plan as sentences.
  returned: success
  type: list
  elements: str
maintenance:
  description: C(reason), C(by) and C(since) of the maintenance. Null for a host in service.
  returned: success
  type: dict
mark:
  description: Path of the file on the host that exists only while the host is in maintenance.
  returned: success
  type: str
seen:
  description:
    - Time of this call, and the last run that had the lease of the host, for O(npufleet.triton.host_lease#module:seen).
    - Empty if another run is changing the host, or if the server is not among the concerns.
  returned: success
  type: dict
actual:
  description: The actual state by concern.
  returned: success, depending on O(details)
  type: dict
desired:
  description: The desired state by concern.
  returned: success, depending on O(details)
  type: dict
untested:
  description: Reason why the release row counts as untested. Null for a tested row. The module also warns about an untested row.
  returned: for an NPU host, without O(concerns), O(preflight) and O(rollback)
  type: str
known:
  description: True if the result comes from the variable that O(known) names.
  returned: with O(known)
  type: bool
held:
  description:
    - Models that a manual rollback holds at an older release, with C(by), C(when), C(why) and the facts of the release.
    - A held model counts as in sync, and causes a warning.
  returned: success
  type: dict
held_by:
  description: C(run), C(by) and C(since) of the run that is changing the host.
  returned: when another run is changing the host
  type: dict
refusals:
  description:
    - Reasons why the plan cannot be applied, each with the actual value, the expected value and the next step.
    - If a host has invalid variables, or could not be read as root, the reasons are here and the plan is empty.
  returned: with O(preflight) or O(rollback), or if a variable of the host that playbooks need for a rollout is invalid
  type: list
  elements: str
in_sync:
  description: Whether the plan and the refusals are empty and the host is in service.
  returned: with O(preflight)
  type: bool
moves:
  description: For each model that a rollback would change, the labels C(from) and C(to), and the kind of change as C(what).
  returned: with O(rollback)
  type: dict
clock:
  description: The time of day of the host in seconds since 1970.
  returned: with O(preflight)
  type: float
protected:
  description: Name of the host's protected environment, in which changes need a confirmation. Empty for an unprotected host.
  returned: success, if the variable C(npufleet_protected) can be evaluated
  type: str
serial:
  description: The batch sizes of the variable C(npufleet_rollout_serial), as numbers of hosts and percentages.
  returned: with O(preflight), O(rollback), O(current_releases) or V(traffic) in O(concerns), if that variable is valid
  type: list
  elements: raw
pause:
  description: The variable C(npufleet_rollout_pause), which is a number of seconds, V(confirm) or empty. Empty in check mode.
  returned: with O(preflight), O(rollback) or O(current_releases), if that variable is valid
  type: str
traffic:
  description:
    - Settings of a rollout behind load balancers.
    - C(hook) is the value of C(npufleet_drain_hook). With an empty list in O(concerns), only C(hook) is returned.
    - C(effect) is the effect of the plan on clients. With V(none), the server does not change, or the host has no drain hook. With
      V(reload), new models load while the current models answer. With V(stop), requests would fail, so the host is drained.
    - C(limited) is true if the host still has less traffic than usual, because an earlier rollout did not restore its share.
    - C(accept_within) is the time in seconds that a proven change waits for the verdict about the traffic. 0 means no verdict.
  returned: with O(preflight), O(rollback), O(current_releases) or V(traffic) in O(concerns), if the host is not in sync
  type: dict
store:
  description:
    - The model store of the host.
    - C(history) has the changes, oldest first (C(when), C(who), C(model), C(what), C(from), C(to), C(result) and C(why)).
    - C(holds) has the models that are held at an older release, with C(by), C(when) and C(why).
    - C(transaction) is the open transaction, or null. C(releases) has the labels of the releases of each model, newest first.
    - C(damaged) has the flaw of each damaged file, by its path. The next change tries to repair these files.
    - C(rollouts) has the last rollouts of this host, newest first.
  returned: with O(store)
  type: dict
origins:
  description: Source of each large file of the models, by its SHA-256. Logins and signatures in addresses are removed.
  returned: success, depending on O(details)
  type: dict
"""

import os
import time
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import balancer_preflight, request, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, proof, rollouts
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.driver.systems import remarks
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import as_diff, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import refusals
from ansible_collections.npufleet.triton.plugins.module_utils.store import damage

OPTIONS: Dict[str, Any] = {
    "concerns": {
        "type": "list",
        "elements": "str",
        "choices": [
            "driver",
            "engine",
            "image",
            "models",
            "server",
            "watchdog",
            "probe",
            "metrics",
            "traffic",
            "balancer",
            "monitoring",
        ],
    },
    "prove": {"type": "bool", "default": False},
    "current_releases": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 0},
    "known": {"type": "str"},
    "store": {"type": "bool", "default": False},
    "preflight": {"type": "bool", "default": False},
    "rollback": {
        "type": "dict",
        "options": {
            "models": {"type": "list", "elements": "str", "default": []},
            "to": {"type": "str", "required": True},
        },
    },
    "details": {"type": "str", "choices": ["always", "changes", "report"], "default": "always"},
    "unsealed": {"type": "bool", "default": False},
}
REQUEST: Dict[str, Any] = {
    # The desired state by concern
    "desired": {"type": "dict"},
    # The file on the host that marks maintenance
    "mark": {"type": "path"},
    # Inventory name of the host, for messages
    "host": {"type": "str"},
    # ID of this run
    "run": {"type": "str", "default": ""},
    # ID of a run that has ended. The module ignores the lease of that run.
    "ended": {"type": "str", "default": ""},
    # Conditions that the host must meet, for preflight
    "conditions": {"type": "dict"},
    # Servers from which the host would download to apply the plan
    "suppliers": {"type": "list", "elements": "dict", "default": []},
    # {name of a supplier: its password}. The key `addresses` has the secrets in the addresses of all suppliers and conditions.
    "passwords": {"type": "dict", "default": {}, "no_log": True},
}


def _read_store(root: str) -> Dict[str, Any]:
    """Return the content of the model store. A store that does not exist yet is empty."""
    directory = os.path.join(root, "releases")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    return {
        "history": store.read_history(root),
        "holds": store.read_holds(root),
        "transaction": store.read_transaction(root),
        "damaged": damage.find(root),
        "rollouts": rollouts.read(root),
        "releases": {name: store.labels(root, name) for name in names},
    }


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    desired = params["desired"]
    if not desired and not params["mark"]:
        module.fail_json(msg="host_state starts on the controller. Call it as npufleet.triton.host_state.")
    current_releases = params["current_releases"]
    if current_releases:
        try:
            desired["server"]["models"] = store.current_models(desired["server"]["root"], desired["server"]["models"])
        except store.StoreError as error:
            module.fail_json(msg="{}: {}".format(params["host"], error))
    held_models = {} if current_releases else store.apply_holds(desired)
    for name, hold in held_models.items():
        module.warn(
            f"{params['host']}: model {name} is held at {hold['label']}, rolled back by {hold['by']} at {hold['when']} "
            f"({hold['why'] or 'no reason given'}): change the model in the inventory, or end the hold with rollback.yml "
            f"-e rollback_forget=true -e rollback_models={name}"
        )
    root, run_id, ended = os.path.dirname(params["mark"] or ""), params["run"], params["ended"]
    seen = {}
    if root and "server" in desired:
        seen = {**clock.mark(), "after": lease.last_run(root), "current_releases": current_releases}
    observation = proof.observe(desired, root, run_id, ended, current_releases, params["prove"], params["timeout"])
    actual, plan = observation.actual, observation.plan
    if params["prove"] and plan and not module.check_mode:
        module.fail_json(msg="{} is not in sync:{}".format(params["host"], observation.describe()), plan=plan, actual=actual)
    for name, concern in CONCERNS.items():
        text = concern.warning(actual.get(name) or {})
        if text:
            module.warn("{}: {}".format(params["host"], text))
    other_run = lease.held_by_another(root, run_id, ended) if root and desired else None
    maintenance = lease.maintenance(params["mark"]) if params["mark"] else None
    changed = bool(plan) and module.check_mode and not params["prove"] and maintenance is None
    report = [sentence(item) for item in plan]
    result: Dict[str, Any] = {"plan": plan, "report": report, "maintenance": maintenance, "actual": actual, "held": held_models}
    # The state is not reusable while another run is changing the host.
    result["seen"] = {} if other_run else seen
    if other_run:
        # Only the controller knows whether that run has ended, so the controller writes the warning.
        result["held_by"] = {key: other_run[key] for key in ("run", "by", "since")}
    conditions = params["conditions"]
    if params["preflight"] and conditions:
        # A host in maintenance has no refusals, so that it does not prevent the change of other hosts.
        suppliers, passwords = params["suppliers"], params["passwords"]
        result["clock"] = time.time()
        result["refusals"] = refusals(conditions, actual, plan, suppliers, passwords) if maintenance is None else []
        for text in remarks(conditions):
            module.warn(f"{params['host']}: {text}")
    if params["preflight"] and "balancer" in desired and maintenance is None:
        balancer_refusals = balancer_preflight.refusals(desired["balancer"], actual["balancer"], plan)
        result["refusals"] = [*result.get("refusals", []), *balancer_refusals]
    if params["store"]:
        try:
            result["store"] = _read_store(root)
        except (store.StoreError, OSError) as error:
            module.fail_json(msg=f"model store {root}: {error}")
    if params["rollback"]:
        result.update(moves={}, refusals=[])
        try:
            if maintenance is None:
                result["moves"] = dict(store.rollback_moves(root, params["rollback"]["models"], params["rollback"]["to"]))
        except (store.StoreError, OSError) as error:
            result["refusals"] = [f"model store {root}: {error}"]
    module.exit_json(changed=changed, diff=as_diff(plan) if plan else {}, **result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
