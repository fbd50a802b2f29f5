# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Removal of a host's store, and of everything else that the project keeps in the same directory (`npufleet_root`).

This variable of the inventory can have a wrong path. So the host checks the directory before it removes anything.
"""

from __future__ import annotations

# Programs without an AnsibleModule import this file, too. pylint: disable=ansible-bad-function
import errno
import os
import re
import stat
import subprocess
from typing import List, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.store import files
from ansible_collections.npufleet.triton.plugins.module_utils.store.damage import DAMAGED_SUFFIX
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import StoreError
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated

# Directories in the root that are not part of the store: those of roles, of transfers, and of a server that runs as a process
DIRECTORIES = ("backends", "build", "compile", "compiled", "image", "incoming", "packages", "run", "server", "venv")
# If a host was in maintenance but never had a server, its root has only these files.
LEASE_FILES = ("maintenance.json", "lease.json", "lease.lock", "lease.calls", "lease.last")
FILES = (
    *LEASE_FILES,
    *(files.TRANSACTION, files.HISTORY, files.HOLDS, files.HUNG, "lock"),
    *(
        f"{change}.{end}"
        for change in ("change", "turn")
        for end in ("order.json", "result.json", "steps", "decision.json", "lock")
    ),
    *("replacement.json", "traffic.json", "rollouts.json"),
    *("probe.json", "watchdog.json", "process.lock"),
)
# Endings of file names: no ending, two endings of files that are being written, and the ending of copies of damaged files
ENDINGS = ("", ".new", ".draft", DAMAGED_SUFFIX)
# Names of the drafts that the module host_files writes
DRAFT = re.compile(r"\.(.+)\.\w+\.new")
# This directory exists if the store is the root of its own file system.
LOST_FOUND = "lost+found"
# Largest number of entries in a message
MAX_SHOWN = 5


def entries(root: str) -> List[str]:
    """Return the names of the entries in the root, or an empty list if the root does not exist.

    Raises StoreError if the directory is not a store, or contains an entry that does not belong to the project.
    """
    try:
        found = os.lstat(root)
    except FileNotFoundError:
        return []
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"it is a link to {os.readlink(root)}, expected a directory. Set npufleet_root to the directory itself")
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StoreError(f"it belongs to user {found.st_uid}, expected a directory of root. Check npufleet_root")
    names = sorted(set(os.listdir(root)) - {LOST_FOUND})
    directories = {part.partition("/")[0] for part in files.DIRECTORIES} | set(DIRECTORIES)
    foreign = [name for name in names if name not in directories and not _is_one_of(name, FILES)]
    if foreign:
        listed = ", ".join(ascii(name)[1:-1] for name in foreign[:MAX_SHOWN]) + (" and more" if len(foreign) > MAX_SHOWN else "")
        raise StoreError(
            f"it has {listed}, expected only what npufleet has made. Nothing was removed: move these entries elsewhere, or "
            "check npufleet_root"
        )
    if not files.is_complete(root) and not all(_is_one_of(name, LEASE_FILES) for name in names):
        raise StoreError(
            f"it has {', '.join(names[:MAX_SHOWN])} and no {files.DIRECTORIES[2]}, expected a store of npufleet. Nothing was "
            "removed: check npufleet_root, and remove the rest of the store manually"
        )
    return names


def _is_one_of(name: str, project_files: Sequence[str]) -> bool:
    """Return True if `name` is one of these files, or the draft or the damaged copy of such a file."""
    draft = DRAFT.fullmatch(name)
    return (draft is not None and draft[1] in project_files) or any(
        name == file + ending for file in project_files for ending in ENDINGS
    )


def remove(root: str) -> bool:
    """Remove the store. Return False if nothing had to be removed. Raises StoreError if it is not a store or cannot be removed."""
    names = entries(root)
    for name in names:
        # `rm` is used, because the connecting user can nest directories in incoming/ deeper than a recursion in Python can go.
        command = ["rm", "-rf", "--one-file-system", "--", os.path.join(root, name)]
        done = subprocess.run(command, env=untranslated(), capture_output=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.decode("utf-8", "replace").split())[:400]
            raise StoreError(f"{name} cannot be removed ({why}). Look at it and run again")
    try:
        os.rmdir(root)
    except FileNotFoundError:
        return False
    except OSError as error:
        # If the root is a file system of its own, it stays mounted, and only its content is removed.
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or set(os.listdir(root)) - {LOST_FOUND}:
            raise
        return bool(names)
    return True
