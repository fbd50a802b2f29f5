# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Filter refusal_table: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: refusal_table
short_description: Render the reasons to refuse a run as one text
description:
  - Returns a heading, and one line for each reason. A reason appears once, after the names of its hosts.
  - The reasons come from M(npufleet.triton.host_state) with O(npufleet.triton.host_state#module:preflight).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Reasons by host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Refuse the run and list the reasons of each host
  ansible.builtin.fail:
    msg: "{{ {'npu1': ['the host has 1 NPU, expected 2: seat the other card'], 'npu2': []} | npufleet.triton.refusal_table }}"
"""

RETURN = r"""
_value:
  description: The text. It is empty if no host has a reason.
  type: str
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.filter.by_host import by_host


def refusal_table(reasons: Mapping[str, List[str]]) -> str:
    """Return a heading, and one line for each reason with its hosts. The reasons keep the order in which they first appear."""
    refused = [host for host, host_reasons in reasons.items() if host_reasons]
    if not refused:
        return ""
    reason_count = len({reason for host_reasons in reasons.values() for reason in host_reasons})
    count = "1 reason" if reason_count == 1 else f"{reason_count} reasons"
    return f"{len(refused)} of {len(reasons)} hosts refused, {count}, nothing was changed:\n{by_host(reasons)}"


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"refusal_table": refusal_table}
