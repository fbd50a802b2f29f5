"""What the library of a host (programs/library.py) is told on its command line, as `python3 -IS LIBRARY COMMAND`.

call MODULE    run a module of this collection; what it is told is on standard input (request.py)
turn ROOT      the change that was ordered (detached.py)
resume ROOT    end a change whose run is gone (resume.py). Exit code 0: nothing is under way, or it was ended; 75: its run
               may still be at it; 1: it could not be put back
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

# A program: what it prints is the journal's, or Ansible's. pylint: disable=ansible-bad-function
BUSY = 75
MODULES = "ansible_collections.npufleet.triton.plugins.modules."


def main() -> int:
    """Entry point."""
    commands = {"call": call, "turn": turn, "resume": resume}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    return commands[sys.argv[1]](sys.argv[2])


def call(module: str) -> int:
    """Run a module, which prints its result and exits."""
    print(library.CALLED, flush=True)
    os.chdir("/")
    importlib.import_module(MODULES + module).run(request.Called(json.load(sys.stdin)))
    return 1


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
