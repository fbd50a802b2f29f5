#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
short_description: Write the report of a fleet
description:
  - Renders the results of the playbooks C(status) and C(check) as one HTML page. Hosts with problems come first.
  - The page shows the charts that M(npufleet.triton.chart_series) has read into the variable C(npufleet_charts) of a host in
    C(monitoring_hosts).
  - Run the module once for all hosts of a play.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.reader
options:
  state:
    description:
      - V(reset) removes the result files of the hosts of the play from O(results_dir) and renders nothing. Use it before a check,
        so that the page does not show old results for hosts that are unreachable or in maintenance.
      - V(read) writes the states of the hosts of the play to O(status_file), and renders the page. An earlier task must have read
        the states with O(npufleet.triton.host_state#module:details=report). For a host that could not be read, the variable
        C(npufleet_state) has the failed result. Hosts outside of the play keep their entry in the file.
      - V(rendered) renders the page from the existing files.
    type: str
    choices: [reset, read, rendered]
    default: rendered
  status_file:
    description:
      - JSON file with the state of each host. Only its owner can read it. Required unless O(state=reset).
      - The page also shows the last ten rollouts, from the directory C(rollouts) next to this file.
    type: path
  results_dir:
    description: Directory in which the playbook C(check) writes C(<host>.json).
    type: path
    required: true
  report_file:
    description: Path of the HTML page. Only its owner can read it. Required unless O(state=reset).
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
"""

RETURN = r"""
differs:
  description: Sentences about the differences, the maintenance or the failure of each host of the play that is not in sync.
  returned: with O(state=read)
  type: dict
hosts_not_in_sync:
  description: The hosts of the play that are not in sync, except hosts in maintenance.
  returned: with O(state=read)
  type: list
  elements: str
metrics:
  description:
    - Metrics for the textfile collector of node exporter. C(npufleet_drift_items) counts the differences of each host in
      O(status_file) by concern. C(npufleet_status_timestamp_seconds) is the time of this run.
  returned: with O(state=read)
  type: str
path:
  description: Path of the page.
  returned: unless O(state=reset)
  type: str
counts:
  description: C(all) is the number of hosts. C(wrong), C(unknown) and C(good) are the numbers of hosts with these ratings.
  returned: unless O(state=reset)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Fail, because the action does the work on the controller."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["reset", "read", "rendered"], "default": "rendered"},
            "status_file": {"type": "path"},
            "results_dir": {"type": "path", "required": True},
            "report_file": {"type": "path"},
        },
        required_if=[("state", state, ["status_file", "report_file"]) for state in ("read", "rendered")],
        supports_check_mode=True,
    )
    module.fail_json(msg="fleet_report runs on the controller. Call it as npufleet.triton.fleet_report.")


if __name__ == "__main__":
    main()
