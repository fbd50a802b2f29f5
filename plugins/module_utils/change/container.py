"""The container of the server: replaced, put back, started and restarted, so that whoever comes after a kill can go on.

Beside the container `<name>` there are at most two others. `<name>-next` is made and has not served. `<name>-previous` is the one
that was proven last: it stays, stopped, until another one is proven. How far a replacement is says replacement.py.
"""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import (
    ENGINE_EXTRA,
    ContainerError,
    Docker,
    refuse_absent,
)
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.system import capture, read_text, timestamp, untranslated
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import last_words

# A process that ended and was started again so often by the engine will not stay: one failed start may be bad luck
KEEPS_ENDING = 3
LOOK = 0.2
# Seconds for one answer of the server
ANSWER = 5.0
# Seconds for one answer of the vendor's tool
ASKING = 20.0


def open_replacement(engine: Docker, root: str, name: str) -> Optional[Dict[str, Any]]:
    """What was not proven yet: the replacement that is written down, or a container that was left aside without one."""
    entry = replacement.read(root)
    if entry is None and engine.inspect(name + "-previous"):
        entry = dict(replacement.UNKNOWN)
    return entry


def replace(
    engine: Docker, root: str, run: lease.Holder, name: str, settings: Mapping[str, Any], inside: Optional[Mapping[str, Any]] = None
) -> List[str]:
    """Let `<name>-next` take the place of `<name>`, which stays as `<name>-previous` until `keep` or `put_back`.

    `inside` is a server that hands started inside the old container: {"pid", "options" of docker exec}. A container that
    nobody proved gives way for good: the one before it is still there. Raises ContainerError.
    """
    _end_kept(engine, root, name)
    current, previous, upcoming = (engine.inspect(name + suffix) for suffix in ("", "-previous", "-next"))
    if upcoming is None:
        raise ContainerError(f"found no container {name}-next, wanted it made before it takes the place of {name}")
    refuse_absent(upcoming)
    before = replacement.read(root)
    ran = before["ran"] if before else bool(current and current["State"]["Running"]) or not current
    old = (previous or current or {}).get("Id")
    kept = before["inside"] if before and previous else _with_command(inside or {})
    entry = {
        "run": run.run,
        "by": run.by,
        "since": timestamp(),
        "phase": replacement.SWAPPING,
        "ran": ran,
        "old": old,
        "inside": kept,
    }
    replacement.write(root, entry)
    done = []
    if current:
        # Before it gets another name: an engine does not rename what it is just about to start again
        _end(engine, current, settings, {} if previous else inside or {})
        if previous:
            engine.remove(current["Id"])
            done.append(f"removed {current['Id'][:12]}, which was never proven")
        else:
            engine.rename(current["Id"], name + "-previous")
            done.append(f"stopped {current['Id'][:12]} and put it aside")
        why = held(settings)
        if why:
            raise ContainerError(
                f"found {why} {settings['free_timeout']} s after the old container ended, wanted the cards free: see "
                f"{vendor_tool.find_tool()} for who holds them, and load the module anew or reboot the host"
            )
    engine.rename(upcoming["Id"], name)
    engine.start(upcoming["Id"])
    replacement.write(root, {**entry, "phase": replacement.SWAPPED})
    return [*done, f"started {upcoming['Id'][:12]}"]


def stop(engine: Docker, root: str, run: lease.Holder, name: str, settings: Mapping[str, Any]) -> bool:
    """Stop the container for something else than its own change; `keep` once it is proven to serve again, or `put_back`."""
    _end_kept(engine, root, name)
    found = engine.inspect(name)
    if not found or not found["State"]["Running"]:
        return False
    if replacement.read(root) is None and not engine.inspect(name + "-previous"):
        who = {"run": run.run, "by": run.by, "since": timestamp()}
        replacement.write(root, {**replacement.UNKNOWN, **who, "phase": replacement.STOPPED, "old": found["Id"]})
    engine.stop(found["Id"], settings["stop_timeout"])
    return True


def _end(engine: Docker, container: Mapping[str, Any], settings: Mapping[str, Any], inside: Mapping[str, Any]) -> None:
    """Stop a container. A server that hands started inside is told to end itself: stopping would not tell it, but kill it late."""
    if inside:
        pid = int(inside["pid"])
        if not _is_server(pid):
            raise ContainerError(f"found process {pid} to be no tritonserver, wanted the server that was looked at: look again")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + settings["stop_timeout"]
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.1)
        engine.kill(container["Id"])
    engine.stop(container["Id"], settings["stop_timeout"])


