# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The lease of a host: a file that gives one run the right to change the host, from the first to the last change of the run.

A call is one execution of a module that changes or proves the host for this run. The lease is live (valid) during each call, and
for `patience` seconds after the last call. Each running call keeps a lock on `lease.calls`. A live lease is released only by the
run that has it. Another run waits until the lease is no longer live, and then takes it over. A reboot ends every lease. If a call
hangs, the kernel ends the process of the call at its time limit.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import time
from contextlib import contextmanager, nullcontext, suppress
from types import MappingProxyType
from typing import Any, ContextManager, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import rollouts
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock, durable, locks
from ansible_collections.npufleet.triton.plugins.module_utils.kernel.clock import boot
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp

# This file exists as long as the host is in maintenance
MAINTENANCE_FILE = "maintenance.json"
LEASE, LOCK, CALLS = "lease.json", "lease.lock", "lease.calls"
# The file with the ID of the run that took the lease last. It stays when the lease is released.
LAST = "lease.last"
# The watchdog holds a lock on this file during a repair of the server. Before a repair, it checks that no run has the lease.
WATCHDOG = "/run/npufleet-watchdog.lock"
# Longest time in seconds for which the watchdog holds this lock
WATCHDOG_WAIT = 900.0
# Shortest time limit of a call in seconds. The time limits of the container are added LIMIT_REPEATS times: a call can replace the
# container and then restore the old one, so it needs each time limit twice. The rest is a reserve.
CALL_LIMIT, LIMIT_REPEATS = 3600.0, 4
# Largest argument of signal.alarm in seconds
MAX_ALARM = 2.0**30
SHAPE = {
    "run": str,
    "by": str,
    "since": str,
    "boot": str,
    "renewed": shapes.NUMBER,
    "patience": shapes.NUMBER,
    # Seconds since boot at the last renewal. Unlike the time of day in `renewed`, nobody can set this clock. Earlier versions wrote
    # only `renewed`.
    "uptime?": shapes.NUMBER,
    "maintenance": bool,
    # Settings of the container (container.py), with which the host can undo an interrupted change without the controller
    "container": {
        "name?": str,
        "free_timeout?": shapes.NUMBER,
        "stop_timeout?": shapes.NUMBER,
        "ready_timeout?": shapes.NUMBER,
        "key?": ({"name": str, "path": str}, shapes.NULL),
    },
}
# The lease that `read` returns for a file that cannot be read. `remaining` returns 0 for this lease.
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
    """The error if this run is not allowed to change the host."""


class Held(LeaseError):
    """The error if another run has the lease (`run` is its ID), or if a lock does not become free (`run` is None)."""

    def __init__(self, message: str, run: Optional[str]) -> None:
        super().__init__(message)
        self.run = run


class Holder(NamedTuple):
    """A run that changes a host: its id, the person who started it, and whether it is allowed to change a host in maintenance."""

    run: str
    by: str
    maintenance: bool = False


def read(root: str) -> Optional[Dict[str, Any]]:
    """Return the lease, or None if there is no lease file, or UNREADABLE if the file cannot be read."""
    content: Optional[Dict[str, Any]]
    content, flaw, _exists = shapes.read(os.path.join(root, LEASE), SHAPE)
    return dict(UNREADABLE) if flaw else content


def last_run(root: str) -> str:
    """Return the id of the run that took the lease of the host last, or an empty text if it is unknown."""
    last = shapes.read(os.path.join(root, LAST), {"run": str}).content
    return str(last["run"]) if last else ""


