# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_groups
short_description: Compute the groups of the hosts of a rollout
description:
  - Returns the hosts that take part in a rollout, with their groups. A host in sync is in no group.
  - The group C(npufleet_in_rollout) has the hosts that change. C(npufleet_in_maintenance) has the hosts in maintenance, which do
    not change. C(npufleet_build) has the host that builds or publishes the image.
  - The load balancers in C(npufleet_balancers_first) change before the hosts, those in C(npufleet_balancers_last) after the hosts.
  - A host changes if its plan has actions. In a rollback, a host changes if M(npufleet.triton.host_state) has returned models that
    the rollback would change (RV(npufleet.triton.host_state#module:moves)).
  - A host that an earlier rollout has drained and not undrained takes part as well.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Variables by host. The filter uses C(npufleet_state) and C(npufleet_build_host).
    type: dict
    required: true
  builder:
    description: The host that builds the image if C(npufleet_build_host) is not set.
    type: str
    required: true
  check:
    description: True in check mode, in which no host changes.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Group the hosts by their plans
  ansible.builtin.add_host:
    name: "{{ item.name }}"
    groups: "{{ item.groups }}"
  loop: "{{ {'npu1': {'npufleet_state': {'plan': [], 'maintenance': none}}} | npufleet.triton.rollout_groups('npu1') }}"
"""

RETURN = r"""
_value:
  description: C(name) and C(groups) of each host that has a group, in the order of the hosts.
  type: list
  elements: dict
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import traffic


def rollout_groups(hosts: Mapping[str, Mapping[str, Any]], builder: str, check: bool = False) -> List[Dict[str, Any]]:
    """Return the name and the groups of each host that takes part in the rollout."""
    members = []
    for name, variables in hosts.items():
        state = variables["npufleet_state"]
        builds = any(entry["action"] in ("build", "publish") for entry in state["plan"]) and name == variables.get(
            "npufleet_build_host", builder
        )
        groups = ["npufleet_build"] if builds and not check else []
        if state["maintenance"]:
            groups.append("npufleet_in_maintenance")
        elif (state.get("moves", state["plan"]) or traffic.limited(state)) and not check:
            groups.append("npufleet_in_rollout")
        if "npufleet_in_rollout" in groups and "balancer" in (state.get("desired") or {}):
            groups.append("npufleet_balancers_" + ("first" if serves_check_model(name, hosts) else "last"))
        if groups:
            members.append({"name": name, "groups": groups})
    return members


def serves_check_model(balancer: str, hosts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if a load balancer may change before the hosts: all servers of its pool serve the model of the new health check.

    Hosts without a server and hosts that this run does not read are ignored. If no host has a server, the load balancer changes
    after the hosts.
    """
    desired = hosts[balancer]["npufleet_state"]["desired"]["balancer"]
    states = [hosts[name]["npufleet_state"] for name in desired["servers"] if name in hosts]
    # The result for a host in sync has no actual state. Such a host serves all models of its pool.
    served_by_host = [
        ((state.get("actual") or {}).get("server") or {}).get("served") for state in states if not state.get("in_sync")
    ]
    served = [models for models in served_by_host if models]
    if len(served_by_host) == len(states) and states and not served:
        return False
    return all(desired["model"] in models for models in served)


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"rollout_groups": rollout_groups}