def held(settings: Mapping[str, Any]) -> str:
    """Wait until the vendor's tool lists no context any more: a start beside one can wedge the card. Returns why they are not free.

    Without a tool they are; one that fails or hangs says nothing of them.
    """
    deadline = time.monotonic() + settings["free_timeout"]
    while True:
        why = _held()
        if not why or time.monotonic() >= deadline:
            return why
        time.sleep(LOOK)


def _held() -> str:
    tool = vendor_tool.find_tool()
    if tool is None:
        return ""
    try:
        done = capture([tool, "-j"], ASKING)
    except (OSError, subprocess.SubprocessError) as error:
        return f"that {tool} does not tell who has the cards open ({error})"
    if done.returncode:
        return f"that {tool} does not tell who has the cards open (it ended with {done.returncode})"
    return "cards still held" if "ctx_id" in done.stdout else ""


def keep(engine: Docker, root: str, name: str) -> bool:
    """The container is proven: take away the one before it. Returns whether there was anything to do."""
    previous, entry = engine.inspect(name + "-previous"), replacement.read(root)
    if previous:
        # From here on nobody restores it, also where the engine does not remove it
        replacement.write(root, {**(entry or replacement.UNKNOWN), "phase": replacement.PROVEN})
        engine.remove(previous["Id"])
    replacement.close(root)
    return bool(previous) or entry is not None


def _end_kept(engine: Docker, root: str, name: str) -> None:
    """End a replacement whose container was proven, and of which only the removal of the one before it is left."""
    entry = replacement.read(root)
    if entry is not None and entry["phase"] == replacement.PROVEN:
        keep(engine, root, name)


def put_back(engine: Docker, root: str, name: str, settings: Mapping[str, Any]) -> Optional[str]:
    """Serve again with the container that was proven last: what was done, None where there is none to go back to.

    Safe to do again at any point where it broke off. Raises ContainerError where the old one does not answer.
    """
    _end_kept(engine, root, name)
    entry = open_replacement(engine, root, name)
    current, previous = engine.inspect(name), engine.inspect(name + "-previous")
    if entry is None or not (previous or (current and entry["old"] == current["Id"])):
        # The first one ever: there is nothing else to serve with, and it is nobody's any more who broke off
        if entry is not None and entry["phase"] == replacement.SWAPPING:
            replacement.write(root, {**entry, "phase": replacement.SWAPPED})
        if entry is None:
            # Made, and never given its place
            _drop(engine, name + "-next")
        return None
    if not previous and current and current["State"]["Running"] and _untouched(entry["inside"]):
        # It broke off before the first step; or it runs again, and whoever stopped it has to prove that
        if entry["phase"] == replacement.SWAPPING:
            _drop(engine, name + "-next")
            replacement.close(root)
        return None
    if previous:
        # Also of one that was left aside without a word: once it has its name back, only this tells that it has to serve
        replacement.write(root, {**entry, "old": previous["Id"], "phase": replacement.SWAPPING})
        if current:
            with suppress(ContainerError):
                # Let it end by itself, where it does: it goes in any case
                engine.stop(current["Id"], settings["stop_timeout"])
            engine.remove(current["Id"])
        engine.rename(previous["Id"], name)
    _drop(engine, name + "-next")
    old = _there(engine, name)
    if entry["ran"]:
        _serve_again(engine, old, entry["inside"], name, settings)
    replacement.close(root)
    return f"the container {old['Id'][:12]} {'serves' if entry['ran'] else 'is there'} again"


def _serve_again(engine: Docker, old: Mapping[str, Any], inside: Mapping[str, Any], name: str, settings: Mapping[str, Any]) -> None:
    """Start the old container, and the server inside that hands had started, and wait until it serves."""
    # Of a server inside that ended, the container may still be there
    engine.stop(old["Id"], settings["stop_timeout"])
    # Also when they are not free: the server that was there is worth the attempt
    held(settings)
    engine.start(old["Id"])
    if inside:
        _start_inside(name, inside)
    wait_ready(engine, name, settings["ready_timeout"])


def _untouched(inside: Mapping[str, Any]) -> bool:
    """Whether the server inside, if there is one, has not ended."""
    return not inside or _is_server(inside["pid"])


def _drop(engine: Docker, name: str) -> None:
    found = engine.inspect(name)
    if found:
        engine.remove(found["Id"])


def _is_server(pid: Any) -> bool:
    return "tritonserver" in (read_text(f"/proc/{pid}/comm") or "")


def _with_command(inside: Mapping[str, Any]) -> Dict[str, Any]:
    """A server inside with its command line, which the kernel has: it may hold keys and does not come from the controller."""
    if not inside:
        return {}
    raw = read_text(f"/proc/{int(inside['pid'])}/cmdline") or ""
    return {"command": raw.split("\0")[:-1], **inside}


