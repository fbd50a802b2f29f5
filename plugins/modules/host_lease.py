#!/usr/bin/python
"""Module host_lease: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lease
short_description: Hold a host while a run changes it, so that no other run and not the watchdog does
description:
  - Takes the one lease of a host, or renews it where this run has it already. It is a file on the host; another run waits for it
    or is refused, and says by whom. Only the run that took it releases it.
  - It is live while a module call of its run is at work, and for C(npufleet_lease_timeout) seconds after the last one. What a run
    leaves behind that is gone is put back by the host itself, by its watchdog or at its next boot, or is taken over by the next
    run. A replacement of the container that broke off between two of its steps is put back as soon as the lease is taken over.
  - Brings the library with which the host does that and later calls of modules take less time, and the unit that runs it at boot.
  - A host in maintenance is refused, or told with O(unless_maintenance).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description: Whether this run is to hold the host.
    type: str
    choices: [held, released]
    default: held
  maintenance:
    description: Hold a host in maintenance, as its own maintenance does.
    type: bool
    default: false
  unless_maintenance:
    description: Leave a host in maintenance alone, and return its mark instead of failing.
    type: bool
    default: false
  wait:
    description:
      - Seconds to wait for another run.
      - The controller fills in C(npufleet_lease_wait).
    type: int
    default: 0
  seen:
    description: What M(npufleet.triton.host_state) has returned under this name, to be told whether that still counts.
    type: dict
    default: {}
  install:
    description: >-
      Bring that library and its unit where they are missing or of another version. V(false) is for a host without systemd.
    type: bool
    default: true
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
  description: Whether this call took the lease, which is then for its caller to release; not for one that only renewed it.
  returned: O(state=held)
  type: bool
taken_over:
  description: The run that the lease was taken over from, C(by) and C(since); null for none.
  returned: O(state=held)
  type: dict
settled:
  description: What was put back because that run was interrupted during a replacement; null for nothing.
  returned: O(state=held)
  type: str
fresh:
  description: Whether nobody has held the host since O(seen), which is of this minute.
  returned: O(state=held)
  type: bool
maintenance:
  description: The mark of a host that was left alone, C(reason), C(by) and C(since); null for one in service.
  returned: O(state=held)
  type: dict
released:
  description: Whether it was this run's own and has ended.
  returned: O(state=released)
  type: bool
held_by:
  description: Id of the run that is at it.
  returned: when another run is changing the host
  type: str
"""

import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import failures, request
from ansible_collections.npufleet.triton.plugins.module_utils.change import commands, lease, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
    "maintenance": {"type": "bool", "default": False},
    "unless_maintenance": {"type": "bool", "default": False},
    "wait": {"type": "int", "default": 0},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
    "seen": {"type": "dict", "default": {}},
    "install": {"type": "bool", "default": True},
}
REQUEST = {
    **request.HOLDER,
    # Seconds that may pass between two calls of the run
    "patience": {"type": "int", "default": 3600},
    # Name of the container, and the times that it needs
    "container": {"type": "dict", "default": {}},
    # Version of the library that the call comes from
    "version": {"type": "str", "default": ""},
    # A run that the controller knows to be over
    "ended": {"type": "str", "default": ""},
}

NOTHING = {"changed": False, "taken": False, "taken_over": None, "settled": None, "fresh": False, "maintenance": None}
# Seconds for which a look at a host counts: it is told out of the moment in which its run plans
FRESH = 60.0


def hold(params: Mapping[str, Any], warn: Any) -> Dict[str, Any]:
    """State held."""
    root, settings = params["root"], params["container"]
    mark = lease.maintenance(os.path.join(root, lease.MARK)) if params["unless_maintenance"] else None
    if mark:
        return {**NOTHING, "maintenance": mark}
    me = lease.Holder(params["run"], params["by"], params["maintenance"])
    last, seen = lease.last(root), params["seen"]
    taken, before = lease.acquire(root, me, params["patience"], settings, params["wait"], params["ended"])
    changed = params["install"] and _install(params)
    settled = None
    if before is not None:
        warn(
            "{}: the run of {} since {} ended during its change: its lease is taken over".format(
                params["host"], before["by"], before["since"]
            )
        )
    if taken and replacement.broken_off(root):
        # Here, as next to no call needs it
        from ansible_collections.npufleet.triton.plugins.module_utils.change import container

        try:
            with lease.working(root, me):
                settled = container.put_back(container.Docker(), root, settings["name"], settings)
        except Exception as error:
            # It goes on from here: its own container may do better
            settled = f"could not be put back: {failures.reason(error, (container.ContainerError, lease.LeaseError, OSError))}"
        warn("{}: a replacement of the container broke off: {}".format(params["host"], settled or "there was none before"))
    over = {"by": before["by"], "since": before["since"]} if before else None
    answer = {**NOTHING, "changed": changed or settled is not None, "taken": taken, "taken_over": over, "settled": settled}
    return {**answer, "fresh": taken and before is None and _counts(seen, last)}


def _install(params: Mapping[str, Any]) -> bool:
    # A list, so that the second one runs as well if the first one has changed something
    return any([library.activate(params["version"]), commands.install_unit(params["root"])])


def _counts(seen: Mapping[str, Any], last: str) -> bool:
    """Whether nobody has held the host since a look, and that was a moment ago."""
    age = clock.since(seen)
    return age is not None and age <= FRESH and seen.get("after") == last


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    if not params["run"]:
        module.fail_json(msg="a lease is taken for a run, which the controller knows: call it as npufleet.triton.host_lease")
    if module.check_mode:
        module.exit_json(**NOTHING)
    try:
        if params["state"] == "released":
            released = lease.release(params["root"], lease.Holder(params["run"], params["by"]))
            module.exit_json(changed=False, released=released)
        module.exit_json(**hold(params, module.warn))
    except lease.Held as error:
        module.fail_json(msg="{}: {}".format(params["host"], error), held_by=error.run)
    except (lease.LeaseError, OSError) as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
