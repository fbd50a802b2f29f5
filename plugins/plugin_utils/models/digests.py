"""Digests of large files on the controller. Each host's manifest wants them, in every run: a file is read once for all of them,
and again only when it has changed.

What is remembered of a file, device, inode, size and both times to the nanosecond, is what git's index remembers of one; as there,
a file that changed a moment ago is not trusted, because it could change again within the same tick of the clock.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from typing import Dict, List

from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest

# Seconds since its last change for which a file is hashed every time
FRESH = 2.0


def digest(path: str, cache: str) -> str:
    """SHA-256 of a file. `cache` is the directory of what is remembered, made where it is missing; "" remembers nothing.

    Of several processes that ask for the same file one reads it, the others wait for it.
    """
    if not cache:
        return file_digest(path)
    name = hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:32]
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        memory = open(os.path.join(cache, name), "a+", encoding="utf-8")  # noqa: SIM115 (closed below)
    except OSError:
        # A cache that cannot be written is no reason not to go on.
        return file_digest(path)
    with memory:
        fcntl.flock(memory, fcntl.LOCK_EX)
        memory.seek(0)
        found = os.stat(path)
        known = _known(memory.read())
        if known.get("of") == _identity(found):
            return str(known["sha256"])
        hashed = file_digest(path)
        memory.truncate(0)
        unchanged = _identity(os.stat(path)) == _identity(found)
        if unchanged and time.time() - max(found.st_mtime, found.st_ctime) >= FRESH:
            memory.write(json.dumps({"path": os.path.abspath(path), "of": _identity(found), "sha256": hashed}))
    return hashed


def _identity(found: os.stat_result) -> List[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _known(text: str) -> Dict[str, object]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        # Its writer was interrupted.
        return {}
    return found if isinstance(found, dict) else {}
