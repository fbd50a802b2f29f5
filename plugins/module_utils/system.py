# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that run commands on a host, and that read its files, packages, units and free space."""

from __future__ import annotations

# Programs without an AnsibleModule import this file, too. pylint: disable=ansible-bad-function
import os
import re
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

# Default limit of a command's output in bytes
MAX_OUTPUT = 1 << 26
# The database of dpkg
DPKG = "/var/lib/dpkg"
# Cache of the rows of dpkg-query. Its only key is the state of the database (_dpkg_state) at the latest query.
_CACHE: Dict[Tuple[object, ...], List[List[str]]] = {}


def untranslated() -> Dict[str, str]:
    """Return an environment in which commands print English messages, because their output is parsed."""
    # For some programs, such as Python programs, LANGUAGE overrides LC_ALL.
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}


class OutputTooLarge(OSError):
    """The error of a command that prints too much."""


def capture(
    command: Sequence[str],
    seconds: float,
    stdin: str = "",
    env: Optional[Mapping[str, str]] = None,
    size: Optional[int] = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its exit code and output. Raises TimeoutExpired, or OutputTooLarge after `size` bytes."""
    # These imports are slow, and most calls of modules run no command.
    import selectors
    import threading

    deadline, limit = time.monotonic() + seconds, MAX_OUTPUT if size is None else size
    out, err = bytearray(), bytearray()
    pipe = subprocess.PIPE
    source = pipe if stdin else subprocess.DEVNULL
    with subprocess.Popen(command, bufsize=0, stdin=source, stdout=pipe, stderr=pipe, env=env or untranslated()) as process:
        try:
            if stdin:
                threading.Thread(target=_write, args=(process.stdin, stdin.encode()), daemon=True).start()
            with selectors.DefaultSelector() as selector:
                for stream, buffer in ((process.stdout, out), (process.stderr, err)):
                    if stream is not None:
                        selector.register(stream, selectors.EVENT_READ, buffer)
                while selector.get_map():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise subprocess.TimeoutExpired(command, seconds)
                    for key, _events in selector.select(left):
                        block = os.read(key.fd, 1 << 16)
                        key.data.extend(block)
                        if not block:
                            selector.unregister(key.fileobj)
                    if len(out) + len(err) > limit:
                        raise OutputTooLarge(f"{command[0]} printed more than {limit} bytes")
            process.wait(max(deadline - time.monotonic(), 0.1))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _write(stdin: Any, content: bytes) -> None:
    """Write the standard input of a command. It is no error if the command ends without reading everything."""
    with suppress(OSError, ValueError), stdin:
        left = memoryview(content)
        while left:
            left = left[stdin.write(left) :]


def run(*command: str, timeout: float = 60) -> Tuple[int, str]:
    """Run a command, and return (exit code, output). The output is standard output or, if that is empty, standard error."""
    try:
        done = capture(command, timeout)
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    except OutputTooLarge as error:
        return 126, str(error)
    except OSError as error:
        return 126, f"{command[0]} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not answer within {timeout:.0f} s"
    return done.returncode, (done.stdout or done.stderr).strip()


def timestamp(at: Optional[float] = None) -> str:
    """Return a time as UTC text, such as 2026-01-02T03:04:05Z. `at` is in seconds since 1970, by default now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def seconds_since_1970(when: str) -> Optional[float]:
    """Return a time that `timestamp` has written, in seconds since 1970, or None for any other text."""
    # This import is slow, and most calls of modules parse no time.
    import datetime

    try:
        return datetime.datetime.strptime(when, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc).timestamp()
    except ValueError:
        return None


def free_space(path: str) -> Tuple[int, int]:
    """Return (device number, free bytes) of the file system of a directory. The directory does not have to exist yet."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return os.stat(path).st_dev, status.f_bavail * status.f_frsize


def bind_error(address: str, port: int = 0) -> str:
    """Return the reason why this host cannot listen at an address, or an empty text. Port 0 stands for any free port."""
    # This import is slow, and most calls of modules bind no socket.
    import socket

    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as test_socket:
            test_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            test_socket.bind((address, port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def which(name: str, extra_path: str = "") -> Optional[str]:
    """Return the path of a program in PATH or `extra_path`, or None. Unlike shutil.which, this function needs no slow import."""
    for directory in f"{os.environ.get('PATH', os.defpath)}:{extra_path}".split(":"):
        path = os.path.join(directory, name)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def read_text(path: str) -> Optional[str]:
    """Return the content of a small file, or None if it cannot be read."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as source:
        return source.read()
    return None


def installed_packages(names: List[str], broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """Return {name: {"version", "held"}} of the installed Debian packages with these names. A name can end with `*`.

    With `broken`, packages that are unpacked but not configured are included. Their version is None.
    """
    if not names:
        return {}
    exact, prefixes = set(names), tuple(name[:-1] for name in names if name.endswith("*"))
    found = {}
    for name, version, selection, status in _dpkg_rows(_dpkg_state()):
        complete = status == "installed"
        present = complete or (broken and status not in ("not-installed", "config-files"))
        if present and (name in exact or name.startswith(prefixes)):
            found[name] = {"version": version if complete else None, "held": selection == "hold"}
    return found


def _dpkg_state() -> Tuple[object, ...]:
    """Return a value that differs after each change of dpkg's database, or an empty tuple if the database cannot be read."""
    try:
        status = os.stat(DPKG + "/status")
        return (status.st_ino, status.st_mtime_ns, *sorted(os.listdir(DPKG + "/updates")))
    except OSError:
        return ()


def _dpkg_rows(state: Tuple[object, ...]) -> List[List[str]]:
    """Return [name, version, selection, status] of each package.

    One query returns all packages, because a query for one package takes as long: dpkg-query always reads the whole database.
    """
    if state not in _CACHE:
        form = "${binary:Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"
        code, output = run("dpkg-query", "--show", "--showformat", form)
        rows = [line.split("\t") for line in output.splitlines()]
        found = [[row[0].split(":")[0], *row[1:]] for row in rows if len(row) == 4]
        if code or not state:
            return found
        _CACHE.clear()
        _CACHE[state] = found
    return _CACHE[state]


def unit_states(*names: str) -> Dict[str, Dict[str, Any]]:
    """Return {name: {"enabled", "active"}} of systemd units. "active" is systemd's ActiveState, such as `active` or `failed`."""
    found: Dict[str, Dict[str, Any]] = {name: {"enabled": False, "active": "unknown"} for name in names}
    output = run("systemctl", "show", "--property=Id,ActiveState,UnitFileState", *names)[1] if names else ""
    for block in output.split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if fields.get("Id") in found:
            is_enabled = fields.get("UnitFileState") == "enabled"
            found[fields["Id"]] = {"enabled": is_enabled, "active": fields.get("ActiveState", "unknown")}
    return found


def candidate_version(name: str) -> Optional[str]:
    """Return the version of a Debian package that apt would install, or None if no repository has it."""
    found = re.search(r"Candidate: (\d\S*)", run("apt-cache", "policy", name)[1])
    return found[1] if found else None
