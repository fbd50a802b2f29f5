# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: outages
short_description: Find load balancers that would have no ready server left
description: Returns a reason for each load balancer without a ready server after a drain of the hosts in O(drained).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The results of M(npufleet.triton.balancer_info) by load balancer.
    type: dict
    required: true
  drained:
    description: The hosts that would be drained together.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse to drain the last ready hosts
  ansible.builtin.assert:
    that: npufleet_balancers | npufleet.triton.outages(ansible_play_batch) | length == 0
"""

RETURN = r"""
_value:
  description: The reasons. The list is empty if each load balancer would still have a ready server.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import traffic


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"outages": traffic.outages}
