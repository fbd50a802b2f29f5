# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Move files between root and the connecting user, in the directory of transfers (incoming/), which this user owns.

After root has taken over a file from the user (the sender), no other account can change the file. A file that root gives to the
user replaces any entry of the same name, without following links. In a container without root, "root" is the user who runs this
code.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from typing import Any, BinaryIO, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, foreign

# Time limit in seconds for the sender to close its file. A child process that the sender has just forked also has the file open,
# until the child executes a program.
CLOSE_TIMEOUT = 5.0
# Errors of file systems that do not support read leases (`_lease`)
LEASES_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class MissingFile(StoreError):
    """The error if the file is not in the sender's directory."""


class RejectedFile(StoreError):
    """An error because a file must not be moved. `take` has removed the file."""


def take(incoming: str, name: str, target: str, mode: int, limit: int = foreign.MAX_SIZE) -> str:
    """Move a file from the sender's directory to `target`, make root its owner, and return its digest.

    Raises MissingFile if the file is missing. Raises RejectedFile if it is a link, has a second name (hard link), is not a regular
    file, is larger than `limit` bytes, or if another process can still write to it.
    """
    try:
        directory = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise MissingFile(f"found no directory {incoming}") from None
    try:
        # After the move, the sender cannot replace the file any more. So the file that is checked is the file that stays.
        os.replace(name, target, src_dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(f"found no {name} in {incoming}") from None
    finally:
        os.close(directory)
    try:
        with _open_checked(target, limit) as source:
            return _take_ownership(source, target, mode, limit)
    except BaseException:
        trees.remove(target)
        raise


def _open_checked(path: str, limit: int) -> BinaryIO:
    try:
        return foreign.open_file(path, limit=limit)
    except foreign.NotRegular:
        raise RejectedFile("found a link or a directory in its place") from None
    except foreign.Untrusted as error:
        raise RejectedFile(str(error)) from None


def _take_ownership(source: BinaryIO, path: str, mode: int, limit: int) -> str:
    handle = source.fileno()
    os.fchown(handle, os.geteuid(), os.getegid())
    os.fchmod(handle, mode)
    # Check again, because the sender could create a second name until root became the owner.
    if not foreign.is_plain(os.fstat(handle)):
        raise RejectedFile("found a link or a directory in its place")
    if not _lease(handle):
        return _copy(source, path, mode, limit)
    sha256 = foreign.digest(source, limit)
    if fcntl.fcntl(handle, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
        raise RejectedFile("somebody opened it for writing while it was read")
    return sha256


def take_over_tree(directory: str, mode: int, limit: int = foreign.MAX_SIZE) -> Dict[str, str]:
    """Replace every file below a directory of root by a copy that only root can write. Return {path: digest of the copy}.

    The copy is needed because the sender can still have the original open for writing. Raises RejectedFile for a link, a file with
    a second name (hard link), or a special file.
    """
    owned: Dict[str, str] = {}
    queue = [""]
    while queue:
        below = queue.pop()
        for entry in sorted(os.listdir(os.path.join(directory, below))):
            inner = os.path.join(below, entry)
            path = os.path.join(directory, inner)
            if os.path.isdir(path) and not os.path.islink(path):
                queue.append(inner)
                continue
            try:
                with _open_checked(path, limit) as source:
                    owned[inner] = _copy(source, path, mode, limit)
            except RejectedFile as error:
                raise RejectedFile(f"{inner}: {error}") from None
    return owned


def _lease(handle: int) -> bool:
    """Return True if the kernel grants a read lease (fcntl), which proves that no process can write to the file.

    Return False if the file system does not support leases.
    """
    # If another process opens the file for writing, the kernel sends a signal. This process ignores SIGURG, but the default signal,
    # SIGIO, would end it.
    fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
    deadline = time.monotonic() + CLOSE_TIMEOUT
    while True:
        try:
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            return True
        except OSError as error:
            if error.errno in LEASES_UNSUPPORTED:
                return False
            if error.errno != errno.EAGAIN:
                raise
        if time.monotonic() >= deadline:
            raise RejectedFile("somebody still has it open for writing")
        time.sleep(0.05)


def _copy(source: BinaryIO, path: str, mode: int, limit: int) -> str:
    """Replace a file by a copy. The copy needs no lease, because no other process has it open. Return the digest of the copy."""
    copy_path = path + ".copy"
    trees.remove(copy_path)
    try:
        with os.fdopen(os.open(copy_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
            sha256 = foreign.copy(source, out, limit)
            os.fchmod(out.fileno(), mode)
        os.replace(copy_path, path)
    except foreign.Untrusted as error:
        trees.remove(copy_path)
        raise RejectedFile(str(error)) from None
    except BaseException:
        trees.remove(copy_path)
        raise
    return sha256


def give(path: str, incoming: str, name: str, user: Any, limit: int = foreign.MAX_SIZE) -> str:
    """Move a file of root to the directory of `user`, and make this user its owner and only reader. Return the file's digest.

    Raises RejectedFile if the file is a link, has a second name (hard link), is not a regular file, or is larger than `limit`.
    """
    with _open_checked(path, limit) as source:
        sha256 = foreign.digest(source, limit)
        directory = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.replace(path, name, dst_dir_fd=directory)
        except IsADirectoryError:
            # A rename can replace a link, but not a directory.
            trees.remove(os.path.join(incoming, name))
            os.replace(path, name, dst_dir_fd=directory)
        finally:
            os.close(directory)
        os.fchmod(source.fileno(), 0o600)
        os.fchown(source.fileno(), user.pw_uid, user.pw_gid)
    return sha256
