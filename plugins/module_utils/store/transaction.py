# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The transaction in which a run points links in served/ to other releases.

A run writes transaction.json before it moves the first link. If the run is interrupted, the next run finds the previously served
releases in this file. A run closes the transaction (removes the file) when the host is proven to serve the new releases.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.store import history, releases
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import TRANSACTION, Run, StoreError, read, write_json
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import Move
from ansible_collections.npufleet.triton.plugins.module_utils.store.rollback import holds_from_history, read_holds, write_holds
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp


def read_transaction(root: str) -> Optional[Dict[str, Any]]:
    """Return the open transaction, or None if no transaction is open.

    A damaged file counts as an open transaction, with the damage in `flaw` and the previous releases from the history.
    """
    found = read(root, TRANSACTION)
    if not found.exists:
        return None
    if not found.flaw:
        return dict(found.content)
    models = _moves_since_proof(root)
    holds = holds_from_history(root)
    empty = {"run": "?", "by": "unknown", "since": "unknown", "renewed": 0}
    return {**empty, "models": models, "holds": {name: holds.get(name) for name in models}, "flaw": found.flaw}


def renewal_time(opened: Mapping[str, Any]) -> float:
    """Return the time of day at which the transaction was written last. Callers select lines of Triton's log by this time.

    If the clock was set back later, the result is the time that the changed clock would have shown.
    """
    age = clock.since(opened)
    return float(opened["renewed"] if age is None else min(opened["renewed"], time.time() - age))


def _moves_since_proof(root: str) -> Dict[str, Move]:
    """Return a move for each model that does not serve its last proven release."""
    lines = history.read_history(root)
    link_moves: Dict[str, Move] = {}
    for name in sorted({line["model"] for line in lines}):
        last_proof = next(iter(history.proven_changes(lines, name)[::-1]), None)
        current_label = releases.served_label(root, name)
        if last_proof and current_label != last_proof["to"]:
            link_moves[name] = {"from": last_proof["to"], "to": current_label, "what": "deploy" if current_label else "withdraw"}
    return link_moves


def open_transaction(root: str, run: Run, link_moves: Mapping[str, Move], **more: Any) -> Dict[str, Any]:
    """Record `link_moves` ({model: {"from", "to", "what"}}) before any link moves. `more` has additional fields of the file.

    A model that is already in the open transaction keeps its `from`, which is its proven release.
    """
    old = read_transaction(root) or {"models": {}, "holds": {}}
    same_run = old.get("run") == run.run
    models = {name: {**move, "from": old["models"].get(name, move)["from"]} for name, move in link_moves.items()}
    holds = read_holds(root)
    value = {
        "run": run.run,
        "by": run.by,
        "since": old["since"] if same_run else timestamp(),
        "renewed": time.time(),
        **clock.mark(),
        "models": {**old["models"], **models},
        # The holds from before the transaction. `restore` writes them again.
        "holds": {**{name: holds.get(name) for name in link_moves}, **old["holds"]},
        **({"why": old["why"]} if same_run and "why" in old else {}),
        **more,
    }
    write_json(root, os.path.join(root, TRANSACTION), value)
    return value


def history_lines(root: str, run: Run, models: Mapping[str, Move], result: str, why: str) -> List[Dict[str, Any]]:
    """Return a line of the history for each model of a transaction."""
    lines = []
    for name, move in sorted(models.items()):
        record: Mapping[str, object] = {}
        with suppress(StoreError):
            record = releases.read_record(root, name, move["to"] or move["from"] or "")
        lines.append(
            {
                "when": timestamp(),
                "who": run.by,
                "run": run.run,
                "host": run.host,
                "model": name,
                "what": move["what"],
                "from": move.get("failed", move["from"]),
                "to": move["to"],
                "source": record.get("source"),
                "release": record.get("release"),
                "result": result,
                "why": why,
            }
        )
    return lines


def close_transaction(root: str, run: Run, why: str) -> Dict[str, Move]:
    """Record the models of the open transaction as proven in the history, and close the transaction. Return its link moves."""
    found = read_transaction(root)
    if found is None:
        return {}
    link_moves: Dict[str, Move] = {}
    for name, move in found["models"].items():
        # The releases that the links point to were proven. They can differ from the recorded moves, because a killed run can have
        # moved only some links.
        current_label = releases.served_label(root, name)
        if current_label == move["to"]:
            link_moves[name] = move
        elif current_label != move["from"]:
            link_moves[name] = {"from": move["from"], "to": current_label, "what": "deploy" if current_label else "withdraw"}
    history.append_history(root, history_lines(root, run, link_moves, history.PROVEN, why or found.get("why") or ""))
    os.unlink(os.path.join(root, TRANSACTION))
    return dict(found["models"])


def restore(root: str, run: Run, why: str) -> Dict[str, Move]:
    """Point the links to the previous content of the models in the open transaction. Return the link moves.

    `failed` of a move is the unproven release. The previous content gets a new release, because a Triton that polls its models
    ignores directories with older time stamps. A link that has not moved stays as it is. If a release is lost, StoreError is raised
    after all other models are restored.
    """
    found = read_transaction(root)
    if found is None:
        return {}
    link_moves: Dict[str, Move] = {}
    errors = []
    for name, move in sorted(found["models"].items()):
        label = releases.served_label(root, name)
        try:
            to = move["from"]
            if to is not None and label != to:
                to = releases.make_release(root, name, releases.release_content(root, name, to))
        except StoreError as error:
            errors.append(str(error))
            continue
        link_moves[name] = {"from": move["from"], "to": to, "what": history.RESTORED, "failed": move["to"]}
    history.append_history(root, history_lines(root, run, found["models"], "failed", why))
    open_transaction(root, run, link_moves, why=why)
    write_holds(root, {**read_holds(root), **found["holds"]})
    targets = {name: move["to"] for name, move in link_moves.items()}
    releases.move_links(root, {name: to for name, to in targets.items() if releases.served_label(root, name) != to or not to})
    if errors:
        raise StoreError("; ".join(errors))
    return link_moves
