"""Filter compile_record: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: compile_record
short_description: The record of a compiled file, judged as text of a host
description:
  - Reads the record that the compile step left beside a compiled file on the build host. The code of the source runs there and may
    have written anything.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The record in Base64, as M(ansible.builtin.slurp) returns it.
    type: str
    required: true
  sha256:
    description: SHA-256 of the compiled file.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the record of a compiled file
  ansible.builtin.debug:
    msg: "{{ (record.content | npufleet.triton.compile_record(taken.sha256)).text }}"
"""

RETURN = r"""
_value:
  description: C(text), the record as the controller keeps it, and C(flaw), why it is none, empty where it is one.
  type: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compile_record


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"compile_record": compile_record.received}
