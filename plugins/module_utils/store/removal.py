# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Removal of the store of a host with all that the project keeps in it, after a proof that the directory is one.

The path is a variable of an inventory. A root of somebody else's files must survive a mistake in it, so the host decides.
"""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import errno
import os
import re
import stat
import subprocess
from typing import List, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.store import files
from ansible_collections.npufleet.triton.plugins.module_utils.store.damage import ASIDE
from ansible_collections.npufleet.triton.plugins.module_utils.store.files import StoreError
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated

# Directories of roles, of transfers and of a server that was started in a container, beside those of the store
DIRECTORIES = ("backends", "build", "compile", "compiled", "image", "incoming", "packages", "run", "server", "venv")
# A host that only ever was in maintenance has these and no store
OF_LEASE = ("maintenance.json", "lease.json", "lease.lock", "lease.calls", "lease.last")
FILES = (
    *OF_LEASE,
    *(files.TRANSACTION, files.HISTORY, files.HOLDS, files.HUNG, "lock"),
    *(
        f"{change}.{end}"
        for change in ("change", "turn")
        for end in ("order.json", "result.json", "steps", "decision.json", "lock")
    ),
    "replacement.json",
    *("probe.json", "watchdog.json", "process.lock"),
)
# Of a file that is being written, by a run or by the probe, and of one that was damaged
ENDINGS = ("", ".new", ".draft", ASIDE)
# As the module host_files names a draft
DRAFT = re.compile(r"\.(.+)\.\w+\.new")
# What a file system has in its root, where the store is one
OF_FILE_SYSTEM = "lost+found"
SHOWN = 5


def entries(root: str) -> List[str]:
    """Return the names in the root that are to be removed; none where there is no root.

    Raises StoreError where the directory is no store, or has something that is not the project's.
    """
    try:
        found = os.lstat(root)
    except FileNotFoundError:
        return []
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"it is a link to {os.readlink(root)}, expected a directory. Set npufleet_root to where it is")
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StoreError(f"it is of user {found.st_uid}, expected a directory of root. Look at npufleet_root")
    names = sorted(set(os.listdir(root)) - {OF_FILE_SYSTEM})
    directories = {part.partition("/")[0] for part in files.DIRECTORIES} | set(DIRECTORIES)
    foreign = [name for name in names if name not in directories and not _is_one_of(name, FILES)]
    if foreign:
        listed = ", ".join(ascii(name)[1:-1] for name in foreign[:SHOWN]) + (" and more" if len(foreign) > SHOWN else "")
        raise StoreError(
            f"it has {listed}, expected only what npufleet has made. Nothing was removed: move that elsewhere, or look at "
            "npufleet_root"
        )
    if not files.is_there(root) and not all(_is_one_of(name, OF_LEASE) for name in names):
        raise StoreError(
            f"it has {', '.join(names[:SHOWN])} and no {files.DIRECTORIES[2]}, expected a store of npufleet. Nothing was removed: "
            "look at npufleet_root, and remove what is left of the host manually"
        )
    return names


def _is_one_of(name: str, known: Sequence[str]) -> bool:
    """Return True for one of these files, and for what a run or a program that was killed has left of it."""
    draft = DRAFT.fullmatch(name)
    return (draft is not None and draft[1] in known) or any(name == file + ending for file in known for ending in ENDINGS)


def remove(root: str) -> bool:
    """Remove the store; return whether there was one. Raises StoreError where it is none, or cannot be removed."""
    names = entries(root)
    for name in names:
        # Not in Python, whose recursion ends in directories as deep as the connecting user likes to make them in incoming/
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
        # A file system of its own stays mounted
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or set(os.listdir(root)) - {OF_FILE_SYSTEM}:
            raise
        return bool(names)
    return True
