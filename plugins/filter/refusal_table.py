"""Filter refusal_table: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: refusal_table
short_description: All reasons of all hosts as one text
description:
  - Takes what M(npufleet.triton.host_state) answered with O(npufleet.triton.host_state#module:preflight) on each host, and
    gives one text in which a reason that several hosts share stands once.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Reasons by host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Refuse, all reasons of all hosts at once
  ansible.builtin.fail:
    msg: "{{ {'npu1': ['found no card, wanted 2 NPUs: seat it'], 'npu2': []} | npufleet.triton.refusal_table }}"
"""

RETURN = r"""
_value:
  description: The text; empty where no host has a reason.
  type: str
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.filter.by_host import by_host


def refusal_table(reasons: Mapping[str, List[str]]) -> str:
    """Hosts and their reasons, one line a reason, in the order in which hosts and reasons come."""
    refused = [host for host, mine in reasons.items() if mine]
    if not refused:
        return ""
    different = len({reason for mine in reasons.values() for reason in mine})
    count = "1 reason" if different == 1 else f"{different} reasons"
    return f"{len(refused)} of {len(reasons)} hosts refused, {count}, nothing was changed:\n{by_host(reasons)}"


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"refusal_table": refusal_table}
