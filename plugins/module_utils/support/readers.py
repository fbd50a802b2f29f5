# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that read a host for a support bundle, with limits of time and size. The functions change nothing."""

from __future__ import annotations

# A module's run_command has no limits of time and size. pylint: disable=ansible-bad-function
import glob
import os
import selectors
import signal
import socket
import stat
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, exchange
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated

# Largest number of entries in the listing of a directory tree
MAX_ENTRIES = 5000
Headers = Optional[Mapping[str, str]]


class Unavailable(Exception):
    """The reason why an item cannot be read."""


class Missing(Unavailable):
    """An error because an item does not exist. The caller can ignore this error for an optional item."""


class Partial(Exception):
    """An incomplete item: its content, and the reason why the rest is missing."""

    def __init__(self, content: Any, reason: str) -> None:
        super().__init__(reason)
        self.content = content


class Limits(NamedTuple):
    """The limits of one item."""

    seconds: float
    size: int  # Bytes
    lines: int  # Lines of a log


def tail(raw: bytes, size: int) -> str:
    """Return the last complete lines, at most `size` bytes.

    A line that is cut at its beginning is left out: it can contain a part of a secret, and redaction finds only complete secrets.
    """
    if len(raw) <= size:
        return raw.decode("utf-8", "replace")
    lines = raw[-size:].split(b"\n", 1)
    complete_lines = lines[1] if len(lines) > 1 else b""
    return f"[the first {len(raw) - len(complete_lines)} bytes are left out]\n" + complete_lines.decode("utf-8", "replace")


def complete_or_length(text: str) -> str:
    """Return a text, or only its length if it is too long. A text is never cut, because redaction would miss a cut secret."""
    return text if len(text) <= 300 else f"({len(text)} characters)"


def command(limits: Limits, *words: str, accept: Tuple[int, ...] = (0,)) -> str:
    """Return the output of a command. Kill the command after the time limit. Raises Unavailable or Partial."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**untranslated(), "SYSTEMD_COLORS": "0"},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unavailable(f"{words[0]} is not installed") from None
    raw, has_ended = _read_output(process, limits)
    output = tail(raw, limits.size)
    if not has_ended:
        raise Partial(output or None, f"`{' '.join(words)}` did not end within {limits.seconds} s")
    if process.returncode not in accept:
        last = output.strip().rpartition("\n")[2]
        raise Partial(output or None, f"`{' '.join(words)}` ended with {process.returncode}: {complete_or_length(last)}")
    return output


def _read_output(process: subprocess.Popen[bytes], limits: Limits) -> Tuple[bytes, bool]:
    """Return the last bytes of the output, and True if the process ended in time. A process that did not end is killed."""
    deadline = time.monotonic() + limits.seconds
    raw = bytearray()
    if process.stdout is None:
        return b"", True
    with selectors.DefaultSelector() as selector, process.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(deadline - time.monotonic()):
                block = os.read(pipe.fileno(), 1 << 16)
                if not block:
                    break
                raw += block
                if len(raw) > 4 * limits.size:
                    del raw[: -2 * limits.size]
    try:
        process.wait(max(deadline - time.monotonic(), 0.1))
        return bytes(raw), True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return bytes(raw), False


def read_file(path: str, limits: Limits) -> Any:
    """Return the data of a JSON file, or the last lines of any other file. Raises Unavailable for links, pipes and devices."""
    try:
        with foreign.open_file(path) as source:
            size = os.fstat(source.fileno()).st_size
            source.seek(max(size - 2 * limits.size, 0))
            raw = source.read(2 * limits.size)
    except FileNotFoundError:
        raise Missing(f"there is no {path}") from None
    except foreign.Untrusted as error:
        raise Unavailable(f"{path} {error}") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None
    if path.endswith(".json"):
        with suppress(ValueError):
            return shapes.parse(raw)
    return tail(raw, limits.size)


def read_files(limits: Limits, *patterns: str) -> Dict[str, Any]:
    """Return {path: content} of the files that match a pattern."""
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if not os.path.isdir(path)]
    if not paths:
        raise Unavailable("there is no " + ", ".join(patterns))
    found: Dict[str, Any] = {}
    for path in paths[:200]:
        try:
            found[path] = read_file(path, limits)
        except Unavailable as error:
            found[path] = {"error": str(error)}
    return found


def response_body(
    connected: socket.socket,
    method: str,
    resource: str,
    limits: Limits,
    budget: Budget,
    headers: Headers = None,
) -> bytes:
    """Return the body of an HTTP response. A body longer than eight times the size limit is truncated after a complete line."""
    cut = 8 * limits.size
    with connected:
        status, body = exchange(connected, method, resource, headers, budget=budget, cut=cut)
    if status == 404:
        raise Missing(f"there is nothing at {resource}")
    if status != 200:
        text = body.decode("utf-8", "replace").strip()
        raise Unavailable(f"{method} {resource} returned {status}: {complete_or_length(text)}")
    return body if len(body) < cut else body[: body.rfind(b"\n") + 1]


def list_tree(root: str) -> str:
    """Return a line for each entry below a directory, in the form of `describe_path`."""
    if not os.path.isdir(root):
        raise Unavailable(f"there is no {root}")
    lines: List[str] = []
    for directory, names, files in trees.walk(root):
        for name in sorted([*names, *files]):
            if len(lines) == MAX_ENTRIES:
                raise Partial("".join(lines), f"only the first {MAX_ENTRIES} entries are listed")
            lines.append(describe_path(os.path.join(directory, name)))
    return "".join(lines)


def describe_path(path: str) -> str:
    """Return a line about a path: its mode, owner, size, time, name and link target."""
    try:
        facts = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}\n"
    size = f"{os.major(facts.st_rdev)},{os.minor(facts.st_rdev)}" if stat.S_ISCHR(facts.st_mode) else str(facts.st_size)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.st_mtime))
    target = " -> " + os.readlink(path) if stat.S_ISLNK(facts.st_mode) else ""
    return f"{stat.filemode(facts.st_mode)} {facts.st_uid}:{facts.st_gid} {size:>12} {moment} {path}{target}\n"
