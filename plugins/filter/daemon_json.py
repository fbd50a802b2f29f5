# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Filter daemon_json: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: daemon_json
short_description: Merge options into the text of a daemon.json
description:
  - Merges options into the text of a C(daemon.json). Maps are merged; all other values are replaced.
  - If the options replace a driver, the present options of that driver (C(log-opts), C(storage-opts)) are removed.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The text of the file, empty if it does not exist.
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
    """Return the text of the merged file. Raises ValueError if the text is not a JSON object."""
    return json.dumps(daemon_config.merge(daemon_config.parse(current), options), indent=4, sort_keys=True) + "\n"


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"daemon_json": daemon_json}
