# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: by_host
short_description: Render sentences about hosts as one text
description: Returns one text. Each sentence appears once, after the names of its hosts.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Sentences by host.
    type: dict
    required: true
  total:
    description: Number of all hosts. A sentence about all hosts is shown without names. Default is the number of input hosts.
    type: int
"""

EXAMPLES = r"""
- name: Show the effects
  ansible.builtin.debug:
    msg: "{{ {'npu1': ['driver 3.2.2 to 3.5.1'], 'npu2': []} | npufleet.triton.by_host }}"
"""

RETURN = r"""
_value:
  description: The text, with one line for each sentence. It is empty if no host has a sentence.
  type: str
"""

from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.plugin_utils.report import summary
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text


def by_host(sentences: Mapping[str, List[str]], total: Optional[int] = None) -> str:
    """Return one line for each sentence with its hosts. The sentences keep the order in which they first appear."""
    lines = {host: [host_text.indented(sentence) for sentence in host_sentences] for host, host_sentences in sentences.items()}
    return "\n".join(summary.by_sentence(lines, total))


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"by_host": by_host}
