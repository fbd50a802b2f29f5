"""Lookup rollout_batches: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_batches
short_description: The sizes of the batches in which the hosts of this run change
description:
  - The value of C(npufleet_rollout_serial) of the hosts that a plan has put into the group C(npufleet_change_yes), as
    M(npufleet.triton.host_state) has validated it. It is for C(serial) of a play, which sees no variable of the inventory, and for
    the task that announces the batches, so that both have one source.
  - Hosts that change in one run have one value. Different ones are an error.
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
- name: Roll out, batch by batch
  hosts: npufleet_change_yes
  serial: "{{ lookup('npufleet.triton.rollout_batches') }}"
"""

RETURN = r"""
_raw:
  description: One list of numbers of hosts and percentages.
  type: list
  elements: list
"""

from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import rollout

CHANGING = "npufleet_change_yes"


class LookupModule(LookupBase):
    """Reads what the plan has found."""

    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[List[rollout.Size]]:
        """Return one list."""
        seen = variables or {}
        hosts = (seen.get("groups") or {}).get(CHANGING) or []
        try:
            return [rollout.agreed({host: seen["hostvars"][host]["npufleet_state"]["serial"] for host in hosts})]
        except Refusal as refusal:
            raise AnsibleError(f"{'; '.join(refusal.reasons)} Nothing was changed.") from None
