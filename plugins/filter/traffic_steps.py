# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: traffic_steps
short_description: Select the steps of a host change that keep the requests of clients from failing
description: Decides whether the host is drained before its change, and whether the requests of clients judge the change.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: RV(npufleet.triton.host_state#module:traffic) of the host.
    type: dict
    required: true
  balancers:
    description: The results of M(npufleet.triton.balancer_info) by load balancer.
    type: dict
    required: true
  host:
    description: Inventory name of the host.
    type: str
    required: true
  repairs:
    description: Whether the change repairs the server. Such a change runs without traffic, and does not wait until it is accepted.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Compute the steps of the host change
  ansible.builtin.set_fact:
    npufleet_traffic: "{{ npufleet_state.traffic | npufleet.triton.traffic_steps(npufleet_balancers, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The booleans C(drain) and C(judge), and C(accept_within), the seconds within which a call has to accept the change.
  type: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import traffic


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"traffic_steps": traffic.steps}
