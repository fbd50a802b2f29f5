# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: server_steps
short_description: Select the steps that bring the server of a host into sync
description:
  - Returns the steps of the role P(npufleet.triton.triton_server#role) that the plan of a host needs. The plan comes from
    M(npufleet.triton.host_state) for the concerns C(models), C(server) and C(watchdog).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The result of M(npufleet.triton.host_state).
    type: dict
    required: true
  lease:
    description: The result of M(npufleet.triton.host_lease) if this run has the lease of the host, or an empty map.
    type: dict
    default: {}
  planned:
    description: The result of M(npufleet.triton.host_state) for all concerns that this run applies, or an empty map.
    type: dict
    default: {}
  current_releases:
    description: Whether the server is to serve the releases that the links in C(served/) point to, without a transfer.
    type: bool
    default: false
  rollback:
    description: The requested rollback, if any.
    type: raw
"""

EXAMPLES = r"""
- name: Transfer the missing files of the models
  ansible.builtin.include_tasks: transfer.yml
  when: (state | npufleet.triton.server_steps).transfer
"""

RETURN = r"""
_value:
  description: >-
    A boolean for each step C(transfer), C(hold) (take the lease), C(credentials), C(key), C(container), C(change),
    C(install_watchdog) and C(remove_watchdog). C(release) has the names of the models that get another release, C(withdraw) the
    names of the models to remove from the server. C(releases_host) is true if the change is the last step on this host
    and releases its lease. C(refusals) has the reasons why a new container could not start.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping, Optional

# Concerns that one change of the server brings into sync
CHANGE_CONCERNS = {"models", "server"}


def server_steps(
    state: Mapping[str, Any],
    lease: Optional[Mapping[str, Any]] = None,
    planned: Optional[Mapping[str, Any]] = None,
    current_releases: bool = False,
    rollback: Any = None,
) -> Dict[str, Any]:
    """Return the steps for one host."""
    models = [item for item in state["plan"] if item["concern"] == "models"]
    server = {item["action"] for item in state["plan"] if item["concern"] == "server"}
    watchdog = {item["action"] for item in state["plan"] if item["concern"] == "watchdog"}
    has_lease = bool((lease or {}).get("taken"))
    concerns = {item["concern"] for item in (planned or {}).get("plan", [])}
    container = bool(server & {"create", "replace"})
    change = bool(server or models or rollback or state["actual"]["models"]["transaction"] is not None)
    return {
        "transfer": bool(state["actual"]["models"]["missing"]) and not current_releases,
        "hold": bool(change or watchdog) and not has_lease,
        "credentials": "write" in server,
        "key": "key" in server,
        "container": container,
        "change": change,
        "install_watchdog": "watch" in watchdog,
        "remove_watchdog": "unwatch" in watchdog,
        "release": _names(models, "release"),
        "withdraw": _names(models, "withdraw"),
        "refusals": _refusals(state["actual"]["server"]) if container else [],
        # The change itself releases the lease if this run applies nothing after the change.
        "releases_host": bool(state.get("known")) and has_lease and not container and concerns <= CHANGE_CONCERNS,
    }


def _refusals(server: Mapping[str, Any]) -> List[str]:
    """Return the reasons why a new container could not start."""
    absent = ", ".join(server["absent"] + server["driver_files"]["missing"])
    missing = (
        f"{absent} of the mounts of the container is missing, expected on the host: create it, install the driver for it, or "
        "correct triton_server_volumes or triton_server_driver_files"
    )
    return [*([missing] if absent else []), *server["access"]["missing"], *server["access"]["mismatches"]]


def _names(models: List[Mapping[str, Any]], action: str) -> List[str]:
    return [item["name"] for item in models if item["action"] == action]


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"server_steps": server_steps}
