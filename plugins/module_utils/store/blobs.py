# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The blobs (large files) of a host's store. The name of a blob is its SHA-256, which is verified when the blob arrives.

The stamp of a blob, `blobs/stamps/<digest>`, has the size, the modification time and the inode of the verified file. If a blob
still matches its stamp, it is normally not hashed again. `collect` removes the blobs that no release links to.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set

from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, blob_path, history, record_path, takeover
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import DIGEST
from ansible_collections.npufleet.triton.plugins.module_utils.system import free_space

MIB = 1 << 20
# File in incoming/ with the name of the controller that transfers blobs. The controller renews its time stamp.
CONTROLLER = ".controller"
# File in incoming/ with the number of bytes that the host downloads itself, without the controller
TOTAL = ".total"
# Age in seconds after which partial files in incoming/ are removed
PARTIAL_AGE = 7 * 86400
# Age in seconds after which files in tmp/ and blobs without a release are removed
STAGED_AGE = 3600
# The server can run as any user, so all users may read blobs.
BLOB_MODE = 0o444


class Busy(StoreError):
    """The error if another process has locked a directory."""


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def locked(directory: str, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a directory. Without `wait`, raise Busy if another process has locked the directory."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise Busy(f"{directory} is locked") from None
        yield
    finally:
        os.close(handle)


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}\n"


def _stamp_path(root: str, digest: str) -> str:
    return os.path.join(root, "blobs", "stamps", digest)


def _write_stamp(root: str, digest: str) -> None:
    path = _stamp_path(root, digest)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = os.path.join(root, "tmp", "stamp-" + digest)
    with open(draft, "w", encoding="utf-8") as sink:
        sink.write(_stamp(os.stat(blob_path(root, digest))))
    os.replace(draft, path)


def _matches_stamp(root: str, digest: str, found: os.stat_result) -> bool:
    try:
        with open(_stamp_path(root, digest), encoding="utf-8") as source:
            return source.read() == _stamp(found)
    except OSError:
        return False


def flaw(root: str, digest: str, verify: bool = False) -> Optional[str]:
    """Return `is gone` or `was changed` for a damaged blob, or None for an intact blob.

    The blob is hashed only if it does not match its stamp, or if `verify` is true.
    """
    path = blob_path(root, digest)
    try:
        found = os.lstat(path)
    except OSError:
        return "is gone"
    if not stat.S_ISREG(found.st_mode):
        return "was changed"
    if not verify and _matches_stamp(root, digest, found):
        return None
    return None if file_digest(path) == digest else "was changed"


def arrived(incoming: Optional[str]) -> Dict[str, int]:
    """Return {digest: size in bytes} of the complete and partial blobs in a directory of transfers."""
    if not incoming or not os.path.isdir(incoming):
        return {}
    with os.scandir(incoming) as found:
        return {
            entry.name: entry.stat(follow_symlinks=False).st_size
            for entry in found
            if DIGEST.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        }


def space_problem(root: str, incoming: str, sizes: Mapping[str, Optional[int]]) -> Optional[str]:
    """Return the reason why blobs of these sizes do not fit on the file system of the store, or None if they fit."""
    return shortage(root, free_space(root)[1], arrived(incoming), sizes)


def shortage(where: str, free: int, partial: Mapping[str, int], sizes: Mapping[str, Optional[int]]) -> Optional[str]:
    """Return the reason why files of these sizes do not fit into `free` bytes, or None if they fit. An unknown size counts as 0.

    `partial` is {digest: number of bytes that have already arrived}.
    """
    needed = sum(max((size or 0) - partial.get(digest, 0), 0) for digest, size in sizes.items())
    if needed <= free:
        return None
    return (
        f"{where} has {free} bytes ({free // MIB} MiB) free, expected {needed} ({needed // MIB + 1} MiB) for "
        f"{len(sizes)} large file{'s' * (len(sizes) > 1)}. Make room on this disk"
    )


def ingest(root: str, incoming: Optional[str], digests: List[str], sources: Optional[Mapping[str, str]] = None) -> None:
    """Verify all transferred blobs, then move them into the store. Raises StoreError if a blob is missing or wrong.

    A damaged blob in the store is replaced by a rename, so that a server that has the old file open can still read this file.
    `sources` is {digest: origin of the blob}, which messages show.
    """
    problems = []
    verified = []
    # Without the lock, two concurrent calls could move the same file.
    with locked(os.path.join(root, "tmp")):
        for digest in digests:
            if flaw(root, digest) is None:
                path = blob_path(root, digest)
                if stat.S_IMODE(os.stat(path).st_mode) != BLOB_MODE:
                    os.chmod(path, BLOB_MODE)
                if not _matches_stamp(root, digest, os.lstat(path)):
                    _write_stamp(root, digest)
                if digest in arrived(incoming):
                    os.unlink(os.path.join(incoming or "", digest))
                continue
            why = _verify(root, incoming, digest, (sources or {}).get(digest, ""))
            if why:
                problems.append(why)
            else:
                verified.append(digest)
        if problems:
            for digest in verified:
                os.unlink(_staging_path(root, digest))
            raise StoreError("; ".join(problems) + ": transfer it again")
        for digest in verified:
            os.replace(_staging_path(root, digest), blob_path(root, digest))
            _write_stamp(root, digest)


def _staging_path(root: str, digest: str) -> str:
    return os.path.join(root, "tmp", digest)


