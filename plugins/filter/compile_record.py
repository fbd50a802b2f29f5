# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: compile_record
short_description: Validate the record of a compiled file
description: The record is not trusted, because code of the model on the build host could change it.
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
    msg: "{{ (record.content | npufleet.triton.compile_record(compiled.sha256)).text }}"
"""

RETURN = r"""
_value:
  description: C(text), the validated record, and C(flaw), the reason why the record is invalid. One of them is an empty text.
  type: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"compile_record": compiled.validate_sent_record}
