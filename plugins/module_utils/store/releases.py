# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Releases of models, and the links in served/ from which Triton reads them."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import records
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import (
    StoreError,
    blob_path,
    listed,
    make_directory,
    record_path,
    release_path,
    write_json,
)
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import LABEL, Record, serial

# Fields of a record except `files`
FACTS = ("release", "source", "versions", "steps", "cached", "shape")


def labels(root: str, name: str) -> List[str]:
    """Return the labels of the model's complete releases, newest first."""
    directory = os.path.join(root, "releases", name)
    found = [label for label in listed(directory) if LABEL.fullmatch(label) and os.path.isdir(os.path.join(directory, label))]
    return sorted(found, key=serial, reverse=True)


def next_serial(root: str, name: str) -> int:
    """Return a serial number that no release of this model has on this host."""
    found = filter(None, (re.match(r"(\d+)-", entry) for entry in listed(os.path.join(root, "releases", name))))
    return max((int(match[1]) for match in found), default=0) + 1


def read_record(root: str, name: str, label: str) -> Record:
    """Return the record of a release. Raises StoreError if the record cannot be used."""
    found = shapes.read(record_path(root, name, label), records.SHAPE)
    if found.flaw or not found.exists:
        raise StoreError(f"model {name}: the record of release {label} cannot be used: {found.flaw or 'it is gone'}")
    record: Record = found.content
    base = release_path(root, name, label)
    if not record.get("versions"):
        # Older records have no versions. Their releases serve the latest version, which is Triton's default.
        numbers = [int(entry) for entry in listed(base) if re.fullmatch(r"[1-9]\d*", entry)]
        record["versions"] = [str(max(numbers))] if numbers else []
    for path, file in record["files"].items():
        file.setdefault("blob", os.path.islink(os.path.join(base, path)))
    record["steps"] = record.get("steps") or []
    record["cached"] = bool(record.get("cached"))
    record.setdefault("shape", None)
    return record


def facts_of(record: Record) -> Dict[str, Any]:
    """Return the fields of a record without the files."""
    fields: Mapping[str, object] = record
    return {key: fields[key] for key in FACTS}


def desired_model(record: Record) -> Dict[str, Any]:
    """Convert the record of a release into a desired model: the facts of the record, and its files without their sizes."""
    files = {path: {"sha256": file["sha256"], "blob": file["blob"]} for path, file in record["files"].items()}
    return {**facts_of(record), "files": files}


