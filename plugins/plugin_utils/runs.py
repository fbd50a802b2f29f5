"""This run of Ansible, as hosts know it: its id, who started it, whether another run of this machine is over. Controller only."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Dict

from ansible_collections.npufleet.triton.plugins.module_utils.system import text


def run_id() -> str:
    """This run: where its process ids count, the main process (each task has one of its own), when that began."""
    pid = os.getppid()
    return f"{_place()}/{pid}/{_began(pid)}"


def has_ended(run: object) -> bool:
    """Whether a run, as a host tells it, is one of this machine and is no more. Of other machines nobody knows."""
    place, _slash, process = run.partition("/") if isinstance(run, str) else ("", "", "")
    pid, _slash, began = process.partition("/")
    return place == _place() and pid.isdigit() and _began(int(pid)) != began


def holder(host: str) -> Dict[str, str]:
    """Who changes a host, as modules take it: the run, the person at this controller, the host's name in the inventory."""
    person = os.environ.get("SUDO_USER") or getpass.getuser()
    return {"run": run_id(), "by": f"{person}@{socket.gethostname()}", "host": host}


def _place() -> str:
    """Machine, its boot and the namespace of process ids: within these a process id and its beginning mean one process."""
    boot = (text("/proc/sys/kernel/random/boot_id") or "").strip()
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}:{boot}:{space}"


def _began(pid: int) -> str:
    """When a process began, in ticks since the boot; empty for one that is not there."""
    after_name = (text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else ""
