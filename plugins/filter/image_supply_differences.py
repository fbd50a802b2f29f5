# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: image_supply_differences
short_description: Compare the base image and the wheels of a build with the lock file
description:
  - Compares the supply of a build, which is its base image and its wheels, with the supply of the first build in the lock file.
  - If the requirements differ from the first build, only wheels with the same file name are compared.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: C(base), C(requirements) and C(wheels) of this build.
    type: dict
    required: true
  locked:
    description: C(base), C(requirements) and C(wheels) of the first build, from the lock file. Empty before the first build.
    type: dict
    required: true
  lock_file:
    description: Path of the lock file, for the message.
    type: str
    required: true
  release:
    description: Name of the release row, for the message.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse other wheels
  ansible.builtin.assert:
    that: supply | npufleet.triton.image_supply_differences({}, '.npufleet.lock.json', '25.08') | length == 0
"""

RETURN = r"""
_value:
  description: All differences. The list is empty if the supply is the same.
  type: list
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_supply_differences": image_supply.differences}
