#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lease
short_description: Lock a host while one run changes it
description:
  - Takes the lease of a host, or renews the lease if this run already has it. The lease is a file on the host. While a run has the
    lease, other runs wait, or fail with a message that names the owner, and the watchdog takes no action.
  - The lease is live while its run calls a module on the host, and for C(npufleet_lease_timeout) seconds after the last call. No
    other run can take over a live lease.
  - If a run ended without releasing the lease, the watchdog or the next boot of the host restores the previous state. A run that
    needs the host earlier takes over the lease, and restores a container whose replacement was interrupted.
  - The module also installs the library (the code of the modules on the host), and a systemd unit that runs the library at boot.
  - If the host is in maintenance, the task fails.
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
    description: Take the lease even if the host is in maintenance, as the maintenance playbook does.
    type: bool
    default: false
  unless_maintenance:
    description: If the host is in maintenance, do not take the lease, and return RV(maintenance) instead of failing.
    type: bool
    default: false
  wait:
    description: >-
      Longest time in seconds to wait until another run releases the lease. Without this option, C(npufleet_lease_wait) applies.
    type: int
    default: 0
  seen:
    description: The value RV(npufleet.triton.host_state#module:seen) of an earlier call, which RV(fresh) judges.
    type: dict
    default: {}
  install:
    description: Install the library and its systemd unit if they are missing or outdated. Use V(false) for a host without systemd.
    type: bool
    default: true
  rollout:
    description:
      - The rollout that changes the host, for the file C(rollouts.json) on the host, which has the last 50 rollouts.
      - The keys with O(state=held) are C(playbook), C(commit), C(release), C(concerns), C(batch) and C(batches).
      - The keys with O(state=released) are C(failure), C(verdict), C(in_flight) and C(closed).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: In check mode, no lease is taken or released.
"""

EXAMPLES = r"""
- name: Take the lease of the host
  npufleet.triton.host_lease:
  register: lease

- name: Release the lease of the host
  npufleet.triton.host_lease:
    state: released
  when: lease.taken
"""

RETURN = r"""
taken:
  description: True if this call took the lease. Then the caller has to release the lease. False if the run already had it.
  returned: O(state=held)
  type: bool
taken_over:
  description: C(by) and C(since) of the interrupted run whose lease was taken over. Null if no lease was taken over.
  returned: O(state=held)
  type: dict
settled:
  description: Text about the container that this call restored after an interrupted replacement. Null if nothing was restored.
  returned: O(state=held)
  type: str
fresh:
  description: Whether O(seen) is at most a minute old, and no run has had the lease of the host since then.
  returned: O(state=held)
  type: bool
maintenance:
  description: C(reason), C(by) and C(since) of the maintenance. Null for a host in service.
  returned: O(state=held)
  type: dict
released:
  description: Whether the lease was released. False if this run did not have the lease.
  returned: O(state=released)
  type: bool
held_by:
  description: ID of the run that has the lease of the host.
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
    **request.HOLDER_OPTIONS,
    # Seconds for which the lease stays live after a call
    "patience": {"type": "int", "default": 3600},
    # Name and time limits of the container (change/container.py)
    "container": {"type": "dict", "default": {}},
    # Version of the controller's library
    "version": {"type": "str", "default": ""},
    # ID of another run that has ended. The action plugin sets it, because only the controller can see that a run has ended.
    "ended": {"type": "str", "default": ""},
}

UNCHANGED = {"changed": False, "taken": False, "taken_over": None, "settled": None, "fresh": False, "maintenance": None}
# Seconds for which a result of host_state is valid
FRESH_SECONDS = 60.0


def hold(params: Mapping[str, Any], warn: Any) -> Dict[str, Any]:
    """Apply state `held`: take or renew the lease. Return the result of the module."""
    root, host, settings = params["root"], params["host"], params["container"]
    maintenance = lease.maintenance(os.path.join(root, lease.MAINTENANCE_FILE)) if params["unless_maintenance"] else None
    if maintenance:
        return {**UNCHANGED, "maintenance": maintenance}
    owner = lease.Holder(params["run"], params["by"], params["allow_maintenance"])
    last_run, seen = lease.last_run(root), params["seen"]
    taken, previous = lease.acquire(root, owner, params["patience"], settings, params["wait"], params["ended"])
    # With a list, `any` does not skip install_unit if activate has changed something.
    changed = params["install"] and any([library.activate(params["version"]), commands.install_unit(root)])
    if taken and params["rollout"]:
        try:
            rollouts.begin(root, owner.run, owner.by, params["rollout"])
        except (OSError, ValueError) as error:
            # A missing record must not prevent the change.
            warn(f"{host}: the rollout is not recorded on the host: {error}")
    settled = taken_over = None
    if previous is not None:
        taken_over = {"by": previous["by"], "since": previous["since"]}
        warn("{}: the run of {by} since {since} ended during its change. This run takes over the lease".format(host, **taken_over))
    if taken and replacement.interrupted(root):
        # Only a call after an interrupted replacement needs this import.
        from ansible_collections.npufleet.triton.plugins.module_utils.change import container

        settled = replacement.recover(
            root,
            owner,
            lambda: container.restore(container.Docker(), root, settings["name"], settings),
            lambda error: failures.reason(error, (container.ContainerError, lease.LeaseError, OSError)),
        )
        warn(f"{host}: a replacement of the container was interrupted: {settled or 'there was no server before'}")
    result = {**UNCHANGED, "changed": changed or settled is not None, "taken": taken, "taken_over": taken_over, "settled": settled}
    return {**result, "fresh": taken and previous is None and _is_fresh(seen, last_run)}


def _is_fresh(seen: Mapping[str, Any], last_run: str) -> bool:
    """Return True if the result `seen` is recent, and no run has had the lease of the host since that result."""
    age = clock.since(seen)
    return age is not None and age <= FRESH_SECONDS and seen.get("after") == last_run


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    if not params["run"]:
        module.fail_json(msg="host_lease starts on the controller. Call it as npufleet.triton.host_lease.")
    if module.check_mode:
        module.exit_json(**UNCHANGED)
    try:
        if params["state"] == "released":
            released = lease.release(params["root"], lease.Holder(params["run"], params["by"]), params["rollout"])
            module.exit_json(changed=False, released=released)
        module.exit_json(**hold(params, module.warn))
    except lease.Held as error:
        module.fail_json(msg=f"{params['host']}: {error}", held_by=error.run)
    except (lease.LeaseError, OSError, ValueError) as error:
        module.fail_json(msg=f"{params['host']}: {error}")


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
