# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: compose_file
short_description: Render the container of the server as a Compose file
description:
  - Renders a file for Docker Compose 1.29 and 2. It describes the desired container that M(npufleet.triton.host_state) returns.
  - Values that may be secret are in C(.env) and not in the Compose file.
  - Fails if no file can be rendered, such as for an image that is not in the lock file. The error contains all reasons.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Like O(state), but with O(npufleet.triton.host_state#module:unsealed), so that it has secrets in clear text.
    type: dict
    required: true
  state:
    description: The result of M(npufleet.triton.host_state) for the concern C(server) without C(unsealed).
    type: dict
    required: true
  host:
    description: Name of the host.
    type: str
    required: true
  start_period:
    description: Maximum time in seconds from the start of the server until it is ready.
    type: int
    required: true
  restricted:
    description: APIs that require the key of the host.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show the Compose file
  ansible.builtin.debug:
    msg: "{{ (unsealed | npufleet.triton.compose_file(state, inventory_hostname, 300)).file }}"
"""

RETURN = r"""
_value:
  description: C(file) is the text of the Compose file. C(env) is the text of C(.env), which is empty if no value is secret.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.plugin_utils import compose


def compose_file(
    unsealed: Mapping[str, Any], state: Mapping[str, Any], host: str, start_period: int, restricted: Optional[List[str]] = None
) -> Dict[str, str]:
    """Return the texts of the Compose file and of .env. Raises Refusal."""
    health = {"start_period": start_period, "restricted": restricted or []}
    return compose.compose_file(unsealed["desired"]["server"], state["desired"]["server"], state["actual"]["server"], host, health)


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"compose_file": compose_file}
