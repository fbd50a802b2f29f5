# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Lists of the files of a model on the controller. These files are read and sent to hosts.

`walk` follows links that stay in the repository. It reports other links, broken links and special files, and never opens them.
"""

from __future__ import annotations

import os
import stat
from typing import Dict, List, NamedTuple, Set, Tuple

# Directories that are never sent, because they do not belong to the model
EXCLUDED = ("__pycache__", ".git")
# Limits of the levels of directories and of the bytes of a path. A host's store adds a directory before the path, so Linux's
# own limit of a path would be too high.
MAX_DEPTH, MAX_PATH_BYTES = 32, 1024
# Limits of the files of a directory, and of the bytes of a config, which is read into memory
MAX_FILES, MAX_CONFIG_BYTES = 100000, 1 << 24
# Limit of the names in a listing, including the names in linked directories
MAX_NAMES = 100_000
SPECIAL_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
BROKEN_LINK = "a broken link"
COPY_TARGET, MAKE_READABLE = "Copy its target there", "Make it readable for the user of this run"
CONFIG = "config.pbtxt"


class PathProblem(NamedTuple):
    """A path that cannot be sent, with its actual kind, the expected kind, and the next step."""

    path: str
    actual: str
    expected: str
    todo: str


class Walked(NamedTuple):
    """The sorted paths of the files that can be sent, and the problems of the other paths."""

    files: List[str]
    problems: List[PathProblem]


def walk(directory: str, boundary: str) -> Walked:
    """Return the files and problems below a directory. Links must not leave the directory `boundary`."""
    result = Walked([], [])
    _walk(directory, "", os.path.realpath(boundary), (), result)
    if len(result.files) > MAX_FILES:
        actual, todo = f"a directory of {len(result.files)} files", "Pack them, or remove unused files"
        result.problems.append(PathProblem(_shown(directory), actual, f"at most {MAX_FILES}", todo))
    if CONFIG in result.files and os.path.getsize(os.path.join(directory, CONFIG)) > MAX_CONFIG_BYTES:
        result.files.remove(CONFIG)
        result.problems.append(PathProblem(CONFIG, "a config that is too large", f"at most {MAX_CONFIG_BYTES} bytes", "Shorten it"))
    return Walked(sorted(result.files), sorted(result.problems))


def _walk(directory: str, inner: str, boundary: str, above: Tuple[str, ...], result: Walked) -> None:
    """Add the files and problems at and below the path `inner` to `result`. `above` has the real paths of its parents."""
    path = os.path.join(directory, inner) if inner else directory
    real = os.path.realpath(path)

    def problem(actual: str, expected: str, todo: str) -> None:
        result.problems.append(PathProblem(_shown(path), actual, expected, todo))

    if os.path.islink(path) or not inner:
        if os.path.commonpath([real, boundary]) != boundary:
            problem(f"a link to {_shown(real)}", f"a link that stays in {_shown(boundary)}", COPY_TARGET)
            return
        excluded = set(os.path.relpath(real, boundary).split(os.sep)) & set(EXCLUDED) if inner else set()
        if excluded:
            problem(f"a link into {min(excluded)}", "a link to a file that is sent", COPY_TARGET)
            return
    try:
        mode = os.stat(path).st_mode
        names = sorted(os.listdir(path)) if stat.S_ISDIR(mode) else []
    except OSError as error:
        if os.path.islink(path):
            problem(f"{BROKEN_LINK} ({_shown(os.readlink(path))}: {error.strerror})", "a file", "Correct or remove it")
        else:
            problem(f"unreadable ({error.strerror})", "a readable file", MAKE_READABLE)
        return
    if real in above:
        problem("a link to one of its parent directories", "no circular link", "Remove it")
    elif stat.S_ISDIR(mode) and inner.count(os.sep) >= MAX_DEPTH:
        problem("a directory that is nested too deeply", f"at most {MAX_DEPTH} levels", "Move its files up")
    elif len(os.fsencode(inner)) > MAX_PATH_BYTES:
        problem("a path that is too long", f"at most {MAX_PATH_BYTES} bytes", "Shorten its name")
    elif stat.S_ISDIR(mode):
        for name in names:
            if name in EXCLUDED or name.endswith(".pyc"):
                continue
            # A list of digests has one name on each line. So a name with a line break would damage the list.
            if name.isprintable():
                _walk(directory, os.path.join(inner, name), boundary, (*above, real), result)
            else:
                text = os.path.join(_shown(path), _shown(name))
                result.problems.append(PathProblem(text, "a name that cannot be printed", "printable characters", "Rename it"))
    elif not stat.S_ISREG(mode):
        problem(_kind(mode), "a file", "Remove it")
    elif not os.access(path, os.R_OK):
        problem("unreadable (Permission denied)", "a readable file", MAKE_READABLE)
    else:
        result.files.append(inner)


class Listing(NamedTuple):
    """The content of a directory for a program that follows every link, such as Triton.

    `files` and `directories` are paths. `special` is {path: kind} of special files and broken links. `outside` has the paths whose
    target is outside `boundary`. The content of these paths must not be read.
    """

    files: List[str]
    directories: List[str]
    special: Dict[str, str]
    outside: Set[str]


def listing(directory: str, boundary: str) -> Listing:
    """Return the content of a directory, up to about MAX_NAMES names. `outside` has the paths that leave `boundary`."""
    result = Listing([], [], {}, set())
    _list(directory, "", os.path.realpath(boundary), (), result)
    return Listing(sorted(result.files), sorted(result.directories), result.special, result.outside)


def is_within(path: str, boundary: str) -> bool:
    """Return True if the target of a path is `boundary` or is below it."""
    boundary = os.path.realpath(boundary)
    return os.path.commonpath([os.path.realpath(path), boundary]) == boundary


def _list(directory: str, inner: str, boundary: str, above: Tuple[str, ...], result: Listing) -> None:
    """Add the content of the directory at the path `inner` to `result`. `above` are the real paths of its parents."""
    path = os.path.join(directory, inner) if inner else directory
    real = os.path.realpath(path)
    if not is_within(path, boundary):
        result.outside.add(inner)
        return
    if real in above or len(result.files) + len(result.directories) > MAX_NAMES:
        return
    try:
        names = sorted(os.listdir(path))
    except OSError:
        result.special[inner] = "a directory that cannot be read"
        return
    for name in names:
        below = os.path.join(inner, name)
        try:
            mode = os.stat(os.path.join(path, name)).st_mode
        except OSError:
            result.special[below] = BROKEN_LINK
            continue
        if stat.S_ISDIR(mode):
            result.directories.append(below)
            _list(directory, below, boundary, (*above, real), result)
        elif stat.S_ISREG(mode):
            result.files.append(below)
            if not is_within(os.path.join(path, name), boundary):
                result.outside.add(below)
        else:
            result.special[below] = _kind(mode)


def _kind(mode: int) -> str:
    return SPECIAL_KINDS.get(stat.S_IFMT(mode), "a special file")


def _shown(path: str) -> str:
    return path if path.isprintable() else ascii(path)[1:-1]
