# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Small files and directories of a host: compare them with the desired state, and write the paths that differ.

On request, the units that read the files are restarted. If a unit does not start, the previous files are restored.
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

# Largest size in bytes of a file whose content a Difference shows
MAX_SHOWN = 65536
# Suffix of a temporary file. If a temporary file is unlocked and older than ABANDONED_SECONDS, a killed run has left the file.
DRAFT, ABANDONED_SECONDS = ".new", 3600
# Placeholder for the path of the temporary file in a validation command
PLACEHOLDER = "%s"
# Time limits in seconds of a validation, and of the restart of a unit. A restart of the engine can take minutes, because it first
# stops the containers.
VALIDATION_TIMEOUT, RESTART_TIMEOUT = 60, 600
# Number of lines that are read from a unit's journal, and number of lines that a message shows
JOURNAL_LINES, SHOWN_LINES = 40, 3
# Options of daemon.json whose values are not masked in messages
CLEAR_OPTIONS = ("log-driver", "storage-driver", "default-runtime")


class File(NamedTuple):
    """A desired file."""

    path: str
    content: bytes
    mode: int
    # A command that fails if the content is invalid. PLACEHOLDER in it is replaced by the path of a temporary file.
    validate: Sequence[str] = ()
    # Group ID of the file, or None for the group of this process
    group: Optional[int] = None


class Directory(NamedTuple):
    """A desired directory. Without `mode`, an existing directory keeps mode and owner. With `empty`, its content is removed."""

    path: str
    mode: Optional[int]
    empty: bool = False


class Desired(NamedTuple):
    """The desired directories (parents first), the desired files, and the paths that must not exist."""

    directories: Sequence[Directory]
    files: Sequence[File]
    absent: Sequence[str]


