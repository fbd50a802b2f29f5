"""Lookup fleet_group: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_group
short_description: The group of the inventory whose hosts have NPUs
description:
  - The variable C(npufleet_group) of the command line, and C(npu_hosts) where it is not given. It is for C(hosts) of a play, which
    sees no variable of the inventory.
  - A group that the inventory has not is an error. A play over no hosts would be green and would have done nothing.
  - It ends a run that must not go on, as P(npufleet.triton.guarded#lookup) does.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: None.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Every host with NPUs
  hosts: "{{ lookup('npufleet.triton.fleet_group') }}"
"""

RETURN = r"""
_raw:
  description: The group's name.
  type: list
  elements: str
"""

import re
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard

DEFAULT = "npu_hosts"
# What a pattern of hosts takes for more than a name: a list, a range, a regular expression
PATTERN = re.compile(r"[\s,:&!~*?\[\]]")


class LookupModule(LookupBase):
    """Reads the one variable, and looks whether there is such a group."""

    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        seen = variables or {}
        run_guard.check(seen, role_defaults())
        name = str(seen.get("npufleet_group", DEFAULT))
        groups = seen.get("groups") or {}
        # Without any host it is a check of syntax, or Ansible says itself that there is no inventory
        if groups.get("all") and name not in groups:
            raise AnsibleError(
                f"found no group {name} in the inventory, wanted the hosts with NPUs in it: "
                "put them into that group, or name theirs (-e npufleet_group=...)"
            )
        if PATTERN.search(name):
            raise AnsibleError(
                f"npufleet_group is {name!r}, expected a name without spaces and , : & ! ~ * ? [ ], by which a play would go "
                "over other hosts or none: rename the group"
            )
        return [name]
