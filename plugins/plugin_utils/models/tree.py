"""Files of a directory on the controller that will be read and sent on. Links that stay inside of a place are followed; what leads
out of it, leads nowhere or is no file is told by name, and never opened.
"""

from __future__ import annotations

import os
import stat
from typing import Dict, List, NamedTuple, Set, Tuple

# What people and programs leave beside the files of a model
LEFT_OUT = ("__pycache__", ".git")
# Directories in each other, and bytes of a path: a release has to fit below the store, and nobody walks deeper
DEEPEST, LONGEST = 32, 1024
# Files of a directory, and bytes of one that is read as a whole
MOST_FILES, MOST_BYTES = 100000, 1 << 24
KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# Names that a model may have, with those behind its links
LARGEST = 100_000
NOWHERE = "a link that leads nowhere"
COPY = "copy what it leads to there"


# The one file that is read as a whole whatever its size
CONFIG = "config.pbtxt"


class Problem(NamedTuple):
    """A name that stands for no file to send: its path, what was found, wanted, and what to do."""

    path: str
    found: str
    wanted: str
    do: str


class Walked(NamedTuple):
    """Paths of files below the directory, in order, and what is none."""

    files: List[str]
    problems: List[Problem]


def walk(directory: str, home: str) -> Walked:
    """Everything below a directory; `home` is what links may not leave."""
    found = Walked([], [])
    _below(directory, "", os.path.realpath(home), (), found)
    if len(found.files) > MOST_FILES:
        words = (f"{len(found.files)} files", f"at most {MOST_FILES}", "pack them, or leave out what nobody reads")
        found.problems.append(Problem(_shown(directory), *words))
    if CONFIG in found.files and os.path.getsize(os.path.join(directory, CONFIG)) > MOST_BYTES:
        found.files.remove(CONFIG)
        found.problems.append(Problem(CONFIG, "a config too large", f"at most {MOST_BYTES} bytes", "shorten it"))
    return Walked(sorted(found.files), sorted(found.problems))


def _below(directory: str, inner: str, home: str, above: Tuple[str, ...], found: Walked) -> None:
    """What is in `inner` of the directory; `above` are the real directories on the way to it."""
    path = os.path.join(directory, inner) if inner else directory
    real = os.path.realpath(path)

    def problem(words: str, wanted: str, do: str) -> None:
        found.problems.append(Problem(_shown(path), words, wanted, do))

    if os.path.islink(path) or not inner:
        if os.path.commonpath([real, home]) != home:
            problem(f"a link to {_shown(real)}", f"one that stays inside {_shown(home)}", COPY)
            return
        hidden = set(os.path.relpath(real, home).split(os.sep)) & set(LEFT_OUT) if inner else set()
        if hidden:
            problem(f"a link into {min(hidden)}", "one to what is sent along", COPY)
            return
    try:
        mode = os.stat(path).st_mode
        names = sorted(os.listdir(path)) if stat.S_ISDIR(mode) else []
    except OSError as error:
        if os.path.islink(path):
            problem(f"{NOWHERE} ({_shown(os.readlink(path))}: {error.strerror})", "a file", "correct or remove it")
        else:
            problem(f"what cannot be read ({error.strerror})", "a file to send", "let the user who runs this read it")
        return
    if real in above:
        problem("a link to a directory that it is in itself", "one that ends", "remove it")
    elif stat.S_ISDIR(mode) and inner.count(os.sep) >= DEEPEST:
        problem("a directory too deep", f"at most {DEEPEST} in each other", "move its files up")
    elif len(os.fsencode(inner)) > LONGEST:
        problem("a path too long", f"at most {LONGEST} bytes", "give it a shorter name")
    elif stat.S_ISDIR(mode):
        for name in names:
            if name in LEFT_OUT or name.endswith(".pyc"):
                continue
            # A line of a list of digests is for one name
            if name.isprintable():
                _below(directory, os.path.join(inner, name), home, (*above, real), found)
            else:
                found.problems.append(Problem(os.path.join(_shown(path), _shown(name)), "a name that cannot be printed", *RENAME))
    elif not stat.S_ISREG(mode):
        kind = next((words for is_one, words in KINDS if is_one(mode)), "something")
        problem(f"{kind}", "a file to send", "remove it")
    elif not os.access(path, os.R_OK):
        problem("what cannot be read (Permission denied)", "a file to send", "let the user who runs this read it")
    else:
        found.files.append(inner)


class Listing(NamedTuple):
    """What is below a directory for a program that follows every link, such as Triton.

    `files` and `directories` are paths, `others` {path: what it is} of the names that are neither, and `outside` those of all paths
    that lead out of the home of the directory. What is behind them is nobody's to read.
    """

    files: List[str]
    directories: List[str]
    others: Dict[str, str]
    outside: Set[str]


def listing(directory: str, home: str) -> Listing:
    """Return what is below a directory, LARGEST names of it at most."""
    found = Listing([], [], {}, set())
    _listed(directory, "", os.path.realpath(home), (), found)
    return Listing(sorted(found.files), sorted(found.directories), found.others, found.outside)


def is_within(path: str, home: str) -> bool:
    """Return True if a path leads to something below another one, with all links followed."""
    home = os.path.realpath(home)
    return os.path.commonpath([os.path.realpath(path), home]) == home


def _listed(directory: str, inner: str, home: str, above: Tuple[str, ...], found: Listing) -> None:
    path = os.path.join(directory, inner) if inner else directory
    real = os.path.realpath(path)
    if not is_within(path, home):
        found.outside.add(inner)
        return
    if real in above or len(found.files) + len(found.directories) > LARGEST:
        return
    try:
        names = sorted(os.listdir(path))
    except OSError:
        found.others[inner] = "a directory that cannot be read"
        return
    for name in names:
        below = os.path.join(inner, name)
        try:
            mode = os.stat(os.path.join(path, name)).st_mode
        except OSError:
            found.others[below] = NOWHERE
            continue
        if stat.S_ISDIR(mode):
            found.directories.append(below)
            _listed(directory, below, home, (*above, real), found)
        elif stat.S_ISREG(mode):
            found.files.append(below)
            if not is_within(os.path.join(path, name), home):
                found.outside.add(below)
        else:
            found.others[below] = next((words for is_one, words in KINDS if is_one(mode)), "something that is no file")


RENAME = ("letters, digits and other characters that can", "rename it")


def _shown(path: str) -> str:
    """A path as one line, whatever it is made of."""
    return path if path.isprintable() else ascii(path)[1:-1]
