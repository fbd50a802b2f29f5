# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Damaged files of a store. Each query of the host reports them, and the next change repairs them.

Holds and an open transaction are recovered from the history. A record is recovered from its release.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes, store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, history, records

# Suffix of the copy of a damaged file. The copy is kept for analysis.
DAMAGED_SUFFIX = ".damaged"


def find(root: str) -> Dict[str, str]:
    """Return {path of a damaged file below the root: its flaw}."""
    flaws = {name: store.read(root, name).flaw for name in store.SHAPES}
    flaws[store.HISTORY] = history.read_lines(root)[1]
    for name, label in _releases(root):
        path = store.record_path(root, name, label)
        entry = shapes.read(path, records.SHAPE)
        flaws[os.path.relpath(path, root)] = entry.flaw if entry.exists else "it is gone"
    return {name: flaw for name, flaw in flaws.items() if flaw}


def holds_unknown(root: str) -> Optional[str]:
    """Return the reason why the holds (rollback.py) are unknown, or None.

    If holds are unknown, a change could deploy a release that an operator has rolled back.
    """
    flaw = store.read(root, store.HOLDS).flaw
    if not flaw or not store.served_names(root):
        return None
    _lines, history_flaw, exists = history.read_lines(root)
    if exists and not history_flaw:
        return None
    other = f"cannot be used either ({history_flaw})" if exists else "is gone"
    return (
        f"{os.path.join(root, store.HOLDS)} cannot be used ({flaw}), and {store.HISTORY} {other}. One of these files has to show "
        "which models are held: write one of them again, or end every hold with playbooks/rollback.yml -e rollback_forget=true"
    )


def lost_record(root: str, name: str, label: str) -> Optional[str]:
    """Return the flaw of a record that is damaged and cannot be recovered. Return None for an intact or recoverable record."""
    entry = shapes.read(store.record_path(root, name, label), records.SHAPE)
    flaw = entry.flaw if entry.exists else "it is gone"
    return flaw if flaw and _recover_record(root, name, label) is None else None


def mend(root: str, forget: bool = False) -> List[str]:
    """Repair the damaged files and return their paths. The caller holds the lock of the store.

    If the holds are unknown, holds.json and the history stay as they are. With `forget`, these files are repaired, too, because the
    caller then ends all holds.
    """
    flaws = find(root)
    if holds_unknown(root) and not forget:
        flaws = {name: flaw for name, flaw in flaws.items() if name not in (store.HOLDS, store.HISTORY)}
    done = []
    for name, label in _releases(root):
        path = store.record_path(root, name, label)
        record = _recover_record(root, name, label) if os.path.relpath(path, root) in flaws else None
        if record:
            if os.path.isdir(path) and not os.path.islink(path):
                trees.remove(path)
            store.write_json(root, path, record)
            done.append(os.path.relpath(path, root))
    if store.TRANSACTION in flaws:
        opened = store.read_transaction(root) or {}
        _replace(root, store.TRANSACTION, json.dumps({key: entry for key, entry in opened.items() if key != "flaw"}))
    if store.HOLDS in flaws:
        holds = {name: hold for name, hold in store.holds_from_history(root).items() if not shapes.mismatch(hold, store.HOLD)}
        _replace(root, store.HOLDS, json.dumps(holds))
    if store.HUNG in flaws:
        # If a load still hangs, a later run detects this and writes the file again.
        _replace(root, store.HUNG, None)
    if store.HISTORY in flaws:
        lines = history.read_history(root)
        _replace(root, store.HISTORY, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    return done + [name for name in (*store.SHAPES, store.HISTORY) if name in flaws]


def _releases(root: str) -> List[Any]:
    """Return (model, label) of every release on this host."""
    names = store.listed(os.path.join(root, "releases"))
    return [(name, label) for name in names for label in store.labels(root, name)]


def _recover_record(root: str, name: str, label: str) -> Optional[records.Record]:
    """Return the record of a release, computed from its files, or None if a file is missing or damaged."""
    return records.record_of(
        store.release_path(root, name, label),
        label,
        lambda digest: None if blobs.flaw(root, digest) else store.blob_path(root, digest),
    )


def _replace(root: str, name: str, text: Optional[str]) -> None:
    """Replace a damaged file by `text`, or remove it if `text` is None. Keep a copy as `<name>.damaged`."""
    import shutil

    path = os.path.join(root, name)
    copy = path + DAMAGED_SUFFIX
    trees.remove(copy)
    if os.path.isdir(path) and not os.path.islink(path):
        os.rename(path, copy)
    else:
        shutil.copyfile(path, copy, follow_symlinks=False)
    if text is not None:
        store.write_text(root, path, text)
    else:
        trees.remove(path)
