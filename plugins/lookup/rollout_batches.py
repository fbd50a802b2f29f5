# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_batches
short_description: The sizes of the batches of a rollout
description:
  - Returns the value of C(npufleet_rollout_serial) that M(npufleet.triton.host_state) has validated for the hosts in the group
    C(npufleet_in_rollout).
  - C(serial) of a play needs this lookup, because C(serial) cannot use variables of the inventory.
  - Fails if these hosts have different values.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
"""

EXAMPLES = r"""
- name: Roll out in batches
  hosts: "{{ lookup('npufleet.triton.fleet_group', within='npufleet_in_rollout') }}"
  serial: "{{ lookup('npufleet.triton.rollout_batches') }}"
"""

RETURN = r"""
_raw:
  description: One list of sizes, which are numbers of hosts or percentages.
  type: list
  elements: list
"""

from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import rollout


class LookupModule(LookupBase):
    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[List[rollout.Size]]:
        """Raise AnsibleError if the hosts have different values."""
        task_vars = variables or {}
        hosts = (task_vars.get("groups") or {}).get("npufleet_in_rollout") or []
        try:
            return [rollout.common_serial({host: task_vars["hostvars"][host]["npufleet_state"]["serial"] for host in hosts})]
        except Refusal as refusal:
            raise AnsibleError(f"{'; '.join(refusal.reasons)} Nothing was changed.") from None
