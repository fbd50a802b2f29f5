# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The lease of a host: one run holds it on the host itself, from its first change to its last.

`lease.json` names the run and its person. The lease is live while a call of the run is at work, which a lock shows, and for
`patience` seconds after the last call. Only its run releases it. Another run waits, or takes over a lease that is no longer live. A
lease does not outlive the boot in which it was taken. The kernel ends a call that hangs at its time limit.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock, durable, locks
from ansible_collections.npufleet.triton.plugins.module_utils.kernel.clock import boot
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp

# Exists if the host is in maintenance
MARK = "maintenance.json"
LEASE, LOCK, CALLS = "lease.json", "lease.lock", "lease.calls"
# The run that took the host last, even if it has released it
LAST = "lease.last"
# The watchdog locks this file while it reloads or restarts, and checks for a lease before that
WATCHDOG = "/run/npufleet-watchdog.lock"
# Seconds that the watchdog may need for that
WATCHDOG_WAIT = 900.0
# Seconds that any call may take
CALL = 3600.0
# Longest alarm in seconds
LONGEST = 2.0**30
# How often a call may take all the time of the container, for example to restore it and to serve its releases
WAYS = 4
SHAPE = {
    "run": str,
    "by": str,
    "since": str,
    "boot": str,
    "renewed": shapes.NUMBER,
    "patience": shapes.NUMBER,
    # When it was renewed, by a clock that does not step. Earlier versions wrote the time of day only.
    "uptime?": shapes.NUMBER,
    "maintenance": bool,
    # Name and time limits of the container, for the end of an interrupted change (container.py)
    "container": {
        "name?": str,
        "free_timeout?": shapes.NUMBER,
        "stop_timeout?": shapes.NUMBER,
        "ready_timeout?": shapes.NUMBER,
        "key?": ({"name": str, "path": str}, shapes.NULL),
    },
}
# A lease that cannot be read: its run is unknown, and it is not live
UNREADABLE: Dict[str, Any] = {
    "run": "?",
    "by": "unknown",
    "since": "unknown",
    "boot": "",
    "renewed": 0,
    "patience": 0,
    "maintenance": False,
    "container": {},
}


class LeaseError(Exception):
    """A host that this run may not change."""


class Held(LeaseError):
    """A lease that another run holds: `run` is its id, None for the watchdog."""

    def __init__(self, message: str, run: Optional[str]) -> None:
        super().__init__(message)
        self.run = run


class Holder(NamedTuple):
    """A run that changes a host: its id, its person at a controller, and whether it may work on a host in maintenance."""

    run: str
    by: str
    maintenance: bool = False


def read(root: str) -> Optional[Dict[str, Any]]:
    """Return the lease, None if there is none. A lease that cannot be read counts: a run was changing the host."""
    found = shapes.read(os.path.join(root, LEASE), SHAPE)
    if not found.exists:
        return None
    return dict(UNREADABLE) if found.flaw else dict(found.content)


def last(root: str) -> str:
    """Return the run that took the host last, empty if it is unknown."""
    found = shapes.read(os.path.join(root, LAST), {"run": str})
    return str(found.content["run"]) if found.exists and not found.flaw else ""


