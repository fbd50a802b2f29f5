#!/usr/bin/python
"""Module rollout: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout
short_description: Say what a rollout is about to do, and end the turn of a host
description:
  - Says which hosts change, batch by batch, what changes on them, how many bytes they lack of models, and how long that took the
    last time. What differs on a host is what M(npufleet.triton.host_state) has found, in the variable C(npufleet_state).
  - At the end of a turn it releases the host, and fails where the rollout is to stop.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  state:
    description:
      - V(begun) says what lies ahead, from this batch on. It runs on the controller alone, once for a batch.
      - V(ended) is for each host of the batch. It remembers how long they took, from their variable C(npufleet_began) on.
    type: str
    choices: [begun, ended]
    default: begun
  output_dir:
    description: Directory of the controller in which C(turns.json) remembers it.
    type: path
    required: true
  serial:
    description: The batches, as C(serial) of the play has them. Default is one batch.
    type: raw
  release:
    description: Release the host, with O(state=ended). One that cannot be released, or is lost as it is to be, is a reason more.
    type: bool
    default: false
  failed:
    description:
      - Why the host is not as wanted, with O(state=ended). It fails with that once the host is released; no further batch starts.
    type: str
    default: ""
  lost:
    description: Hosts of the batch that became unreachable, with O(state=ended). Those that are left fail with that likewise.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Releases nothing.
"""

EXAMPLES = r"""
- name: Say what lies ahead
  npufleet.triton.rollout:
    output_dir: build
    serial: [1, "25%", "100%"]
  run_once: true

- name: End the turn
  npufleet.triton.rollout:
    state: ended
    output_dir: build
    release: true
"""

RETURN = r"""
msg:
  description: What lies ahead, in one line.
  returned: with O(state=begun)
  type: str
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request

# The action plugin reads the task's arguments by the same specification.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["begun", "ended"], "default": "begun"},
    "output_dir": {"type": "path", "required": True},
    "serial": {"type": "raw"},
    "release": {"type": "bool", "default": False},
    "failed": {"type": "str", "default": ""},
    "lost": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    """Entry point of whoever calls it without its action."""
    words = "the plans of all hosts are known on the controller alone: call it as npufleet.triton.rollout"
    request.ansible_module(OPTIONS).fail_json(msg=words)


if __name__ == "__main__":
    main()
