"""What a host needs to end a change without a controller: a program of files of this collection, and a unit for the boot."""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import os
import subprocess

from ansible_collections.npufleet.triton.plugins.module_utils import archive
from ansible_collections.npufleet.triton.plugins.module_utils.system import text

PROGRAM = "/usr/local/lib/npufleet/npufleet_change.pyz"
UNIT = "npufleet-resume.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_TEXT = """# Written by npufleet
[Unit]
Description=Put back a change that broke off
After=docker.service npufleet-cards.service
ConditionPathExists={root}/lease.json

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {program} resume {root}
SuccessExitStatus=75
TimeoutStartSec=infinity
SyslogIdentifier=npufleet-resume

[Install]
WantedBy=multi-user.target
"""


def program() -> bytes:
    """The program, for a Python of a host. On the controller alone."""
    return archive.of("change.__main__")


def install(root: str, program: bytes) -> bool:
    """Bring program and unit to the host that this runs on, where they differ. Returns whether they did."""
    unit = UNIT_TEXT.format(root=root, program=PROGRAM)
    try:
        with open(PROGRAM, "rb") as source:
            same = source.read() == program
    except OSError:
        same = False
    if same and text(UNIT_FILE) == unit:
        return False
    for path, content, mode in ((PROGRAM, program, 0o755), (UNIT_FILE, unit.encode(), 0o644)):
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(path + ".new", "wb") as sink:
            sink.write(content)
        os.chmod(path + ".new", mode)
        os.replace(path + ".new", path)
    for command in (["daemon-reload"], ["enable", UNIT]):
        subprocess.run(["systemctl", *command], capture_output=True, timeout=60, check=True)
    return True
