# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_group
short_description: Name of the inventory group whose hosts have NPUs
description:
  - Returns the group for C(hosts) of a play, which is C(npu_hosts) by default. Only the command line can set another group
    (C(npufleet_group)), because C(hosts) cannot use variables of the inventory.
  - Fails if the inventory does not have the group. A play without hosts would succeed without doing anything.
  - Ends the run in the cases that P(npufleet.triton.play_hosts#lookup) describes.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: Names of further groups. A group that the inventory does not have matches no host, without a warning.
    type: list
    elements: str
    default: []
  within:
    description: A second group to which the hosts must belong.
    type: str
"""

EXAMPLES = r"""
- name: Plan every host with NPUs
  hosts: "{{ lookup('npufleet.triton.fleet_group') }}"

- name: Change the hosts that have a plan
  hosts: "{{ lookup('npufleet.triton.fleet_group', within='npufleet_in_rollout') }}"
"""

RETURN = r"""
_raw:
  description: The name of the group, or a pattern if there are further groups.
  type: list
  elements: str
"""

import re
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.lookup.play_hosts import pattern
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard

DEFAULT_GROUP = "npu_hosts"
# Characters that make a name a pattern: a list, a range or a regular expression
PATTERN_CHARACTERS = re.compile(r"[\s,:&!~*?\[\]]")


class LookupModule(LookupBase):
    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        """Raise AnsibleError if the group does not exist or the run must end."""
        self.set_options(var_options=variables, direct=kwargs)
        task_vars = variables or {}
        run_guard.check(task_vars, role_defaults())
        name = str(task_vars.get("npufleet_group", DEFAULT_GROUP))
        groups = task_vars.get("groups") or {}
        # An inventory without hosts is no error here. A syntax check can have no hosts. In a run, Ansible reports missing hosts.
        if groups.get("all") and name not in groups:
            todo = "put these hosts into that group, or name their group (-e npufleet_group=...)"
            raise AnsibleError(f"the inventory has no group {name}, expected the group of the hosts with NPUs: {todo}")
        if PATTERN_CHARACTERS.search(name):
            expected = "a name without spaces and , : & ! ~ * ? [ ], which would select other hosts"
            raise AnsibleError(f"npufleet_group is {name!r}, expected {expected}: rename the group")
        return [pattern([name, *terms], self.get_option("within"), {*groups, name})]
