# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Open files that another account has created or can still change.

Each file is checked before its content is opened, and read through the descriptor that was checked. Links are not followed, pipes
do not block, and device nodes are not opened. The functions need Linux.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import Any, BinaryIO, Optional

# Default size limit in bytes. Without a limit, a sparse file, which uses no disk space, could take very long to read.
MAX_SIZE = 256 << 30
BLOCK_BYTES = 1 << 20
# Flags to open a directory. Without O_NOFOLLOW in addition, a link is followed.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Untrusted(Exception):
    """The error for a file that cannot be trusted. The message states what the file is, and what was expected."""


class NotRegular(Untrusted):
    """The error for a link, a directory, a pipe, a device, or a file with a second name (hard link)."""


def open_file(path: str, base: str = "", owner: Optional[int] = None, limit: int = MAX_SIZE, single: bool = True) -> BinaryIO:
    """Open a regular file for reading. With `single`, it must not have a second name (hard link).

    With `base`, no part of the path below that directory may be a link. Without `base`, the directory of `path` is trusted. With
    `owner`, the file must belong to that user. Raises Untrusted, and OSError such as FileNotFoundError.
    """
    handle = _open_path(path, base)
    try:
        check(os.fstat(handle), owner, limit, single)
        # This opens the checked file, even if its name now leads to another file.
        return os.fdopen(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    finally:
        os.close(handle)


def _open_path(path: str, base: str) -> int:
    """Return an O_PATH descriptor, which refers to a file without opening its content."""
    parts = os.path.relpath(path, base).split(os.sep) if base else [os.path.basename(path)]
    if ".." in parts:
        raise Untrusted(f"leads out of {base}, expected a path below it")
    directory = os.open(base or os.path.dirname(path) or os.curdir, _DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                inner = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                raise NotRegular(f"is below {part}, which is a link or a file, expected a directory") from None
            os.close(directory)
            directory = inner
        return os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)


def is_plain(found: os.stat_result) -> bool:
    """Return True for a regular file with one name. A file with a second name (hard link) can be a file of another account."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def check(found: os.stat_result, owner: Optional[int], limit: int, single: bool) -> None:
    """Raise Untrusted if a file does not meet the conditions of open_file. `owner` None stands for any owner."""
    if not (is_plain(found) if single else stat.S_ISREG(found.st_mode)):
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
    """Return the content of a file. Raises the errors of open_file, and Untrusted if the file grows beyond `limit` bytes."""
    with open_file(path, base, owner, limit) as source:
        content = source.read(limit + 1)
    if len(content) > limit:
        raise _too_large(limit)
    return content


def digest(source: BinaryIO, limit: int = MAX_SIZE) -> str:
    """Return the SHA-256 of an open file, from its beginning. Raises Untrusted if it has more than `limit` bytes."""
    return copy(source, None, limit)


def copy(source: BinaryIO, sink: Any, limit: int = MAX_SIZE) -> str:
    """Copy an open file to `sink`, and return the SHA-256 of the copied bytes. Raises Untrusted for more than `limit` bytes."""
    found = hashlib.sha256()
    size = 0
    source.seek(0)
    for block in iter(lambda: source.read(BLOCK_BYTES), b""):
        size += len(block)
        if size > limit:
            raise _too_large(limit)
        found.update(block)
        if sink is not None:
            sink.write(block)
    return found.hexdigest()
