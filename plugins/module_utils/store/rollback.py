# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rollbacks by an operator, and the holds that they leave.

After a rollback, a hold keeps the model on its release until the source of the model in the inventory changes.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import history, releases
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import HOLDS, Run, StoreError, read, write_json
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, Move, content
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp


def rollback_target(root: str, name: str, to: str) -> str:
    """Return the label of the release that `to` names: `previous`, a label, or the first digits of a digest. Raises StoreError."""
    present = releases.labels(root, name)
    current = releases.served_label(root, name)
    if current is None:
        raise StoreError(f"model {name} is not served here, and a rollback only changes served models: list it in triton_models")
    usable = {}
    for label in present:
        with suppress(StoreError):
            usable[label] = releases.read_record(root, name, label)
    if to == "previous":
        found = history.previous(history.read_history(root), name, list(usable), current)
        if found is None:
            raise StoreError(f"model {name}: this host has no earlier proven release of it, see playbooks/history.yml")
        return found
    if to in usable:
        return to
    # A restore can create a release with the same content under a newer label.
    renamed = [label for label in usable if LABEL.fullmatch(to) and content(label) == content(to)]
    if renamed:
        return renamed[0]
    matches = [
        label
        for label, entry in usable.items()
        if re.fullmatch("[0-9a-f]{4,64}", to) and (entry["release"].startswith(to) or entry["source"].startswith(to))
    ]
    if len({usable[label]["release"] for label in matches}) > 1:
        raise StoreError(f"model {name}: {to} matches {' and '.join(sorted(matches))}: name one of them")
    if not matches:
        raise StoreError(f"model {name}: found no release {to} here, there are {', '.join(present) or 'none'}")
    return matches[0]


def rollback_moves(root: str, models: List[str], to: str) -> Dict[str, Move]:
    """Return {model: move} for the given models, by default for every served model that has a release to return to.

    Models that already serve the content to return to are left out. Raises StoreError if a given model has no release to return to.
    Without given models, raises StoreError if no served model has such a release.
    """
    link_moves: Dict[str, Move] = {}
    possible = False
    reasons = []
    for name in models or releases.served_names(root):
        try:
            label = rollback_target(root, name, to)
            target = releases.release_content(root, name, label)
        except StoreError as error:
            reasons.append(str(error))
            continue
        possible = True
        current = releases.served_label(root, name) or ""
        served = ""
        with suppress(StoreError):
            served = releases.read_record(root, name, current)["release"]
        if target["release"] != served:
            link_moves[name] = {"from": current, "to": label, "what": "rollback"}
    if reasons and (models or not possible):
        raise StoreError("; ".join(reasons))
    return link_moves


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
            facts = releases.read_record(root, name, hold["label"])
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
        target = releases.read_record(root, name, move["to"] or "")
        served = releases.read_record(root, name, move["from"] or "")
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
            held_model = releases.desired_model(releases.read_record(root or "", name, hold["label"]))
        except StoreError:
            continue
        for models in models_by_concern:
            models[name] = {**models[name], **{key: value for key, value in held_model.items() if key in models[name]}}
        found[name] = {**hold, **{key: held_model[key] for key in releases.FACTS}, "rejected": hold["source"]}
    return found
