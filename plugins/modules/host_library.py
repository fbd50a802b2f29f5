#!/usr/bin/python
"""Module host_library: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_library
short_description: Bring the code of this collection's modules to a host
description:
  - Unpacks and compiles it in C(/usr/local/lib/npufleet/library), where later calls of modules find it. A call takes half as long
    then.
  - A host that M(npufleet.triton.host_lease) has held has it already.
version_added: 0.2.0
author: The npufleet developers (@npufleet)
options:
  _request:
    description: What the controller hands over. It is nothing for a playbook to set.
    type: dict
attributes:
  check_mode:
    support: full
    description: Brings nothing.
"""

EXAMPLES = r"""
- name: Bring what modules are made of
  npufleet.triton.host_library:
"""

RETURN = r"""
version:
  description: Which version the host has.
  returned: success
  type: str
"""

import base64
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

OPTIONS: Dict[str, Any] = {"_request": {"type": "dict"}}
REQUEST: Dict[str, Any] = {
    "version": {"type": "str", "default": ""},
    # Its archive in Base64, for a host that lacks it
    "library": {"type": "str"},
}


def run(module: request.Module) -> None:
    """What it does, whether it was sent or is called by the library."""
    params = request.received(module, REQUEST)
    if not params["version"]:
        module.fail_json(msg="what is brought is known on the controller: call it as npufleet.triton.host_library")
    if module.check_mode:
        module.exit_json(changed=False, version=params["version"])
    try:
        changed = library.install(params["version"], base64.b64decode(params["library"]) if params["library"] else None)
    except OSError as error:
        module.fail_json(msg=f"the library could not be brought: {error}")
    module.exit_json(changed=changed, version=params["version"])


def main() -> None:
    """Entry point where Ansible has sent it."""
    run(request.sent(OPTIONS))


if __name__ == "__main__":
    main()
