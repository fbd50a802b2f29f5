"""The unit that ends a change at boot, when its run is gone with the host that lost its power."""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import os
import subprocess

from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text, untranslated

UNIT = "npufleet-resume.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_TEXT = """# Written by npufleet
[Unit]
Description=Put back a change that broke off
After=docker.service npufleet-cards.service
ConditionPathExists={root}/lease.json

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {library} resume {root}
SuccessExitStatus=75
TimeoutStartSec=infinity
SyslogIdentifier=npufleet-resume

[Install]
WantedBy=multi-user.target
"""


def install(root: str) -> bool:
    """Write and enable the unit, where it differs. Returns whether it did."""
    unit = UNIT_TEXT.format(root=root, library=library.path())
    if read_text(UNIT_FILE) == unit:
        return False
    with open(UNIT_FILE + ".new", "w", encoding="utf-8") as sink:
        sink.write(unit)
    os.chmod(UNIT_FILE + ".new", 0o644)
    os.replace(UNIT_FILE + ".new", UNIT_FILE)
    for command in (["daemon-reload"], ["enable", UNIT]):
        subprocess.run(["systemctl", *command], capture_output=True, timeout=60, check=True, env=untranslated())
    return True
