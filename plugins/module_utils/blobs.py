"""How large files come into the store of a host: each is proven by its digest before it counts."""

from __future__ import annotations

import hashlib
import os
from typing import List, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, blob_path


def file_digest(path: str) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


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
