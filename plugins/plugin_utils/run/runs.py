# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The ID with which this run identifies itself to hosts, and a test whether another run on this controller has ended."""

from __future__ import annotations

import getpass
import os
import re
import socket
from typing import Dict

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

# The form of the IDs that run_id() returns
RUN = re.compile(r"(?P<namespace>[^/]*)/(?P<pid>[0-9]{1,10})/(?P<start>[0-9]*)", re.ASCII)

TERMINAL = re.compile(r"/dev/(pts/|tty|console)")


def run_id() -> str:
    """Return the ID of this run: the namespace of process IDs, the ID of the main process, and the start time of that process."""
    pid = os.getppid()
    return f"{_pid_namespace()}/{pid}/{clock.start_ticks(pid)}"


def has_ended(run: object) -> bool:
    """Return True if a run that a host reports was started on this machine and has ended. Return False for an invalid ID."""
    match = RUN.fullmatch(run) if isinstance(run, str) else None
    return match is not None and match["namespace"] == _pid_namespace() and clock.start_ticks(int(match["pid"])) != match["start"]


def lease_owner(host: str) -> Dict[str, str]:
    """Return the owner of a lease, as modules expect it: this run, its user and controller, and the inventory name of the host."""
    person = os.environ.get("SUDO_USER") or getpass.getuser()
    return {"run": run_id(), "by": f"{person}@{socket.gethostname()}", "host": host}


def has_terminal() -> bool:
    """Return True if an operator can answer a question of this run: its main process is in the foreground of a terminal."""
    pid = os.getppid()
    after_name = (read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        stdin = os.readlink(f"/proc/{pid}/fd/0")
    except OSError:
        return False
    # after_name[2] is the group of the process. after_name[5] is the group in the foreground of its terminal.
    return TERMINAL.match(stdin) is not None and len(after_name) > 5 and after_name[2] == after_name[5]


def _pid_namespace() -> str:
    """Return machine, boot and namespace of process IDs. In one namespace, a process ID and a start time identify one process."""
    boot = (read_text("/proc/sys/kernel/random/boot_id") or "").strip()
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}:{boot}:{space}"
