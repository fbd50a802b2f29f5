"""Filter engine_reason: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: engine_reason
short_description: Why an engine could not do something, in one line
description:
  - Takes the message of a module of C(community.docker) that failed, and gives what the engine itself said in it.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The message.
    type: str
    required: true
  secret:
    description: What is not shown, should the engine have repeated it.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Say why nothing was pulled
  ansible.builtin.debug:
    msg: "{{ pulled.msg | npufleet.triton.engine_reason }}"
"""

RETURN = r"""
_value:
  description: The engine's words, the whole message where it has none, of at most 200 characters.
  type: str
"""

import re
from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import short
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# How these modules end: 404 Client Error for http+docker://localhost/...: Not Found ("manifest unknown")
QUOTED = re.compile(r'\("(.+)"\)\s*\Z', re.DOTALL)
MOST = 200


def engine_reason(said: str, secret: str = "") -> str:
    """The engine's words in the message of a module."""
    quoted = QUOTED.search(said)
    words = quoted[1] if quoted else said
    return host_text.line(short(words.replace(secret, "***") if secret else words, MOST))


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"engine_reason": engine_reason}
