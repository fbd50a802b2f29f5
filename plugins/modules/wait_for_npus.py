#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Module wait_for_npus: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_for_npus
short_description: Wait until no process has the NPUs of a host open
description:
  - Queries the vendor tool for the processes that have cards open, and fails with the name of each process that is left. Processes
    of the Triton container are ignored while it runs.
  - If the container does not run, it waits for the processes to end. A process that has a card open beside a running container is
    refused at once.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  container:
    description: Name of the container of the server. Default is the variable C(triton_server_name).
    type: str
  timeout:
    description: Seconds to wait. Default is the variable C(npufleet_free_timeout).
    type: int
  ignore_gone:
    description: >-
      Ignore contexts that are left after that time of processes that no longer exist. Use it before the driver's module is loaded
      again, which ends these contexts.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Waits as usual, which changes nothing.
"""

EXAMPLES = r"""
- name: Wait until the cards are free
  npufleet.triton.wait_for_npus:
    timeout: 60
"""

RETURN = r"""
seconds:
  description: Seconds that it waited.
  returned: success
  type: float
"""

import time
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.engine import contexts

OPTIONS: Dict[str, Any] = {
    "container": {"type": "str"},
    "timeout": {"type": "int"},
    "ignore_gone": {"type": "bool", "default": False},
}
# Inventory name of the host, for messages
REQUEST = {"host": {"type": "str", "default": ""}}


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    if params["container"] is None or params["timeout"] is None:
        module.fail_json(msg="the container is known on the controller: call it as npufleet.triton.wait_for_npus")
    began = time.monotonic()
    reasons = contexts.wait_until_free(params["container"], params["timeout"], params["ignore_gone"])
    if reasons:
        lines = "".join("\n  - " + reason for reason in reasons)
        module.fail_json(msg="{}: the cards are not free, end what holds them and run again:{}".format(params["host"], lines))
    module.exit_json(changed=False, seconds=round(time.monotonic() - began, 1))


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
