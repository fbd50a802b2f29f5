"""Filter image_content: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: image_content
short_description: The digest of what an image holds
description:
  - Takes an image as an engine inspects it, and gives a digest over its layers and its configuration. That is equal on every host
    that has the image, which its ID is not where engines keep images in stores of two kinds.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The image, as M(community.docker.docker_image_info) returns it.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Tell an image from another one
  ansible.builtin.debug:
    msg: "{{ found.images[0] | npufleet.triton.image_content }}"
"""

RETURN = r"""
_value:
  description: C(sha256:) and 64 digits.
  type: str
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import images


def image_content(found: Mapping[str, Any]) -> str:
    """The digest of an inspected image."""
    digest = images.content_digest(found)
    if digest is None:
        raise ValueError("found an image whose layers the engine does not tell, wanted RootFS.Layers of `docker image inspect`")
    return digest


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_content": image_content}
