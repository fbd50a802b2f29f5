# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rollback by an operator: select the release to return to, and the models that change."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Dict, List

from ansible_collections.npufleet.triton.plugins.module_utils.store import history, releases
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import StoreError
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, Move, content


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
    # After a restore, a release with a newer label can have the same content.
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
