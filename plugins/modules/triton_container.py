#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_container
short_description: Stop the container of the server
description:
  - Stops the container and records the stop. The stopped server then counts as a difference until M(npufleet.triton.server_change)
    starts it again and proves it.
  - The run must have the lease of the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
  - npufleet.triton.project.writer
options:
  state:
    description: V(stopped) stops the container if it runs, for example to install another driver.
    type: str
    choices: [stopped]
    required: true
"""

EXAMPLES = r"""
- name: Stop the server that uses the cards
  npufleet.triton.triton_container:
    state: stopped
"""

RETURN = r"""
did:
  description: The action as text. Null if the container did not run.
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
# Name and time limits of the container (change/container.py)
REQUEST = {**request.HOLDER_OPTIONS, "container": {"type": "dict", "required": True}}


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    root, settings = params["root"], params["container"]
    if module.check_mode:
        module.exit_json(changed=True, did=None)
    try:
        holder = lease.Holder(params["run"], params["by"])
        with lease.working(root, holder) as lease_record:
            # An operator may have begun maintenance after this run took the lease.
            lease.refuse_maintenance(root, bool(lease_record and lease_record["maintenance"]))
            stopped = container.stop(container.Docker(), root, holder, settings["name"], settings)
    except (container.ContainerError, lease.LeaseError, OSError) as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))
    module.exit_json(changed=stopped, did="stopped {}".format(settings["name"]) if stopped else None)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
