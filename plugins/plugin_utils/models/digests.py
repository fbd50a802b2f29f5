# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A cache of the digests of large files on the controller. Every run needs these digests for the manifests of its hosts.

Like git's index, the cache identifies the content of a file by device, inode, size, mtime and ctime in nanoseconds. The digest of
a file that has just changed is not cached, because the file could change again within the same tick of the clock.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import suppress
from typing import List

from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest

# Seconds after a change during which the digest of a file is not cached
FRESH_SECONDS = 2.0


def digest(path: str, cache: str) -> str:
    """Return the SHA-256 of a file. `cache` is the directory of the cache, which this function creates, or "" for no cache.

    If several processes need the digest of a file, one reads the file and the others wait.
    """
    if not cache:
        return file_digest(path)
    name = hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:32]
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        entry = open(os.path.join(cache, name), "a+", encoding="utf-8")  # noqa: SIM115 (closed below)
    except OSError:
        # If the cache cannot be used, the file is read.
        return file_digest(path)
    with entry:
        fcntl.flock(entry, fcntl.LOCK_EX)
        entry.seek(0)
        facts = os.stat(path)
        cached = None
        # The text is damaged if the process that wrote it was interrupted.
        with suppress(ValueError):
            cached = json.loads(entry.read())
        if isinstance(cached, dict) and cached.get("identity") == _identity(facts):
            return str(cached["sha256"])
        sha256 = file_digest(path)
        entry.truncate(0)
        unchanged = _identity(os.stat(path)) == _identity(facts)
        if unchanged and time.time() - max(facts.st_mtime, facts.st_ctime) >= FRESH_SECONDS:
            entry.write(json.dumps({"path": os.path.abspath(path), "identity": _identity(facts), "sha256": sha256}))
    return sha256


def _identity(facts: os.stat_result) -> List[int]:
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
