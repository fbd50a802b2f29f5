"""Filter by_host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: by_host
short_description: Sentences of hosts as one text
description: Gives one text, in which a sentence that several hosts share stands once.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Sentences by host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say what will happen
  ansible.builtin.debug:
    msg: "{{ {'npu1': ['driver 3.2.2 to 3.5.1'], 'npu2': []} | npufleet.triton.by_host }}"
"""

RETURN = r"""
_value:
  description: The text, a line for each sentence; empty where no host has one.
  type: str
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text


def by_host(said: Mapping[str, List[str]]) -> str:
    """Sentences and their hosts, in the order in which hosts and sentences come."""
    hosts: Dict[str, List[str]] = {}
    for host, mine in said.items():
        for sentence in mine:
            hosts.setdefault(host_text.told(sentence), []).append(host)
    return "\n".join(f"  - {_names(names, said)}: {sentence}" for sentence, names in hosts.items())


def _names(names: List[str], said: Mapping[str, List[str]]) -> str:
    return "every host" if len(names) == len(said) > 1 else ", ".join(names)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"by_host": by_host}
