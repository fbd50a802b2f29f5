# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The commands of a host's library (programs/library.py), run as `python3 -IS LIBRARY COMMAND ARGUMENT`.

change ROOT      make the change that the controller requested (change/detached.py)
resume ROOT      finish a change whose run is gone (change/resume.py). Exit code 0: there is no unfinished change any more;
                 75: the run of the change may still be at work; 1: the previous state could not be restored
watchdog CONFIG  watch the server until the process is ended (watch/watchdog.py)
balancer ACTION  `save` the state of a balancer's servers, or `reload` HAProxy with it (balancer/state_file.py)
metrics CONFIG   write the metrics of the cards and of the host once (metrics/collect.py)
probe CONFIG     run the checks against the server once (watch/probe.py). Exit code 0: the result was written, even if checks failed
"""

from __future__ import annotations

# This is a program: it has no run_command of a module, and prints to the journal. pylint: disable=ansible-bad-function
import subprocess
import sys

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text, untranslated

UNIT = "npufleet-resume.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
# At boot after a power loss, the unit finishes the change that the power loss has interrupted.
UNIT_TEXT = """# Written by npufleet
[Unit]
Description=Roll back an interrupted change
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


def main() -> int:
    """Run the command of the command line and return its exit code."""
    arguments = sys.argv[1:]
    if len(arguments) != 2 or arguments[0] not in ("change", "resume", "watchdog", "balancer", "metrics", "probe"):
        print(__doc__, file=sys.stderr)
        return 2
    library.lock_version(sys.path[0])
    return run(*arguments)


def run(command: str, argument: str) -> int:
    """Run a command and return its exit code. Each command imports only the files that it needs."""
    if command == "change":
        from ansible_collections.npufleet.triton.plugins.module_utils.change import detached

        return detached.perform(argument)
    if command == "watchdog":
        from ansible_collections.npufleet.triton.plugins.module_utils.watch import watchdog

        return watchdog.run(argument)
    if command == "balancer":
        from ansible_collections.npufleet.triton.plugins.module_utils.balancer import state_file

        return state_file.main(argument)
    if command == "metrics":
        from ansible_collections.npufleet.triton.plugins.module_utils.metrics import collect

        return collect.run(argument)
    if command == "probe":
        from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe

        return probe.run(argument)
    return resume(argument)


def resume(root: str) -> int:
    """Finish a change whose run is gone. Messages go to the journal, each with its syslog level."""
    from ansible_collections.npufleet.triton.plugins.module_utils.change import resume as change_resume

    outcome = change_resume.resume(root)
    if outcome.busy:
        return library.BUSY
    if outcome.failed:
        print(f"<3>{outcome.failed}", flush=True)
        return 1
    if outcome.did:
        print(f"<4>{outcome.did}", flush=True)
    return 0


def install_unit(root: str) -> bool:
    """Write and enable the unit that runs `resume` at boot. Return True if its file was missing or different."""
    unit = UNIT_TEXT.format(root=root, library=library.path())
    if read_text(UNIT_FILE) == unit:
        return False
    durable.write(UNIT_FILE, unit)
    for command in (["daemon-reload"], ["enable", UNIT]):
        subprocess.run(["systemctl", *command], capture_output=True, timeout=60, check=True, env=untranslated())
    return True
