#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_for_npus
short_description: Wait until no process has the NPUs of a host open
description:
  - Queries the vendor tool for the processes that have cards open. Processes of the running Triton container are ignored.
  - If the container does not run, the task waits for the processes to end, and fails with the names of the processes that are left.
    If the container runs and another process has a card open, the task fails at once.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.reader
options:
  container:
    description: Name of the container of the server. Default is the variable C(triton_server_name).
    type: str
  timeout:
    description: Seconds to wait. Default is the variable C(npufleet_free_timeout).
    type: int
  ignore_gone:
    description: >-
      After O(timeout), ignore processes that have ended, but that the driver still lists as users of a card. A reload of the
      driver's kernel module removes these entries.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Wait until the cards are free
  npufleet.triton.wait_for_npus:
    timeout: 60
"""

RETURN = r"""
seconds:
  description: Seconds that the task waited.
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
REQUEST = {"host": {"type": "str", "required": True}}


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    start = time.monotonic()
    reasons = contexts.wait_until_free(params["container"], params["timeout"], params["ignore_gone"])
    if reasons:
        lines = ["the cards are not free. Stop the processes that use them, and run again:", *reasons]
        module.fail_json(msg="{}: {}".format(params["host"], "\n  - ".join(lines)))
    module.exit_json(changed=False, seconds=round(time.monotonic() - start, 1))


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
