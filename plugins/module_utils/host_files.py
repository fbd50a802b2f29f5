"""Small files of a host, and the directories that they are in: what differs of them, and how it is made as wanted.

Units that read the files are restarted on request. If one does not start, the previous files are restored.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import tempfile
import time
from contextlib import suppress
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import secret, shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks, trees
from ansible_collections.npufleet.triton.plugins.module_utils.system import run

# Bytes of a file that a difference shows
SHOWN = 65536
# How the name of a draft ends, and seconds after which the run that wrote it is gone
DRAFT, ABANDONED = ".new", 3600
# What stands for the path of the draft in a command that validates a file
PLACE = "%s"
# Seconds for a validation, and for a unit to stop and start: an engine first stops its containers
VALIDATION, RESTART = 60, 600
# Lines of a unit's journal, of which a message shows the last
JOURNAL, SHOWN_LINES = 40, 3
# Options of an engine that are shown in messages
DRIVERS = ("log-driver", "storage-driver", "default-runtime")


class File(NamedTuple):
    """A file as wanted."""

    path: str
    content: bytes
    mode: int
    # A command that fails for content that its reader would not take
    validate: Sequence[str] = ()
    # Number of its group; None for the caller's
    group: Optional[int] = None


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


class NotStarted(Exception):
    """A unit that did not start with the new files. The previous files are back."""


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
        elif status is not None and not _has(status, file.mode, file.group):
            found.append(Difference(file.path, _words(status), f"a file of {_owner(file.group)} with mode {file.mode:04o}\n"))
    found += [Difference(path, _words(_status(path)), "") for path in wanted.absent if os.path.lexists(path)]
    if unfit:
        raise Unfit(unfit)
    return found


def invalid(wanted: Wanted, found: Sequence[Difference]) -> List[str]:
    """Return why files that differ are refused by the commands that validate them. Leaves nothing behind."""
    differ = {difference.path for difference in found}
    reasons = []
    for file in wanted.files:
        if not file.validate or file.path not in differ:
            continue
        handle, draft = tempfile.mkstemp(suffix="." + os.path.basename(file.path))
        try:
            with os.fdopen(handle, "wb") as sink:
                sink.write(file.content)
            code, output = run(*[word.replace(PLACE, draft) for word in file.validate], timeout=VALIDATION)
        finally:
            os.unlink(draft)
        if code:
            words = _masked(output.replace(draft, file.path), [file.content])
            reasons.append(f"{file.path}: {file.validate[0]} refuses the new content: {words}")
    return reasons


def apply_and_restart(wanted: Wanted, found: Sequence[Difference], units: Sequence[str]) -> None:
    """Write the files, then restart the units that read them. If that fails, restore the files and restart the units again.

    Directories stay. Raises NotStarted, or OSError of a file that cannot be written.
    """
    # A lost connection must not end this between the new files and the restart
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _apply_or_restore(wanted, found, units)
    finally:
        signal.signal(signal.SIGHUP, ignored)


def _apply_or_restore(wanted: Wanted, found: Sequence[Difference], units: Sequence[str]) -> None:
    paths = [difference.path for difference in found if not os.path.isdir(difference.path)]
    before = [_snapshot(path) for path in paths]
    try:
        apply(wanted, found)
        why = _restart(units)
    except BaseException:
        for kept in before:
            kept.restore()
        raise
    if why is None:
        return
    for kept in before:
        kept.restore()
    again = _restart(units)
    contents = [*(file.content for file in wanted.files), *(kept.content for kept in before if kept.content)]
    after = "the previous files are back, and all runs as before" if again is None else f"with the previous files, too, {again}"
    raise NotStarted(_masked(f"{why}; {after}", contents))


class Snapshot(NamedTuple):
    """A file or a link before a change; nothing where neither was there."""

    path: str
    status: Optional[os.stat_result]
    content: Optional[bytes]
    link: Optional[str]

    def restore(self) -> None:
        """Put it back as it was."""
        if self.link is not None:
            _remove(self.path)
            os.symlink(self.link, self.path)
        elif self.status is None or self.content is None:
            _remove(self.path)
        else:
            _write(File(self.path, self.content, stat.S_IMODE(self.status.st_mode)))
            os.chown(self.path, self.status.st_uid, self.status.st_gid)


def _snapshot(path: str) -> Snapshot:
    status = _status(path)
    link = os.readlink(path) if status is not None and stat.S_ISLNK(status.st_mode) else None
    regular = status is not None and stat.S_ISREG(status.st_mode)
    return Snapshot(path, status, _content(path) if regular else None, link)


def _restart(units: Sequence[str]) -> Optional[str]:
    """Return why a unit does not start, None if all do."""
    run("systemctl", "daemon-reload")
    for unit in units:
        # A unit that failed several times within a minute is not started again before this
        run("systemctl", "reset-failed", unit)
        code, output = run("systemctl", "restart", unit, timeout=RESTART)
        if code:
            journal = run("journalctl", "--unit", unit, "--lines", str(JOURNAL), "--output", "cat", "--no-pager")[1]
            lines = [line.strip() for line in journal.splitlines() if line.strip() and "level=info" not in line]
            telling = [line for line in lines if any(word in line for word in ("failed", "unable", "error", "invalid"))]
            said = " | ".join((telling or lines)[-SHOWN_LINES:]) or output
            return f"{unit} does not start (`journalctl --unit {unit}`): {said}"
    return None


def _masked(words: str, contents: Sequence[bytes]) -> str:
    """A message in one line without the values of these files that may be secret."""
    hidden = [value for content in contents for value in _values(content.decode("utf-8", "replace"))]
    return " ".join(secret.replace_logins(secret.remove_values(words, hidden, []), "***@").split())[:1000]


def _values(content: str) -> Iterator[str]:
    """Yield what may be secret of a file: texts of JSON, values of a unit or of variables."""
    try:
        yield from _texts(shapes.parse(content))
    except ValueError:
        for line in content.splitlines():
            if not secret.UNIT_LINE.fullmatch(line):
                yield line.partition("=")[2].strip("\"'")


def _texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key in value:
            yield from _texts(value[key], str(key))
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry, name)
    elif isinstance(value, str) and name not in DRIVERS and not (secret.PATH_NAME.search(name) and secret.PATHS.fullmatch(value)):
        yield value


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
    trees.remove(path)


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
            # As long as it is locked, it is nobody's rubbish
            fcntl.flock(sink, fcntl.LOCK_EX)
            sink.write(file.content)
            if file.group is not None:
                os.fchown(sink.fileno(), -1, file.group)
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
            with suppress(OSError):
                if time.time() - os.lstat(draft).st_mtime > ABANDONED and not _is_written(draft):
                    os.unlink(draft)


def _is_written(draft: str) -> bool:
    """Return True if a process is at work on a draft. Its age alone is by the time of day, which steps."""
    if not stat.S_ISREG(os.lstat(draft).st_mode):
        return False
    handle = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as source:
        return locks.held(source)


def _status(path: str, follow: bool = False) -> Optional[os.stat_result]:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _has(status: os.stat_result, mode: int, group: Optional[int] = None) -> bool:
    """Return True if it is the caller's, with this mode, and of this group or the caller's."""
    wanted = (mode, os.geteuid(), os.getegid() if group is None else group)
    return (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == wanted


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


def _owner(group: Optional[int] = None) -> str:
    return f"{os.geteuid()}:{os.getegid() if group is None else group}"
