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

# AnsibleModule.run_command cannot end the installer's child processes after a timeout. pylint: disable=ansible-bad-function
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign

# An error message shows at most MAX_LINES lines from the last TAIL_BYTES bytes of the log.
MAX_LINES, TAIL_BYTES = 30, 16384
# Longest time in seconds between SIGTERM and SIGKILL
MAX_WAIT_SECONDS = 30.0


def run_installer(command: List[str], log: IO[bytes], timeout: float) -> Optional[int]:
    """Return the exit code of an installer, or None if the installer was ended after the timeout."""
    # The installer has a session of its own, so that its children can be ended with it. pylint: disable=consider-using-with
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(MAX_WAIT_SECONDS)
        # Child processes may still run, so the whole process group is killed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def last_lines(path: str) -> str:
    """Return the last non-empty lines of a log."""
    with open(path, "rb") as source:
        source.seek(max(os.path.getsize(path) - TAIL_BYTES, 0))
        lines = source.read().decode("utf-8", "replace").splitlines()
    return "\n".join([line.rstrip() for line in lines if line.strip()][-MAX_LINES:])


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
            code = run_installer([path, *module.params["arguments"]], log, limit)
    except foreign.Untrusted as error:
        module.fail_json(msg=f"the installer was not run: {path} {error}. Run rbln_driver again, which copies and verifies it.")
    except OSError as error:
        module.fail_json(msg=f"the installer could not be run: {error}")
    if code != 0:
        reason = f"the installer was killed after {limit} s" if code is None else f"the installer ended with exit code {code}"
        lines = last_lines(log_path)
        module.fail_json(msg=f"{reason}. The whole output is in {log_path}. The last lines:\n{lines}", changed=True)
    module.exit_json(changed=True, seconds=round(time.monotonic() - start, 1), log=log_path)


if __name__ == "__main__":
    main()
