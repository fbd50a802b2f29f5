# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Two files on a balancer: the records of drains, and the state of all servers, which HAProxy reads at a start or reload.

HAProxy knows that a server is drained, but not who drained it. The record of a drain names its owner. A drained server without a
record was drained by an operator on the runtime socket. A record is written before its drain begins, and removed after the drain
has ended. So the drain of a killed process never looks like a drain by an operator.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import NAME, BalancerError, Runtime, one_line
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable, locks

# Names of the two files
RECORDS, STATE = "drains.json", "state"
# A process holds this lock while it reads and changes the servers of a balancer.
LOCK = "/run/npufleet-balancer.lock"
# Longest time in seconds to wait for the lock
LOCK_WAIT = 60.0
# Kinds of drains, from the lowest priority to the highest. A caller may end or take over a drain of its own kind or a lower one.
KINDS = ("rollout", "maintenance", "operator")
# Largest length of a text of a record in characters, and largest size of the file in bytes
MAX_TEXT, MAX_SIZE = 500, 1 << 22
_TEXT = re.compile(rf"[^\0]{{0,{MAX_TEXT}}}", re.DOTALL)
RECORD = {
    "kind": re.compile("|".join(KINDS)),
    "by": _TEXT,
    "run": _TEXT,
    "reason": _TEXT,
    "since": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
}


class Records(NamedTuple):
    """The records by server. `flaw` is the reason why the file is damaged, or None."""

    by_server: Dict[str, Dict[str, str]]
    flaw: Optional[str]


def read(home: str) -> Records:
    """Return the records. If the file is damaged, return no record, so that each drain counts as a drain by an operator."""
    found = shapes.read(os.path.join(home, RECORDS), {NAME: RECORD}, MAX_SIZE)
    content = found.content if found.exists and not found.flaw else {}
    return Records({name: {field: record[field] for field in RECORD} for name, record in content.items()}, found.flaw)


def write(home: str, records: Mapping[str, Mapping[str, str]]) -> None:
    """Replace the records. Keep a copy of a damaged file. Raises BalancerError."""
    path = os.path.join(home, RECORDS)
    try:
        if read(home).flaw:
            os.replace(path, path + ".damaged")
        durable.write(path, json.dumps(records, indent=1, sort_keys=True) + "\n", 0o600)
    except OSError as error:
        raise BalancerError(f"{path} cannot be written: {error.strerror}") from None


def save_state(home: str, runtime: Runtime) -> None:
    """Save the state of the servers in the file that HAProxy reads when it starts or reloads. Raises BalancerError."""
    state = runtime.command("show servers state")
    if not state.startswith("1\n# "):
        raise BalancerError(f"HAProxy's answer to `show servers state` is {one_line(state)}, expected a table of version 1")
    path = os.path.join(home, STATE)
    try:
        durable.write(path, state, 0o600)
    except OSError as error:
        raise BalancerError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of the balancer. Raises BalancerError if another process holds it for LOCK_WAIT seconds."""
    try:
        lock = locks.open_lock(LOCK)
    except OSError as error:
        raise BalancerError(f"{LOCK} cannot be opened: {error.strerror}") from None
    with lock:
        if not locks.take(lock, time.monotonic() + LOCK_WAIT):
            raise BalancerError(f"{LOCK} has been locked for {LOCK_WAIT:.0f} s by another process. See `fuser {LOCK}`")
        yield


def may_change(kind: str, record: Optional[Mapping[str, Any]]) -> bool:
    """Return True if a caller of this kind may end or take over a drain. Without a `record`, an operator made the drain."""
    owner = record["kind"] if record else KINDS[-1]
    return KINDS.index(kind) >= KINDS.index(owner)