def make_release(root: str, name: str, release: Mapping[str, Any]) -> str:
    """Create a release in tmp/ and rename it into releases/. Return its label. Raises StoreError."""
    import base64
    import tempfile

    label = "{:04d}-{}".format(next_serial(root, name), release["release"][:12])
    home = os.path.join(root, "releases", name)
    make_directory(home)
    staging = tempfile.mkdtemp(prefix=f"release-{name}-", dir=os.path.join(root, "tmp"))
    files = {}
    try:
        for path in sorted(release["files"]):
            file = release["files"][path]
            target = os.path.join(staging, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if file["blob"]:
                blob = blob_path(root, file["sha256"])
                final = os.path.join(home, label, path)
                os.symlink(os.path.relpath(blob, os.path.dirname(final)), target)
                size = os.path.getsize(blob)
            else:
                content = base64.b64decode(file["content"])
                if hashlib.sha256(content).hexdigest() != file["sha256"]:
                    raise StoreError(f"model {name}: {path} changed during the transfer")
                with open(target, "wb") as sink:
                    sink.write(content)
                os.chmod(target, 0o444)
                size = len(content)
            files[path] = {"sha256": file["sha256"], "size": size, "blob": file["blob"]}
        for directory, _names, _files in trees.walk(staging):
            os.chmod(directory, 0o755)
        write_json(root, record_path(root, name, label), {**{key: release.get(key) for key in FACTS}, "files": files})
        lost_files = [path for path in sorted(files) if not os.path.lexists(os.path.join(staging, path))]
        if lost_files:
            raise StoreError(f"model {name}: release {label} lost {', '.join(lost_files)} while it was made: run again")
        os.rename(staging, os.path.join(home, label))
    except BaseException:
        for leftover in (staging, record_path(root, name, label)):
            with suppress(OSError):
                trees.remove(leftover)
        raise
    return label


def release_content(root: str, name: str, label: str) -> Dict[str, Any]:
    """Return the content of a release on this host, in the form that make_release takes.

    A small file that is lost or changed is read from another release. Raises StoreError with the files that no release has.
    """
    import base64

    record = read_record(root, name, label)
    directories = [release_path(root, name, entry) for entry in dict.fromkeys([label, *labels(root, name)])]
    files: Dict[str, Any] = {}
    lost_files = []
    for path, file in sorted(record["files"].items()):
        files[path] = {"sha256": file["sha256"], "blob": file["blob"]}
        if file["blob"]:
            blob = blob_path(root, file["sha256"])
            if not os.path.isfile(blob) or os.path.getsize(blob) != file["size"]:
                lost_files.append(f"{path} (blob {file['sha256'][:12]})")
            continue
        candidates = (small_file(directory, path, file["sha256"]) for directory in directories)
        content = next((found for found in candidates if found is not None), None)
        if content is None:
            lost_files.append(path)
        else:
            files[path]["content"] = base64.b64encode(content).decode()
    if lost_files:
        raise StoreError(f"model {name}: release {label} is no longer complete, lost or changed: {', '.join(lost_files)}")
    return {**facts_of(record), "files": files}


def small_file(base: str, path: str, digest: str) -> Optional[bytes]:
    """Return the content of a file of a release, or None if it is missing or does not match its digest."""
    try:
        with open(os.path.join(base, path), "rb") as source:
            content = source.read()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def served_label(root: str, name: str) -> Optional[str]:
    """Return the label of the release that served/<name> links to, or None if it does not link to a release of this model."""
    link = os.path.join(root, "served", name)
    if not os.path.islink(link):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    home = os.path.normpath(os.path.join(root, "releases", name))
    label = os.path.basename(target)
    return label if os.path.dirname(target) == home and LABEL.fullmatch(label) else None


def served_names(root: str) -> List[str]:
    """Return the names in served/."""
    return listed(os.path.join(root, "served"))


def move_links(root: str, targets: Mapping[str, Optional[str]]) -> List[str]:
    """Point each link served/<name> to its release, or remove the link if the release is None. Return the names of moved links.

    All new links are first created in tmp/, so that a full disk causes a failure before the first link moves.
    """
    for name, label in targets.items():
        new_link = os.path.join(root, "tmp", "link-" + name)
        trees.remove(new_link)
        if label is not None:
            os.symlink(os.path.join("..", "releases", name, label), new_link)
    moved: List[str] = []
    for name, label in targets.items():
        link = os.path.join(root, "served", name)
        if label is not None:
            os.replace(os.path.join(root, "tmp", "link-" + name), link)
        elif os.path.lexists(link):
            os.unlink(link)
        else:
            continue
        moved.append(name)
    return moved


def current_models(root: str, desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {model: facts} of the releases that the links in served/ point to, and of desired models without a release.

    A model has no release if Triton itself reads it from an object store.
    """
    found = {name: dict(model) for name, model in desired.items() if model["release"] is None}
    for name in served_names(root):
        label = served_label(root, name)
        if label is not None:
            found[name] = {**desired.get(name, {}), **facts_of(read_record(root, name, label))}
    return found


def changes_version(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if a version number gets other content. Then a response cache could return outdated responses."""
    shared = set(old["versions"]) & set(new["versions"])
    return any(_version(old, number) != _version(new, number) for number in shared)


def _version(entry: Mapping[str, Any], number: str) -> Any:
    files = {path: file["sha256"] for path, file in entry["files"].items() if path.startswith(number + "/")}
    # An unknown shape differs from every shape, even from another unknown shape.
    return files, entry.get("shape") or object()
