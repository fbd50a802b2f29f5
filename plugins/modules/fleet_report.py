#!/usr/bin/python
"""Module fleet_report: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
short_description: Write down what is known of a fleet, and draw it
description:
  - Puts together what the playbooks C(status) and C(check) have left on the controller, host by host, what is wrong first, and
    draws it as one page of HTML. A half that is missing is left out.
  - It runs on the controller alone, once for all hosts.
  - Before hosts are asked anew, it takes away what was left of each.
version_added: 0.2.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.controller
options:
  state:
    description:
      - V(read) first writes to O(status_file) what M(npufleet.triton.host_state) has found on each host of the play, in its
        variable C(npufleet_state); of hosts that were not asked it keeps what the file has.
      - V(drawn) takes what the files have.
      - V(begun) removes the file of the task's host from O(results_dir), and draws nothing. Answers of before speak for no host
        that is out of reach or in maintenance.
    type: str
    choices: [begun, read, drawn]
    default: drawn
  status_file:
    description: What was read of each host, as JSON, for its owner alone. Needed unless O(state=begun).
    type: path
  results_dir:
    description: The directory into which the playbook C(check) writes C(<host>.json).
    type: path
    required: true
  report_file:
    description: The page, for its owner alone. Needed unless O(state=begun).
    type: path
"""

EXAMPLES = r"""
- name: Write down what was read, and draw it
  npufleet.triton.fleet_report:
    state: read
    status_file: build/status.json
    results_dir: build/check
    report_file: build/report/index.html
  run_once: true

- name: Keep no answers of before
  npufleet.triton.fleet_report:
    state: begun
    results_dir: build/check
"""

RETURN = r"""
differs:
  description: What differs, by host, in sentences.
  returned: with O(state=read)
  type: dict
path:
  description: Where the page is.
  returned: unless O(state=begun)
  type: str
counts:
  description: How many hosts there are, C(all), and how many of them are C(wrong), C(unknown) and C(good).
  returned: unless O(state=begun)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Entry point of whoever calls it without its action."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["begun", "read", "drawn"], "default": "drawn"},
            "status_file": {"type": "path"},
            "results_dir": {"type": "path", "required": True},
            "report_file": {"type": "path"},
        },
        required_if=[("state", state, ["status_file", "report_file"]) for state in ("read", "drawn")],
        supports_check_mode=True,
    )
    module.fail_json(msg="the answers of all hosts are known on the controller alone: call it as npufleet.triton.fleet_report")


if __name__ == "__main__":
    main()
