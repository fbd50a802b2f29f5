#!/usr/bin/python
"""Module model_store: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Make model releases on a host and switch to them atomically
description:
  - Takes large files that were transferred into O(incoming), verifies the SHA-256 of every one and keeps them as immutable
    blobs; writes each model's release into a fresh directory; then renames the link C(served/<model>) over to it.
  - Nothing is edited in place and nothing half-made is ever below C(served/), so a server that polls never sees it.
  - A release directory is never used twice, also for content that was there before, because Triton reloads a model only
    when the newest time stamp in its tree grows.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  root:
    description: Root of the store.
    type: path
    default: /var/lib/npufleet
  incoming:
    description: Directory on the same file system with transferred blobs, each named by its SHA-256.
    type: path
  models:
    description: Names of the models to release. The controller fills in their files.
    type: list
    elements: str
    default: []
  withdraw:
    description: Names of the models that are no longer to be served.
    type: list
    elements: str
    default: []
  releases:
    description: Files of each model to release, with digests and the content of small ones. Computed on the controller.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reports what would be released and withdrawn.
"""

EXAMPLES = r"""
- name: Make and switch to new releases
  npufleet.triton.model_store:
    incoming: /var/lib/npufleet/incoming
    models: [digits]
"""

RETURN = r"""
switched:
  description: The release directory that each model now is served from.
  returned: success
  type: dict
"""

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.models import blob_path, record_path


class StoreError(Exception):
    """Why a release was not made; what is served is untouched."""


def file_digest(path: str) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def prepare(root: str) -> None:
    """The store's directories; what Triton reads is readable by any user of the container."""
    for name in ("", "blobs", "blobs/sha256", "releases", "served", "tmp"):
        path = os.path.join(root, name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o700 if name == "tmp" else 0o755)


def ingest(root: str, incoming: Optional[str], digests: List[str]) -> None:
    """Move transferred blobs into the store. All are verified before the first one counts."""
    verified = []
    problems = []
    for digest in digests:
        if os.path.exists(blob_path(root, digest)):
            continue
        arrived = os.path.join(incoming or "", digest)
        if not incoming or os.path.islink(arrived) or not os.path.isfile(arrived):
            problems.append(f"blob {digest[:12]} was not transferred")
            continue
        # Out of the sender's reach first, so that what is verified is what is kept.
        staged = os.path.join(root, "tmp", digest)
        os.replace(arrived, staged)
        os.chown(staged, 0, 0)
        os.chmod(staged, 0o444)
        found = file_digest(staged)
        if found != digest:
            os.unlink(staged)
            problems.append(f"blob {digest[:12]} arrived with SHA-256 {found[:12]}")
        else:
            verified.append((staged, digest))
    if problems:
        for staged, _digest in verified:
            os.unlink(staged)
        raise StoreError("; ".join(problems) + ": transfer it again")
    for staged, digest in verified:
        os.replace(staged, blob_path(root, digest))


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


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/var/lib/npufleet"},
            "incoming": {"type": "path"},
            "models": {"type": "list", "elements": "str", "default": []},
            "withdraw": {"type": "list", "elements": "str", "default": []},
            "releases": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    root, releases = module.params["root"], module.params["releases"]
    withdraw = [name for name in module.params["withdraw"] if os.path.lexists(os.path.join(root, "served", name))]
    unknown = sorted(set(module.params["models"]) - set(releases))
    if unknown:
        module.fail_json(msg="triton_models places no {} on this host".format(", ".join(unknown)))
    changed = bool(releases or withdraw)
    if module.check_mode:
        module.exit_json(changed=changed, switched={})
    switched: Dict[str, str] = {}
    try:
        prepare(root)
        solid = [
            name
            for name in [*releases, *withdraw]
            if os.path.isdir(served := os.path.join(root, "served", name)) and not os.path.islink(served)
        ]
        if solid:
            raise StoreError(f"served/{', served/'.join(sorted(solid))} is a directory and no link: move it out of the store")
        blobs = sorted({one["sha256"] for release in releases.values() for one in release["files"].values() if one["blob"]})
        ingest(root, module.params["incoming"], blobs)
        # Every release is whole before the first link moves.
        made = {name: make_release(root, name, releases[name]) for name in sorted(releases)}
        for name, label in made.items():
            switch(root, name, label)
            switched[name] = label
        for name in withdraw:
            os.unlink(os.path.join(root, "served", name))
    except (StoreError, OSError) as error:
        module.fail_json(
            msg="model store {}: {}; {} switched before that".format(root, error, sorted(switched) or "nothing"),
            switched=switched,
        )
    module.exit_json(changed=changed, switched=switched)


if __name__ == "__main__":
    main()
