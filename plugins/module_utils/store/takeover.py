"""A file changes hands between root and the connecting user, in the directory of transfers that belongs to that user.

What root takes over nobody else can change any more; what root gives away replaces whatever lies there, and follows no link.
Where there is no root, as inside a container, whoever runs this is in its place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import time
from typing import Any, Callable

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError

# Seconds for a sender to close what it has sent: a process that it has started holds the descriptor too, until it runs a program.
CLOSING = 5.0
# What file systems say that know no leases
NO_LEASES = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class NotThere(StoreError):
    """The sender has left no such file."""


class Unfit(StoreError):
    """What lies there is no file that can be taken over; it was removed."""


def take(incoming: str, name: str, target: str, mode: int, digest: Callable[[str], str]) -> str:
    """Move a file of the sender's directory to `target`, which is root's, and return its digest.

    Raises NotThere, and Unfit where it is a link, has a second name, is no file, or where somebody can still write to it.
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
        return _own(target, mode, digest)
    except BaseException:
        remove(target)
        raise


def _own(path: str, mode: int, digest: Callable[[str], str]) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise Unfit("found a link or a directory in its place") from None
    try:
        _refuse_names(handle)
        os.fchown(handle, os.geteuid(), os.getegid())
        os.fchmod(handle, mode)
        # Once more: until it was root's, whoever had it open could give it a second name.
        _refuse_names(handle)
        if not _lease(handle):
            _copy(handle, path, mode)
            return digest(path)
        proven = digest(path)
        if fcntl.fcntl(handle, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
            raise Unfit("somebody opened it for writing while it was read")
        return proven
    finally:
        os.close(handle)


def plain(found: os.stat_result) -> bool:
    """Whether it is a file with one name: a second one may be that of a file which is not the sender's."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _refuse_names(handle: int) -> None:
    if not plain(os.fstat(handle)):
        raise Unfit("found a link or a directory in its place")


def _lease(handle: int) -> bool:
    """Whether a lease is held, which the kernel gives only where nobody can write by a descriptor from before, or a mapping."""
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


def _copy(handle: int, path: str, mode: int) -> None:
    """Without leases only what root itself has written is out of everybody's reach."""
    import shutil

    fresh = path + ".copy"
    remove(fresh)
    sink = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(os.dup(handle), "rb") as source, os.fdopen(sink, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
            os.fchmod(out.fileno(), mode)
        os.replace(fresh, path)
    except BaseException:
        remove(fresh)
        raise


def give(path: str, incoming: str, name: str, user: Any, digest: Callable[[str], str]) -> str:
    """Move a file of root's to the receiver's directory, readable by that user alone; returns the digest that it had before."""
    proven = digest(path)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _refuse_names(handle)
        place = os.open(incoming, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            # A rename replaces a link that lies there; a directory gives way.
            if _is_directory(place, name):
                remove(os.path.join(incoming, name))
            os.replace(path, name, dst_dir_fd=place)
        finally:
            os.close(place)
        os.fchmod(handle, 0o600)
        os.fchown(handle, user.pw_uid, user.pw_gid)
    finally:
        os.close(handle)
    return proven


def _is_directory(place: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove(path: str) -> None:
    """Remove what lies there, of whatever kind, and nothing behind a link."""
    trees.remove(path)
