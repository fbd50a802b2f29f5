"""Filter image_wheel_call: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: image_wheel_call
short_description: Arguments of one call of pip that downloads wheels of an image
description:
  - Without other indexes everything comes from the vendor's index.
  - With other indexes the vendor's packages come from its index alone, in a first call; the call for the rest gets them as files.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Requirements of the image.
    type: list
    elements: str
    required: true
  vendor:
    description: Names of the packages that only the vendor's index may give.
    type: list
    elements: str
    required: true
  index:
    description: The vendor's index.
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
    description: The vendor's wheels, which the first call brought.
    type: list
    elements: str
    default: []
  place:
    description: Directory that has C(wheels) and C(vendor); a container mounts them at its root.
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
  description: Arguments after C(pip).
  type: list
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_wheel_call": image_supply.wheel_call}
