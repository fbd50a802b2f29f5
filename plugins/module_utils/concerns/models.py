# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `models`: the model store of a host, with blobs, releases, and the release to which `served/<model>` links."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, damage
from ansible_collections.npufleet.triton.plugins.module_utils.system import free_space

CONCERN = "models"
# The actions for a transaction whose new releases are not proven (served and checked) yet, and for a damaged file of the store
PROVE, MEND = "prove", "mend"


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the links in served/ with their differences, missing blobs, the open transaction, and damaged files of the store."""
    root = desired["root"]
    served: Dict[str, Dict[str, Any]] = {}
    digests = {file["sha256"] for model in desired["models"].values() for file in model["files"].values() if file["blob"]}
    flaws = {digest: blobs.flaw(root, digest, desired.get("verify", False)) for digest in sorted(digests)}
    damaged = damage.find(root)
    for name in store.served_names(root):
        release = store.served_label(root, name)
        model = desired["models"].get(name)
        differs = drift(root, name, release, model["files"], flaws) if model and release else []
        if model and release and os.path.relpath(store.record_path(root, name, release), root) in damaged:
            record_flaw = damage.lost_record(root, name, release)
            differs += [f"its damaged record cannot be restored: {record_flaw}"] if record_flaw else []
        served[name] = {"release": release, "differs": differs}
        if model and release and not release.endswith("-" + model["release"][:12]) and model["cached"]:
            served[name]["in_place"] = _keeps_number(root, name, release, model)
    found: Dict[str, Any] = {
        "served": served,
        "missing": [digest for digest in flaws if flaws[digest]],
        "transaction": _open_transaction(root),
        "store": store.is_complete(root),
    }
    if damaged:
        found.update(damaged=damaged, undecided=damage.holds_unknown(root))
    if found["missing"]:
        found.update(free=free_space(root)[1], arrived=blobs.arrived(desired.get("incoming")))
    return found


def _keeps_number(root: str, name: str, old: str, new: Mapping[str, Any]) -> bool:
    """Return True if the new release changes the content of a version but keeps its number, or if the old record is unreadable."""
    try:
        return store.changes_version(store.read_record(root, name, old), new)
    except store.StoreError:
        return True


def _open_transaction(root: str) -> Optional[Dict[str, Any]]:
    """Return the open transaction or None. "stale" lists models for which Triton's response cache can have outdated answers."""
    opened = store.read_transaction(root)
    if opened is None:
        return None
    stale = []
    for name, move in opened["models"].items():
        current = store.served_label(root, name)
        try:
            new = store.read_record(root, name, current) if current else None
        except store.StoreError:
            continue
        if new and new["cached"] and move["from"] and _keeps_number(root, name, move["from"], new):
            stale.append(name)
    return {**opened, "stale": sorted(stale)}


def drift(
    root: str, name: str, release: str, files: Mapping[str, Mapping[str, Any]], flaws: Mapping[str, Optional[str]]
) -> List[str]:
    """Return the changed, missing, extra and unreadable files of a release. `flaws` is {digest of a blob: its flaw or None}."""
    base = os.path.join(root, "releases", name, release)
    sizes = _recorded_sizes(root, name, release)
    differs = _read_problems(root, base, files)
    for path in sorted(files):
        full_path = os.path.join(base, path)
        digest = files[path]["sha256"]
        if files[path]["blob"]:
            blob = store.blob_path(root, digest)
            if os.path.realpath(full_path) != os.path.realpath(blob):
                differs.append(path + " is not the blob " + digest[:12])
            elif not os.path.isfile(blob):
                differs.append(path + ": its blob is gone")
            elif sizes.get(path) is not None and os.path.getsize(blob) != sizes[path]:
                differs.append(f"{path}: its blob has {os.path.getsize(blob)} bytes, not {sizes[path]}")
            elif flaws.get(digest):
                differs.append(f"{path}: its blob {flaws[digest]}")
        else:
            found = None
            with suppress(OSError):
                found = blobs.file_digest(full_path)
            if found != digest:
                differs.append(path + (" was changed" if found else " is gone"))
    for directory, names, present in trees.walk(base):
        for entry in [*present, *(name for name in names if os.path.islink(os.path.join(directory, name)))]:
            path = os.path.relpath(os.path.join(directory, entry), base)
            if path not in files:
                differs.append(path + " was added")
    return differs


def _read_problems(root: str, base: str, files: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Return a message for each file of a release, and each of its parent directories, that only root can read."""
    directories = [os.path.join(root, directory) for directory in store.DIRECTORIES if directory != "tmp"]
    directories += [os.path.dirname(base), base]
    directories += [os.path.join(base, directory) for directory in sorted({os.path.dirname(path) for path in files} - {""})]
    desired = [*((directory, 0o005) for directory in directories), *((os.path.join(base, path), 0o004) for path in sorted(files))]
    found = []
    for path, mode in desired:
        # `drift` reports missing paths.
        with suppress(OSError):
            if os.stat(path).st_mode & mode != mode:
                found.append("others cannot read " + os.path.relpath(os.path.realpath(path), os.path.realpath(root)))
    return found


def _recorded_sizes(root: str, name: str, release: str) -> Dict[str, int]:
    try:
        return {path: file["size"] for path, file in store.read_record(root, name, release)["files"].items()}
    except store.StoreError:
        return {}


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences: models to release or to withdraw, damaged files of the store, and an open transaction."""
    plan = []
    # The first release of a model creates the store, so this item is only needed without models.
    if not desired["models"] and not actual["store"]:
        plan.append(item(CONCERN, "store", None, "empty", "prepare"))
    for name in sorted(desired["models"]):
        release = desired["models"][name]["release"][:12]
        current = actual["served"].get(name)
        if current is None:
            plan.append(item(CONCERN, name, None, release, "release"))
        elif not (current["release"] or "").endswith("-" + release):
            plan.append(item(CONCERN, name, current["release"] or "not a link", release, "release"))
        elif current["differs"]:
            plan.append(item(CONCERN, name, "{}, {}".format(current["release"], "; ".join(current["differs"])), release, "release"))
    for name in sorted(set(actual["served"]) - set(desired["models"])):
        plan.append(item(CONCERN, name, actual["served"][name]["release"], None, "withdraw"))
    for path, flaw in sorted(actual.get("damaged", {}).items()):
        plan.append(item(CONCERN, path, f"damaged: {flaw}", "an undamaged file", MEND))
    opened = actual["transaction"]
    if opened:
        models = ", ".join(sorted(opened["models"])) or "no model"
        state = "open, but unreadable" if "flaw" in opened else "open since {since} by {by}".format(**opened)
        plan.append(item(CONCERN, "transaction", f"{state}: {models}", "proven and closed", PROVE))
    return plan
