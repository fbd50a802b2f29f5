#!/usr/bin/python
"""Module driver_installer: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_installer
short_description: Run the vendor's installer of the driver
description:
  - Runs a C(rebellions-x86_64-<version>.run) with its standard input closed, as nobody is there to answer, within a time limit, and
    in a session of its own, so that it goes on where the connection breaks off.
  - All that it says is kept in a file beside it, for root alone; its end is shown where it fails. Whether the driver is installed
    then is for M(npufleet.triton.host_state) to prove.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  path:
    description: The installer on the host, a file of whoever the task becomes. Its output goes to this path with C(.log) behind it.
    type: path
    required: true
  arguments:
    description: Arguments of the installer. The vendor's are not public.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds that it may take. Then it is ended, with all that it has started.
    type: int
    default: 1800
attributes:
  check_mode:
    support: none
    description: Is skipped.
"""

EXAMPLES = r"""
- name: Install the driver
  npufleet.triton.driver_installer:
    path: /var/lib/npufleet/packages/rebellions-x86_64-3.2.2.run
"""

RETURN = r"""
seconds:
  description: How long it took.
  returned: success
  type: float
log:
  description: The file with all that it has said.
  returned: success
  type: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.driver import installer
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 1800},
        }
    )
    path, limit = module.params["path"], module.params["timeout"]
    kept = path + ".log"
    began = time.monotonic()
    try:
        # The proven one has a second name
        with foreign.open_file(path, owner=os.geteuid(), single=False):
            pass
    except foreign.Untrusted as error:
        module.fail_json(msg=f"the installer was not run: {path} {error}. Run rbln_driver again, which brings and verifies it.")
    except OSError as error:
        module.fail_json(msg=f"the installer could not be run: {error}")
    try:
        with os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as log:
            os.fchmod(log.fileno(), 0o600)
            code = installer.run([path, *module.params["arguments"]], log, limit)
    except OSError as error:
        module.fail_json(msg=f"the installer could not be run: {error}")
    if code != 0:
        ended = f"it was ended after {limit} s" if code is None else f"it ended with {code}"
        module.fail_json(msg=f"{ended}; its last words, all of which are in {kept}:\n{installer.last_lines(kept)}", changed=True)
    module.exit_json(changed=True, seconds=round(time.monotonic() - began, 1), log=kept)


if __name__ == "__main__":
    main()
