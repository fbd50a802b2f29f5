"""A turn in a process of its own: no connection ends it, and whoever comes after it reads what became of it.

It is started by a module and waited for there, for as long as it takes or a while. Where that module is killed with its connection,
the turn goes on to its end within the limits that its order has, and leaves its result on the host. A lock of the kernel's tells
whether it is at work.
"""

from __future__ import annotations

# Runs as a program too, which has no run_command of a module. pylint: disable=ansible-bad-function
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, TextIO

from ansible_collections.npufleet.triton.plugins.module_utils import failures, shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import OUTPUT, read_text, timestamp, which

# What is asked, taken away as soon as it is read: checks may have headers that are secret; what came of it; each step as it begins
ORDER, RESULT, STEPS = "turn.order.json", "turn.result.json", "turn.steps"
# Whether what is proven is accepted
DECISION = "turn.decision.json"
# Held by the process while it is at work
LOCK = "turn.lock"
# What is reported of a change that ended beside its own handling of errors
UNKNOWN = "what serves now is not known: run playbooks/status.yml"
# Bytes of a result: the answers to the checks are in it, which may be all that their client prints
LARGEST = 2 * OUTPUT
# Characters of what a process said that ended without a result
TOLD = 2000
# Seconds between the first two looks of whoever waits for the end, and how much longer it waits from look to look
SOON, LONGER = 0.02, 1.02
# Here a session that ends takes no process of a scope with it, whatever logind is told to kill
SYSTEMD = "/run/systemd/system"


# What RESULT has to be; one of a host that was refused has no more than the fields that it needs
RESULT_SHAPE = {
    "id": str,
    "run": str,
    "did": [str],
    "why": shapes.TEXT_OR_NULL,
    "back": str,
    "checks": [dict],
    "warnings": [str],
    "refused": shapes.TEXT_OR_NULL,
    "accepted?": (bool, shapes.NULL),
    "released?": bool,
    "replaces?": bool,
    "moves?": dict,
    "seconds_to_accept?": shapes.NUMBER,
}
DECISION_SHAPE = {"accepted": bool, "why": str}


class Ended(Exception):
    """Why there is no result."""


def begin(root: str, order: Mapping[str, Any]) -> None:
    """Start the turn, by the library that the lease has brought to the host. Raises Ended where one is at work."""
    with locks.opened(os.path.join(root, LOCK)) as lock:
        # Longer than whoever looks has a part of it
        if not locks.take(lock, time.monotonic() + locks.LOOK):
            raise Ended("a change of this host has not ended yet: wait for it and run again")
        for name in (RESULT, STEPS, ORDER, DECISION):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(root, name))
        # Whoever has lost contact when it began asks for it by this
        lock.truncate(0)
        lock.write(str(order["id"]))
        lock.flush()
        with _private(os.path.join(root, ORDER)) as sink:
            json.dump(order, sink)
        # What it says is read only where it leaves no result
        with _private(os.path.join(root, STEPS)) as said:
            subprocess.Popen(
                [*_scope(), sys.executable, "-IS", library.path(), "turn", root],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                cwd="/",
                # Its lock from the first moment on; the kernel lets go of it with the process
                pass_fds=[lock.fileno()],
            )


def _scope() -> List[str]:
    tool = which("systemd-run")
    return [tool, "--quiet", "--collect", "--scope", "--slice=system.slice"] if tool and os.path.isdir(SYSTEMD) else []


