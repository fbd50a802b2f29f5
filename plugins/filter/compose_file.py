"""Filter compose_file: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: compose_file
short_description: The server's container as a file of Docker Compose
description:
  - Writes what M(npufleet.triton.host_state) wants of the container in the notation of Compose, for Docker Compose 1.29 and 2.
    There is no second description of the container.
  - What may be secret stands in C(.env) and not in the file.
  - Refuses, with every reason, where the image is not locked yet, or what is mounted is not on the host.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description:
      - What M(npufleet.triton.host_state) has returned for the concern C(server) with
        O(npufleet.triton.host_state#module:unsealed).
    type: dict
    required: true
  state:
    description: What it has returned without that.
    type: dict
    required: true
  host:
    description: Name of the host.
    type: str
    required: true
  start_period:
    description: Seconds that the server has to become ready.
    type: int
    required: true
  restricted:
    description: APIs that want the key of the host.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Ask for the container with its secrets
  npufleet.triton.host_state:
    concerns: [server]
    unsealed: true
  register: wanted
  no_log: true

- name: Ask what the host has
  npufleet.triton.host_state:
    concerns: [server]
  register: state

- name: Show the file
  ansible.builtin.debug:
    msg: "{{ (wanted | npufleet.triton.compose_file(state, inventory_hostname, 300)).file }}"
"""

RETURN = r"""
_value:
  description: C(file), the text of the Compose file, and C(env), that of C(.env) beside it, empty where nothing is kept out.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.plugin_utils import compose


def compose_file(
    wanted: Mapping[str, Any], state: Mapping[str, Any], host: str, start_period: int, restricted: Optional[List[str]] = None
) -> Dict[str, str]:
    """The texts of both files."""
    health = {"start_period": start_period, "restricted": restricted or []}
    return compose.compose_file(wanted["desired"]["server"], state["desired"]["server"], state["actual"]["server"], host, health)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"compose_file": compose_file}
