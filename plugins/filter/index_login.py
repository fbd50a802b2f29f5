# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: index_login
short_description: Render the login to a package index as a netrc file
description:
  - Renders the file for the Python that runs pip, and checks that this Python would read the same login from the file. Versions of
    Python before 3.11 do not support quotes in the file, so it cannot represent every login for these versions.
  - Fails if the file cannot represent the login.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Address of the index.
    type: str
    required: true
  user:
    description: User name of the login.
    type: str
    required: true
  password:
    description: Password of the login.
    type: str
    required: true
  python:
    description: Version of the Python that runs pip.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the login
  npufleet.triton.host_files:
    files:
      - path: /var/lib/npufleet/build/login/netrc
        content: "{{ 'https://pypi.example.com/simple/' | npufleet.triton.index_login('fleet', password, '3.12') }}"
        mode: "0600"
  no_log: true
"""

RETURN = r"""
_value:
  description: Text of the file.
  type: str
"""

from typing import Any, Callable, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import image_supply


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"index_login": image_supply.login_file}
