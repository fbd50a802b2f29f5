# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The steps of a change in the store: make releases, switch to them, prove them, or restore the previous releases.

The caller of `apply` passes `params`: the step (`state`) and its options. Each step returns its result, for example the link moves.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import failures, store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, damage, history

# Seconds to wait for the lock of the store. Another process can hold the lock, for example while it copies model files.
STORE_WAIT = 60.0

LinkMoves = Dict[str, store.Move]


def releases_to_make(root: str, releases: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the releases to make. A model with a hold gets a copy of the held release, until the inventory has another source."""
    holds = store.read_holds(root)
    return {
        name: store.release_content(root, name, holds[name]["label"])
        if name in holds and holds[name]["source"] == entry["source"]
        else entry
        for name, entry in sorted(releases.items())
    }


def refuse_directories(root: str, names: List[str]) -> None:
    """Raise StoreError if served/NAME is a directory, because a rename cannot replace a directory by a link."""
    paths = [os.path.join(root, "served", name) for name in sorted(set(names))]
    directories = ", ".join(os.path.relpath(path, root) for path in paths if os.path.isdir(path) and not os.path.islink(path))
    if directories:
        raise store.StoreError(f"{directories} is a directory, expected a link: move it out of the store")


def switch(root: str, run: store.Run, link_moves: LinkMoves, holds: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    """Open a transaction and move the links. Return the result of the step. If an error precedes the first move, undo all."""
    before, holds_before = store.read_transaction(root), store.read_holds(root)
    targets = {name: move["to"] for name, move in link_moves.items()}
    try:
        store.open_transaction(root, run, link_moves, **more)
        store.write_holds(root, holds)
        store.move_links(root, targets)
    except Exception as error:
        moved = [name for name, label in targets.items() if store.served_label(root, name) == label != link_moves[name]["from"]]
        if moved:
            raise store.StoreError(
                f"{error}; {', '.join(moved)} switched before that: run again, the open transaction records the previous releases"
            ) from error
        store.write_holds(root, holds_before)
        if before is not None:
            store.write_json(root, os.path.join(root, store.TRANSACTION), before)
        elif os.path.exists(os.path.join(root, store.TRANSACTION)):
            os.unlink(os.path.join(root, store.TRANSACTION))
        raise
    return {"moves": link_moves}


def release(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Apply state `released`: make the releases and switch to them."""
    refuse_directories(root, [*params["releases"], *params["withdraw"]])
    releases = releases_to_make(root, params["releases"])
    new_entries = [entry for name, entry in releases.items() if entry is params["releases"][name]]
    blobs.ingest(
        root,
        params["incoming"],
        sorted({file["sha256"] for entry in new_entries for file in entry["files"].values() if file["blob"]}),
    )
    # Complete every release before the first link moves, so that a failure does not leave only some models switched.
    labels = {name: store.make_release(root, name, entry) for name, entry in releases.items()}
    link_moves: LinkMoves = {
        name: {"from": store.served_label(root, name), "to": label, "what": "deploy"} for name, label in labels.items()
    }
    link_moves.update(
        {name: {"from": store.served_label(root, name), "to": None, "what": "withdraw"} for name in params["withdraw"]}
    )
    if not link_moves and store.read_transaction(root) is None:
        return {"moves": {}}
    kept_holds = {}
    for name, hold in store.read_holds(root).items():
        if name not in link_moves or hold["source"] == params["releases"].get(name, {}).get("source"):
            kept_holds[name] = {**hold, "label": labels.get(name, hold["label"])}
    # `switch` opens a transaction even if no link moves, to take over the open transaction of another run.
    return switch(root, run, link_moves, kept_holds)


def touch_served(root: str, run: store.Run, names: List[str]) -> None:
    """Update the time stamps of these served models, so that a polling server loads them again."""
    with store.locked(root, time.monotonic() + STORE_WAIT):
        if store.read_transaction(root) is not None:
            # Renew the time of the transaction: the log is read from this time on, without the messages about earlier loads.
            store.open_transaction(root, run, {})
        for name in set(names) & set(store.served_names(root)):
            home = os.path.join(root, "served", name)
            for path in (home, *(os.path.join(home, entry) for entry in os.listdir(home) if entry.isdigit())):
                os.utime(path)


def roll_back(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Apply state `rolled_back`: switch to earlier releases and hold them."""
    found = store.rollback_moves(root, params["models"], params["to"])
    # Read all contents before the first release is made, so that a missing file stops the rollback before it changes anything.
    contents = {name: store.release_content(root, name, move["to"] or "") for name, move in found.items()}
    link_moves: LinkMoves = {name: {**found[name], "to": store.make_release(root, name, entry)} for name, entry in contents.items()}
    if not link_moves:
        return {"moves": {}}
    return switch(root, run, link_moves, store.holds_after(root, run, link_moves, params["why"]), why=params["why"])


def restore(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Apply state `restored`: move the links back to the releases from before the open transaction."""
    if params["hung"]:
        store.write_json(root, os.path.join(root, store.HUNG), {"models": params["hung"], "at": time.time(), **clock.mark()})
    return {"moves": store.restore(root, run, params["why"])}


def prove(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Apply state `proven`: close the transaction and remove old releases."""
    result: Dict[str, Any] = {"moves": store.close_transaction(root, run, params["why"])}
    if result["moves"]:
        try:
            blobs.collect(root, params["keep"])
        except Exception as error:
            # The releases stay proven. The next run tries the removal again.
            why = failures.reason(error, (store.StoreError, OSError))
            result["warnings"] = [f"{run.host}: old releases were not removed: {why}"]
    return result


def forget(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Apply state `forgotten`: end the holds of the given models, or all holds."""
    holds = store.read_holds(root)
    forgotten_models = sorted(set(holds) & set(params["models"] or holds))
    served = {name: store.served_label(root, name) for name in forgotten_models}
    link_moves: LinkMoves = {name: {"from": served[name], "to": served[name], "what": history.FORGET} for name in forgotten_models}
    store.append_history(root, store.history_lines(root, run, link_moves, "done", params["why"]))
    store.write_holds(root, {name: hold for name, hold in holds.items() if name not in forgotten_models})
    return {"forgotten": forgotten_models}


STEPS: Dict[str, Callable[[str, store.Run, Mapping[str, Any]], Dict[str, Any]]] = {
    "released": release,
    "proven": prove,
    "restored": restore,
    "rolled_back": roll_back,
    "forgotten": forget,
}


def is_applied(root: str, params: Mapping[str, Any]) -> bool:
    """Return True if nothing has to change: no releases to make, a complete and undamaged store, no open transaction."""
    changes = params["releases"] or params["withdraw"] or damage.find(root) or not store.is_complete(root)
    return not changes and store.read_transaction(root) is None


def apply(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Lock and repair the store, then apply `params["state"]`. Return the result of that step and `changed`. Raises StoreError."""
    state, new = params["state"], not store.is_complete(root)
    with store.locked(root, time.monotonic() + STORE_WAIT):
        store.prepare(root)
        all_forgotten = state == "forgotten" and not params["models"]
        holds_unknown = damage.holds_unknown(root)
        # `restored` and `proven` do not need the holds, and the end of all holds does not need their content.
        if holds_unknown and not all_forgotten and state not in ("restored", "proven"):
            raise store.StoreError(holds_unknown)
        mended = damage.mend(root, forget=all_forgotten)
        result = STEPS[state](root, run, params)
        if state == "released" and not result["moves"] and damage.find(root):
            # Remove the releases whose damaged record (store/records.py) cannot be recovered, unless they are still needed.
            blobs.collect(root, params["keep"])
    changed = new or bool(mended) or any(result.values())
    return {**result, "changed": changed, **({"mended": mended} if mended else {})}
