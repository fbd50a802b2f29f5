#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Module fleet_report: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
short_description: Write the report of a fleet
description:
  - Combines the results of the playbooks C(status) and C(check) on the controller, and renders them as one HTML page. Hosts with
    problems come first. If the results of one playbook are missing, the page shows only those of the other one.
  - Run it once for all hosts, except with O(state=begun), which runs for each host.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.controller
options:
  state:
    description:
      - V(begun) removes the result file of the host from O(results_dir) and renders nothing. Otherwise an old result would be
        reported for a host that is unreachable or in maintenance.
      - V(read) writes the results of M(npufleet.triton.host_state) to O(status_file), and renders the page. The results are in the
        variable C(npufleet_state) of each host. Hosts that were not read keep their entry in the file.
      - V(drawn) renders the page from the files as they are.
    type: str
    choices: [begun, read, drawn]
    default: drawn
  status_file:
    description: JSON file with the state of each host. Only its owner can read it. Required unless O(state=begun).
    type: path
  results_dir:
    description: Directory in which the playbook C(check) writes C(<host>.json).
    type: path
    required: true
  report_file:
    description: Path of the HTML page. Only its owner can read it. Required unless O(state=begun).
    type: path
"""

EXAMPLES = r"""
- name: Write the state of all hosts and render the report
  npufleet.triton.fleet_report:
    state: read
    status_file: build/status.json
    results_dir: build/check
    report_file: build/report/index.html
  run_once: true

- name: Remove the previous result of this host
  npufleet.triton.fleet_report:
    state: begun
    results_dir: build/check
"""

RETURN = r"""
differs:
  description: For each host, its differences from the desired state as sentences.
  returned: with O(state=read)
  type: dict
path:
  description: Path of the page.
  returned: unless O(state=begun)
  type: str
counts:
  description: Number of hosts, C(all), and how many of them are C(wrong), C(unknown) and C(good).
  returned: unless O(state=begun)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Fail, because the action does the work on the controller."""
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
    module.fail_json(msg="fleet_report runs on the controller. Call it as npufleet.triton.fleet_report.")


if __name__ == "__main__":
    main()
