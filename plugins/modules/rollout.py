#!/usr/bin/python
"""Module rollout: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout
short_description: Say what a rollout is about to do, and remember how long it took
description:
  - Says which hosts change, batch by batch, what changes on them, how many bytes they lack of models, and how long that took the
    last time. What differs on a host is what M(npufleet.triton.host_state) has found, in the variable C(npufleet_state).
  - It runs on the controller alone, once for a batch.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  state:
    description:
      - V(begun) says what lies ahead, from this batch on.
      - V(ended) remembers how long the hosts of this batch took, from their variable C(npufleet_began) on.
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
attributes:
  check_mode:
    support: full
    description: Changes no host in any case.
"""

EXAMPLES = r"""
- name: Say what lies ahead
  npufleet.triton.rollout:
    output_dir: build
    serial: [1, "25%", "100%"]
  run_once: true
"""

RETURN = r"""
msg:
  description: What lies ahead, in one line.
  returned: with O(state=begun)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Entry point of whoever calls it without its action."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["begun", "ended"], "default": "begun"},
            "output_dir": {"type": "path", "required": True},
            "serial": {"type": "raw"},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="the plans of all hosts are known on the controller alone: call it as npufleet.triton.rollout")


if __name__ == "__main__":
    main()
