# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: engine_reason
short_description: Extract the error of the container engine from the message of a module
description: A failed module of C(community.docker) quotes the error of the engine in its message. The result has one line.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The message of the module.
    type: str
    required: true
  secret:
    description: A secret, which is masked in the result.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show why the pull failed
  ansible.builtin.debug:
    msg: "{{ pulled.msg | npufleet.triton.engine_reason }}"
"""

RETURN = r"""
_value:
  description: The quoted message of the engine, or the whole message if it quotes nothing. It is shortened to 200 characters.
  type: str
"""

import re
from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import short
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# The form of these messages: 404 Client Error for http+docker://localhost/...: Not Found ("manifest unknown")
QUOTED = re.compile(r'\("(.+)"\)\s*\Z', re.DOTALL)
MAX_LENGTH = 200


def engine_reason(message: str, secret: str = "") -> str:
    """Return the error of the engine from the message of a module."""
    quoted = QUOTED.search(message)
    reason = quoted[1] if quoted else message
    return host_text.line(short(reason.replace(secret, "***") if secret else reason, MAX_LENGTH))


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"engine_reason": engine_reason}
