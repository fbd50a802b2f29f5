"""The model store on a host: blobs, releases, and which release `served/<model>` links to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import blobs
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.probe import text
from ansible_collections.npufleet.triton.plugins.module_utils.store import blob_path, record_path

CONCERN = "models"


def desired(variables: Mapping[str, Any], manifests: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Digests and files of every model placed on this host, without their contents."""
    keys = ("source", "release", "files")
    return {
        "root": variables["npufleet_root"],
        "incoming": variables["npufleet_incoming"],
        "verify": bool(variables["model_repository_verify"]),
        "models": {name: {key: one[key] for key in keys} for name, one in manifests.items()},
    }


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """Served links, what differs below each, and the blobs that are not here yet."""
    root = wanted["root"]
    served = {}
    digests = {one["sha256"] for model in wanted["models"].values() for one in model["files"].values() if one["blob"]}
    flaws = {digest: blobs.flaw(root, digest, wanted.get("verify", False)) for digest in sorted(digests)}
    directory = os.path.join(root, "served")
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        link = os.path.join(directory, name)
        release = _release_of(link, root, name)
        model = wanted["models"].get(name)
        differs = drift(root, name, release, model["files"], flaws) if model and release else []
        served[name] = {"release": release, "differs": differs}
    found: Dict[str, Any] = {"served": served, "missing": [digest for digest in flaws if flaws[digest]]}
    if found["missing"]:
        found.update(free=_free(root), arrived=blobs.arrived(wanted.get("incoming")))
    return found


def _free(path: str) -> int:
    """Bytes that are free where a directory is, or will be."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def _release_of(link: str, root: str, name: str) -> Optional[str]:
    """Name of the release that a link serves, None where it is no link into this model's releases."""
    if not os.path.islink(link):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    home = os.path.normpath(os.path.join(root, "releases", name))
    return os.path.basename(target) if os.path.dirname(target) == home else None


def drift(
    root: str,
    name: str,
    release: str,
    files: Mapping[str, Mapping[str, Any]],
    flaws: Optional[Mapping[str, Optional[str]]] = None,
) -> List[str]:
    """What in a release is not as it was made: content of small files, targets and sizes of blobs, missing and extra files.

    `flaws` are those of the blobs, by digest.
    """
    base = os.path.join(root, "releases", name, release)
    sizes = _recorded_sizes(root, name, release)
    differs = []
    for path in sorted(files):
        full = os.path.join(base, path)
        digest = files[path]["sha256"]
        if files[path]["blob"]:
            blob = blob_path(root, digest)
            if os.path.realpath(full) != os.path.realpath(blob):
                differs.append(path + " is not the blob " + digest[:12])
            elif not os.path.isfile(blob):
                differs.append(path + ": its blob is gone")
            elif sizes.get(path) is not None and os.path.getsize(blob) != sizes[path]:
                differs.append(f"{path}: its blob has {os.path.getsize(blob)} bytes, not {sizes[path]}")
            elif (flaws or {}).get(digest):
                differs.append(f"{path}: its blob {(flaws or {})[digest]}")
        else:
            found = _digest(full)
            if found != digest:
                differs.append(path + (" was changed" if found else " is gone"))
    for directory, names, present in os.walk(base):
        for one in [*present, *(name for name in names if os.path.islink(os.path.join(directory, name)))]:
            path = os.path.relpath(os.path.join(directory, one), base)
            if path not in files:
                differs.append(path + " was added")
    return differs


def _recorded_sizes(root: str, name: str, release: str) -> Dict[str, int]:
    try:
        recorded = json.loads(text(record_path(root, name, release)) or "{}")
        return {path: one["size"] for path, one in recorded["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digest(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return None


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """A model that is new, of another release, or changed under our feet; and one that is no longer wanted."""
    plan = []
    for name in sorted(wanted["models"]):
        release = wanted["models"][name]["release"][:12]
        here = actual["served"].get(name)
        if here is None:
            plan.append(item(CONCERN, name, None, release, "release"))
        elif not (here["release"] or "").endswith("-" + release):
            plan.append(item(CONCERN, name, here["release"] or "not a link", release, "release"))
        elif here["differs"]:
            plan.append(item(CONCERN, name, "{}, {}".format(here["release"], "; ".join(here["differs"])), release, "release"))
    for name in sorted(set(actual["served"]) - set(wanted["models"])):
        plan.append(item(CONCERN, name, actual["served"][name]["release"], None, "withdraw"))
    return plan
