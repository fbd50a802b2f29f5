"""The store of a host on its disk: where its files lie, what each has to be, and how one is written in a single piece."""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, NamedTuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks, trees
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, NUMBER, TEXT_OR_NULL
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import DIGEST, LABEL, NAME

TRANSACTION, HISTORY, HOLDS = "transaction.json", "history.jsonl", "holds.json"
# Models whose load hangs in the server, and when that was seen: it holds until the container starts again
HUNG = "hung.json"
# A moment by the clock that does not step (kernel/clock.py), beside the time of day that versions before wrote alone
MARK = {"boot?": str, "uptime?": NUMBER}
HOLD = {"source": DIGEST, "label": LABEL, "release": DIGEST, "versions": [str], "by": str, "when": str, "why": str}
# What each file of the store has to be; a history has it line by line, a record has records.SHAPE
SHAPES = {
    TRANSACTION: {
        "run": str,
        "by": str,
        "since": str,
        "renewed": NUMBER,
        **MARK,
        "models": {NAME: {"from": (LABEL, NULL), "to": (LABEL, NULL), "what": str, "failed?": (LABEL, NULL)}},
        "holds": {NAME: (HOLD, NULL)},
        "why?": TEXT_OR_NULL,
    },
    HOLDS: {NAME: HOLD},
    HUNG: {"models": [str], "at": NUMBER, **MARK},
}


class StoreError(Exception):
    """Why a release was not made; what is served is untouched."""


class Run(NamedTuple):
    """Who changes the store: the run's own id, a person at a controller, the host's name in the inventory."""

    run: str
    by: str
    host: str


def blob_path(root: str, digest: str) -> str:
    """Where a blob lies."""
    return os.path.join(root, "blobs", "sha256", digest)


def release_path(root: str, name: str, label: str) -> str:
    """The directory of a release."""
    return os.path.join(root, "releases", name, label)


def record_path(root: str, name: str, release: str) -> str:
    """Where the sizes and digests of a release are written down: beside it, so that the release holds only Triton's files."""
    return os.path.join(root, "releases", name, release + ".json")


DIRECTORIES = ("", "blobs", "blobs/sha256", "releases", "served", "tmp")


def is_there(root: str) -> bool:
    """Whether the store has all of its directories. Triton does not start without `served`, also when it has nothing to serve."""
    return all(os.path.isdir(os.path.join(root, name)) for name in DIRECTORIES)


def make_directory(path: str, mode: int = 0o755) -> None:
    """A directory of this mode, whatever the umask is, and whatever mode it had."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory(parent)
    os.makedirs(path, exist_ok=True)
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def make_directories(root: str) -> None:
    """The store's directories; what Triton reads is readable by any user of the container."""
    for name in DIRECTORIES:
        make_directory(os.path.join(root, name), 0o700 if name == "tmp" else 0o755)


def prepare(root: str) -> None:
    """Make the store ready for a change; for whoever holds its lock, and is the only one who makes anything in tmp/ then."""
    make_directories(root)
    # Of a run that was killed
    for name in os.listdir(os.path.join(root, "tmp")):
        path = os.path.join(root, "tmp", name)
        if name.startswith(("release-", "retired-")):
            trees.remove(path)
        elif name.startswith(("link-", "json-")):
            os.unlink(path)


@contextmanager
def locked(root: str, deadline: float) -> Iterator[None]:
    """Holds the store for one call. The kernel lets go of it when a process ends, however it ends."""
    make_directory(root)
    path = os.path.join(root, "lock")
    with locks.opened(path) as lock:
        if not locks.take(lock, deadline):
            raise StoreError(f"another process holds {path}: see `fuser {path}`, and run again")
        yield


def write_json(root: str, path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file in one piece."""
    write_text(root, path, json.dumps(value, indent=1, sort_keys=True))


def write_text(root: str, path: str, text: str) -> None:
    """Write a file in one piece, and on to the disk before it counts."""
    import tempfile

    handle, staging = tempfile.mkstemp(prefix="json-", dir=os.path.join(root, "tmp"))
    with os.fdopen(handle, "w", encoding="utf-8") as sink:
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    os.chmod(staging, 0o644)
    os.replace(staging, path)


def read(root: str, name: str) -> shapes.FileContent:
    """One of the files in SHAPES."""
    return shapes.read(os.path.join(root, name), SHAPES[name])
