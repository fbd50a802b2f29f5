# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The steps of a transfer on the host: prepare the directory, download files, and move all files into the store.

`order` is the request of the controller: {"do": the step, "user": the connecting user, "by": user@controller,
"blobs": {digest: origin}, "fetch_options": `options` of download.py, "bundle": a path on this host}.
An origin has the fields that download.py reads, the name `source` for messages, `pull` (True if this host downloads the blob
itself), and `size` if it is known.
"""

from __future__ import annotations

import os
import pwd
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, foreign

# Seconds without a sign of the controller after which this host ends a download and releases the lock of the directory
MAX_SILENCE = 60.0
# Largest size of a controller's name in bytes, and the name of an unknown controller
MAX_NAME, UNKNOWN = 800, "another controller"


def serve(root: str, incoming: str, order: Mapping[str, Any], secrets: Mapping[str, str]) -> Dict[str, Any]:
    """Run one step of a transfer, and return its result. Raises StoreError.

    If another controller transfers files to this host, return {"busy": name of the other controller}.
    """
    steps: Dict[str, Callable[..., Dict[str, Any]]] = {"prepare": _prepare, "take": _take, "drop": _drop}
    try:
        return steps[order["do"]](root, incoming, order, secrets)
    except blobs.Busy:
        try:
            name = foreign.read(os.path.join(incoming, blobs.CONTROLLER), MAX_NAME).decode("utf-8", "replace")
        except (foreign.Untrusted, OSError):
            name = ""
        return {"busy": name or UNKNOWN}


def _prepare(root: str, incoming: str, order: Mapping[str, Any], _secrets: Mapping[str, str]) -> Dict[str, Any]:
    """Prepare the directory for the files of the controller. Raises StoreError if the disk has no room.

    Return the digests of the blobs that this host needs, and the sizes of the files that have arrived.
    """
    store.make_directory(root)
    os.makedirs(incoming, exist_ok=True)
    try:
        user = pwd.getpwnam(order["user"])
    except KeyError:
        message = "user {} is missing on this host, expected the connecting user. Set ansible_user".format(order["user"])
        raise store.StoreError(message) from None
    with blobs.locked(incoming, wait=False):
        _write(incoming, blobs.CONTROLLER, order["by"])
        _give(incoming, user)
        needed = {digest: blob for digest, blob in order["blobs"].items() if blobs.flaw(root, digest)}
        why = blobs.space_problem(root, incoming, {digest: entry.get("size") for digest, entry in needed.items()})
        if why:
            raise store.StoreError(why)
        return {"needed": sorted(needed), "arrived": blobs.arrived(incoming)}


def _give(incoming: str, user: pwd.struct_passwd) -> None:
    """Make the connecting user the owner of the directory and its files.

    rsync runs as this user, and can resume a partial file only if this user owns the file.
    """
    os.chown(incoming, user.pw_uid, user.pw_gid)
    os.chmod(incoming, 0o700)
    for name in [*blobs.arrived(incoming), blobs.CONTROLLER]:
        with suppress(foreign.Untrusted), foreign.open_file(os.path.join(incoming, name)) as source:
            if os.fstat(source.fileno()).st_uid != user.pw_uid:
                os.fchown(source.fileno(), user.pw_uid, user.pw_gid)


def _write(incoming: str, name: str, content: str) -> None:
    """Write a small file that the connecting user can read, without following a link."""
    path = os.path.join(incoming, name)
    trees.remove(path)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(handle, "w", encoding="utf-8") as sink:
        # The umask can have reduced the mode.
        os.fchmod(handle, 0o644)
        sink.write(content)


def _take(root: str, incoming: str, order: Mapping[str, Any], secrets: Mapping[str, str]) -> Dict[str, Any]:
    """Download the blobs that this host fetches itself, then verify all blobs and move them into the store."""
    pulls = {digest: blob for digest, blob in order["blobs"].items() if blob.get("pull") and blobs.flaw(root, digest)}
    if pulls:
        with blobs.locked(incoming, wait=False):
            _pull(root, incoming, pulls, order, secrets)
    # New blobs do not affect other runs, so this code does not take the lock of the store.
    store.make_directories(root)
    blobs.ingest(root, incoming, sorted(order["blobs"]), {digest: blob["source"] for digest, blob in order["blobs"].items()})
    return {"taken": {digest: os.path.getsize(store.blob_path(root, digest)) for digest in order["blobs"]}}


def _pull(root: str, incoming: str, pulls: Dict[str, Any], order: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    # `download` imports TLS, which is slow, and most hosts download nothing.
    from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download

    options = order["fetch_options"]
    sizes: Dict[str, Optional[int]] = {}
    reasons: List[str] = []
    bundled = download.blobs_in_bundle(order["bundle"])
    pulls.update({digest: {"bundle": order["bundle"], "source": order["bundle"]} for digest in set(pulls) & set(bundled)})
    for digest, pull in sorted(pulls.items()):
        try:
            sizes[digest] = pull.get("size") or download.size(pull, digest, options, secrets)
        except download.SourceError as error:
            reasons.append(f"blob {digest[:12]} from {pull['source']}: {error}")
    reasons += filter(None, [blobs.space_problem(root, incoming, sizes)])
    if reasons:
        raise store.StoreError("; ".join(reasons))
    for digest, size in sizes.items():
        # A partial file that is larger than the blob is useless.
        if size is not None and blobs.arrived(incoming).get(digest, 0) > size:
            os.unlink(os.path.join(incoming, digest))
    check_cancelled = cancellation(incoming)
    if all(sizes.values()):
        _write(incoming, blobs.TOTAL, f"total {sum(filter(None, sizes.values()))}\n")
    try:
        for digest, pull in sorted(pulls.items()):
            try:
                target = os.path.join(incoming, digest)
                download.fetch({**pull, "size": sizes[digest]}, digest, target, options, secrets, check_cancelled)
            except (download.SourceError, OSError) as error:
                raise store.StoreError(f"blob {digest[:12]} from {pull['source']}: {error}") from None
    finally:
        trees.remove(os.path.join(incoming, blobs.TOTAL))


def cancellation(incoming: str) -> Callable[[], None]:
    """Return a function that raises StoreError if the controller has not renewed its file for MAX_SILENCE seconds."""
    # The clock can be set during a download, so the time stamp of the file is only compared with its own previous value.
    latest_stamp, last_change = 0, time.monotonic()

    def check_cancelled() -> None:
        nonlocal latest_stamp, last_change
        with suppress(FileNotFoundError):
            now = os.lstat(os.path.join(incoming, blobs.CONTROLLER)).st_mtime_ns
            if now != latest_stamp:
                latest_stamp, last_change = now, time.monotonic()
        if time.monotonic() - last_change > MAX_SILENCE:
            raise store.StoreError(f"the controller was silent for {MAX_SILENCE:.0f} s: run again to resume the transfer")

    return check_cancelled


def _drop(_root: str, incoming: str, order: Mapping[str, Any], _secrets: Mapping[str, str]) -> Dict[str, Any]:
    """Remove the partial files of the blobs in `order`, so that they do not fill the disk. Return {"dropped": {digest: size}}."""
    with blobs.locked(incoming, wait=False):
        dropped = {digest: size for digest, size in sorted(blobs.arrived(incoming).items()) if digest in order["blobs"]}
        for digest in dropped:
            os.unlink(os.path.join(incoming, digest))
        return {"dropped": dropped}
