"""What the library of a host (programs/library.py) is told on its command line, as `python3 -IS LIBRARY COMMAND`.

call MODULE    run a module of this collection; what it is told is on standard input (request.py)
turn ROOT      the change that was ordered (detached.py)
resume ROOT    end a change whose run is gone (resume.py). Exit code 0: nothing is under way, or it was ended; 75: its run
               may still be at it; 1: it could not be put back
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from contextlib import suppress
from typing import List

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

# A program: what it prints is the journal's, or Ansible's. pylint: disable=ansible-bad-function
BUSY = 75
MODULES = "ansible_collections.npufleet.triton.plugins.modules."


def main() -> None:
    """Entry point. The process ends with what it was told to do: Python would first take apart all that it has imported."""
    try:
        code = told(sys.argv[1:])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def told(words: List[str]) -> int:
    """Do it. Returns the exit code."""
    commands = {"call": call, "turn": turn, "resume": resume}
    if len(words) != 2 or words[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    return commands[words[0]](words[1])


def call(module: str) -> int:
    """Run a module, which prints its result and exits."""
    print(library.CALLED, flush=True)
    os.chdir("/")
    # What is imported is never to be collected
    gc.disable()
    run = importlib.import_module(MODULES + module).run
    gc.freeze()
    gc.enable()
    run(request.Called(json.load(sys.stdin)))
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
