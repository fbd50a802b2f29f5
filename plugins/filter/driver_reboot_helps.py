# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Filter driver_reboot_helps: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_reboot_helps
short_description: Decide whether a reboot helps a driver that could not be loaded
description:
  - A reboot helps if the desired driver is installed, but the loaded kernel module has another version or has lost its cards.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The plan of M(npufleet.triton.host_state) for the concern C(driver).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Fail if a reboot does not help
  ansible.builtin.fail:
    msg: the driver cannot be loaded
  when: not state.plan | npufleet.triton.driver_reboot_helps
"""

RETURN = r"""
_value:
  description: Whether a reboot helps.
  type: bool
"""

from typing import Any, Callable, Dict, List, Mapping


def driver_reboot_helps(plan: List[Mapping[str, Any]]) -> bool:
    """Return True if the plan reloads the kernel module and installs nothing."""
    installs = any(entry["action"] == "install" for entry in plan)
    return not installs and any((entry["name"], entry["action"]) == ("module", "reload") for entry in plan)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"driver_reboot_helps": driver_reboot_helps}
