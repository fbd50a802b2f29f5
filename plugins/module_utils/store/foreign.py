# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Files that another account may have made, or can still change: one helper that opens them.

A file is judged before anything of it is opened, and read by the descriptor that was judged. No link is followed, a pipe blocks
nobody, and a device node is not touched. Linux only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import Any, BinaryIO, Optional

# Bytes of a file, unless a caller knows better: a sparse file has any size and takes as long to read
LARGEST = 256 << 30
BLOCK = 1 << 20
# Without O_NOFOLLOW a directory may be reached through a link
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Untrusted(Exception):
    """A file that cannot be trusted: what it is, and what was expected."""


class NotRegular(Untrusted):
    """A link, a directory, a pipe, a device, or a file that has a second name."""


def open_file(path: str, base: str = "", owner: Optional[int] = None, limit: int = LARGEST, single: bool = True) -> BinaryIO:
    """Return a regular file, opened for reading; a `single` one has no second name.

    Below `base`, a directory, no part of the path may be a link; without it the directory of `path` is trusted. The file must
    belong to the user `owner`, where that is given. Raises Untrusted, and OSError such as FileNotFoundError.
    """
    seen = _look(path, base)
    try:
        judge(os.fstat(seen), owner, limit, single)
        # The same file, whatever its name leads to by now
        return os.fdopen(os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    finally:
        os.close(seen)


def _look(path: str, base: str) -> int:
    """Return a descriptor that names a file and opens nothing."""
    parts = os.path.relpath(path, base).split(os.sep) if base else [os.path.basename(path)]
    if ".." in parts:
        raise Untrusted(f"leads out of {base}, expected a path below it")
    place = os.open(base or os.path.dirname(path) or os.curdir, _DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = _enter(place, part)
            os.close(place)
            place = inner
        return os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


def _enter(place: int, part: str) -> int:
    try:
        return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise NotRegular(f"is behind {part}, which is no directory, expected one") from None


def plain(found: os.stat_result) -> bool:
    """Return True if it is a file with one name: a second one may be that of a file of somebody else."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def judge(found: os.stat_result, owner: Optional[int], limit: int, single: bool) -> None:
    """Raise Untrusted for anything but a regular file, of this owner and within this size."""
    if not (plain(found) if single else stat.S_ISREG(found.st_mode)):
        raise NotRegular(f"is {_kind(found)}, expected a regular file with one name")
    if owner is not None and found.st_uid != owner:
        raise Untrusted(f"belongs to user {found.st_uid}, expected {owner}")
    if found.st_size > limit:
        raise _too_large(limit)


def _kind(found: os.stat_result) -> str:
    if stat.S_ISREG(found.st_mode):
        return f"a file with {found.st_nlink} names"
    if stat.S_ISLNK(found.st_mode):
        return "a link"
    if stat.S_ISDIR(found.st_mode):
        return "a directory"
    return "a pipe" if stat.S_ISFIFO(found.st_mode) else "a device or a socket"


def _too_large(limit: int) -> Untrusted:
    return Untrusted(f"is larger than {limit} bytes, expected at most that")


def read(path: str, limit: int, base: str = "", owner: Optional[int] = None) -> bytes:
    """Return the content of such a file. Raises as open_file does, also where it grows beyond `limit` bytes."""
    with open_file(path, base, owner, limit) as source:
        content = source.read(limit + 1)
    if len(content) > limit:
        raise _too_large(limit)
    return content


def digest(source: BinaryIO, limit: int = LARGEST) -> str:
    """Return the SHA-256 of an opened file, from its begin to its end. Raises Untrusted where that is beyond `limit` bytes."""
    return copy(source, None, limit)


def copy(source: BinaryIO, sink: Any, limit: int = LARGEST) -> str:
    """Copy an opened file and return the SHA-256 of the bytes that were written. Raises Untrusted beyond `limit` bytes."""
    found = hashlib.sha256()
    size = 0
    source.seek(0)
    for block in iter(lambda: source.read(BLOCK), b""):
        size += len(block)
        if size > limit:
            raise _too_large(limit)
        found.update(block)
        if sink is not None:
            sink.write(block)
    return found.hexdigest()
