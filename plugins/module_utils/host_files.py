"""Small files of a host, and the directories that they are in: what differs of them, and how it is made as wanted."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from typing import Dict, List, NamedTuple, Optional, Sequence

# Bytes of a file that a difference shows
SHOWN = 65536
# How the name of a draft ends, and seconds after which the run that wrote it is gone
DRAFT, ABANDONED = ".new", 3600


class File(NamedTuple):
    """A file as wanted."""

    path: str
    content: bytes
    mode: int


class Directory(NamedTuple):
    """A directory as wanted; without a mode one that is there may be anybody's. An `empty` one with anything in it is made anew."""

    path: str
    mode: Optional[int]
    empty: bool = False


class Wanted(NamedTuple):
    """What is to be there, directories before what is in them, and paths of which nothing is to be there."""

    directories: Sequence[Directory]
    files: Sequence[File]
    absent: Sequence[str]


class Unfit(Exception):
    """What is there is nothing that may be replaced; `reasons` are all of it."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class Difference(NamedTuple):
    """A path that is not as wanted, before and after; text of files, else what is there in words."""

    path: str
    before: str
    after: str

    def told(self) -> Dict[str, str]:
        """As Ansible shows it with `--diff`."""
        return {"before_header": self.path, "after_header": self.path, "before": self.before, "after": self.after}


def differences(wanted: Wanted) -> List[Difference]:
    """What is not as wanted. Raises Unfit where something of another kind is in the way, before anything is changed."""
    found: List[Difference] = []
    unfit: List[str] = []
    for directory in wanted.directories:
        if directory.empty:
            found += _in_the_way(directory)
    # What is below one that is made anew is gone by then
    emptied = tuple(difference.path + os.sep for difference in found)
    for directory in wanted.directories:
        if directory.empty:
            continue
        if directory.path.startswith(emptied):
            found.append(Difference(directory.path, "", _directory_words(directory)))
            continue
        status = _status(directory.path, follow=True)
        if status is None and os.path.lexists(directory.path):
            unfit.append(f"{directory.path}: found a link that leads nowhere, wanted a directory: remove it")
        elif status is not None and not stat.S_ISDIR(status.st_mode):
            unfit.append(f"{directory.path}: found {_kind(status)}, wanted a directory: move it away")
        elif status is None or (directory.mode is not None and not _has(status, directory.mode)):
            found.append(Difference(directory.path, _words(status), _directory_words(directory)))
    for file in wanted.files:
        if file.path.startswith(emptied):
            found.append(Difference(file.path, "", _text(file.content)))
            continue
        above = os.path.dirname(file.path)
        if os.path.lexists(above) and not os.path.isdir(above):
            unfit.append(f"{above}: found no directory, wanted one with {os.path.basename(file.path)} in it: move it away")
            continue
        status = _status(file.path)
        if status is not None and not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            unfit.append(f"{file.path}: found {_kind(status)}, wanted a file: move it away")
            continue
        held = _content(file.path) if status is not None and stat.S_ISREG(status.st_mode) else None
        if held != file.content:
            before = _words(status) if held is None else _text(held)
            found.append(Difference(file.path, before, _text(file.content)))
        elif status is not None and not _has(status, file.mode):
            found.append(Difference(file.path, _words(status), f"a file of {_owner()} with mode {file.mode:04o}\n"))
    found += [Difference(path, _words(_status(path)), "") for path in wanted.absent if os.path.lexists(path)]
    if unfit:
        raise Unfit(unfit)
    return found


def apply(wanted: Wanted, found: Sequence[Difference]) -> None:
    """Makes those that differ as wanted: a file as a whole or not at all. Raises OSError."""
    differ = {difference.path for difference in found}
    # Of directories that are made on the way
    os.umask(0o022)
    for directory in wanted.directories:
        if directory.path in differ:
            if directory.empty:
                _remove(directory.path)
            _make(directory)
    for file in wanted.files:
        if file.path in differ:
            _write(file)
    for path in wanted.absent:
        _remove(path)


def _in_the_way(directory: Directory) -> List[Difference]:
    """What differs of one that has to be empty: whatever is there in its place would go."""
    status = _status(directory.path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        inside = len(os.listdir(directory.path))
        if not inside and (directory.mode is None or _has(status, directory.mode)):
            return []
        return [Difference(directory.path, f"{_words(status).rstrip()}, {inside} in it\n", _directory_words(directory))]
    return [Difference(directory.path, _words(status), _directory_words(directory))]


def _remove(path: str) -> None:
    """Whatever is there; what a link leads to stays."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _make(directory: Directory) -> None:
    """With those above it; what is made is the caller's."""
    os.makedirs(directory.path, exist_ok=True)
    if directory.mode is not None:
        os.chown(directory.path, os.geteuid(), os.getegid())
        os.chmod(directory.path, directory.mode)


def _write(file: File) -> None:
    """A file of the caller's, in the place of what has its name: a link is replaced and not followed.

    Its draft has a name of its own, as another run may write the same file.
    """
    directory, name = os.path.split(file.path)
    os.makedirs(directory, exist_ok=True)
    _clear(directory, name)
    handle, draft = tempfile.mkstemp(prefix=f".{name}.", suffix=DRAFT, dir=directory)
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(file.content)
            os.fchmod(sink.fileno(), file.mode)
        os.replace(draft, file.path)
    except OSError:
        os.unlink(draft)
        raise


def _clear(directory: str, name: str) -> None:
    """Take away drafts of a file that nobody writes any more."""
    for entry in os.listdir(directory):
        if entry.startswith(f".{name}.") and entry.endswith(DRAFT):
            draft = os.path.join(directory, entry)
            with suppress(FileNotFoundError):
                if time.time() - os.lstat(draft).st_mtime > ABANDONED:
                    os.unlink(draft)


def _status(path: str, follow: bool = False) -> Optional[os.stat_result]:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _has(status: os.stat_result, mode: int) -> bool:
    """Whether it is the caller's, with this mode."""
    return (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (mode, os.geteuid(), os.getegid())


def _content(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as source:
        return source.read()


def _text(content: bytes) -> str:
    if len(content) > SHOWN:
        return f"{len(content)} bytes\n"
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes that are no text\n"


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    return "a file" if stat.S_ISREG(status.st_mode) else "something that is neither a file nor a directory"


def _words(status: Optional[os.stat_result]) -> str:
    if status is None:
        return ""
    return f"{_kind(status)} of {status.st_uid}:{status.st_gid} with mode {stat.S_IMODE(status.st_mode):04o}\n"


def _directory_words(directory: Directory) -> str:
    mode = 0o755 if directory.mode is None else directory.mode
    return f"a directory of {_owner()} with mode {mode:04o}\n"


def _owner() -> str:
    return f"{os.geteuid()}:{os.getegid()}"
