"""Ways to read a host: each changes nothing, ends in time, and says in words what it cannot get."""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import glob
import os
import selectors
import signal
import socket
import stat
import subprocess
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, exchange
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated

# Entries of a directory tree that are listed; one that has more is listed up to there
ENTRIES = 5000


class Unavailable(Exception):
    """Why an item cannot be got."""


class Missing(Unavailable):
    """It is not there, which for some items is as it should be."""


class Partial(Exception):
    """What was got of an item, and why it is not all or not right."""

    def __init__(self, content: Any, why: str) -> None:
        super().__init__(why)
        self.content = content


class Limits(NamedTuple):
    """Bounds of one item."""

    seconds: float
    size: int
    lines: int


def bounded(raw: bytes, size: int) -> str:
    """The last `size` bytes as text, from the beginning of a line, for the same reason as `whole`."""
    if len(raw) <= size:
        return raw.decode("utf-8", "replace")
    tail = raw[-size:].split(b"\n", 1)
    kept = tail[1] if len(tail) > 1 else b""
    return f"[the first {len(raw) - len(kept)} bytes are left out]\n" + kept.decode("utf-8", "replace")


def whole(words: str) -> str:
    """Words for a message, all or none: half of a secret would not be known as one."""
    return words if len(words) <= 300 else f"({len(words)} characters)"


def command(limits: Limits, *words: str, accept: Tuple[int, ...] = (0,)) -> str:
    """Output of a command. One that does not end is killed, and not waited for."""
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
    raw, ended = _read_output(process, limits)
    output = bounded(raw, limits.size)
    if not ended:
        raise Partial(output or None, f"`{' '.join(words)}` did not end within {limits.seconds} s")
    if process.returncode not in accept:
        last = output.strip().rpartition("\n")[2]
        raise Partial(output or None, f"`{' '.join(words)}` ended with {process.returncode}: {whole(last)}")
    return output


def _read_output(process: subprocess.Popen[bytes], limits: Limits) -> Tuple[bytes, bool]:
    """(the end of what it says, whether it ended by itself)."""
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


def content(path: str, limits: Limits) -> Any:
    """A file: data where it is JSON, else the end of its text. A link, a pipe or a device that has its name is not read."""
    try:
        with foreign.open_file(path) as source:
            whole = os.fstat(source.fileno()).st_size
            source.seek(max(whole - 2 * limits.size, 0))
            raw = source.read(2 * limits.size)
    except FileNotFoundError:
        raise Missing(f"there is no {path}") from None
    except foreign.Untrusted as error:
        raise Unavailable(f"{path} {error}") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None
    if path.endswith(".json"):
        try:
            return shapes.parse(raw)
        except ValueError:
            pass
    return bounded(raw, limits.size)


def contents(limits: Limits, *patterns: str) -> Dict[str, Any]:
    """{path: content} of all files that match."""
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if not os.path.isdir(path)]
    if not paths:
        raise Unavailable("there is no " + ", ".join(patterns))
    found: Dict[str, Any] = {}
    for path in paths[:200]:
        try:
            found[path] = content(path, limits)
        except Unavailable as error:
            found[path] = {"error": str(error)}
    return found


def answer(
    connected: socket.socket,
    method: str,
    resource: str,
    limits: Limits,
    budget: Budget,
    headers: Optional[Mapping[str, str]] = None,
) -> bytes:
    """Return the body of one HTTP answer; of one longer than eight times the limit whole lines up to there."""
    most = 8 * limits.size
    with connected:
        status, body = exchange(connected, method, resource, headers, budget=budget, cut=most)
    if status == 404:
        raise Missing(f"there is nothing at {resource}")
    if status != 200:
        words = body.decode("utf-8", "replace").strip()
        raise Unavailable(f"{method} {resource} was answered with {status}: {whole(words)}")
    return body if len(body) < most else body[: body.rfind(b"\n") + 1]


def listing(root: str) -> str:
    """Everything below a directory: mode, owner, size, time, path, and where a link leads."""
    if not os.path.isdir(root):
        raise Unavailable(f"there is no {root}")
    lines: List[str] = []
    for directory, names, files in trees.walk(root):
        for name in sorted([*names, *files]):
            if len(lines) == ENTRIES:
                raise Partial("".join(lines), f"only the first {ENTRIES} entries are listed")
            lines.append(entry(os.path.join(directory, name)))
    return "".join(lines)


def entry(path: str) -> str:
    try:
        facts = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}\n"
    size = f"{os.major(facts.st_rdev)},{os.minor(facts.st_rdev)}" if stat.S_ISCHR(facts.st_mode) else str(facts.st_size)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.st_mtime))
    target = " -> " + os.readlink(path) if stat.S_ISLNK(facts.st_mode) else ""
    return f"{stat.filemode(facts.st_mode)} {facts.st_uid}:{facts.st_gid} {size:>12} {moment} {path}{target}\n"
