"""The commands of a host's library (programs/library.py), run as `python3 -IS LIBRARY COMMAND`.

turn ROOT      perform the change that was ordered (detached.py)
resume ROOT    finish a change whose run is gone (resume.py). Exit code 0: nothing is under way, or it was finished; 75: its run
               may still be at work; 1: the previous state could not be restored
"""

from __future__ import annotations

import sys

# A program: what it prints is the journal's, or Ansible's. pylint: disable=ansible-bad-function
BUSY = 75


def main() -> int:
    """Run the command. Returns its exit code."""
    words = sys.argv[1:]
    commands = {"turn": turn, "resume": resume}
    if len(words) != 2 or words[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    return commands[words[0]](words[1])


def turn(root: str) -> int:
    """A change of what the server serves."""
    from ansible_collections.npufleet.triton.plugins.module_utils.change import detached

    return detached.perform(root)


def resume(root: str) -> int:
    """What it says goes to the journal, with syslog's level."""
    from ansible_collections.npufleet.triton.plugins.module_utils.change.resume import resume as end

    outcome = end(root)
    if outcome.busy:
        return BUSY
    if outcome.failed:
        print(f"<3>{outcome.failed}", flush=True)
        return 1
    if outcome.did:
        print(f"<4>{outcome.did}", flush=True)
    return 0