def write(path: str, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """Replace a JSON file as a whole, and flush it to the disk."""
    durable.write(path, json.dumps(value, indent=1, sort_keys=True), mode)


def remaining(lease: Mapping[str, Any]) -> float:
    """Return the seconds until the lease ends if no call renews it. Return 0 if the last renewal was before the last boot."""
    if lease["boot"] != boot():
        return 0.0
    if "uptime" in lease:
        age = clock.uptime() - lease["uptime"]
    else:
        # If `renewed` is in the future, the clock was set back. Up to `patience` seconds, the lease counts as just renewed. Beyond
        # that, it counts as ended.
        age = time.time() - lease["renewed"]
        age = max(age, 0.0) if age >= -lease["patience"] else age
    return max(lease["patience"] - age, 0.0) if age >= 0 else 0.0


def live(root: str, lease: Mapping[str, Any], dead_run: str = "") -> bool:
    """Return True if the lease is live, so that its run can still change the host.

    `dead_run` is the ID of a run whose process on the controller has ended. Its lease is live until its last call on the host ends.
    """
    return (lease["run"] != dead_run and remaining(lease) > 0) or at_work(root)


def at_work(root: str) -> bool:
    """Return True if a call of the run that holds the lease is running. All calls share the lock on `lease.calls`."""
    with suppress(FileNotFoundError), open(os.path.join(root, CALLS), "rb") as calls:
        # Other processes hold the lock only for a moment, to test it. If it is held for longer, a call is running.
        return not locks.take(calls, time.monotonic() + locks.POLL_SECONDS)
    return False


@contextmanager
def _file_lock(path: str, seconds: float, busy: str) -> Iterator[None]:
    """Hold the lock of a file. Raises Held with the message `busy` if the lock is not free within `seconds`."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with locks.open_lock(path) as lock:
        if not locks.take(lock, time.monotonic() + seconds):
            raise Held(busy, None)
        yield


def _lease_lock(root: str) -> ContextManager[None]:
    """Hold the lock of lease.json while it is read and written. Raises Held after 60 s."""
    path = os.path.join(root, LOCK)
    return _file_lock(path, 60.0, f"{path} has been locked for 60 s. See `fuser {path}`")


def watchdog_idle() -> ContextManager[None]:
    """Hold the lock of the watchdog, so that it repairs nothing. Raises Held if the watchdog does not end its repair."""
    busy = f"the watchdog has been working for {WATCHDOG_WAIT:.0f} s, expected it to end. See journalctl --unit npufleet-watchdog"
    return _file_lock(WATCHDOG, WATCHDOG_WAIT, busy)


def maintenance(path: str) -> Optional[Dict[str, Any]]:
    """Return {"reason", "by", "since"} of the maintenance, or None without maintenance. An unreadable file means maintenance."""
    content: Optional[Dict[str, Any]]
    content, flaw, _exists = shapes.read(path, {"reason": str, "by": str, "since": str})
    return {"reason": f"unreadable, see {path}", "by": "unknown", "since": "unknown"} if flaw else content


def refuse_maintenance(root: str, allowed: bool) -> None:
    """Raise LeaseError on a host in maintenance, unless this run is allowed to work on it."""
    mark = maintenance(os.path.join(root, MAINTENANCE_FILE))
    if mark and not allowed:
        why = "{reason} ({by} since {since})".format(**mark)
        raise LeaseError(f"the host is in maintenance: {why}. Nothing was changed. End the maintenance first")


def acquire(
    root: str,
    holder: Holder,
    patience: float,
    container: Mapping[str, Any],
    wait: float = 0.0,
    dead_run: str = "",
    watchdog: bool = True,
) -> Tuple[bool, Optional[Dict[str, Any]]]:
    """Take or renew the lease. Return (taken, old): `taken` is False after a renewal, `old` is the replaced lease or None.

    `dead_run` is the ID of a run that the caller knows to have ended. `watchdog` is False on hosts without a watchdog. Raises Held
    if another run still holds the lease after `wait` seconds, and LeaseError if the host is in maintenance.
    """
    deadline = time.monotonic() + wait
    while True:
        with watchdog_idle() if watchdog else nullcontext(), _lease_lock(root):
            before = read(root)
            renewed = before if before is not None and before["run"] == holder.run else None
            if before is None or renewed or not live(root, before, dead_run):
                # If one call of a run was allowed to change a host in maintenance, its later calls are allowed, too.
                maintenance_allowed = holder.maintenance or bool(renewed and renewed["maintenance"])
                refuse_maintenance(root, maintenance_allowed)
                entry = {
                    "run": holder.run,
                    "by": holder.by,
                    "since": renewed["since"] if renewed else timestamp(),
                    "boot": boot(),
                    "patience": patience,
                    "maintenance": maintenance_allowed,
                    "container": dict(container),
                }
                _write_renewed(root, entry)
                if renewed:
                    return False, None
                write(os.path.join(root, LAST), {"run": holder.run})
                return True, before
        if time.monotonic() >= deadline:
            left = remaining(before)
            until = f"ends in {left:.0f} s" if left else "ends with its last call on the host"
            raise Held(
                f"another run is changing this host: {before['by']} since {before['since']}. Wait for it to end and run again; "
                f"if it is dead, its lease {until}",
                before["run"],
            )
        time.sleep(min(1.0, max(deadline - time.monotonic(), locks.POLL_SECONDS)))


def _write_renewed(root: str, lease: Mapping[str, Any]) -> None:
    """Write the lease with the time of this renewal. The boot stays the same, because a reboot ends the lease."""
    write(os.path.join(root, LEASE), {**lease, "renewed": time.time(), "uptime": clock.uptime()})


@contextmanager
def working(root: str, holder: Optional[Holder] = None, limit: float = 0.0) -> Iterator[Optional[Dict[str, Any]]]:
    """Keep the lease live during a call, and renew it at the end. The kernel ends a process that takes too long.

    The time limit follows from CALL_LIMIT and the time limits of the container. A larger `limit` (in seconds) replaces it. With
    `holder`, raise LeaseError if this run does not hold the lease. Without `holder`, the call belongs to the run that holds the
    lease. If no run holds the lease, the call renews nothing and has no time limit.
    """
    if holder is None and not os.path.exists(os.path.join(root, LEASE)):
        yield None
        return
    with _lease_lock(root):
        lease = read(root)
        if holder and (lease is None or lease["run"] != holder.run):
            owner = f"{lease['by']} has it since {lease['since']}" if lease else "no run has it"
            raise LeaseError(
                f"this run has lost the lease of the host ({owner}). The change of this run was rolled back or taken over. "
                "Run the playbook again"
            )
        calls = locks.open_lock(os.path.join(root, CALLS)) if lease else None
        if calls:
            fcntl.flock(calls, fcntl.LOCK_SH)
    try:
        default = CALL_LIMIT
        if lease:
            times = (lease["container"].get(name, 0) for name in ("free_timeout", "stop_timeout", "ready_timeout"))
            default = max(CALL_LIMIT + LIMIT_REPEATS * sum(times), float(lease["patience"]))
        with _time_limit(max(limit, default)):
            yield lease
    finally:
        if calls is not None and lease is not None:
            try:
                # If the renewal fails, the lease only ends sooner. The work of the call is still valid.
                with suppress(LeaseError, OSError), _lease_lock(root):
                    current = read(root)
                    if current is not None and current["run"] == lease["run"]:
                        _write_renewed(root, current)
            finally:
                calls.close()


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Have the kernel end this process after `seconds`. If limits are nested, the limit with the latest end counts."""
    before = signal.alarm(0)
    signal.alarm(max(before, math.ceil(min(seconds, MAX_ALARM))))
    try:
        yield
    finally:
        signal.alarm(before)


def release(root: str, holder: Holder, rollout: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Release the lease of this run. Return False if this run does not hold it. Raises ValueError if `rollout` is invalid.

    `rollout` is the result of the host change, for rollouts.json. An empty `rollout` means that the change has succeeded.
    """
    with _lease_lock(root):
        lease = read(root)
        if lease is None or lease["run"] != holder.run:
            return False
        # The lease must be released even if the disk is full. In this case, rollouts.json lacks the result of the change.
        with suppress(OSError):
            rollouts.end(root, holder.run, rollout)
        os.unlink(os.path.join(root, LEASE))
        return True


def held_by_another(root: str, run: str, dead_run: str = "") -> Optional[Dict[str, Any]]:
    """Return the lease of another run if it is live, otherwise None."""
    lease = read(root)
    return lease if lease is not None and lease["run"] != run and live(root, lease, dead_run) else None
