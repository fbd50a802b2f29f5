#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_installer
short_description: Run the vendor's installer of the driver
description:
  - Runs C(rebellions-x86_64-<version>.run) with a time limit and without standard input, because nobody can answer its questions.
  - The installer runs in its own session, so that it continues if the connection is lost.
  - If the installer fails, the error message has the last lines of its output.
  - The module does not verify that the driver is installed. Use M(npufleet.triton.host_state) for that.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  path:
    description: Path of the installer on the host. The file must belong to the user that the task becomes.
    type: path
    required: true
  arguments:
    description: Arguments of the installer. The vendor has not published any arguments.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds after which the module kills the installer and all processes that the installer started.
    type: int
    default: 1800
attributes:
  check_mode:
    support: none
    description: The task is skipped.
"""

EXAMPLES = r"""
- name: Install the driver
  npufleet.triton.driver_installer:
    path: /var/lib/npufleet/packages/rebellions-x86_64-3.2.2.run
"""

RETURN = r"""
seconds:
  description: Duration of the installation.
  returned: success
  type: float
log:
  description: Path of the file with the whole output, which is O(path) with the suffix C(.log). Only root can read the file.
  returned: success
  type: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.driver import installer
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 1800},
        }
    )
    path, limit = module.params["path"], module.params["timeout"]
    log_path = path + ".log"
    start = time.monotonic()
    try:
        # The installer is a hard link to the verified file in the store of packages, so more than one link is allowed.
        with foreign.open_file(path, owner=os.geteuid(), single=False):
            pass
        with os.fdopen(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as log:
            os.fchmod(log.fileno(), 0o600)
            code = installer.run([path, *module.params["arguments"]], log, limit)
    except foreign.Untrusted as error:
        module.fail_json(msg=f"the installer was not run: {path} {error}. Run rbln_driver again, which copies and verifies it.")
    except OSError as error:
        module.fail_json(msg=f"the installer could not be run: {error}")
    if code != 0:
        reason = f"the installer was killed after {limit} s" if code is None else f"the installer ended with exit code {code}"
        lines = installer.last_lines(log_path)
        module.fail_json(msg=f"{reason}. The whole output is in {log_path}. The last lines:\n{lines}", changed=True)
    module.exit_json(changed=True, seconds=round(time.monotonic() - start, 1), log=log_path)


if __name__ == "__main__":
    main()
