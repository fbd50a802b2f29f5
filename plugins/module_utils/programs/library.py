# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The library: the code of this collection on a host, compiled. Modules and systemd units run from it.

Each version has its own directory. The name of the directory is the digest of the version, and the files never change. The link
`current` points to the version that changed the host last. `python3 DIRECTORY` runs the commands in commands.py. Each process locks
the directory of its version, so that other runs do not remove files that the process may still import.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import List

HOME = "/usr/local/lib/npufleet/library"
CURRENT = "current"
# The programs that systemd units run, each with its module in module_utils
ENTRIES = {"watchdog": "watch.watchdog", "probe": "watch.probe", "metrics": "metrics.collect"}
# A file in the directory of each version: {program: digest of the sources that it imports}. A new version of the library does not
# restart a program whose digest stays the same.
PROGRAMS = "programs.json"
# Exit code of the command `resume`, which ends an interrupted host change, if the run that began this change may still be active
BUSY = 75
# `install` unpacks into a draft directory. From this age in seconds, an unlocked draft counts as left by a killed run.
DRAFT_SECONDS = 3600.0
# The path of the library in versions of the collection before 0.2
FORMER = "/usr/local/lib/npufleet/npufleet_change.pyz"


def path(version: str = CURRENT) -> str:
    """Return the directory of a version."""
    return os.path.join(HOME, version)


def programs_file(directory: str = "") -> str:
    """Return the path of the file PROGRAMS in the directory of a version, by default the current version."""
    return os.path.join(directory or path(), PROGRAMS)


def lock_version(directory: str) -> int:
    """Lock a version until this process ends, so that it is not removed. Return the descriptor of the lock. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def install(version: str, packed: bytes) -> bool:
    """Unpack the archive of a version. Return False if the host already has the version. Raises OSError."""
    if os.path.isdir(path(version)):
        return False
    import shutil
    import tempfile

    os.makedirs(HOME, exist_ok=True)
    # root imports Python files from these directories, so other accounts must not be able to write to them, whatever the umask is.
    for directory in (os.path.dirname(HOME), HOME):
        os.chmod(directory, 0o755)
    draft = tempfile.mkdtemp(prefix=f".{version}.", dir=HOME)
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The lock shows other runs that this run is still at work.
        fcntl.flock(handle, fcntl.LOCK_EX)
        _unpack(packed, draft, path(version))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        # The rename fails if another run has installed the version in the meantime.
        if os.path.isdir(path(version)):
            return False
        raise
    finally:
        os.close(handle)
    return True


def activate(version: str) -> bool:
    """Make a version the current one, and remove other versions. Return True if the current version changed.

    The previous version and locked versions stay. Raises OSError if the host does not have the version.
    """
    if os.path.realpath(path()) == path(version) and os.path.isdir(path(version)):
        return False
    if not os.path.isdir(path(version)):
        raise OSError(f"{path(version)} is missing, expected the code of the collection for this run. Run the playbook again.")
    # This import is slow, and most calls change no version.
    import shutil

    before = os.path.basename(os.path.realpath(path()))
    draft = path(f".{CURRENT}.new")
    with suppress(FileNotFoundError):
        os.unlink(draft)
    os.symlink(version, draft)
    os.replace(draft, path())
    for name in _removable(version, before):
        shutil.rmtree(path(name), ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(FORMER)
    return True


def _removable(*needed: str) -> List[str]:
    """Return the names of directories to remove: versions that are neither in `needed` nor locked, and drafts of killed runs."""
    import time

    found = []
    for name in os.listdir(HOME):
        if name in needed or os.path.islink(path(name)) or not os.path.isdir(path(name)):
            continue
        # The lock is tested, too: the age alone does not prove that a run has ended, because the time of day can be changed.
        recent = name.startswith(".") and time.time() - os.lstat(path(name)).st_mtime < DRAFT_SECONDS
        if not recent and not _is_locked(path(name)):
            found.append(name)
    return found


def _is_locked(directory: str) -> bool:
    """Return True if a run is unpacking a directory, or a process runs from it."""
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
    # The files never change, so Python does not have to check if a compiled file is older than its source.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(draft, quiet=2, ddir=target, invalidation_mode=mode)
    for directory, _names, files in os.walk(draft):
        for name in files:
            _flush(os.path.join(directory, name), 0o644)
        _flush(directory, 0o755)
    os.rename(draft, target)


def _flush(name: str, mode: int) -> None:
    """Set the mode of a path, independent of the umask, and flush the path to the disk."""
    os.chmod(name, mode)
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
