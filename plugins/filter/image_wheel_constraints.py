# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: image_wheel_constraints
short_description: Render the versions in the lock file as constraints for pip
description: The constraints let a later build download the same wheels as the first build.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Requirements of this build.
    type: list
    elements: str
    required: true
  locked:
    description: The base image and the wheels of the first build, from the lock file. Before the first build, the map is empty.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the constraints
  ansible.builtin.debug:
    msg: "{{ ['numpy<2'] | npufleet.triton.image_wheel_constraints({}) }}"
"""

RETURN = r"""
_value:
  description: The text of a constraints file. It is empty if the requirements differ from the lock file.
  type: str
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_wheel_constraints": image_supply.constraints}
