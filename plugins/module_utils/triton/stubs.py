# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The stubs: the processes of Triton's python backend, one for each instance of a model."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple

from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

# Process name of a stub. The kernel keeps 15 characters of triton_python_backend_stub.
NAME = "triton_python_b"
PROC = "/proc"


class Stub(NamedTuple):
    """The path of the Python file that a stub runs, and the name of its instance. Different models can use the same name."""

    code: str
    instance: str


def command_line(pid: int) -> List[str]:
    """Return the command line of a process as a list, or an empty list if the process has ended."""
    return (read_text(f"{PROC}/{pid}/cmdline") or "").split("\0")[:-1]


def running_stubs(root: int) -> Dict[int, Stub]:
    """Return {process ID: stub} of the container whose first process is `root`."""
    stubs = {}
    for pid in map(int, filter(str.isdigit, os.listdir(PROC))):
        arguments = command_line(pid) if (read_text(f"{PROC}/{pid}/comm") or "").rstrip("\n") == NAME else []
        # The arguments are the program, the Python file, and others. The second to last argument is the instance.
        if len(arguments) > 3 and same_container(pid, root):
            stubs[pid] = Stub(arguments[1], arguments[-2])
    return stubs


def same_container(pid: int, other: int) -> bool:
    """Return True if two processes are in the same PID namespace."""
    try:
        return os.readlink(f"{PROC}/{pid}/ns/pid") == os.readlink(f"{PROC}/{other}/ns/pid")
    except OSError:
        return False
