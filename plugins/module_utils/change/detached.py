# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A host change in its own process, which survives the end of Ansible's connection to the host.

A module starts the process and waits for its result. If the connection ends and the module is killed, the process continues. The
process ends within the time limits in its order (the parameters of the change), and writes its result to a file.
"""

from __future__ import annotations

# This file is also a program, which has no AnsibleModule. pylint: disable=ansible-bad-function
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import failures, shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import MAX_OUTPUT, read_text, timestamp, which

# The files with the order of a change, its result and its steps. ORDER is removed as soon as it is read, because it contains the
# headers of the checks, which may be secret. STEPS gets one JSON line for each started step.
ORDER, RESULT, STEPS = "change.order.json", "change.result.json", "change.steps"
# The file that accepts or rejects a proven change
DECISION = "change.decision.json"
# The process of the change holds a lock on this file as long as it runs. The file contains the id of the latest order.
LOCK = "change.lock"
# The text in place of a report on the rollback, if an unexpected error ended the change
UNKNOWN = "the serving state is unknown: run playbooks/status.yml"
# Largest size of a result in bytes. A result has the results of the checks, which can be as long as the output of a command.
MAX_RESULT = 2 * MAX_OUTPUT
# If a process leaves no result, the error shows at most this number of characters of its output.
MAX_OUTPUT_SHOWN = 2000
# First pause in seconds between two reads of the result, and the factor by which each pause grows
FIRST_PAUSE, PAUSE_GROWTH = 0.02, 1.02
# This directory exists if systemd runs. The process then gets its own scope, so that it survives the end of the session, even if
# logind kills the processes of the user.
SYSTEMD = "/run/systemd/system"


# The fields of host_change.Outcome and four more: the ids of the change and of its run, the reason why the lease did not permit the
# change (`refused`), and `seconds_to_accept`, which exists only while a proven change waits to be accepted.
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
    "restored?": bool,
    "replaces?": bool,
    "moves?": dict,
    "seconds_to_accept?": shapes.NUMBER,
}
DECISION_SHAPE = {"accepted": bool, "why": str}


class NoResult(Exception):
    """The error if a change was not started, or left no result."""


def begin(root: str, order: Mapping[str, Any]) -> None:
    """Start the change in a process of the library (programs/library.py). Raises NoResult if another change is running."""
    with locks.open_lock(os.path.join(root, LOCK)) as lock:
        # Other calls hold the lock only for a moment, to test it. If it is held for longer, a change is running.
        if not locks.take(lock, time.monotonic() + locks.POLL_SECONDS):
            raise NoResult("a change of this host has not ended yet: wait for it and run again")
        for name in (RESULT, STEPS, ORDER, DECISION):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(root, name))
        # If the controller loses its connection during this call, it later finds the change by this id.
        lock.truncate(0)
        lock.write(str(order["id"]))
        lock.flush()
        _write(root, ORDER, order)
        systemd_run = which("systemd-run") if os.path.isdir(SYSTEMD) else None
        scope = [systemd_run, "--quiet", "--collect", "--scope", "--slice=system.slice"] if systemd_run else []
        # STEPS also gets all other output of the process. `wait` reports it if the process leaves no result.
        steps_file = os.open(os.path.join(root, STEPS), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(steps_file, "w", encoding="utf-8") as output:
            subprocess.Popen(
                [*scope, sys.executable, "-IS", library.path(), "change", root],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                # The process inherits the lock and holds it from the start. The kernel releases it when the process ends.
                pass_fds=[lock.fileno()],
            )


def wait(root: str, ident: str, seconds: float, proven: bool = False) -> Optional[Dict[str, Any]]:
    """Return the result of the change with this id, or None if the change still runs after `seconds`.

    Raises NoResult if the change has ended without a result, or if the latest change of the host has another id.
    With `proven`, also return the result of a proven change that waits to be accepted (see `waiting`).
    """
    try:
        lock = open(os.path.join(root, LOCK), "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        raise NoResult("this host does not know the change that was started: run again") from None
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    with lock:
        while locks.is_held(lock):
            found = waiting(root) if proven else None
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(pause)
            pause = min(pause * PAUSE_GROWTH, locks.POLL_SECONDS)
        result = last(root)
    if result is None or result["id"] != ident or "seconds_to_accept" in result:
        output = " ".join((read_text(os.path.join(root, STEPS)) or "").split())[-MAX_OUTPUT_SHOWN:]
        raise NoResult(f"the change ended without a result: {output}: the next run continues from this state")
    return result


def waiting(root: str) -> Optional[Dict[str, Any]]:
    """Return the result of a proven change that waits to be accepted, or None. It includes `seconds_to_accept`."""
    found = last(root)
    if found is None or "seconds_to_accept" not in found:
        return None
    with open(os.path.join(root, LOCK), "rb") as lock:
        # If the lock is free, the change was killed while it waited, so nobody can accept it any more.
        return found if locks.is_held(lock) else None


def decide(root: str, accepted: bool, why: str = "", by: str = "") -> None:
    """Accept or reject the proven change that waits to be accepted. `by` is the id of the call that decides."""
    _write(root, DECISION, {"accepted": accepted, "why": why, "by": by})


def change_begun_by(root: str, ident: str) -> str:
    """Return the id of the change that the call `ident` began, accepted or rejected, or an empty text.

    A caller that loses the response repeats its call with the same id. This function shows if the first call had an effect.
    """
    latest = read_text(os.path.join(root, LOCK)) or ""
    decision = shapes.read(os.path.join(root, DECISION), {"by?": str}).content or {}
    return latest if ident and ident in (latest, decision.get("by")) else ""


def last(root: str) -> Optional[Dict[str, Any]]:
    """Return the result of the latest change of this host, or None if there was no change or it left no result."""
    result: Optional[Dict[str, Any]] = shapes.read(os.path.join(root, RESULT), RESULT_SHAPE, MAX_RESULT).content
    return result


def steps(root: str) -> List[Dict[str, Any]]:
    """Return the steps of the latest change, oldest first, each as {"at": time, "step": name}."""
    found = []
    for line in (read_text(os.path.join(root, STEPS)) or "").splitlines():
        with suppress(ValueError):
            found.append(shapes.parse_as(line, {"step": str, "at": str}))
    return found


def perform(root: str) -> int:
    """Make the change in this process and write RESULT. Return the exit code."""
    # Calls that only begin a change or wait for one do not need this import.
    from ansible_collections.npufleet.triton.plugins.module_utils.change import host_change

    with open(os.path.join(root, ORDER), encoding="utf-8") as source:
        order = json.load(source)
    os.unlink(os.path.join(root, ORDER))
    nothing = host_change.Outcome([], back=host_change.NOTHING)
    result: Dict[str, Any] = {"id": order["id"], "run": order["run"], **nothing._asdict(), "refused": None}

    def log_step(step: str) -> None:
        print(json.dumps({"at": timestamp(), "step": step}), flush=True)

    def wait_for_decision(proven: host_change.Outcome) -> Optional[str]:
        _write(root, RESULT, {**result, **proven._asdict(), "seconds_to_accept": order["acceptance_timeout"]})
        why = _decision(root, order)
        # The change continues, so this intermediate result is no longer valid
        os.unlink(os.path.join(root, RESULT))
        return why

    try:
        result.update(host_change.HostChange(order, log_step=log_step, decide=wait_for_decision).run()._asdict())
    except lease.LeaseError as error:
        result["refused"] = str(error)
    except Exception as error:
        # HostChange handles its own errors. Any other error also needs a result, because the controller waits for a result.
        import traceback

        traceback.print_exc()
        result.update(why=failures.reason(error, host_change.EXPECTED), back=UNKNOWN)
    _write(root, RESULT, result)
    return 0


def _decision(root: str, order: Mapping[str, Any]) -> Optional[str]:
    """Wait until the change is accepted or rejected. Return None if it is accepted, or the reason why it is rejected."""
    deadline = time.monotonic() + order["acceptance_timeout"]
    while time.monotonic() < deadline:
        found = shapes.read(os.path.join(root, DECISION), DECISION_SHAPE)
        if found.flaw:
            return f"{DECISION} cannot be used: {found.flaw}"
        if found.exists:
            return None if found.content["accepted"] else str(found.content["why"])
        time.sleep(locks.POLL_SECONDS)
    return None if order["keep_unanswered"] else f"nobody accepted it within {order['acceptance_timeout']:.0f} s"


def _write(root: str, name: str, content: Mapping[str, Any]) -> None:
    lease.write(os.path.join(root, name), content, 0o600)
