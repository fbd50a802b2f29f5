# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The end of a change whose run is gone: the host restores the previous state by itself, because nobody can prove the new one.

The watchdog calls this while there is a lease, and so does a unit at boot. A lease under which nothing was begun is released.
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
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.store import damage
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import from_elsewhere, read_served

WHY = "its run is gone, the host rolled it back"
# Errors whose message is meant for an operator
EXPECTED = (container.ContainerError, store.StoreError, lease.LeaseError, OSError)
# Time limits of a container that its lease does not name (container.py)
SETTINGS = {"free_timeout": 60, "stop_timeout": 120, "ready_timeout": 600}
# Seconds between two looks at the server
LOOK = 0.5


class Outcome(NamedTuple):
    """The result of `resume`: `busy` names the run that is still at work, `failed` is why the change is not over."""

    did: str = ""
    busy: str = ""
    failed: str = ""


def resume(root: str, engine: Optional[container.Docker] = None) -> Outcome:
    """End a change whose run is gone. Does nothing if there is no change, or if its run may still be at work."""
    found = lease.read(root)
    if found is None:
        return Outcome()
    # A replacement that broke off is not waited for: its call is over, and nothing serves
    dead = replacement.broken_off(root, found["run"]) and not lease.at_work(root)
    if not dead and lease.live(root, found):
        return Outcome(busy=f"{found['by']} since {found['since']}")
    me = lease.Holder(f"host/{lease.boot()}/{os.getpid()}", "the host itself")
    try:
        lease.acquire(root, me, patience=0.0, container=found["container"], ended=found["run"])
    except lease.LeaseError as error:
        return Outcome(busy=str(error))
    try:
        with lease.working(root, me):
            words = _end(root, engine or container.Docker(), found["container"], f"{found['by']} since {found['since']}")
        return Outcome(did=words)
    except Exception as error:
        why = failures.reason(error, EXPECTED)
        return Outcome(
            failed=f"the change of {found['by']} since {found['since']} could not be rolled back, run playbooks/site.yml: {why}"
        )
    finally:
        # After a failure, too: what is open stays a difference of the host, and is not tried again and again. A lease that cannot
        # be released is not live.
        with suppress(lease.LeaseError, OSError):
            lease.release(root, me)


def unfinished(root: str, run: str, previous: bool, ended: str = "") -> List[Item]:
    """Return what a run that is gone has left: a container that is not proven, and its lease.

    `previous`: there is a previous container. `ended`: a run that is known to be gone.
    """
    items = []
    entry = replacement.read(root) or (dict(replacement.UNKNOWN) if previous else None)
    if entry is not None:
        found = "a replacement by {by} since {since}, which nobody has proven".format(**entry)
        if entry["phase"] == replacement.PROVEN:
            found = "the container before the replacement by {by} since {since}, which was not removed".format(**entry)
        items.append(item(server.CONCERN, "replacement", found, "proven or rolled back", PROVE))
    held = lease.read(root)
    if held is not None and held["run"] != run and not lease.live(root, held, ended):
        found = "that of {by} since {since}, whose run is gone".format(**held)
        items.append(item(server.CONCERN, "lease", found, "released", PROVE))
    return items


def _end(root: str, engine: container.Docker, settings: Mapping[str, Any], whose: str) -> str:
    run = store.Run("host", "the host itself", os.uname().nodename)
    moves: Dict[str, Any] = {}
    failure: Optional[Exception] = None
    opened = store.read_transaction(root) is not None
    if opened:
        try:
            with store.locked(root, time.monotonic() + STORE_WAIT):
                damage.mend(root)
                moves = store.restore(root, run, f"{whose}: {WHY}")
        except Exception as error:
            # The container is restored even if the links were not
            failure = error
    name = settings.get("name")
    entry = replacement.read(root)
    if entry is not None and not name:
        raise container.ContainerError(f"the lease of {whose} does not name the container, expected its name to restore it")
    settings = {**SETTINGS, **settings}
    done: List[str] = [f"{model} serves {move['to'] or 'no more'}" for model, move in sorted(moves.items())]
    if name:
        with container.guard(engine, name, settings) as guard:
            # It starts with the links as they are now
            restored = container.restore(engine, root, name, settings)
            if restored:
                done.append(restored)
            if moves and engine.inspect(name):
                serve_linked(engine, root, name, settings, fresh=restored is not None, guard=guard)
        done += guard.did()
    if failure is not None:
        raise failure
    if opened:
        with store.locked(root, time.monotonic() + STORE_WAIT):
            store.close_transaction(root, run, "proven", f"{whose}: {WHY}")
    return (
        f"rolled back what {whose} had begun: {'; '.join(done)}"
        if done
        else f"ended the lease of {whose}, under which nothing was begun"
    )


def serve_linked(
    engine: container.Docker, root: str, name: str, settings: Mapping[str, Any], fresh: bool, guard: stuck_load.Guard
) -> None:
    """Have the server serve what is linked, and read it back. A server that does not poll is restarted, unless it is fresh."""
    command = [str(entry) for entry in ((engine.inspect(name) or {}).get("Config") or {}).get("Cmd") or []]
    mode = next((word.split("=", 1)[1] for word in command if word.startswith("--model-control-mode=")), "none")
    deadline = time.monotonic() + settings["ready_timeout"]
    if not fresh and mode != "poll":
        container.restart(engine, name, settings)
    container.wait_ready(engine, name, settings["ready_timeout"])
    ended = 0
    desired: Dict[str, Any] = {"mode": mode, "models": store.linked(root, {})}
    while True:
        at = container.endpoint(engine.inspect(name) or {})
        if at is None:
            return
        served = read_served({"address": at[0], "http_port": at[1], "key": settings.get("key")})
        # The host does not know which models the server reads from an object store: they are not superfluous
        foreign = [] if served is None else from_elsewhere(served)
        known = {name: versions for name, versions in (served or {}).items() if name in desired["models"] or name not in foreign}
        left = None if served is None else server.diff_models(desired, known)
        if left == []:
            return
        if left and mode == "poll" and guard.repeats(ended):
            ended = len(guard.ended)
            releases.renew(root, store.Run("host", "the host itself", os.uname().nodename), [entry["name"] for entry in left])
        if time.monotonic() >= deadline:
            words = "; ".join(sentence(entry) for entry in left or []) or "it does not answer"
            raise container.ContainerError(f"the server does not serve what served before: {words}")
        time.sleep(LOOK)
