# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""End a change that its run left open, for example because the run was killed.

The host itself restores the previous state, because no run is left to prove the new state. If the run changed nothing, only its
lease is released. The watchdog calls `resume` as long as a lease exists, and a systemd unit calls it at boot.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import failures, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import container, lease, releases, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.change.releases import STORE_WAIT
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import server
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.models import PROVE
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import connection
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.store import damage
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys, stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served, served_without_release

ROLLBACK_REASON = "its run has ended, so the host rolled it back"
# Errors whose message is meant for an operator
EXPECTED = (container.ContainerError, store.StoreError, lease.LeaseError, OSError)
# Time limits in seconds of the steps in container.py, if the lease does not have them
SETTINGS = {"free_timeout": 60, "stop_timeout": 120, "ready_timeout": 600}
# Seconds between two polls of the server
POLL_SECONDS = 0.5


class Outcome(NamedTuple):
    """The result of `resume`: `did` reports the rollback, `busy` names a run that may still be active, `failed` is an error."""

    did: str = ""
    busy: str = ""
    failed: str = ""


def resume(root: str, engine: Optional[container.Docker] = None) -> Outcome:
    """End a change that its run left open. Do nothing if no lease exists, or if the run of the lease may still be active."""
    found = lease.read(root)
    if found is None:
        return Outcome()
    owner = f"{found['by']} since {found['since']}"
    # If the call that replaced the server has ended before its last step, no server runs. So do not wait for the end of the lease.
    interrupted = replacement.interrupted(root, found["run"]) and not lease.at_work(root)
    if not interrupted and lease.live(root, found):
        return Outcome(busy=owner)
    host = lease.Holder(f"host/{lease.boot()}/{os.getpid()}", "the host itself")
    try:
        lease.acquire(root, host, patience=0.0, container=found["container"], dead_run=found["run"])
    except lease.LeaseError as error:
        return Outcome(busy=str(error))
    try:
        with lease.working(root, host):
            return Outcome(did=_roll_back(root, engine or container.Docker(), found["container"], owner))
    except Exception as error:
        why = failures.reason(error, EXPECTED)
        return Outcome(failed=f"the change of {owner} could not be rolled back, run playbooks/site.yml: {why}")
    finally:
        # Release the lease even after a failure, because a later run finds the remaining differences. If this release fails, the
        # lease ends by itself, because its patience is 0.
        with suppress(lease.LeaseError, OSError):
            lease.release(root, host)


def unfinished(root: str, run: str, previous: bool, dead_run: str = "") -> List[Item]:
    """Return plan items for an open replacement, and for a lease whose run has ended.

    `previous` is True if a previous container exists. `dead_run` is a run that the caller knows to have ended.
    """
    items = []
    entry = replacement.read(root, previous)
    if entry is not None:
        found = f"an unproven replacement by {entry['by']} since {entry['since']}"
        if entry["phase"] == replacement.PROVEN:
            found = f"the container before the replacement by {entry['by']} since {entry['since']}, which was not removed"
        items.append(item(server.CONCERN, "replacement", found, "proven or rolled back", PROVE))
    current = lease.read(root)
    if current is not None and current["run"] != run and not lease.live(root, current, dead_run):
        found = f"held by {current['by']} since {current['since']}, whose run has ended"
        items.append(item(server.CONCERN, "lease", found, "released", PROVE))
    return items


def _roll_back(root: str, engine: container.Docker, settings: Mapping[str, Any], owner: str) -> str:
    """Roll back the change that `owner` left open. Return what was done."""
    run = store.Run("host", "the host itself", os.uname().nodename)
    link_moves: Dict[str, Any] = {}
    failure: Optional[Exception] = None
    opened = store.read_transaction(root) is not None
    if opened:
        try:
            with store.locked(root, time.monotonic() + STORE_WAIT):
                damage.mend(root)
                link_moves = store.restore(root, run, f"{owner}: {ROLLBACK_REASON}")
        except Exception as error:
            # Restore the container even if the links could not be restored.
            failure = error
    name = settings.get("name")
    entry = replacement.read(root)
    if entry is not None and not name:
        raise container.ContainerError(f"the lease of {owner} does not name the container, expected its name to restore it")
    settings = {**SETTINGS, **settings}
    done: List[str] = [f"{model} serves {move['to'] or 'no more'}" for model, move in sorted(link_moves.items())]
    if name:
        with container.guard(engine, name, settings) as guard:
            # The links are restored before the container, because at its start the server loads what the links point to.
            restored = container.restore(engine, root, name, settings)
            if restored:
                done.append(restored)
            if link_moves and engine.inspect(name):
                serve_current_releases(engine, root, run, settings, fresh=restored is not None, guard=guard)
        done += guard.did()
    if failure is not None:
        raise failure
    if opened:
        with store.locked(root, time.monotonic() + STORE_WAIT):
            store.close_transaction(root, run, f"{owner}: {ROLLBACK_REASON}")
    if not done:
        return f"ended the lease of {owner}, whose run had changed nothing"
    return f"rolled back what {owner} had begun: {'; '.join(done)}"


def serve_current_releases(
    engine: container.Docker, root: str, run: store.Run, settings: Mapping[str, Any], fresh: bool, guard: stuck_load.Guard
) -> None:
    """Restart the server, unless it polls or was just started (`fresh`). Wait until it serves the current releases."""
    name = settings["name"]
    command = connection.command_of(engine.inspect(name) or {})
    mode = next((word.split("=", 1)[1] for word in command if word.startswith("--model-control-mode=")), "none")
    deadline = time.monotonic() + settings["ready_timeout"]
    if not fresh and mode != "poll":
        container.restart(engine, name, settings)
    container.wait_ready(engine, name, settings["ready_timeout"])
    ended_loads = 0
    desired: Dict[str, Any] = {"mode": mode, "models": store.current_models(root, {})}
    while True:
        inspect = engine.inspect(name) or {}
        at, key = connection.endpoint(inspect), connection.api_key(connection.command_of(inspect), keys.FILE)
        if at is None:
            return
        served = read_served({"address": at[0], "http_port": at[1], "key": key or settings.get("key")})
        # Ignore models from object stores, because the host has no list of them
        foreign = [] if served is None else served_without_release(served)
        relevant = {name: versions for name, versions in (served or {}).items() if name in desired["models"] or name not in foreign}
        left = None if served is None else server.diff_models(desired, relevant)
        if left == []:
            return
        if left and mode == "poll" and guard.repeats(ended_loads):
            ended_loads = len(guard.ended_loads)
            releases.touch_served(root, run, [entry["name"] for entry in left])
        if time.monotonic() >= deadline:
            differences = "; ".join(sentence(entry) for entry in left or []) or "it does not answer"
            raise container.ContainerError(f"the server does not serve the previous releases: {differences}")
        time.sleep(POLL_SECONDS)
