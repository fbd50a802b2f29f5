# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Files that move between root and the connecting user, by the directory of transfers that belongs to that user.

No other account can change a file that root has taken over. A file that root gives away replaces any entry of its name, and follows
no link. In a container without root, the user who runs this is in the place of root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import time
from typing import Any, BinaryIO, Dict

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, foreign

# Seconds for a sender to close its file. A process that it started holds the descriptor, too, until it runs a program.
CLOSING = 5.0
# Errors of file systems without leases
NO_LEASES = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class NotThere(StoreError):
    """The sender has left no such file."""


class Unfit(StoreError):
    """An entry that is no file to take over. It was removed."""


def take(incoming: str, name: str, target: str, mode: int, limit: int = foreign.LARGEST) -> str:
    """Move a file of the sender's directory to `target`, which is root's, and return the digest of what was moved.

    Raises NotThere, and Unfit where it is a link, has a second name, is no file or larger than `limit` bytes, or where somebody
    can still write to it.
    """
    try:
        place = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise NotThere(f"found no directory {incoming}") from None
    try:
        # Out of the sender's reach first, so that what is judged is what is kept.
        os.replace(name, target, src_dir_fd=place)
    except (FileNotFoundError, NotADirectoryError):
        raise NotThere(f"found no {name} in {incoming}") from None
    finally:
        os.close(place)
    try:
        with _opened(target, limit) as source:
            return _own(source, target, mode, limit)
    except BaseException:
        remove(target)
        raise


def _opened(path: str, limit: int) -> BinaryIO:
    try:
        return foreign.open_file(path, limit=limit)
    except foreign.NotRegular:
        raise Unfit("found a link or a directory in its place") from None
    except foreign.Untrusted as error:
        raise Unfit(str(error)) from None


def _own(source: BinaryIO, path: str, mode: int, limit: int) -> str:
    handle = source.fileno()
    os.fchown(handle, os.geteuid(), os.getegid())
    os.fchmod(handle, mode)
    # Again, because the sender could give it a second name until it was root's.
    _refuse_names(handle)
    if not _lease(handle):
        return _copy(source, path, mode, limit)
    proven = foreign.digest(source, limit)
    if fcntl.fcntl(handle, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
        raise Unfit("somebody opened it for writing while it was read")
    return proven


def _refuse_names(handle: int) -> None:
    if not foreign.plain(os.fstat(handle)):
        raise Unfit("found a link or a directory in its place")


def own_tree(directory: str, mode: int, limit: int = foreign.LARGEST) -> Dict[str, str]:
    """Replace every file below a directory of root by a copy that only root has written. Returns {path: digest of the copy}.

    The sender may have kept the files open for writing. Raises Unfit for a link, a second name or anything that is no file.
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
                with _opened(path, limit) as source:
                    owned[inner] = _copy(source, path, mode, limit)
            except Unfit as error:
                raise Unfit(f"{inner}: {error}") from None
    return owned


def _lease(handle: int) -> bool:
    """Return True if the kernel gives a lease: then no earlier descriptor or mapping can write. False without leases."""
    # Instead of SIGIO, which would end this process
    fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
    deadline = time.monotonic() + CLOSING
    while True:
        try:
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            return True
        except OSError as error:
            if error.errno in NO_LEASES:
                return False
            if error.errno != errno.EAGAIN:
                raise
        if time.monotonic() >= deadline:
            raise Unfit("somebody still has it open for writing")
        time.sleep(0.05)


def _copy(source: BinaryIO, path: str, mode: int, limit: int) -> str:
    """Replace a file by a copy, which no other account can write without a lease, too. Returns the digest of the copy."""
    fresh = path + ".copy"
    remove(fresh)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
            proven = foreign.copy(source, out, limit)
            os.fchmod(out.fileno(), mode)
        os.replace(fresh, path)
    except foreign.Untrusted as error:
        remove(fresh)
        raise Unfit(str(error)) from None
    except BaseException:
        remove(fresh)
        raise
    return proven


def give(path: str, incoming: str, name: str, user: Any, limit: int = foreign.LARGEST) -> str:
    """Move a file of root's to the receiver's directory, readable by that user alone; returns the digest that it had before.

    Raises Unfit where it is a link, has a second name, is no file or larger than `limit` bytes.
    """
    with _opened(path, limit) as source:
        proven = foreign.digest(source, limit)
        place = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            # A rename replaces a link, but no directory.
            if _is_directory(place, name):
                remove(os.path.join(incoming, name))
            os.replace(path, name, dst_dir_fd=place)
        finally:
            os.close(place)
        os.fchmod(source.fileno(), 0o600)
        os.fchown(source.fileno(), user.pw_uid, user.pw_gid)
    return proven


def _is_directory(place: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove(path: str) -> None:
    """Remove any kind of entry, and nothing behind a link."""
    trees.remove(path)
