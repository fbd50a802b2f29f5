"""Filter daemon_json: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: daemon_json
short_description: The text of a daemon.json with options laid over those that it has
description:
  - Merges options into the text of a C(daemon.json). Maps are merged, all other values are replaced.
  - Options that only fit another driver (C(log-opts), C(storage-opts)) are removed with that driver.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The text of the file, empty where there is none.
    type: str
    required: true
  options:
    description: Options of dockerd.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the merged file
  ansible.builtin.debug:
    msg: "{{ '{\"debug\": true}' | npufleet.triton.daemon_json({'log-driver': 'json-file'}) }}"
"""

RETURN = r"""
_value:
  description: The text of the merged file.
  type: str
"""

import json
from typing import Any, Callable, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import daemon_config


def daemon_json(current: str, options: Mapping[str, Any]) -> str:
    """Return the text of the merged file. Raises ValueError for a text that is no JSON object."""
    return json.dumps(daemon_config.merge(daemon_config.parse(current), options), indent=4, sort_keys=True) + "\n"


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"daemon_json": daemon_json}
