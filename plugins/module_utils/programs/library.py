# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The library: the code of this collection as a host keeps it, compiled. Modules and units run from it.

Each version has a directory of its own, named by its digest, that is never changed. The link `current` points to the version that
changed the host last. Python runs a version by its directory: commands.py has the commands. A process that runs a version holds its
directory, so that no later version removes what the process still has to import.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import List

HOME = "/usr/local/lib/npufleet/library"
CURRENT = "current"
# The programs that systemd keeps running, as modules of module_utils
ENTRIES = {"watchdog": "watch.watchdog", "probe": "watch.probe"}
# File in a version: the digest of each program, over its own sources alone. A program is restarted when its digest changes, and not
# with each version of the library.
PROGRAMS = "programs.json"
# Exit code of the command `resume` while the run may still be at work
BUSY = 75
# Seconds after which an unfinished directory belongs to a run that was killed
DRAFT = 3600.0
# The name of the library before version 0.2
FORMER = "/usr/local/lib/npufleet/npufleet_change.pyz"


def path(version: str = CURRENT) -> str:
    """Return the directory of a version, which Python runs."""
    return os.path.join(HOME, version)


def programs(directory: str = "") -> str:
    """Return the path of the digests of the programs in a directory, that of the current version without one."""
    return os.path.join(directory or path(), PROGRAMS)


def hold(directory: str) -> int:
    """Keep a version from being removed until this process ends. Return the descriptor that does it. Raises OSError."""
    import fcntl

    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def install(version: str, packed: bytes) -> bool:
    """Unpack the archive of a version, unless the host has that version. Return True if it was unpacked. Raises OSError."""
    if os.path.isdir(path(version)):
        return False
    import fcntl
    import shutil
    import tempfile

    os.makedirs(HOME, exist_ok=True)
    # Whatever the umask is, no other account may put files where root imports them.
    for directory in (os.path.dirname(HOME), HOME):
        os.chmod(directory, 0o755)
    draft = tempfile.mkdtemp(prefix=f".{version}.", dir=HOME)
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # As long as the directory is locked, it belongs to a run at work.
        fcntl.flock(handle, fcntl.LOCK_EX)
        _unpack(packed, draft, path(version))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        # Another run has installed the version meanwhile.
        if os.path.isdir(path(version)):
            return False
        raise
    finally:
        os.close(handle)
    return True


def activate(version: str) -> bool:
    """Make a version the current one. Return True if another one was. The previous version stays, and those that processes hold.

    Raises OSError if the host does not have the version.
    """
    if os.path.realpath(path()) == path(version) and os.path.isdir(path(version)):
        return False
    if not os.path.isdir(path(version)):
        raise OSError(f"{path(version)} is missing, expected the library that this call came from. Run the playbook again.")
    # Imported here, as most calls do not get here
    import shutil

    before = os.path.basename(os.path.realpath(path()))
    draft = path(f".{CURRENT}.new")
    with suppress(FileNotFoundError):
        os.unlink(draft)
    os.symlink(version, draft)
    os.replace(draft, path())
    for name in _superseded(version, before):
        shutil.rmtree(path(name), ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(FORMER)
    return True


def _superseded(*kept: str) -> List[str]:
    """Return the other versions that no process holds, and what killed runs have left."""
    import time

    found = []
    for name in os.listdir(HOME):
        if name in kept or os.path.islink(path(name)) or not os.path.isdir(path(name)):
            continue
        # The age is by the time of day, which may be set meanwhile.
        recent = name.startswith(".") and time.time() - os.lstat(path(name)).st_mtime < DRAFT
        if not recent and not _is_held(path(name)):
            found.append(name)
    return found


def _is_held(directory: str) -> bool:
    """Return True if a run unpacks a directory, or a process runs it."""
    import fcntl

    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _unpack(packed: bytes, draft: str, target: str) -> None:
    """Unpack and compile the archive in `draft`, flush it to the disk and rename it to `target`."""
    import compileall
    import io
    import py_compile
    import zipfile

    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(draft)
    # No file of it is ever changed, so that Python does not have to compare dates.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(draft, quiet=2, ddir=target, invalidation_mode=mode)
    for directory, _names, files in os.walk(draft):
        for name in files:
            _flush(os.path.join(directory, name), 0o644)
        _flush(directory, 0o755)
    os.rename(draft, target)


def _flush(name: str, mode: int) -> None:
    """Make a path readable whatever the umask is, and flush it to the disk."""
    os.chmod(name, mode)
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
