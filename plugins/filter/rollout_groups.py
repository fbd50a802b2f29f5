"""Filter rollout_groups: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_groups
short_description: The groups of hosts that a rollout goes over
description:
  - Takes what M(npufleet.triton.host_state) has found on each host, and gives each that has a part in what follows with its
    groups, C(npufleet_change_yes) for one that changes, C(npufleet_change_maintenance) for one that is left out, and
    C(npufleet_build) for the one that builds an image, or puts it where the others get it. A host that is as wanted is in none.
  - Where M(npufleet.triton.host_state) was asked what a rollback would move, that is what changes a host.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Variables by host, of which C(npufleet_state) and C(npufleet_build_host) are read.
    type: dict
    required: true
  builder:
    description: The host that builds for those that do not name one.
    type: str
    required: true
  check:
    description: Whether nothing is to be changed.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Group the hosts by what they need
  ansible.builtin.add_host:
    name: "{{ item.name }}"
    groups: "{{ item.groups }}"
  loop: "{{ {'npu1': {'npufleet_state': {'plan': [], 'maintenance': none}}} | npufleet.triton.rollout_groups('npu1') }}"
"""

RETURN = r"""
_value:
  description: C(name) and C(groups) of each host that has any, in the order in which the hosts come.
  type: list
  elements: dict
"""

from typing import Any, Callable, Dict, List, Mapping


def rollout_groups(hosts: Mapping[str, Mapping[str, Any]], builder: str, check: bool = False) -> List[Dict[str, Any]]:
    """Each host that has a part in the rollout, with its groups."""
    found = []
    for name, variables in hosts.items():
        state = variables["npufleet_state"]
        builds = any(entry["action"] in ("build", "publish") for entry in state["plan"]) and name == variables.get(
            "npufleet_build_host", builder
        )
        groups = ["npufleet_build"] if builds and not check else []
        if state["maintenance"]:
            groups.append("npufleet_change_maintenance")
        elif state.get("moves", state["plan"]) and not check:
            groups.append("npufleet_change_yes")
        if groups:
            found.append({"name": name, "groups": groups})
    return found


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"rollout_groups": rollout_groups}
