# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Holds: after a rollback, a model keeps its release until the source of the model in the inventory changes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import history
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import HOLDS, Run, StoreError, read, write_json
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import Move
from ansible_collections.npufleet.triton.plugins.module_utils.store.releases import FACTS, desired_model, read_record
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp


def read_holds(root: str) -> Dict[str, Any]:
    """Return {model: hold}. If holds.json is damaged, derive the holds from the history."""
    found = read(root, HOLDS)
    return holds_from_history(root) if found.flaw else dict(found.content or {})


def holds_from_history(root: str) -> Dict[str, Any]:
    """Return the holds that the history shows. Add the release and the versions from the record of each held release."""
    found = {}
    for name, hold in history.holds(history.read_history(root)).items():
        facts: Mapping[str, Any] = {}
        with suppress(StoreError):
            facts = read_record(root, name, hold["label"])
        found[name] = {**hold, "release": facts.get("release") or hold["release"], "versions": facts.get("versions") or []}
    return found


def write_holds(root: str, holds: Mapping[str, Any]) -> None:
    """Write holds.json if the holds differ. Remove the file if there are no holds."""
    actual_holds = {name: hold for name, hold in holds.items() if hold}
    path = os.path.join(root, HOLDS)
    if read(root, HOLDS).flaw:
        # The holds in a damaged file are unknown, so the file stays until an operator decides.
        return
    if actual_holds and actual_holds != read_holds(root):
        write_json(root, path, actual_holds)
    elif not actual_holds:
        trees.remove(path)


def holds_after(root: str, run: Run, link_moves: Mapping[str, Move], why: str) -> Dict[str, Any]:
    """Return the holds after a rollback. A hold rejects the previously served source until the inventory has another source."""
    holds = read_holds(root)
    for name, move in link_moves.items():
        before = holds.get(name)
        target = read_record(root, name, move["to"] or "")
        served = read_record(root, name, move["from"] or "")
        # In a second rollback, the served release is the held one. The inventory still has the source that the first rollback
        # rejected, so the hold keeps rejecting that source.
        rejected = before["source"] if before and before["release"] == served["release"] else served["source"]
        holds.pop(name, None)
        if rejected != target["source"]:
            holds[name] = {
                "source": rejected,
                "label": move["to"],
                "release": target["release"],
                "versions": target["versions"],
                "by": run.by,
                "when": timestamp(),
                "why": why,
            }
    return holds


def apply_holds(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Replace the desired releases of held models by the held releases. Return the holds that apply.

    `desired` is the desired state that the module host_state gets. Its concerns `models` and `server` are changed in place.
    """
    states = [desired[concern] for concern in ("models", "server") if "models" in desired.get(concern, {})]
    root = next((state["root"] for state in states if "root" in state), None)
    found = {}
    for name, hold in sorted(read_holds(root).items()) if root else []:
        models_by_concern = [state["models"] for state in states if name in state["models"]]
        if not models_by_concern or any(models[name].get("source") != hold["source"] for models in models_by_concern):
            continue
        try:
            held_model = desired_model(read_record(root or "", name, hold["label"]))
        except StoreError:
            continue
        for models in models_by_concern:
            models[name] = {**models[name], **{key: value for key, value in held_model.items() if key in models[name]}}
        found[name] = {**hold, **{key: held_model[key] for key in FACTS}, "rejected": hold["source"]}
    return found
