# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: play_hosts
short_description: Pattern of the hosts of a play, unless the run must end
description:
  - Returns a pattern for C(hosts) of a play. A group that the inventory does not have matches no host, without a warning.
  - Ends the run if a task of a host has no result, because Ansible does not report this.
  - Ends the run if the controller cannot open as many files as its forks need.
  - Ends the run if an extra variable has the name of a variable that the playbooks set themselves.
  - Ends the run if C(--tags), C(--skip-tags) or C(--start-at-task) leave out all steps, or a step that other steps need.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: Names of groups, or V(localhost).
    type: list
    elements: str
    required: true
  within:
    description: A second group to which the hosts must belong.
    type: str
"""

EXAMPLES = r"""
- name: Configure monitoring
  hosts: "{{ lookup('npufleet.triton.play_hosts', 'monitoring_hosts', within='npufleet_in_rollout') }}"
"""

RETURN = r"""
_raw:
  description: One pattern.
  type: list
  elements: str
"""

from typing import Any, Collection, Dict, List, Optional, Sequence

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard

# A pattern that matches no host. Ansible rejects an empty pattern and warns about groups that do not exist.
NO_HOST = "all:!all"


def pattern(names: Sequence[str], within: Optional[str], groups: Collection[str]) -> str:
    """Return the pattern of the hosts that are in one of these groups and in the group `within`. Missing groups have no hosts."""
    existing = [name for name in names if name in groups or name == "localhost"]
    if not existing or (within and within not in groups):
        return NO_HOST
    return ":".join([*existing, *([f"&{within}"] if within else [])])


class LookupModule(LookupBase):
    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        """Raise AnsibleError if the run must end."""
        self.set_options(var_options=variables, direct=kwargs)
        task_vars = variables or {}
        run_guard.check(task_vars, role_defaults())
        return [pattern(terms, self.get_option("within"), task_vars.get("groups") or {})]
