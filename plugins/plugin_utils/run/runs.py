"""This run of Ansible, as hosts know it: its id, who started it, whether another run of this machine is over. Controller only."""

from __future__ import annotations

import getpass
import os
import re
import socket
from typing import Dict

from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

# As run_id() writes it
RUN = re.compile(r"(?P<place>[^/]*)/(?P<pid>[0-9]{1,10})/(?P<began>[0-9]*)", re.ASCII)


def run_id() -> str:
    """This run: where its process ids count, the main process (each task has one of its own), when that began."""
    pid = os.getppid()
    return f"{_place()}/{pid}/{_began(pid)}"


def has_ended(run: object) -> bool:
    """Return True if a run, as a host reports it, is one of this machine and is no more. Of other machines nobody knows.

    Text that is no run id names no run, so none has ended.
    """
    match = RUN.fullmatch(run) if isinstance(run, str) else None
    return match is not None and match["place"] == _place() and _began(int(match["pid"])) != match["began"]


def holder(host: str) -> Dict[str, str]:
    """Who changes a host, as modules take it: the run, the person at this controller, the host's name in the inventory."""
    person = os.environ.get("SUDO_USER") or getpass.getuser()
    return {"run": run_id(), "by": f"{person}@{socket.gethostname()}", "host": host}


def _place() -> str:
    """Machine, its boot and the namespace of process ids: within these a process id and its beginning mean one process."""
    boot = (read_text("/proc/sys/kernel/random/boot_id") or "").strip()
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}:{boot}:{space}"


def _began(pid: int) -> str:
    """When a process began, in ticks since the boot; empty for one that is not there."""
    after_name = (read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else ""