def wait(root: str, ident: str, seconds: float, proven: bool = False) -> Optional[Dict[str, Any]]:
    """What became of the turn with this id, as `perform` has written it; None where it is at work still. Raises Ended.

    With `proven` also what waits to be accepted (`waiting`).
    """
    try:
        lock = open(os.path.join(root, LOCK), "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        raise Ended("found no change on this host, wanted the one that was begun: run again") from None
    deadline, pause = time.monotonic() + seconds, SOON
    with lock:
        while locks.held(lock):
            found = waiting(root) if proven else None
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(pause)
            pause = min(pause * LONGER, locks.LOOK)
        result = last(root)
    if result is None or result["id"] != ident or "seconds_to_accept" in result:
        words = " ".join((read_text(os.path.join(root, STEPS)) or "").split())[-TOLD:]
        raise Ended(f"the change ended without a result: {words}: the next run goes on from here")
    return result


def waiting(root: str) -> Optional[Dict[str, Any]]:
    """What the turn at work has proven and waits to be accepted for, {..., "seconds_to_accept"}; None where none does."""
    found = last(root)
    if found is None or "seconds_to_accept" not in found:
        return None
    with open(os.path.join(root, LOCK), "rb") as lock:
        # One that was killed while it waited answers nobody
        return found if locks.held(lock) else None


def decide(root: str, accepted: bool, why: str = "", by: str = "") -> None:
    """Answer the turn that waits. `by` is the id of whoever does."""
    _leave(root, DECISION, {"accepted": accepted, "why": why, "by": by})


def begun(root: str, ident: str) -> str:
    """Return the id of the turn that a call with this id has begun or has answered, such as one whose own answer was lost.

    Empty where it has done neither.
    """
    here = read_text(os.path.join(root, LOCK)) or ""
    if ident and here == ident:
        return here
    decision = shapes.read(os.path.join(root, DECISION), {"by?": str})
    return here if ident and decision.content and decision.content.get("by") == ident else ""


def last(root: str) -> Optional[Dict[str, Any]]:
    """What became of the last turn on this host; None where there was none, or it has left nothing."""
    found = shapes.read(os.path.join(root, RESULT), RESULT_SHAPE, LARGEST)
    return dict(found.content) if found.exists and not found.flaw else None


def steps(root: str) -> List[Dict[str, Any]]:
    """Each step of the turn that is at work, {"at", "step"}, the latest last."""
    found = []
    for line in (read_text(os.path.join(root, STEPS)) or "").splitlines():
        with suppress(ValueError):
            found.append(shapes.parse_as(line, {"step": str, "at": str}))
    return found


def perform(root: str) -> int:
    """The turn itself, in its own process; what came of it is in RESULT. Returns the process' exit code."""
    # Here, as whoever begins it or waits for it needs nothing of that
    from ansible_collections.npufleet.triton.plugins.module_utils.change import turn

    with open(os.path.join(root, ORDER), encoding="utf-8") as source:
        order = json.load(source)
    os.unlink(os.path.join(root, ORDER))
    nothing = turn.Outcome([], back=turn.NOTHING)

    def say(step: str) -> None:
        print(json.dumps({"at": timestamp(), "step": step}), flush=True)

    result: Dict[str, Any] = {"id": order["id"], "run": order["run"], **nothing._asdict(), "refused": None}

    def ask(proven: turn.Outcome) -> Optional[str]:
        _leave(root, RESULT, {**result, **proven._asdict(), "seconds_to_accept": order["accept_within"]})
        answer = _answer(root, order)
        # From here on it is at work again
        os.unlink(os.path.join(root, RESULT))
        return answer

    try:
        result.update(turn.Turn(order, say=say, decide=ask).run()._asdict())
    except lease.LeaseError as error:
        result["refused"] = str(error)
    except Exception as error:
        # The change itself restores on any error. Whatever is left has to end with a result: the controller waits for it
        import traceback

        traceback.print_exc()
        result.update(why=failures.reason(error, turn.EXPECTED), back=UNKNOWN)
    _leave(root, RESULT, result)
    return 0


def _answer(root: str, order: Mapping[str, Any]) -> Optional[str]:
    """None for what is accepted, or why it is not."""
    deadline = time.monotonic() + order["accept_within"]
    while time.monotonic() < deadline:
        found = shapes.read(os.path.join(root, DECISION), DECISION_SHAPE)
        if found.flaw:
            return f"{DECISION} cannot be used: {found.flaw}"
        if found.exists:
            return None if found.content["accepted"] else str(found.content["why"])
        time.sleep(locks.LOOK)
    return None if order["kept_unanswered"] else f"nobody accepted it within {order['accept_within']:.0f} s"


def _leave(root: str, name: str, content: Mapping[str, Any]) -> None:
    draft = os.path.join(root, name + ".new")
    with _private(draft) as sink:
        json.dump(content, sink)
    os.replace(draft, os.path.join(root, name))


def _private(path: str) -> TextIO:
    """A new file that root alone reads."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
