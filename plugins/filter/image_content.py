# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: image_content
short_description: Compute the digest of the content of an image
description: The digest of layers and configuration is equal on all hosts. The ID can differ, as Docker has two kinds of stores.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The image, as M(community.docker.docker_image_info) returns it.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the digest of an image
  ansible.builtin.debug:
    msg: "{{ found.images[0] | npufleet.triton.image_content }}"
"""

RETURN = r"""
_value:
  description: C(sha256:) and 64 hexadecimal digits.
  type: str
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import images


def image_content(image: Mapping[str, Any]) -> str:
    """Return the digest of an inspected image. Raises ValueError if it has no layers."""
    digest = images.content_digest(image)
    if digest is None:
        raise ValueError("the image has no layers, expected RootFS.Layers of `docker image inspect`")
    return digest


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_content": image_content}
