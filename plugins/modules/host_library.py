#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: host_library
short_description: Install the code of this collection's modules on a host
description:
  - Unpacks the code below C(/usr/local/lib/npufleet/library), and compiles it to bytecode. Later module calls load this code.
  - Every action of this collection calls this module if a host lacks the controller's version of the code. Playbooks need not call
    it.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  version:
    description: Digest of the library's files. The digest is also the name of the library's directory.
    type: str
    required: true
  archive:
    description: Archive of the library in Base64.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: The code is installed in check mode, too. Ansible itself also copies modules to a host in check mode.
"""

EXAMPLES = r"""
- name: Read the history of the model store, which installs the library if it is missing
  npufleet.triton.host_state:
    concerns: []
    store: true
"""

RETURN = r"""
version:
  description: The version of the library that the host has now.
  returned: success
  type: str
"""

import base64
import zipfile
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

OPTIONS: Dict[str, Any] = {
    "version": {"type": "str", "required": True},
    "archive": {"type": "str", "required": True},
}


def run(module: request.Module) -> None:
    version = module.params["version"]
    try:
        changed = library.install(version, base64.b64decode(module.params["archive"]))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        module.fail_json(msg=f"{library.path(version)} cannot be installed: {error}")
    module.exit_json(changed=changed, version=version)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