class Conflict(Exception):
    """The reasons why the desired files cannot be written."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class NotStarted(Exception):
    """The error if a unit did not start with the new files. The previous files have been restored."""


class Difference(NamedTuple):
    """A path that differs, with its text or description before and after the change."""

    path: str
    before: str
    after: str

    def as_diff(self) -> Dict[str, str]:
        """Return the difference in the form that Ansible shows with `--diff`."""
        return {"before_header": self.path, "after_header": self.path, "before": self.before, "after": self.after}


def differences(desired: Desired) -> List[Difference]:
    """Return the paths that differ. Raises Conflict if a path has another type, such as a directory instead of a file."""
    changes: List[Difference] = []
    conflicts: List[str] = []
    for directory in desired.directories:
        if directory.empty:
            changes += _difference_of_empty(directory)
    # `apply` empties the directories in `changes`. So every desired path in these directories counts as missing.
    emptied = tuple(difference.path + os.sep for difference in changes)
    for directory in desired.directories:
        if directory.empty:
            continue
        is_emptied = directory.path.startswith(emptied)
        status = None if is_emptied else _status(directory.path, follow=True)
        if status is None and not is_emptied and os.path.lexists(directory.path):
            conflicts.append(f"{directory.path} is a broken link, expected a directory. Remove it.")
        elif status is not None and not stat.S_ISDIR(status.st_mode):
            conflicts.append(f"{directory.path} is {_kind(status)}, expected a directory. Move it away.")
        elif status is None or (directory.mode is not None and not _has_mode_and_owner(status, directory.mode)):
            changes.append(Difference(directory.path, _describe(status), _describe_directory(directory)))
    for file in desired.files:
        is_emptied, parent = file.path.startswith(emptied), os.path.dirname(file.path)
        if not is_emptied and os.path.lexists(parent) and not os.path.isdir(parent):
            conflicts.append(f"{parent} is not a directory, expected one for {os.path.basename(file.path)}. Move it away.")
            continue
        status = None if is_emptied else _status(file.path)
        if status is not None and not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            conflicts.append(f"{file.path} is {_kind(status)}, expected a file. Move it away.")
            continue
        content = _content(file.path, status)
        if content != file.content:
            before = _describe(status) if content is None else _text(content)
            changes.append(Difference(file.path, before, _text(file.content)))
        elif status is not None and not _has_mode_and_owner(status, file.mode, file.group):
            owner = f"{os.geteuid()}:{os.getegid() if file.group is None else file.group}"
            changes.append(Difference(file.path, _describe(status), f"a file of {owner} with mode {file.mode:04o}\n"))
    changes += [Difference(path, _describe(_status(path)), "") for path in desired.absent if os.path.lexists(path)]
    if conflicts:
        raise Conflict(conflicts)
    return changes


def invalid(desired: Desired, changes: Sequence[Difference]) -> List[str]:
    """Validate the files that differ, and return the error messages of the validation commands."""
    differ = {difference.path for difference in changes}
    reasons = []
    for file in desired.files:
        if not file.validate or file.path not in differ:
            continue
        handle, draft = tempfile.mkstemp(suffix="." + os.path.basename(file.path))
        try:
            with os.fdopen(handle, "wb") as sink:
                sink.write(file.content)
            code, output = run(*[word.replace(PLACEHOLDER, draft) for word in file.validate], timeout=VALIDATION_TIMEOUT)
        finally:
            os.unlink(draft)
        if code:
            message = _mask_secrets(output.replace(draft, file.path), [file.content])
            reasons.append(f"{file.path}: {file.validate[0]} refuses the new content: {message}")
    return reasons


def apply_and_restart(desired: Desired, changes: Sequence[Difference], units: Sequence[str]) -> None:
    """Write the files, then restart the units that read them. If a unit does not start, restore the files and restart all units.

    The restore does not remove directories that were created. Raises NotStarted, or OSError if a file cannot be written.
    """
    # A lost connection (SIGHUP) must not end this process between the write and the restart.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _apply_or_restore(desired, changes, units)
    finally:
        signal.signal(signal.SIGHUP, ignored)


def _apply_or_restore(desired: Desired, changes: Sequence[Difference], units: Sequence[str]) -> None:
    paths = [difference.path for difference in changes if not os.path.isdir(difference.path)]
    before = [_snapshot(path) for path in paths]
    try:
        apply(desired, changes)
        failure = _restart(units)
    except BaseException:
        for snapshot in before:
            snapshot.restore()
        raise
    if failure is None:
        return
    for snapshot in before:
        snapshot.restore()
    second_failure = _restart(units)
    contents = [*(file.content for file in desired.files), *(snapshot.content for snapshot in before if snapshot.content)]
    result = "the previous files are restored, and all units run again"
    if second_failure is not None:
        result = f"after the previous files were restored, {second_failure}"
    raise NotStarted(_mask_secrets(f"{failure}; {result}", contents))


class Snapshot(NamedTuple):
    """The state of a path before a change: a file, a link, or nothing."""

    path: str
    status: Optional[os.stat_result]
    content: Optional[bytes]
    link: Optional[str]

    def restore(self) -> None:
        """Restore this state of the path."""
        if self.link is not None:
            trees.remove(self.path)
            os.symlink(self.link, self.path)
        elif self.status is None or self.content is None:
            trees.remove(self.path)
        else:
            _write(File(self.path, self.content, stat.S_IMODE(self.status.st_mode)))
            os.chown(self.path, self.status.st_uid, self.status.st_gid)


def _snapshot(path: str) -> Snapshot:
    status = _status(path)
    link = os.readlink(path) if status is not None and stat.S_ISLNK(status.st_mode) else None
    return Snapshot(path, status, _content(path, status), link)


def _restart(units: Sequence[str]) -> Optional[str]:
    """Restart the units. Return the error message of the first unit that does not start, or None if all start."""
    run("systemctl", "daemon-reload")
    for unit in units:
        # Without this command, systemd does not start a unit that has just failed several times.
        run("systemctl", "reset-failed", unit)
        code, output = run("systemctl", "restart", unit, timeout=RESTART_TIMEOUT)
        if code:
            journal = run("journalctl", "--unit", unit, "--lines", str(JOURNAL_LINES), "--output", "cat", "--no-pager")[1]
            lines = [line.strip() for line in journal.splitlines() if line.strip() and "level=info" not in line]
            errors = [line for line in lines if any(word in line for word in ("failed", "unable", "error", "invalid"))]
            text = " | ".join((errors or lines)[-SHOWN_LINES:]) or output
            return f"{unit} does not start (`journalctl --unit {unit}`): {text}"
    return None


def _mask_secrets(message: str, contents: Sequence[bytes]) -> str:
    """Return a message in one line, without the values in `contents`, because they may be secret."""
    hidden = [value for content in contents for value in _values(content.decode("utf-8", "replace"))]
    return " ".join(secret.replace_logins(secret.remove_values(message, hidden, []), "***@").split())[:1000]


def _values(content: str) -> Iterator[str]:
    """Yield the possibly secret values of a file: the strings of a JSON file, or the parts after `=` in other files."""
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
    elif isinstance(value, str) and name not in CLEAR_OPTIONS and not secret.is_path(name, value):
        yield value


def apply(desired: Desired, changes: Sequence[Difference]) -> None:
    """Write the paths that differ, each file completely or not at all. Raises OSError."""
    differ = {difference.path for difference in changes}
    # New parent directories must be readable for everybody.
    os.umask(0o022)
    for directory in desired.directories:
        if directory.path in differ:
            if directory.empty:
                trees.remove(directory.path)
            _make(directory)
    for file in desired.files:
        if file.path in differ:
            _write(file)
    for path in desired.absent:
        trees.remove(path)


def _difference_of_empty(directory: Directory) -> List[Difference]:
    """Return a list with the difference of a directory that has to be empty, or an empty list."""
    status = _status(directory.path)
    before = _describe(status)
    if status is not None and stat.S_ISDIR(status.st_mode):
        count = len(os.listdir(directory.path))
        if not count and (directory.mode is None or _has_mode_and_owner(status, directory.mode)):
            return []
        before = f"{before.rstrip()}, {count} entries\n"
    return [Difference(directory.path, before, _describe_directory(directory))]


def _make(directory: Directory) -> None:
    """Create a directory and its parents, owned by the user of this process. Set the mode of the directory."""
    os.makedirs(directory.path, exist_ok=True)
    if directory.mode is not None:
        os.chown(directory.path, os.geteuid(), os.getegid())
        os.chmod(directory.path, directory.mode)


def _write(file: File) -> None:
    """Write a file that belongs to the user of this process. If the path is a link, replace the link."""
    directory, name = os.path.split(file.path)
    os.makedirs(directory, exist_ok=True)
    _remove_drafts(directory, name)
    # The temporary file has a unique name, because another run can write the same file at the same time.
    handle, draft = tempfile.mkstemp(prefix=f".{name}.", suffix=DRAFT, dir=directory)
    try:
        with os.fdopen(handle, "wb") as sink:
            # The lock keeps other runs from removing the temporary file.
            fcntl.flock(sink, fcntl.LOCK_EX)
            sink.write(file.content)
            if file.group is not None:
                os.fchown(sink.fileno(), -1, file.group)
            os.fchmod(sink.fileno(), file.mode)
        os.replace(draft, file.path)
    except OSError:
        os.unlink(draft)
        raise


def _remove_drafts(directory: str, name: str) -> None:
    """Remove temporary files that killed runs have left for this file."""
    for entry in os.listdir(directory):
        if entry.startswith(f".{name}.") and entry.endswith(DRAFT):
            draft = os.path.join(directory, entry)
            with suppress(OSError):
                if time.time() - os.lstat(draft).st_mtime > ABANDONED_SECONDS and not _is_being_written(draft):
                    os.unlink(draft)


def _is_being_written(draft: str) -> bool:
    """Return True if a process has locked a temporary file. The age alone does not show this, because the clock can be set."""
    if not stat.S_ISREG(os.lstat(draft).st_mode):
        return False
    with os.fdopen(os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
        return locks.is_held(source)


def _status(path: str, follow: bool = False) -> Optional[os.stat_result]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.stat(path, follow_symlinks=follow)
    return None


def _has_mode_and_owner(status: os.stat_result, mode: int, group: Optional[int] = None) -> bool:
    """Return True if a path has this mode, the user of this process, and this group (by default the group of this process)."""
    expected = (mode, os.geteuid(), os.getegid() if group is None else group)
    return (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == expected


def _content(path: str, status: Optional[os.stat_result]) -> Optional[bytes]:
    """Return the content of a file, or None if `status` shows that the path is no file."""
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as source:
        return source.read()


def _text(content: bytes) -> str:
    if len(content) > MAX_SHOWN:
        return f"{len(content)} bytes\n"
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes that are not text\n"


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    return "a file" if stat.S_ISREG(status.st_mode) else "neither a file nor a directory"


def _describe(status: Optional[os.stat_result]) -> str:
    if status is None:
        return ""
    return f"{_kind(status)} of {status.st_uid}:{status.st_gid} with mode {stat.S_IMODE(status.st_mode):04o}\n"


def _describe_directory(directory: Directory) -> str:
    mode = 0o755 if directory.mode is None else directory.mode
    return f"a directory of {os.geteuid()}:{os.getegid()} with mode {mode:04o}\n"
