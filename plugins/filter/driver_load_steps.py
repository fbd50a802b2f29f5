# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: driver_load_steps
short_description: Select the steps that load the driver of a host
description: Selects steps of P(npufleet.triton.rbln_driver#role) that follow the installation of the driver.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The result of M(npufleet.triton.host_state) for the concern C(driver) before the first step.
    type: dict
    required: true
  current:
    description: The result of M(npufleet.triton.host_state) after the latest step. Before the first step, pass the input itself.
    type: dict
    required: true
  loads:
    description: Whether the steps load the kernel module of the driver again.
    type: bool
    required: true
  installs:
    description: Whether the role installs a package.
    type: bool
    required: true
  reload:
    description: Whether the operator has requested a reload of the kernel module.
    type: bool
    default: false
  hold:
    description: Whether to protect the packages from upgrades with C(apt-mark hold).
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Unload the kernel module of the previous version
  ansible.builtin.include_tasks: unload.yml
  when: (before | npufleet.triton.driver_load_steps(now, loads=true, installs=false)).unload
"""

RETURN = r"""
_value:
  description: >-
    A boolean for each step C(hold), C(load_at_boot), C(wait_for_cards), C(unload), C(load), C(start_services) and C(write_spec).
    C(remove_units) has the names of the units to remove.
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

# If a plan has an item with one of these actions, the CDI spec has to be written again.
SPEC_ACTIONS = {"toolkit", "link", "generate"}


def driver_load_steps(
    state: Mapping[str, Any], current: Mapping[str, Any], loads: bool, installs: bool, reload: bool = False, hold: bool = True
) -> Dict[str, Any]:
    """Return the steps for one host."""
    differences = {entry["name"] for entry in state["plan"]}
    remaining = {entry["name"] for entry in current["plan"]} | ({"module"} if reload else set())
    cdi = set(state["desired"]["driver"]["cdi"])
    spec_differs = bool(remaining & cdi) or any(entry["action"] in SPEC_ACTIONS for entry in current["plan"])
    load = "module" in remaining
    return {
        "hold": hold and ("hold" in differences or installs),
        "load_at_boot": "boot" in differences,
        "wait_for_cards": "npufleet-cards.service" in differences,
        # A loaded kernel module, such as one that an installer has loaded, is unloaded before the module is loaded again.
        "unload": load and current["actual"]["driver"]["module"] is not None,
        "load": load,
        "start_services": loads,
        "write_spec": bool(cdi) and (loads or spec_differs),
        "remove_units": [entry["name"] for entry in state["plan"] if entry["action"] == "remove"],
    }


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"driver_load_steps": driver_load_steps}
