# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: image_wheel_call
short_description: Build the arguments with which pip downloads the wheels of an image
description:
  - Without O(others), one call downloads all packages from the index of the vendor.
  - With O(others), a first call downloads the packages of the vendor only from the index of the vendor. A second call downloads the
    other packages, and gets the packages of the vendor as files (O(wheels)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Requirements of the image.
    type: list
    elements: str
    required: true
  vendor:
    description: Names of the packages that must come from the index of the vendor.
    type: list
    elements: str
    required: true
  index:
    description: Index of the vendor.
    type: str
    required: true
  others:
    description: Other indexes.
    type: list
    elements: str
    default: []
  options:
    description: Further options of pip.
    type: list
    elements: str
    default: []
  wheels:
    description: Wheels of the vendor, which the first call has downloaded.
    type: list
    elements: str
    default: []
  directory:
    description: Directory that contains C(wheels) and C(vendor). An empty text means the root directory, as in a container.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the call
  ansible.builtin.debug:
    msg: "{{ ['numpy<2'] | npufleet.triton.image_wheel_call([], 'https://pypi.example.com/simple/') }}"
"""

RETURN = r"""
_value:
  description: The arguments that follow C(pip).
  type: list
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_wheel_call": image_supply.wheel_call}
