"""Who changes a host: one lease, from the first change of a run to its last, kept on the host itself.

`lease.json` says who and since when. It is live while a call of its run is at work, which a lock shows that the kernel lets go of
with the process, and for `patience` seconds after the last call. Nobody else releases it: another run waits, or takes over what
is no longer live. It does not outlive the boot in which it was taken, as the calls of its run do not. Nor does it wait without end
for a call that hangs: the kernel ends that after its own limit, and what it left is put back as that of any call that was killed.
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

# That the host is in maintenance
MARK = "maintenance.json"
LEASE, LOCK, CALLS = "lease.json", "lease.lock", "lease.calls"
# The run that took the host last, also when it has released it
LAST = "lease.last"
# The watchdog holds it while it reloads or restarts, and looks for a lease before it begins
WATCHDOG = "/run/npufleet-watchdog.lock"
# Seconds that it may need for that
WATCHDOG_WAIT = 900.0
# Seconds that a call may be at work in any case
CALL = 3600.0
# Seconds that an alarm counts at most
LONGEST = 2.0**30
# How often a call may take all the time that the container has, such as to put one back and serve its releases
WAYS = 4
SHAPE = {
    "run": str,
    "by": str,
    "since": str,
    "boot": str,
    "renewed": shapes.NUMBER,
    "patience": shapes.NUMBER,
    # When it was renewed, by a clock that does not step; versions before this one wrote the time of day alone
    "uptime?": shapes.NUMBER,
    "maintenance": bool,
    # What whoever ends the change needs to know of the container (container.py)
    "container": {
        "name?": str,
        "free_timeout?": shapes.NUMBER,
        "stop_timeout?": shapes.NUMBER,
        "ready_timeout?": shapes.NUMBER,
        "key?": ({"name": str, "path": str}, shapes.NULL),
    },
}
# One that is not to be read: its run is not known, and it is not live
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
    """Why this run may not change the host."""


class Held(LeaseError):
    """Another run is at it: `run` is its id, None for the watchdog."""

    def __init__(self, words: str, run: Optional[str]) -> None:
        super().__init__(words)
        self.run = run


class Holder(NamedTuple):
    """Who wants the host: the run's own id, a person at a controller, whether to work on a host in maintenance."""

    run: str
    by: str
    maintenance: bool = False


def read(root: str) -> Optional[Dict[str, Any]]:
    """The lease, None where there is none. One that cannot be read counts: somebody was changing the host."""
    found = shapes.read(os.path.join(root, LEASE), SHAPE)
    if not found.exists:
        return None
    return dict(UNREADABLE) if found.flaw else dict(found.content)


def last(root: str) -> str:
    """The run that took the host last; empty where none ever has, or nobody can tell."""
    found = shapes.read(os.path.join(root, LAST), {"run": str})
    return str(found.content["run"]) if found.exists and not found.flaw else ""


def write(path: str, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """Write a JSON file in one piece, and on to the disk before it counts."""
    durable.write(path, json.dumps(value, indent=1, sort_keys=True), mode)


def remaining(lease: Mapping[str, Any]) -> float:
    """Seconds for which the lease counts without another call of its run; 0 for one of another boot, or of the future."""
    if lease["boot"] != boot():
        return 0.0
    if "uptime" in lease:
        age = clock.uptime() - lease["uptime"]
    else:
        # A clock that was set back by no more than the patience makes no live lease a dead one
        age = time.time() - lease["renewed"]
        age = max(age, 0.0) if age >= -lease["patience"] else age
    return max(lease["patience"] - age, 0.0) if age >= 0 else 0.0


def live(root: str, lease: Mapping[str, Any], ended: str = "") -> bool:
    """Whether the run of the lease may still be at it. Of `ended`, which is known to be gone, only a call can be."""
    return (lease["run"] != ended and remaining(lease) > 0) or at_work(root)


def at_work(root: str) -> bool:
    """Whether a call of the run that holds the lease has not ended. Calls share its lock, so that whoever looks has to have it."""
    try:
        with open(os.path.join(root, CALLS), "rb") as calls:
            # Somebody else who looks has it for a moment, a call for longer
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
    """Nobody else reads or writes the lease meanwhile. It is held for moments alone."""
    path = os.path.join(root, LOCK)
    with _flocked(path, time.monotonic() + 60, f"found {path} locked for 60 s, wanted to read the lease: see `fuser {path}`"):
        yield


def watchdog_idle() -> Any:
    """Hold the watchdog's lock: what it was doing has ended, and it begins nothing."""
    return _flocked(
        WATCHDOG,
        time.monotonic() + WATCHDOG_WAIT,
        f"found the watchdog at work for {WATCHDOG_WAIT:.0f} s, wanted it to end: see journalctl --unit npufleet-watchdog",
    )


def maintenance(path: str) -> Optional[Dict[str, Any]]:
    """The mark of a host in maintenance. One that cannot be read counts: whoever wrote it meant the host to be left alone."""
    found = shapes.read(path, {"reason": str, "by": str, "since": str})
    if not found.exists:
        return None
    unreadable = {"reason": f"not to be read from {path}", "by": "unknown", "since": "unknown"}
    return unreadable if found.flaw else dict(found.content)


def refuse_maintenance(root: str, allowed: bool) -> None:
    """Raises LeaseError on a host that somebody has taken out, unless this run is the one that works on it."""
    mark = maintenance(os.path.join(root, MARK))
    if mark and not allowed:
        why = "{reason} ({by} since {since})".format(**mark)
        raise LeaseError(f"found the host in maintenance: {why}; wanted it in service: nothing was changed, put it back first")


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
                    # Whoever holds it for maintenance does so in every step
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
    """Keep the lease live during a call, and count its patience anew from its end. The process ends where the call does not.

    `limit` are the seconds of a call that may need more than CALL and the lease's patience.

    With a holder the lease has to be that run's own, or LeaseError says whose it is; without one, whoever calls is part of the
    run that holds it, if any does.
    """
    if holder is None and not os.path.exists(os.path.join(root, LEASE)):
        yield None
        return
    with _locked(root):
        lease = read(root)
        if holder and (lease is None or lease["run"] != holder.run):
            found = f"that of {lease['by']} since {lease['since']}" if lease else "none"
            raise LeaseError(
                f"found {found}, wanted this run's own lease of the host: it has ended meanwhile, and what was under way was put "
                "back or taken over; run again"
            )
        calls = _shared(root) if lease else None
    try:
        with _limited(max(limit, _usual(lease))):
            yield lease
    finally:
        if calls is not None and lease is not None:
            try:
                # What the call has done counts also where the lease cannot be renewed: it ends the sooner then
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
    """End this process after so many seconds: by the kernel, whatever it is at. Inside of another limit, the later one counts."""
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
    """End one's own lease. Another run's stays; returns whether it was one's own."""
    with _locked(root):
        lease = read(root)
        if lease is None or lease["run"] != holder.run:
            return False
        os.unlink(os.path.join(root, LEASE))
        return True


def of_another(root: str, run: str, ended: str = "") -> Optional[Dict[str, Any]]:
    """The lease of another run that may still be at it; None where there is none, or it is this run's."""
    lease = read(root)
    return lease if lease is not None and lease["run"] != run and live(root, lease, ended) else None