def _verify(root: str, incoming: Optional[str], digest: str, source: str) -> Optional[str]:
    """Move one blob from `incoming` into tmp/ and verify it. Return the flaw of the blob, or None. A wrong blob is removed."""
    staged = _staging_path(root, digest)
    try:
        proven = takeover.take(incoming or "", digest, staged, BLOB_MODE)
    except takeover.MissingFile:
        return f"blob {digest[:12]} was not transferred"
    except takeover.RejectedFile as error:
        return f"blob {digest[:12]} was not transferred: {error}"
    if proven == digest:
        return None
    os.unlink(staged)
    origin = f" from {source}" if source else ""
    return f"blob {digest[:12]} arrived{origin} with SHA-256 {proven}, expected {digest}, and was removed"


def collect(root: str, keep: int) -> Dict[str, Any]:
    """Remove old releases, unused blobs, and files of interrupted transfers. Return {"removed": [names], "bytes": freed bytes}.

    For each model, the last `keep` proven contents stay, each in its newest release (history.py explains contents). Four kinds of
    releases always stay: served and held releases, releases of an open transaction, and the release to which a rollback would
    return.
    """
    removed: List[str] = []
    freed = 0
    referenced = _referenced(root)
    lines, flaw_of_history, _exists = history.read_lines(root)
    _refuse_damaged(root, store.HISTORY, flaw_of_history)
    releases = os.path.join(root, "releases")
    unlinked: Set[str] = set()
    for name in store.listed(releases):
        home = os.path.join(releases, name)
        labels = store.labels(root, name)
        complete = [label for label in labels if _is_complete(root, name, label)]
        kept = {
            *referenced.get(name, ()),
            *history.labels_to_keep(lines, name, complete, max(keep, 1)),
            history.previous(lines, name, complete, store.served_label(root, name)),
        }
        for label in labels:
            if label in kept:
                continue
            freed += _remove_release(root, os.path.join(home, label), unlinked)
            trees.remove(record_path(root, name, label))
            removed.append(f"release {name}/{label}")
    linked = _linked(releases)
    for digest in store.listed(os.path.join(root, "blobs", "sha256")):
        path = blob_path(root, digest)
        # A young blob without a link can belong to another run, which has not made its release yet. A blob in `unlinked` is removed
        # at any age, because its release was removed above.
        stamp = _stamp_path(root, digest)
        arrival = os.lstat(stamp if os.path.lexists(stamp) else path).st_ctime
        if digest in linked or (digest not in unlinked and time.time() - arrival <= STAGED_AGE):
            continue
        freed += trees.remove(path)
        trees.remove(stamp)
        removed.append(f"blob {digest[:12]}")
    # Interrupted runs leave files in tmp/, and interrupted transfers leave files in incoming/.
    for path in [*_expired(os.path.join(root, "tmp"), STAGED_AGE), *_expired(os.path.join(root, "incoming"), PARTIAL_AGE)]:
        freed += trees.remove(path)
        removed.append(os.path.relpath(path, root))
    return {"removed": removed, "bytes": freed}


def _is_complete(root: str, name: str, label: str) -> bool:
    """Return True if every file of a release exists. Small files must also match their digests."""
    try:
        files = store.read_record(root, name, label)["files"]
    except StoreError:
        return False
    base = store.release_path(root, name, label)
    return all(
        os.path.isfile(blob_path(root, file["sha256"]))
        if file["blob"]
        else store.small_file(base, path, file["sha256"]) is not None
        for path, file in files.items()
    )


def _referenced(root: str) -> Dict[str, Set[str]]:
    """Return {model: labels of the releases that are served, or belong to an open transaction or a hold}."""
    labels: Dict[str, Set[str]] = {}

    def add(name: str, *found: Any) -> None:
        labels.setdefault(name, set()).update(str(label) for label in found if label)

    for name in store.listed(os.path.join(root, "served")):
        link = os.path.join(root, "served", name)
        if os.path.islink(link):
            add(name, os.path.basename(os.readlink(link)))
    transaction, holds = store.read(root, store.TRANSACTION), store.read(root, store.HOLDS)
    _refuse_damaged(root, store.TRANSACTION, transaction.flaw)
    _refuse_damaged(root, store.HOLDS, holds.flaw)
    for name, entry in ((transaction.content or {}).get("models") or {}).items():
        add(name, entry["from"], entry["to"])
    for name, entry in (holds.content or {}).items():
        add(name, entry["label"])
    return labels


def _refuse_damaged(root: str, name: str, damage: Optional[str]) -> None:
    """Raise StoreError if a file of the store is damaged, because its lost content can name releases that have to stay."""
    if damage:
        raise StoreError(f"{os.path.join(root, name)} cannot be used ({damage}): nothing is removed until it is repaired")


def _remove_release(root: str, release: str, unlinked: Set[str]) -> int:
    """Rename a release out of releases/ and remove it. Add the digests of its blobs to `unlinked`. Return the freed bytes."""
    unlinked |= _linked(release)
    out = os.path.join(root, "tmp", "retired-{}-{}".format(*release.split(os.sep)[-2:]))
    os.makedirs(os.path.dirname(out), exist_ok=True)
    trees.remove(out)
    os.rename(release, out)
    return trees.remove(out)


def _linked(directory: str) -> Set[str]:
    """Return the digests of the blobs that links below a directory point to."""
    paths = (os.path.join(base, file) for base, _names, files in trees.walk(directory) for file in files)
    return {os.path.basename(os.readlink(path)) for path in paths if os.path.islink(path)}


def _expired(directory: str, age: float) -> List[str]:
    """Return the entries of a directory that are older than `age` seconds. Skip a missing or locked directory."""
    found: List[str] = []
    with suppress(Busy, FileNotFoundError), locked(directory, wait=False):
        for name in store.listed(directory):
            path = os.path.join(directory, name)
            # Another process can remove the file meanwhile. The age comes from st_ctime, because a transfer can set st_mtime.
            with suppress(FileNotFoundError):
                if name != CONTROLLER and time.time() - os.lstat(path).st_ctime > age:
                    found.append(path)
    return found