def write(path: str, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """Write a JSON file in one piece, flushed to the disk before it counts."""
    durable.write(path, json.dumps(value, indent=1, sort_keys=True), mode)


def remaining(lease: Mapping[str, Any]) -> float:
    """Return the seconds for which the lease counts without another call; 0 for a lease of another boot, or of the future."""
    if lease["boot"] != boot():
        return 0.0
    if "uptime" in lease:
        age = clock.uptime() - lease["uptime"]
    else:
        # A live lease stays live if the clock was set back by no more than the patience
        age = time.time() - lease["renewed"]
        age = max(age, 0.0) if age >= -lease["patience"] else age
    return max(lease["patience"] - age, 0.0) if age >= 0 else 0.0


def live(root: str, lease: Mapping[str, Any], ended: str = "") -> bool:
    """Return True if the run of the lease may still be at work. Of the run `ended`, only a call can be."""
    return (lease["run"] != ended and remaining(lease) > 0) or at_work(root)


def at_work(root: str) -> bool:
    """Return True if a call of the run that holds the lease has not ended. All calls of the run share a lock."""
    try:
        with open(os.path.join(root, CALLS), "rb") as calls:
            # A process that only looks has the lock for a moment, a call for longer
            return not locks.take(calls, time.monotonic() + locks.LOOK)
    except FileNotFoundError:
        return False


@contextmanager
def _flocked(path: str, deadline: float, busy: str) -> Iterator[None]:
    """Hold the lock of a file. Raises Held with `busy` at the deadline."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with locks.opened(path) as lock:
        if not locks.take(lock, deadline):
            raise Held(busy, None)
        yield


@contextmanager
def _locked(root: str) -> Iterator[None]:
    """Lock the lease against all other processes, for moments only. Raises Held."""
    path = os.path.join(root, LOCK)
    with _flocked(path, time.monotonic() + 60, f"{path} is locked for 60 s. See `fuser {path}`"):
        yield


def watchdog_idle() -> Any:
    """Hold the lock of the watchdog, so that it does nothing. Raises Held."""
    return _flocked(
        WATCHDOG,
        time.monotonic() + WATCHDOG_WAIT,
        f"the watchdog is at work for {WATCHDOG_WAIT:.0f} s, expected it to end. See journalctl --unit npufleet-watchdog",
    )


def maintenance(path: str) -> Optional[Dict[str, Any]]:
    """Return the mark of a host in maintenance, None if there is none. A mark that cannot be read counts."""
    found = shapes.read(path, {"reason": str, "by": str, "since": str})
    if not found.exists:
        return None
    unreadable = {"reason": f"not to be read from {path}", "by": "unknown", "since": "unknown"}
    return unreadable if found.flaw else dict(found.content)


def refuse_maintenance(root: str, allowed: bool) -> None:
    """Raise LeaseError on a host in maintenance, unless this run is allowed to work on it."""
    mark = maintenance(os.path.join(root, MARK))
    if mark and not allowed:
        why = "{reason} ({by} since {since})".format(**mark)
        raise LeaseError(f"the host is in maintenance: {why}. Nothing was changed. End the maintenance first")


def acquire(
    root: str,
    holder: Holder,
    patience: float,
    container: Mapping[str, Any],
    wait: float = 0.0,
    ended: str = "",
    watchdog: bool = True,
) -> Tuple[bool, Optional[Dict[str, Any]]]:
    """Take the lease, or renew the run's own. Returns whether it was taken, and the lease of an ended run that it replaces.

    `ended` is a run that is known to be gone. Without `watchdog`, no watchdog acts on the host. Raises Held while another run holds
    the lease, LeaseError on a host in maintenance.
    """
    deadline = time.monotonic() + wait
    while True:
        with watchdog_idle() if watchdog else nullcontext(), _locked(root):
            before = read(root)
            mine = before is not None and before["run"] == holder.run
            if before is None or mine or not live(root, before, ended):
                if mine and before is not None:
                    # A run that holds the host for maintenance does so in every step
                    holder = holder._replace(maintenance=holder.maintenance or before["maintenance"])
                refuse_maintenance(root, holder.maintenance)
                _write(root, holder, patience, container, before["since"] if mine and before else timestamp())
                if not mine:
                    write(os.path.join(root, LAST), {"run": holder.run})
                return not mine, None if mine else before
        if time.monotonic() >= deadline:
            raise Held(_busy(before), before["run"])
        time.sleep(min(1.0, max(deadline - time.monotonic(), locks.LOOK)))


def _busy(lease: Mapping[str, Any]) -> str:
    left = remaining(lease)
    until = f"ends in {left:.0f} s without it" if left else "ends with the call that is at work"
    return (
        f"another run is changing this host: {lease['by']} since {lease['since']}. Wait for it to end and run again; "
        f"if it is dead, its lease {until}"
    )


def _write(root: str, holder: Holder, patience: float, container: Mapping[str, Any], since: str) -> None:
    write(
        os.path.join(root, LEASE),
        {
            "run": holder.run,
            "by": holder.by,
            "since": since,
            "boot": boot(),
            "renewed": time.time(),
            "uptime": clock.uptime(),
            "patience": patience,
            "maintenance": holder.maintenance,
            "container": dict(container),
        },
    )


@contextmanager
def working(root: str, holder: Optional[Holder] = None, limit: float = 0.0) -> Iterator[Optional[Dict[str, Any]]]:
    """Keep the lease live during a call, and restart its patience at the end. The kernel ends a process that takes too long.

    `limit` are the seconds of a call that may need more than CALL and the patience. Raises LeaseError if the lease is not the
    holder's own. Without a holder, the caller is part of the run that holds the lease, if there is one.
    """
    if holder is None and not os.path.exists(os.path.join(root, LEASE)):
        yield None
        return
    with _locked(root):
        lease = read(root)
        if holder and (lease is None or lease["run"] != holder.run):
            found = f"that of {lease['by']} since {lease['since']}" if lease else "none"
            raise LeaseError(
                f"the lease of the host is {found}, expected that of this run. It has ended meanwhile, and its change was rolled "
                "back or taken over. Run again"
            )
        calls = _shared(root) if lease else None
    try:
        with _limited(max(limit, _usual(lease))):
            yield lease
    finally:
        if calls is not None and lease is not None:
            try:
                # A lease that cannot be renewed only ends sooner: the work of the call still counts
                with suppress(LeaseError, OSError):
                    _renew(root, lease["run"])
            finally:
                os.close(calls)


def _usual(lease: Optional[Mapping[str, Any]]) -> float:
    """Return the seconds of a call that names no limit. Most of it waits for the container, as long as the inventory allows."""
    if lease is None:
        return CALL
    times = (lease["container"].get(name, 0) for name in ("free_timeout", "stop_timeout", "ready_timeout"))
    return max(CALL + WAYS * sum(times), float(lease["patience"]))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Have the kernel end this process after so many seconds. Within another limit, the later one counts."""
    before = signal.alarm(0)
    signal.alarm(max(before, math.ceil(min(seconds, LONGEST))))
    try:
        yield
    finally:
        signal.alarm(before)


def _renew(root: str, run: str) -> None:
    with _locked(root):
        after = read(root)
        if after is not None and after["run"] == run:
            write(os.path.join(root, LEASE), {**after, "renewed": time.time(), "uptime": clock.uptime()})


def _shared(root: str) -> int:
    with locks.opened(os.path.join(root, CALLS)) as calls:
        handle = os.dup(calls.fileno())
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def release(root: str, holder: Holder) -> bool:
    """Release the lease of this run. Returns False if another run holds it, or none."""
    with _locked(root):
        lease = read(root)
        if lease is None or lease["run"] != holder.run:
            return False
        os.unlink(os.path.join(root, LEASE))
        return True


def of_another(root: str, run: str, ended: str = "") -> Optional[Dict[str, Any]]:
    """Return the lease of another run that may still be at work, None if there is none."""
    lease = read(root)
    return lease if lease is not None and lease["run"] != run and live(root, lease, ended) else None
