"""The model store of a host: releases, and the links by which Triton reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
from typing import Any, Mapping


class StoreError(Exception):
    """Why a release was not made; what is served is untouched."""


def blob_path(root: str, digest: str) -> str:
    """Where a blob lies."""
    return os.path.join(root, "blobs", "sha256", digest)


def record_path(root: str, name: str, release: str) -> str:
    """Where the sizes and digests of a release are written down: beside it, so that the release holds only Triton's files."""
    return os.path.join(root, "releases", name, release + ".json")


def prepare(root: str) -> None:
    """The store's directories; what Triton reads is readable by any user of the container."""
    for name in ("", "blobs", "blobs/sha256", "releases", "served", "tmp"):
        path = os.path.join(root, name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o700 if name == "tmp" else 0o755)


def next_serial(root: str, name: str) -> int:
    """One more than the highest serial that this model ever had here."""
    directory = os.path.join(root, "releases", name)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    numbers = [int(found.group(1)) for found in (re.match(r"(\d+)-", one) for one in names) if found]
    return max(numbers, default=0) + 1


def make_release(root: str, name: str, release: Mapping[str, Any]) -> str:
    """Write one release in tmp/ and rename it into releases/. Returns its directory's name."""
    label = "{:04d}-{}".format(next_serial(root, name), release["release"][:12])
    home = os.path.join(root, "releases", name)
    os.makedirs(home, exist_ok=True)
    staging = tempfile.mkdtemp(prefix=name + "-", dir=os.path.join(root, "tmp"))
    sizes = {}
    try:
        for path in sorted(release["files"]):
            one = release["files"][path]
            target = os.path.join(staging, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if one["blob"]:
                blob = blob_path(root, one["sha256"])
                final = os.path.join(home, label, path)
                os.symlink(os.path.relpath(blob, os.path.dirname(final)), target)
                size = os.path.getsize(blob)
            else:
                content = base64.b64decode(one["content"])
                if hashlib.sha256(content).hexdigest() != one["sha256"]:
                    raise StoreError(f"model {name}: {path} arrived changed")
                with open(target, "wb") as sink:
                    sink.write(content)
                os.chmod(target, 0o444)
                size = len(content)
            sizes[path] = {"sha256": one["sha256"], "size": size}
        for directory, _names, _files in os.walk(staging):
            os.chmod(directory, 0o755)
        record = {"release": release["release"], "source": release["source"], "files": sizes}
        with open(record_path(root, name, label), "w", encoding="utf-8") as sink:
            json.dump(record, sink, indent=1, sort_keys=True)
        os.rename(staging, os.path.join(home, label))
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return label


def switch(root: str, name: str, label: str) -> None:
    """Point served/<name> at a release: the link is made in tmp/ and renamed over the old one."""
    fresh = os.path.join(root, "tmp", "link-" + name)
    if os.path.lexists(fresh):
        os.unlink(fresh)
    os.symlink(os.path.join("..", "releases", name, label), fresh)
    os.replace(fresh, os.path.join(root, "served", name))
