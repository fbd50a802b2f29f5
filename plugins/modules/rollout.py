#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout
short_description: Announce a rollout, and end the change of a host
description:
  - Announces the hosts of each batch, their changes, the size of the model files that they lack, and the duration of the last
    rollout. The plans and sizes come from the results of M(npufleet.triton.host_state) in the variable C(npufleet_state).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  state:
    description:
      - V(begun) announces this batch and all later batches. Run it once for each batch.
      - For the second batch, V(begun) also returns the pause of the rollout, which is the longest C(npufleet_rollout_pause) of the
        hosts. If this variable is V(confirm), an operator has to confirm the second batch in a terminal. Without a terminal, such
        a rollout fails at its first batch.
      - V(ended) ends the change of a host, which began at the time in the variable C(npufleet_began). Run it for each host of the
        batch. It records the duration and the batch. At most 100 records are kept.
      - V(listed) returns the last five rollouts.
    type: str
    choices: [begun, ended, listed]
    default: begun
  output_dir:
    description:
      - Directory on the controller for the durations (C(durations.json)) and the records of rollouts (C(rollouts)).
      - For more than 20 hosts, the announcement names only some hosts of each batch, and C(rollout.txt) has all names.
    type: path
    required: true
  serial:
    description: The batches, in the form of C(serial) of a play. Default is one batch.
    type: raw
  announce:
    description: With O(state=begun), print the announcement.
    type: bool
    default: true
  release:
    description: With O(state=ended), release the lease of the host (M(npufleet.triton.host_lease)).
    type: bool
    default: false
  failed:
    description:
      - With O(state=ended), the reason why the host is not in sync. With a reason, the task fails after it has released the lease,
        so that no further batch starts.
    type: str
    default: ""
  lost:
    description:
      - With O(state=ended), hosts of the batch that became unreachable. If the list is not empty, the task fails on the other
        hosts, so that no further batch starts.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: In check mode, no lease is released.
"""

EXAMPLES = r"""
- name: Announce the rollout
  npufleet.triton.rollout:
    output_dir: build
    serial: [1, "25%", "100%"]
  run_once: true

- name: End the change of the host
  npufleet.triton.rollout:
    state: ended
    output_dir: build
    release: true
"""

RETURN = r"""
msg:
  description: The announcement in one line.
  returned: with O(state=begun)
  type: str
seconds:
  description: Seconds that the caller has to pause.
  returned: for the second batch, if the pause is a number of seconds
  type: int
confirm:
  description: True if the caller has to ask an operator.
  returned: for the second batch, if the pause is V(confirm)
  type: bool
lines:
  description: The last five rollouts as text, newest first.
  returned: with O(state=listed)
  type: list
  elements: str
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request

# The action plugin validates the arguments of the task with this specification, too.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["begun", "ended", "listed"], "default": "begun"},
    "output_dir": {"type": "path", "required": True},
    "serial": {"type": "raw"},
    "announce": {"type": "bool", "default": True},
    "release": {"type": "bool", "default": False},
    "failed": {"type": "str", "default": ""},
    "lost": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    """Fail, because the action does the work on the controller."""
    request.ansible_module(OPTIONS).fail_json(msg="rollout runs on the controller. Call it as npufleet.triton.rollout.")


if __name__ == "__main__":
    main()
