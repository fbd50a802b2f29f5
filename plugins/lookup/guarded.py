"""Lookup guarded: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: guarded
short_description: Hosts of a play, unless the run must not go on
description:
  - Gives its terms, for C(hosts) of a play. Before that it ends the run where a step of a host has no result, which Ansible itself
    does not report, where the controller cannot open as many files as its forks need, or where variables were given that the
    playbooks set themselves.
  - The lookup P(npufleet.triton.fleet_group#lookup) does the same.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: Patterns of hosts.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: End the run where a step has no result
  hosts: "{{ lookup('npufleet.triton.guarded', 'localhost') }}"
"""

RETURN = r"""
_raw:
  description: The patterns.
  type: list
  elements: str
"""

from typing import Any, Dict, List, Optional

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard


class LookupModule(LookupBase):
    """Leaves the rest to plugin_utils/inventory/run_guard.py."""

    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        """Return the terms."""
        run_guard.check(variables or {}, role_defaults())
        return terms