def _start_inside(name: str, inside: Mapping[str, Any]) -> None:
    """Start a server inside the container again, as hands had started it."""
    command = ["docker", "exec", "--detach", *map(str, inside["options"]), name, *map(str, inside["command"])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ENGINE_EXTRA, check=False, env=untranslated())
    except (OSError, subprocess.SubprocessError) as error:
        # Its text has the command, whose options may be secret
        raise ContainerError(f"the server inside could not be started again: {type(error).__name__}") from None
    if done.returncode:
        raise ContainerError("the server inside could not be started again: " + done.stderr.decode("utf-8", "replace").strip())


def restart(engine: Docker, name: str, settings: Mapping[str, Any]) -> None:
    """Stop it, wait for the cards, start it. Also when they do not get free, which is raised after that."""
    found = _there(engine, name)
    refuse_absent(found)
    engine.stop(found["Id"], settings["stop_timeout"])
    why = held(settings)
    engine.start(found["Id"])
    if why:
        raise ContainerError(f"found {why} {settings['free_timeout']} s after {name} was stopped, wanted the cards free")


def start(engine: Docker, name: str, settings: Mapping[str, Any]) -> bool:
    """Start it, if it does not run."""
    found = _there(engine, name)
    if found["State"]["Status"] == "running":
        return False
    # One that the engine starts again and again would be started between two looks
    engine.stop(found["Id"], settings["stop_timeout"])
    engine.start(found["Id"])
    return True


def _there(engine: Docker, name: str) -> Dict[str, Any]:
    found = engine.inspect(name)
    if found is None:
        raise ContainerError(f"found no container {name}, wanted it to be there: somebody removed it meanwhile")
    return found


def endpoint(container: Mapping[str, Any]) -> Optional[Tuple[str, int]]:
    """Where this host reaches the HTTP service of a container's server; None where it publishes none.

    Out of the container itself and not of the inventory, which may want another port by now.
    """
    host = container.get("HostConfig") or {}
    command = [str(element) for element in (container.get("Config") or {}).get("Cmd") or []]
    port = next((word.split("=", 1)[1] for word in command if word.startswith("--http-port=")), "8000")
    if not port.isascii() or not port.isdigit():
        return None
    if host.get("NetworkMode") == "host":
        return "127.0.0.1", int(port)
    bound = (host.get("PortBindings") or {}).get(f"{port}/tcp") or []
    for entry in bound:
        with suppress(ValueError, KeyError):
            address = entry.get("HostIp") or "0.0.0.0"
            return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address), int(entry["HostPort"])
    return None


def _is_ready(address: str, port: int, left: float) -> bool:
    return http_json(address, port, "GET", "/v2/health/ready", min(max(left, LOOK), ANSWER))[0] == 200


def wait_ready(engine: Docker, name: str, timeout: float) -> None:
    """Until the server is ready, or the container's process has ended, which is told at once. Raises ContainerError."""
    deadline = time.monotonic() + timeout
    while True:
        found = _there(engine, name)
        ended = ending(found)
        if ended:
            raise ContainerError(f"{ended}: {last_words(engine, name) or 'its log is empty'}")
        at = endpoint(found)
        if at is None or _is_ready(*at, deadline - time.monotonic()):
            return
        if time.monotonic() >= deadline:
            raise ContainerError(
                f"found {name} not ready on {at[0]}:{at[1]} within {timeout:.0f} s, wanted it to serve: see `docker logs {name}`"
            )
        time.sleep(LOOK)


def guard(engine: Docker, name: str, settings: Mapping[str, Any]) -> stuck_load.Guard:
    """Return what ends the stuck loads of this container, under whatever ID it runs at the moment."""

    def first_process() -> Optional[int]:
        # A thread of a change asks, and must not end for an engine that is away or answers nonsense.
        with suppress(ContainerError, AttributeError, TypeError, ValueError):
            return int(((engine.inspect(name) or {}).get("State") or {}).get("Pid") or 0) or None
        return None

    # A lease that an older version wrote has no limit.
    return stuck_load.Guard(first_process, float(settings.get("stuck_load_limit", stuck_load.LIMIT)))


def ending(container: Mapping[str, Any]) -> Optional[str]:
    """How the process of a container ended for good, or keeps ending; None while it may come up."""
    state = container["State"]
    count = container.get("RestartCount") or 0
    if state["Status"] in ("exited", "dead"):
        return f"its process ended with exit code {state['ExitCode']}"
    if count >= KEEPS_ENDING:
        return f"its process keeps ending ({count} times), the last time with exit code {state['ExitCode']}"
    return None
