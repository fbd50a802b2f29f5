"""The supervised server: what it is started with, whether it runs, start and stop. Its files are in `run/` of the root.

`config.json` is what the supervisor that runs was started with. Whether it runs is told by the lock on `pid`, which the kernel lets
go of with the process.
"""

from __future__ import annotations

# Starts a process that stays, which run_command of a module does not. pylint: disable=ansible-bad-function
import base64
import json
import os
import re
import signal
import subprocess
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks

PROGRAM, CONFIG, PID, LOG = "supervisor.pyz", "config.json", "pid", "triton.log"
# Bytes after which a log gives way to a new one; one of before is kept
LOG_BYTES = 50 << 20
SHAPE = {
    "command": [str],
    "environment": {re.compile(".+"): str},
    "stop_timeout": int,
    "program": str,
    # A supervisor that an older version started has none.
    "stuck_load_limit?": int,
}
# What it says of the server's end, and of a load that it ends
ENDED, STUCK = (
    re.compile(r"npufleet_supervisor: \S+: the server "),
    re.compile(r"npufleet_supervisor: \S+: (a load is stuck, ends .+)"),
)
# Seconds for a supervisor to show that it runs, and beyond the server's own patience to end
GRACE = 20.0
LOOK = 0.1


class ProcessError(Exception):
    """Why the server could not be started or stopped, in words for an operator."""


def home(root: str) -> str:
    """Where the files of the running server are."""
    return os.path.join(root, "run")


def log_path(root: str) -> str:
    """What the server says."""
    return os.path.join(home(root), LOG)


def holder(root: str) -> Optional[int]:
    """Process of the supervisor that runs, None where none does."""
    try:
        with open(os.path.join(home(root), PID), "r+", encoding="ascii") as pid:
            if not locks.held(pid):
                return None
            found = pid.read().strip()
            return int(found) if found.isdigit() else 0
    except FileNotFoundError:
        return None


def running(root: str) -> Optional[Dict[str, Any]]:
    """Return what the supervisor that runs was started with, as `wanted` returns it. None where none runs."""
    if holder(root) is None:
        return None
    found = shapes.read(os.path.join(home(root), CONFIG), SHAPE)
    # One that cannot be read is of no wanted server
    known = [name.rstrip("?") for name in SHAPE]
    return {name: found.content[name] for name in known if name in found.content} if found.exists and not found.flaw else {}


def wanted(
    command: Any, environment: Mapping[str, str], stop_timeout: int, program: str, stuck_load_limit: int = 0
) -> Dict[str, Any]:
    """Return the desired result of `running`; `program` is the digest of the supervisor's sources."""
    return {
        "command": list(command),
        "environment": dict(environment),
        "stop_timeout": stop_timeout,
        "program": program,
        "stuck_load_limit": stuck_load_limit,
    }


def start(root: str, config: Mapping[str, Any], archive: str, python: str) -> None:
    """Start the server under its supervisor, a base64 archive, which outlives this process. Raises ProcessError."""
    place = home(root)
    os.makedirs(place, mode=0o700, exist_ok=True)
    os.chmod(place, 0o700)
    whole = {**config, "log": log_path(root), "log_bytes": LOG_BYTES, "pid": os.path.join(place, PID)}
    contents = {PROGRAM: base64.b64decode(archive), CONFIG: json.dumps(whole, indent=1, sort_keys=True).encode()}
    for name, content in contents.items():
        draft = os.path.join(place, name + ".draft")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
            sink.write(content)
        os.replace(draft, os.path.join(place, name))
    with open(log_path(root), "ab") as log:
        # A session of its own: neither a terminal that is closed nor the end of Ansible reaches it
        started = subprocess.Popen(
            [python, "-I", os.path.join(place, PROGRAM), os.path.join(place, CONFIG)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=root,
            start_new_session=True,
        )
    deadline = time.monotonic() + GRACE
    while not holder(root):
        if started.poll() is not None or time.monotonic() >= deadline:
            raise ProcessError(f"the supervisor does not run: {last_words(root)}")
        time.sleep(LOOK)


def stop(root: str) -> bool:
    """End server and supervisor; whether one ran. Raises ProcessError."""
    pid = holder(root)
    if pid is None:
        return False
    config = shapes.read(os.path.join(home(root), CONFIG), SHAPE)
    patience = (config.content["stop_timeout"] if config.exists and not config.flaw else 60) + GRACE
    if pid:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while holder(root) is not None:
        if time.monotonic() >= deadline:
            raise ProcessError(
                f"process {pid or '?'} has not ended within {patience:.0f} s: see {log_path(root)}, end it and run again"
            )
        time.sleep(LOOK)
    return True


def last_words(root: str, since: int = 0) -> str:
    """How its log ends, of what was written since it had so many bytes."""
    return " ".join(log_since(root, since).split())[-600:] or "it said nothing"


def log_since(root: str, since: int) -> str:
    """The log from there on; all of it, where it was made anew meanwhile."""
    try:
        with open(log_path(root), "rb") as source:
            source.seek(0, os.SEEK_END)
            size = source.tell()
            source.seek(since if since <= size else 0)
            return source.read(4 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def stuck_loads(root: str, since: int) -> List[str]:
    """Return what the supervisor said of loads that it ended, since the log had so many bytes."""
    return STUCK.findall(log_since(root, since))


def log_size(root: str) -> int:
    """Bytes of the log, 0 where there is none."""
    try:
        return os.path.getsize(log_path(root))
    except OSError:
        return 0
