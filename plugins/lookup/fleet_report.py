"""Lookup fleet_report: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_report
short_description: What is known of a fleet, as a report shows it
description:
  - Reads on the controller what the playbooks C(status) and C(check) left there, and puts it together host by host, what is
    wrong first. A half that is missing is left out.
  - Every text in the result is escaped for HTML, so a page can take it as it is.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: The hosts of the fleet. Results of other hosts are left out.
    type: list
    elements: str
    required: true
  status_file:
    description: The JSON file that the playbook C(status) writes.
    type: path
    required: true
  results_dir:
    description: The directory into which the playbook C(check) writes C(<host>.json).
    type: path
    required: true
  checked_hosts:
    description: Hosts that answer checks; a missing answer of any other is nothing to report.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Say how many hosts are not as wanted
  ansible.builtin.debug:
    msg: "{{ (lookup('npufleet.triton.fleet_report', *groups[npufleet_group], status_file=status, results_dir=results)).counts }}"
  vars:
    status: "{{ npufleet_output_dir }}/status.json"
    results: "{{ npufleet_output_dir }}/check"
"""

RETURN = r"""
_raw:
  description: The report, as one dictionary in a list.
  type: list
  elements: dict
"""

from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import view


class LookupModule(LookupBase):
    """Reads the results, then leaves the rest to plugin_utils/report/view.py."""

    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[Dict[str, Any]]:
        """One dictionary."""
        self.set_options(var_options=variables, direct=kwargs)
        results = view.read(terms, self.get_option("status_file"), self.get_option("results_dir"))
        whole = view.view(terms, self.get_option("checked_hosts"), *results, datetime.now(timezone.utc))
        return [view.escaped(whole)]
