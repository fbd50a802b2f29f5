#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Module host_lease: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lease
short_description: Lock a host for one run while it changes the host
description:
  - Takes the lease of a host, or renews it if this run already has it. The lease is a file on the host. While a run has it, other
    runs wait, or fail with the name of the holder, and the watchdog takes no action. Only that run releases the lease.
  - The lease is live while a module call of its run is running, and for C(npufleet_lease_timeout) seconds after the last call.
  - If a run ended without releasing the lease, the watchdog of the host or its next boot restores the previous state. If another
    run comes first, it takes over the lease, and rolls back an interrupted replacement of the container.
  - Also installs the library that the modules and the host use, and the unit that runs the library at boot.
  - For a host in maintenance the task fails, or returns RV(maintenance) with O(unless_maintenance).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description: V(held) takes or renews the lease, V(released) releases it.
    type: str
    choices: [held, released]
    default: held
  allow_maintenance:
    description: Hold a host even if it is in maintenance, as the maintenance playbook does.
    type: bool
    default: false
  unless_maintenance:
    description: Do not hold a host in maintenance, and return RV(maintenance) instead of failing.
    type: bool
    default: false
  wait:
    description:
      - Seconds to wait until another run releases the host.
      - The controller fills in C(npufleet_lease_wait).
    type: int
    default: 0
  seen:
    description: Value of RV(npufleet.triton.host_state#module:seen). RV(fresh) reports whether that result is still valid.
    type: dict
    default: {}
  install:
    description: >-
      Install the library and its unit if they are missing or outdated. Use V(false) for a host without systemd.
    type: bool
    default: true
  rollout:
    description:
      - The rollout that changes the host, for the record C(rollouts.json) on the host, which has the last 50 rollouts.
      - With O(state=held), C(playbook), C(commit), C(release), C(concerns), C(batch) and C(batches).
      - With O(state=released), C(failure), C(verdict), C(in_flight) and C(closed).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Takes and releases nothing.
"""

EXAMPLES = r"""
- name: Hold the host
  npufleet.triton.host_lease:
  register: lease

- name: Release the host
  npufleet.triton.host_lease:
    state: released
  when: lease.taken
"""

RETURN = r"""
taken:
  description: Whether this call took the lease, so that the caller has to release it. False if the run already had the lease.
  returned: O(state=held)
  type: bool
taken_over:
  description: C(by) and C(since) of the interrupted run whose lease was taken over. Null if no lease was taken over.
  returned: O(state=held)
  type: dict
settled:
  description: What was restored because a run was interrupted during a replacement. Null if nothing was restored.
  returned: O(state=held)
  type: str
fresh:
  description: Whether O(seen) is at most a minute old, and no run has held the host since then.
  returned: O(state=held)
  type: bool
maintenance:
  description: C(reason), C(by) and C(since) of the maintenance. Null for a host in service.
  returned: O(state=held)
  type: dict
released:
  description: Whether the lease was released. False if this run did not have it.
  returned: O(state=released)
  type: bool
held_by:
  description: ID of the run that holds the host.
  returned: when another run is changing the host
  type: str
"""

import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import commands, failures, request
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, replacement, rollouts
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
    "allow_maintenance": {"type": "bool", "default": False},
    "unless_maintenance": {"type": "bool", "default": False},
    "wait": {"type": "int", "default": 0},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
    "seen": {"type": "dict", "default": {}},
    "install": {"type": "bool", "default": True},
    "rollout": {"type": "dict", "default": {}},
}
REQUEST = {
    **request.HOLDER,
    # Seconds for which the lease stays live after a call
    "patience": {"type": "int", "default": 3600},
    # Name and time limits of the container (change/container.py)
    "container": {"type": "dict", "default": {}},
    # Version of the controller's library
    "version": {"type": "str", "default": ""},
    # Id of a run that the controller knows to be gone
    "ended": {"type": "str", "default": ""},
}

NOTHING = {"changed": False, "taken": False, "taken_over": None, "settled": None, "fresh": False, "maintenance": None}
# Seconds for which a result of host_state is valid
FRESH = 60.0


def hold(params: Mapping[str, Any], warn: Any) -> Dict[str, Any]:
    """Apply state `held`: take or renew the lease. Return the result of the module."""
    root, settings = params["root"], params["container"]
    mark = lease.maintenance(os.path.join(root, lease.MAINTENANCE_FILE)) if params["unless_maintenance"] else None
    if mark:
        return {**NOTHING, "maintenance": mark}
    me = lease.Holder(params["run"], params["by"], params["allow_maintenance"])
    last, seen = lease.last_run(root), params["seen"]
    taken, before = lease.acquire(root, me, params["patience"], settings, params["wait"], params["ended"])
    changed = params["install"] and _install(params)
    if taken and params["rollout"]:
        try:
            rollouts.begin(root, me.run, me.by, params["rollout"])
        except (OSError, ValueError) as error:
            # The change matters more than its record.
            warn("{}: the rollout is not recorded on the host: {}".format(params["host"], error))
    settled = None
    if before is not None:
        warn(
            "{}: the run of {} since {} ended during its change: its lease is taken over".format(
                params["host"], before["by"], before["since"]
            )
        )
    if taken and replacement.interrupted(root):
        # Imported here, because hardly any call needs it
        from ansible_collections.npufleet.triton.plugins.module_utils.change import container

        settled = replacement.recover(
            root,
            me,
            lambda: container.restore(container.Docker(), root, settings["name"], settings),
            lambda error: failures.reason(error, (container.ContainerError, lease.LeaseError, OSError)),
        )
        warn("{}: a replacement of the container broke off: {}".format(params["host"], settled or "there was no server before"))
    over = {"by": before["by"], "since": before["since"]} if before else None
    answer = {**NOTHING, "changed": changed or settled is not None, "taken": taken, "taken_over": over, "settled": settled}
    return {**answer, "fresh": taken and before is None and _counts(seen, last)}


def _install(params: Mapping[str, Any]) -> bool:
    # A list, so that install_unit also runs if activate has changed something
    return any([library.activate(params["version"]), commands.install_unit(params["root"])])


def _counts(seen: Mapping[str, Any], last: str) -> bool:
    """Return True if `seen` is recent, and `last` is the run after which the host was read."""
    age = clock.since(seen)
    return age is not None and age <= FRESH and seen.get("after") == last


def run(module: request.Module) -> None:
    """Run the module. `main` calls this function in a module that Ansible sent, otherwise the host library calls it."""
    params = request.merge_request(module, REQUEST)
    if not params["run"]:
        module.fail_json(msg="host_lease starts on the controller. Call it as npufleet.triton.host_lease.")
    if module.check_mode:
        module.exit_json(**NOTHING)
    try:
        if params["state"] == "released":
            released = lease.release(params["root"], lease.Holder(params["run"], params["by"]), params["rollout"])
            module.exit_json(changed=False, released=released)
        module.exit_json(**hold(params, module.warn))
    except lease.Held as error:
        module.fail_json(msg="{}: {}".format(params["host"], error), held_by=error.run)
    except (lease.LeaseError, OSError, ValueError) as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
