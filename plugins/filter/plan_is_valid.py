# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: plan_is_valid
short_description: Decide whether the plan of this run still describes the server of a host
description:
  - Returns true if no other run has had the lease of the host since the plan was made, if the plan was made with the same
    O(current_releases), and if every concern that the plan changes has the Ansible tags of the server.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The result of M(npufleet.triton.host_state) that is the plan of this run.
    type: dict
    required: true
  lease:
    description: The result of M(npufleet.triton.host_lease) if this run has the lease of the host, or an empty map.
    type: dict
    default: {}
  current_releases:
    description: Whether the server is to serve the releases that the links in C(served/) point to.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read the plan, unless the plan of this run is still valid
  npufleet.triton.host_state:
    known: "{{ 'planned' if planned | npufleet.triton.plan_is_valid(lease) else omit }}"
"""

RETURN = r"""
_value:
  description: Whether the plan is still valid.
  type: bool
"""

from typing import Any, Callable, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, SERVER_TAGS

# The concerns that a run with the Ansible tags of the server applies. A change of one of them does not affect the other concerns.
SERVER_CONCERNS = {name for name, concern in CONCERNS.items() if set(SERVER_TAGS) <= set(concern.tags)}


def plan_is_valid(planned: Mapping[str, Any], lease: Optional[Mapping[str, Any]] = None, current_releases: bool = False) -> bool:
    """Return True if the plan of this run is still valid."""
    if not (lease or {}).get("fresh"):
        return False
    concerns = {item["concern"] for item in planned["plan"]}
    return (planned.get("seen") or {}).get("current_releases") == current_releases and concerns <= SERVER_CONCERNS


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"plan_is_valid": plan_is_valid}
