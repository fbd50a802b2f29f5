# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that walk or remove directory trees of other accounts.

The owner of a tree may change it at any time. A tree may have any depth, so no function is recursive.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import Iterator, List, Optional, Tuple

# Largest number of levels below the top that a walk visits. A model has two levels.
MAX_DEPTH = 100
# Largest number of entries that one call removes. Without this limit, an owner who keeps adding entries could keep a call busy.
MAX_ENTRIES = 1_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(top: str, follow: bool = False) -> Iterator[Tuple[str, List[str], List[str]]]:
    """Yield (directory, names of directories, names of other entries) from the top down, like os.walk, but sorted.

    The caller may remove names of directories that it does not want to visit. Links are followed only with `follow`. Unreadable
    directories are skipped. Directories MAX_DEPTH levels below the top are not visited and count as other entries.
    """
    to_visit = [(top, 0)]
    while to_visit:
        directory, level = to_visit.pop()
        names: List[str] = []
        others: List[str] = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    (names if level < MAX_DEPTH and _is_directory(entry) else others).append(entry.name)
        except OSError:
            continue
        names.sort()
        others.sort()
        yield directory, names, others
        below = [os.path.join(directory, name) for name in reversed(names)]
        to_visit += [(path, level + 1) for path in below if follow or not os.path.islink(path)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir()
    return False


def remove(path: str) -> int:
    """Remove a file, link or directory tree, but not the target of a link. Return the bytes of the removed files.

    The owner may change the tree during the removal. This is safe, because each step uses one name in an open directory. The number
    of open descriptors does not depend on the depth. Raises OSError if something remains.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(path)
        return _bytes(found)
    top = os.open(path, _DIRECTORY)
    try:
        freed = _remove_content(top)
    finally:
        os.close(top)
    os.rmdir(path)
    return freed


def _remove_content(top: int) -> int:
    """Remove the content of the open directory `top`. Move subdirectories up to `top` first, so that the depth does not matter.

    Return the bytes of the removed files.
    """
    freed = count = 0
    # The prefix is random, so that no other entry has it.
    prefix = f".npufleet-{secrets.token_hex(8)}-"
    names = os.listdir(top)
    while names:
        for name in names:
            found = _lstat(name, top)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=top)
                freed += _bytes(found)
            elif found is not None:
                size, count = _flatten(name, top, prefix, count)
                freed += size
            count += 1
            if count > MAX_ENTRIES:
                raise OSError(f"there are more than {MAX_ENTRIES} entries. Run again to remove the rest")
        names = os.listdir(top)
    return freed


def _flatten(name: str, top: int, prefix: str, count: int) -> Tuple[int, int]:
    """Move the subdirectories of a directory up to `top`, then remove the directory with its files.

    The name of a moved directory is the prefix and a number above `count`. Return (bytes of the removed files, new count).
    """
    freed = 0
    inner = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        for below in os.listdir(inner):
            count += 1
            found = _lstat(below, inner)
            if found is not None and stat.S_ISDIR(found.st_mode):
                os.rename(below, f"{prefix}{count}", src_dir_fd=inner, dst_dir_fd=top)
            elif found is not None:
                os.unlink(below, dir_fd=inner)
                freed += _bytes(found)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return freed, count


def _lstat(name: str, directory: int) -> Optional[os.stat_result]:
    with suppress(FileNotFoundError):
        return os.lstat(name, dir_fd=directory)
    return None


def _bytes(found: os.stat_result) -> int:
    """Return the size of a file in bytes, or 0 for a link."""
    return 0 if stat.S_ISLNK(found.st_mode) else found.st_size
