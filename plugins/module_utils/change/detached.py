"""A turn in a process of its own: no connection ends it, and whoever comes after it reads what became of it.

It is started by a module and waited for there. Where that module is killed with its connection, the turn goes on to its end
within the limits that its order has, and leaves its result on the host.
"""

from __future__ import annotations

# Runs as a program too, which has no run_command of a module. pylint: disable=ansible-bad-function
import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any, Dict, Mapping, TextIO

from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, program, turn
from ansible_collections.npufleet.triton.plugins.module_utils.system import now, text

# What is asked, taken away as soon as it is read: checks may have headers that are secret; what came of it; each step as it begins
ORDER, RESULT, STEPS = "turn.order.json", "turn.result.json", "turn.steps"
# Characters of what a process said that ended without a result
TOLD = 2000


class Ended(Exception):
    """The process ended without a result."""


def begin(root: str, order: Mapping[str, Any], path: str = program.PROGRAM) -> subprocess.Popen[bytes]:
    """Start the turn; `path` is the program that the lease has brought to the host."""
    for name in (RESULT, STEPS, ORDER):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(root, name))
    with _private(os.path.join(root, ORDER)) as sink:
        json.dump(order, sink)
    # What it says is read only where it leaves no result
    with _private(os.path.join(root, STEPS)) as said:
        command = [sys.executable, "-I", path, "turn", root]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, cwd="/")


def wait(root: str, process: subprocess.Popen[bytes]) -> Dict[str, Any]:
    """What became of the turn, as `perform` has written it. Raises Ended."""
    code = process.wait()
    found = text(os.path.join(root, RESULT))
    if found is None:
        words = " ".join((text(os.path.join(root, STEPS)) or "").split())[-TOLD:]
        raise Ended(f"the change ended with {code} and without a result: {words}: the next run goes on from here")
    result: Dict[str, Any] = json.loads(found)
    return result


def perform(root: str) -> int:
    """The turn itself, in its own process; what came of it is in RESULT. Returns the process' exit code."""
    with open(os.path.join(root, ORDER), encoding="utf-8") as source:
        order = json.load(source)
    os.unlink(os.path.join(root, ORDER))

    def say(step: str) -> None:
        print(json.dumps({"at": now(), "step": step}), flush=True)

    result: Dict[str, Any] = {"run": order["run"], "did": [], "why": None, "back": "", "checks": [], "refused": None}
    try:
        result.update(turn.Turn(order, say=say).run()._asdict())
    except lease.LeaseError as error:
        result["refused"] = str(error)
    draft = os.path.join(root, RESULT + ".new")
    with _private(draft) as sink:
        json.dump(result, sink)
    os.replace(draft, os.path.join(root, RESULT))
    return 0


def _private(path: str) -> TextIO:
    """A new file that root alone reads."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
