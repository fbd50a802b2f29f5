#!/usr/bin/python
"""Module triton_container: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_container
short_description: Stop the container of the server for something else
description:
  - Stops it and writes that down, so that it is a difference until somebody has it serve again and proves that
    (M(npufleet.triton.server_change)). What changes the server itself is that module's.
  - The run has to hold the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description: V(stopped) stops it where it runs, such as for another driver.
    type: str
    choices: [stopped]
    required: true
attributes:
  check_mode:
    support: full
    description: Reports a change and makes none.
"""

EXAMPLES = r"""
- name: Stop the server on the cards
  npufleet.triton.triton_container:
    state: stopped
"""

RETURN = r"""
did:
  description: What was done, in words; null where it did not run.
  returned: success
  type: str
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.change import container, lease

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["stopped"], "required": True},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
# Name of the container, and the times that it needs
REQUEST = {**request.HOLDER, "container": {"type": "dict", "required": True}}


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    root, settings = params["root"], params["container"]
    if module.check_mode:
        module.exit_json(changed=True, did=None)
    try:
        run = lease.Holder(params["run"], params["by"])
        with lease.working(root, run) as held:
            # Somebody may have taken the host out since the lease was taken
            lease.refuse_maintenance(root, bool(held and held["maintenance"]))
            stopped = container.stop(container.Docker(), root, run, settings["name"], settings)
    except (container.ContainerError, lease.LeaseError, OSError) as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))
    module.exit_json(changed=stopped, did="stopped {}".format(settings["name"]) if stopped else None)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
