# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rollback by an operator: select the release to return to, and the models that change."""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.store import history
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import StoreError
from ansible_collections.npufleet.triton.plugins.module_utils.store.history import read_history
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, Move, content
from ansible_collections.npufleet.triton.plugins.module_utils.store.releases import (
    labels,
    read_record,
    release_again,
    served_label,
    served_names,
)


def rollback_target(root: str, name: str, to: str) -> str:
    """Return the label that `to` means for a model: `previous`, a label, or the first digits of a digest. Raises StoreError."""
    here = labels(root, name)
    current = served_label(root, name)
    if current is None:
        raise StoreError(f"model {name} is not served here: a rollback changes models that are, list it in triton_models")
    usable = {}
    for label in here:
        try:
            usable[label] = read_record(root, name, label)
        except StoreError:
            continue
    if to == "previous":
        found = history.previous(read_history(root), name, list(usable), current)
        if found is None:
            raise StoreError(f"model {name}: found no earlier release of it here that was proven, see playbooks/history.yml")
        return found
    if to in usable:
        return to
    # The same content may have a newer label
    again = [label for label in usable if LABEL.fullmatch(to) and content(label) == content(to)]
    if again:
        return again[0]
    fitting = [
        label
        for label, entry in usable.items()
        if re.fullmatch("[0-9a-f]{4,64}", to) and (entry["release"].startswith(to) or entry["source"].startswith(to))
    ]
    if len({usable[label]["release"] for label in fitting}) > 1:
        raise StoreError(f"model {name}: {to} may be {' or '.join(sorted(fitting))}: name one of them")
    if not fitting:
        raise StoreError(f"model {name}: found no release {to} here, there are {', '.join(here) or 'none'}")
    return fitting[0]


def rollback_moves(root: str, models: List[str], to: str) -> Dict[str, Move]:
    """Return {model: move} for the given models, by default for every served model that has a release to return to.

    Models that already serve this content are left out. Raises StoreError with all reasons.
    """
    moves: Dict[str, Move] = {}
    same = 0
    reasons = []
    for name in models or served_names(root):
        try:
            label = rollback_target(root, name, to)
            release_again(root, name, label)
        except StoreError as error:
            reasons.append(str(error))
            continue
        current = served_label(root, name) or ""
        if read_record(root, name, label)["release"] != _digest_of(root, name, current):
            moves[name] = {"from": current, "to": label, "what": "rollback"}
        else:
            same += 1
    if reasons and (models or not (moves or same)):
        raise StoreError("; ".join(reasons))
    return moves


def _digest_of(root: str, name: str, label: str) -> Optional[str]:
    try:
        return str(read_record(root, name, label)["release"])
    except StoreError:
        return None
