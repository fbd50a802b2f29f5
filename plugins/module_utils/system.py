"""Small readers of a host: commands, files, packages. Nothing here changes anything."""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import os
import re
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

# Bytes that a command may print
OUTPUT = 1 << 26
# Where dpkg keeps what it knows
DPKG = "/var/lib/dpkg"
# What it knew when it was asked last
_KNOWN: Dict[Tuple[object, ...], List[List[str]]] = {}


def untranslated() -> Dict[str, str]:
    """Return the environment of a command whose output is parsed: its messages are in English, whatever the host's language.

    Programs that translate by themselves, such as those of Python, read LANGUAGE before LC_ALL.
    """
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}


class TooMuch(OSError):
    """A command that printed more than anybody reads."""


def capture(
    command: Sequence[str],
    seconds: float,
    given: str = "",
    env: Optional[Mapping[str, str]] = None,
    size: Optional[int] = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, whose output may be a liar's, and return what it printed.

    Raises subprocess.TimeoutExpired after so many seconds, and TooMuch for more than `size` bytes; it is killed then.
    """
    # Here, as most calls run nothing. subprocess has imported them
    import selectors
    import threading

    deadline, most = time.monotonic() + seconds, OUTPUT if size is None else size
    out, err = bytearray(), bytearray()
    pipe = subprocess.PIPE
    stdin = pipe if given else subprocess.DEVNULL
    with subprocess.Popen(command, bufsize=0, stdin=stdin, stdout=pipe, stderr=pipe, env=env or untranslated()) as process:
        try:
            if given:
                threading.Thread(target=_hand, args=(process.stdin, given.encode()), daemon=True).start()
            with selectors.DefaultSelector() as selector:
                for source, sink in ((process.stdout, out), (process.stderr, err)):
                    if source is not None:
                        selector.register(source, selectors.EVENT_READ, sink)
                while selector.get_map():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise subprocess.TimeoutExpired(command, seconds)
                    for key, _events in selector.select(left):
                        block = os.read(key.fd, 1 << 16)
                        key.data.extend(block)
                        if not block:
                            selector.unregister(key.fileobj)
                    if len(out) + len(err) > most:
                        raise TooMuch(f"{command[0]} printed more than {most} bytes")
            process.wait(max(deadline - time.monotonic(), 0.1))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _hand(stdin: Any, given: bytes) -> None:
    """Write what a command takes. One that ends before has no need of it."""
    with suppress(OSError, ValueError), stdin:
        left = memoryview(given)
        while left:
            left = left[stdin.write(left) :]


def run(*command: str, timeout: float = 60) -> Tuple[int, str]:
    """Return exit code and output (standard output, or standard error where that is all there is); 127 when not installed."""
    try:
        done = capture(command, timeout)
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    except TooMuch as error:
        return 126, str(error)
    except OSError as error:
        return 126, f"{command[0]} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not answer within {timeout:.0f} s"
    return done.returncode, (done.stdout or done.stderr).strip()


def now(at: Optional[float] = None) -> str:
    """A time in UTC as the files of a host have it: this moment, or seconds since 1970."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def file_system(path: str) -> Tuple[int, int]:
    """(file system, free bytes) of a directory that may not be there yet."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return os.stat(path).st_dev, found.f_bavail * found.f_frsize


def which(name: str, beside: str = "") -> Optional[str]:
    """Where a program is, in the directories of PATH or of `beside`, as `shutil.which` finds it; None for nowhere."""
    for place in f"{os.environ.get('PATH', os.defpath)}:{beside}".split(":"):
        path = os.path.join(place, name)
        if place and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def text(path: str) -> Optional[str]:
    """Content of a small file, None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return None


def packages(names: List[str], broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """Installed Debian packages out of `names`: {name: {"version", "held"}}. One with `*` at its end stands for all that begin so.

    With `broken` also those that were unpacked and not set up, without a version.
    """
    if not names:
        return {}
    named, begun = set(names), tuple(name[:-1] for name in names if name.endswith("*"))
    found = {}
    for name, version, selection, status in _of_dpkg(_dpkg_changed()):
        whole = status == "installed"
        there = whole or (broken and status not in ("not-installed", "config-files"))
        if there and (name in named or name.startswith(begun)):
            found[name] = {"version": version if whole else None, "held": selection == "hold"}
    return found


def _dpkg_changed() -> Tuple[object, ...]:
    """What is another one after each change of dpkg's database, which writes files of updates and then a new one of states.

    Empty where that cannot be told.
    """
    try:
        status = os.stat(DPKG + "/status")
        return (status.st_ino, status.st_mtime_ns, *sorted(os.listdir(DPKG + "/updates")))
    except OSError:
        return ()


def _of_dpkg(changed: Tuple[object, ...]) -> List[List[str]]:
    """Of each package that dpkg knows name, version, selection and status. It reads all of them whatever it is asked for."""
    if changed not in _KNOWN:
        form = "${binary:Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"
        code, output = run("dpkg-query", "--show", "--showformat", form)
        rows = [line.split("\t") for line in output.splitlines()]
        found = [[row[0].split(":")[0], *row[1:]] for row in rows if len(row) == 4]
        if code or not changed:
            return found
        _KNOWN.clear()
        _KNOWN[changed] = found
    return _KNOWN[changed]


def units(*names: str) -> Dict[str, Dict[str, Any]]:
    """What systemd says of units, all by one call: {name: {"enabled", "active": as ActiveState, such as `active` or `failed`}}."""
    found: Dict[str, Dict[str, Any]] = {name: {"enabled": False, "active": "unknown"} for name in names}
    said = run("systemctl", "show", "--property=Id,ActiveState,UnitFileState", *names)[1] if names else ""
    for part in said.split("\n\n"):
        states = dict(line.split("=", 1) for line in part.splitlines() if "=" in line)
        if states.get("Id") in found:
            found[states["Id"]] = {
                "enabled": states.get("UnitFileState") == "enabled",
                "active": states.get("ActiveState", "unknown"),
            }
    return found


def available(name: str) -> Optional[str]:
    """The version of a Debian package that the host's repositories would install, None for none."""
    found = re.search(r"Candidate: (\d\S*)", run("apt-cache", "policy", name)[1])
    return found[1] if found else None
