# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The files of a host's store: their paths, their shapes, and atomic writes."""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, NamedTuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks, trees
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL, NUMBER, TEXT_OR_NULL
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import DIGEST, LABEL, NAME

TRANSACTION, HISTORY, HOLDS = "transaction.json", "history.jsonl", "holds.json"
# The file with the models whose load hangs, and with the time at which a run noticed this. It is valid until the server restarts.
HUNG = "hung.json"
# Fields of a time since boot (kernel/clock.py). Unlike the time of day, nobody can set this time. The fields are optional, because
# earlier versions of npufleet wrote only the time of day.
MARK = {"boot?": str, "uptime?": NUMBER}
HOLD = {"source": DIGEST, "label": LABEL, "release": DIGEST, "versions": [str], "by": str, "when": str, "why": str}
# The shapes of the JSON files; `?` marks an optional field. The shapes of the history and of records are in their own files.
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
    """A change of the store that was refused or failed. The message is for an operator."""


class Run(NamedTuple):
    """The run that changes a store: its id, the person who started it, and the name of the host in the inventory."""

    run: str
    by: str
    host: str


def blob_path(root: str, digest: str) -> str:
    """Return the path of a blob."""
    return os.path.join(root, "blobs", "sha256", digest)


def release_path(root: str, name: str, label: str) -> str:
    """Return the directory of a release."""
    return os.path.join(root, "releases", name, label)


def record_path(root: str, name: str, release: str) -> str:
    """Return the path of a record. The record is beside the directory of the release, which has only files for Triton."""
    return os.path.join(root, "releases", name, release + ".json")


DIRECTORIES = ("", "blobs", "blobs/sha256", "releases", "served", "tmp")


def is_complete(root: str) -> bool:
    """Return True if the store has all of its directories. Triton needs `served/` even if there is no model."""
    return all(os.path.isdir(os.path.join(root, name)) for name in DIRECTORIES)


def listed(directory: str) -> List[str]:
    """Return the sorted names of the entries of a directory, or an empty list if it does not exist."""
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def make_directory(path: str, mode: int = 0o755) -> None:
    """Create a directory, or use an existing one, and set this mode independent of the umask."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory(parent)
    os.makedirs(path, exist_ok=True)
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def make_directories(root: str) -> None:
    """Create the directories of the store. Triton can run as any user, so all users may read all directories except tmp/."""
    for name in DIRECTORIES:
        make_directory(os.path.join(root, name), 0o700 if name == "tmp" else 0o755)


def prepare(root: str) -> None:
    """Create the directories, and remove old files in tmp/. The caller holds the lock of the store."""
    make_directories(root)
    # Killed runs have left these files.
    for name in os.listdir(os.path.join(root, "tmp")):
        if name.startswith(("release-", "retired-", "link-", "json-")):
            trees.remove(os.path.join(root, "tmp", name))


@contextmanager
def locked(root: str, deadline: float) -> Iterator[None]:
    """Hold the lock of the store. Raises StoreError if another process holds the lock until `deadline`."""
    make_directory(root)
    path = os.path.join(root, "lock")
    with locks.open_lock(path) as lock:
        if not locks.take(lock, deadline):
            raise StoreError(f"another process holds {path}: see `fuser {path}`, and run again")
        yield


def write_json(root: str, path: str, value: Mapping[str, Any]) -> None:
    """Write `value` as a JSON file, atomically like write_text."""
    write_text(root, path, json.dumps(value, indent=1, sort_keys=True))


def write_text(root: str, path: str, text: str) -> None:
    """Write a temporary file, flush it to the disk and rename it, so that readers never see an incomplete file."""
    import tempfile

    handle, staging = tempfile.mkstemp(prefix="json-", dir=os.path.join(root, "tmp"))
    with os.fdopen(handle, "w", encoding="utf-8") as sink:
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    os.chmod(staging, 0o644)
    os.replace(staging, path)


def read(root: str, name: str) -> shapes.FileContent:
    """Return the content of a file in SHAPES."""
    return shapes.read(os.path.join(root, name), SHAPES[name])
