# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The container of the server: it is replaced, restored, started and restarted, in steps that can go on after a kill.

Beside the container `<name>` there are at most two others. `<name>-next` is made and has not served. `<name>-previous` was proven
last and stays, stopped, until `<name>` is proven. replacement.py has the record of the steps.
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
from ansible_collections.npufleet.triton.plugins.module_utils.system import capture, read_text, untranslated
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import last_words

# A process that the engine had to start so often will not stay. One failed start may be bad luck.
KEEPS_ENDING = 3
LOOK = 0.2
# Seconds for one response of the server
RESPONSE = 5.0
# Seconds for one call of the vendor's tool
TOOL = 20.0


def open_replacement(engine: Docker, root: str, name: str) -> Optional[Dict[str, Any]]:
    """Return the replacement that is not proven: the recorded one, or an unknown one if there is a previous container."""
    entry = replacement.read(root)
    if entry is None and engine.inspect(name + "-previous"):
        entry = dict(replacement.UNKNOWN)
    return entry


def replace(
    engine: Docker, root: str, run: lease.Holder, name: str, settings: Mapping[str, Any], inside: Optional[Mapping[str, Any]] = None
) -> List[str]:
    """Let `<name>-next` take the place of `<name>`, which stays as `<name>-previous` until `keep` or `restore`.

    `inside` is a server that was started manually in the old container: {"pid", "options" of docker exec}. A container that was
    never proven is removed: the one before it is still there. Raises ContainerError.
    """
    _end_kept(engine, root, name)
    current, previous, upcoming = (engine.inspect(name + suffix) for suffix in ("", "-previous", "-next"))
    if upcoming is None:
        raise ContainerError(f"container {name}-next is missing, expected it before it takes the place of {name}")
    refuse_absent(upcoming)
    before = replacement.read(root)
    ran = before["ran"] if before else bool(current and current["State"]["Running"]) or not current
    manual = before["inside"] if before and previous else _with_command(inside or {})
    replacement.begin(root, run, ran=ran, old=(previous or current or {}).get("Id"), inside=manual)
    done = []
    if current:
        # Before the rename: an engine does not rename a container that it is about to start again
        _end(engine, current, settings, {} if previous else inside or {})
        if previous:
            engine.remove(current["Id"])
            done.append(f"removed {current['Id'][:12]}, which was never proven")
        else:
            engine.rename(current["Id"], name + "-previous")
            done.append(f"stopped {current['Id'][:12]} and put it aside")
        why = wait_for_cards(settings)
        if why:
            raise ContainerError(
                f"{why} {settings['free_timeout']} s after the old container ended, expected the cards free. See "
                f"{vendor_tool.find_tool()} for who holds them, and reload the module or reboot the host"
            )
    engine.rename(upcoming["Id"], name)
    engine.start(upcoming["Id"])
    replacement.advance(root, replacement.SWAPPED)
    return [*done, f"started {upcoming['Id'][:12]}"]


def stop(engine: Docker, root: str, run: lease.Holder, name: str, settings: Mapping[str, Any]) -> bool:
    """Stop the container for something else than its own change. It stays recorded until `keep` or `restore`.

    Returns False if it did not run.
    """
    _end_kept(engine, root, name)
    found = engine.inspect(name)
    if not found or not found["State"]["Running"]:
        return False
    if replacement.read(root) is None and not engine.inspect(name + "-previous"):
        replacement.begin(root, run, phase=replacement.STOPPED, old=found["Id"])
    engine.stop(found["Id"], settings["stop_timeout"])
    return True


def _end(engine: Docker, container: Mapping[str, Any], settings: Mapping[str, Any], inside: Mapping[str, Any]) -> None:
    """Stop a container. A server that was started in it manually gets its own signal: the engine would only kill it at the end."""
    if inside:
        pid = int(inside["pid"])
        if not _is_server(pid):
            raise ContainerError(f"process {pid} is no tritonserver, expected the server that the plan names. Run again")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + settings["stop_timeout"]
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.1)
        engine.kill(container["Id"])
    engine.stop(container["Id"], settings["stop_timeout"])


def wait_for_cards(settings: Mapping[str, Any]) -> str:
    """Wait until the vendor's tool lists no context: a start beside one can wedge the card. Returns why the cards are not free.

    They count as free without a tool, but not if the tool fails or hangs.
    """
    deadline = time.monotonic() + settings["free_timeout"]
    while True:
        why = _busy_cards()
        if not why or time.monotonic() >= deadline:
            return why
        time.sleep(LOOK)


def _busy_cards() -> str:
    tool = vendor_tool.find_tool()
    if tool is None:
        return ""
    try:
        done = capture([tool, "-j"], TOOL)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{tool} does not report who has the cards open ({error})"
    if done.returncode:
        return f"{tool} does not report who has the cards open (it ended with {done.returncode})"
    return "the cards are still held" if "ctx_id" in done.stdout else ""


def keep(engine: Docker, root: str, name: str) -> bool:
    """Make the container the proven one: remove the previous container. Return True if there was anything to do."""
    previous, entry = engine.inspect(name + "-previous"), replacement.read(root)
    if previous:
        # From here on it is never restored, even if the engine does not remove it
        replacement.advance(root, replacement.PROVEN)
        engine.remove(previous["Id"])
    replacement.close(root)
    return bool(previous) or entry is not None


def _end_kept(engine: Docker, root: str, name: str) -> None:
    """Finish a replacement whose container is proven: remove the previous container."""
    entry = replacement.read(root)
    if entry is not None and entry["phase"] == replacement.PROVEN:
        keep(engine, root, name)


def restore(engine: Docker, root: str, name: str, settings: Mapping[str, Any]) -> Optional[str]:
    """Bring back the container that was proven last. Returns what was done, None if there was nothing to restore.

    It can be repeated wherever it broke off. Raises ContainerError if the restored server does not answer.
    """
    _end_kept(engine, root, name)
    entry = open_replacement(engine, root, name)
    current, previous = engine.inspect(name), engine.inspect(name + "-previous")
    if entry is None or not (previous or (current and entry["old"] == current["Id"])):
        # There is no container before the first one. The next run proves it.
        if entry is not None and entry["phase"] == replacement.SWAPPING:
            replacement.advance(root, replacement.SWAPPED)
        if entry is None:
            # A new container that was not started
            _drop(engine, name + "-next")
        return None
    if not previous and current and current["State"]["Running"] and _untouched(entry["inside"]):
        # The replacement broke off before its first step. A stopped container that runs again still has to be proven.
        if entry["phase"] == replacement.SWAPPING:
            _drop(engine, name + "-next")
            replacement.close(root)
        return None
    if previous:
        # Once the container has its name back, only the record shows that it has to serve
        replacement.write(root, {**entry, "old": previous["Id"], "phase": replacement.SWAPPING})
        if current:
            with suppress(ContainerError):
                # The removal kills it, if it does not end by itself
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
    """Start the old container, and a server that was started in it manually, and wait until it serves."""
    # The container may still run although the server in it has ended
    engine.stop(old["Id"], settings["stop_timeout"])
    # It starts even if the cards are not free, as the last server that is known to work
    wait_for_cards(settings)
    engine.start(old["Id"])
    if inside:
        _start_inside(name, inside)
    wait_ready(engine, name, settings["ready_timeout"])


def _untouched(inside: Mapping[str, Any]) -> bool:
    """Return True unless a server that was started manually has ended."""
    return not inside or _is_server(inside["pid"])


def _drop(engine: Docker, name: str) -> None:
    found = engine.inspect(name)
    if found:
        engine.remove(found["Id"])


def _is_server(pid: Any) -> bool:
    return "tritonserver" in (read_text(f"/proc/{pid}/comm") or "")


def _with_command(inside: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a server that was started manually with its command line. It may hold keys, so the host reads it from the kernel."""
    if not inside:
        return {}
    raw = read_text(f"/proc/{int(inside['pid'])}/cmdline") or ""
    return {"command": raw.split("\0")[:-1], **inside}


def _start_inside(name: str, inside: Mapping[str, Any]) -> None:
    """Start a server in the container again as it was started manually."""
    command = ["docker", "exec", "--detach", *map(str, inside["options"]), name, *map(str, inside["command"])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ENGINE_EXTRA, check=False, env=untranslated())
    except (OSError, subprocess.SubprocessError) as error:
        # The message of the error has the command, whose options may be secret
        raise ContainerError(f"the server inside could not be started again: {type(error).__name__}") from None
    if done.returncode:
        raise ContainerError("the server inside could not be started again: " + done.stderr.decode("utf-8", "replace").strip())


def restart(engine: Docker, name: str, settings: Mapping[str, Any]) -> None:
    """Restart the container. Raises ContainerError after the start if the cards were not free."""
    found = _there(engine, name)
    refuse_absent(found)
    engine.stop(found["Id"], settings["stop_timeout"])
    why = wait_for_cards(settings)
    engine.start(found["Id"])
    if why:
        raise ContainerError(f"{why} {settings['free_timeout']} s after {name} was stopped, expected the cards free")


def start(engine: Docker, name: str, settings: Mapping[str, Any]) -> bool:
    """Start the container. Return False if it runs already."""
    found = _there(engine, name)
    if found["State"]["Status"] == "running":
        return False
    # The engine may be about to start it again
    engine.stop(found["Id"], settings["stop_timeout"])
    engine.start(found["Id"])
    return True


def _there(engine: Docker, name: str) -> Dict[str, Any]:
    found = engine.inspect(name)
    if found is None:
        raise ContainerError(f"container {name} is missing, expected it: somebody has removed it meanwhile")
    return found


def endpoint(container: Mapping[str, Any]) -> Optional[Tuple[str, int]]:
    """Return address and port of the server's HTTP service on this host, None if it is not published.

    They are read from the container, because the inventory may have another port by now.
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
    return http_json(address, port, "GET", "/v2/health/ready", min(max(left, LOOK), RESPONSE))[0] == 200


def wait_ready(engine: Docker, name: str, timeout: float) -> None:
    """Wait until the server is ready. Raises ContainerError at the time limit, or as soon as the container's process has ended."""
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
            raise ContainerError(f"{name} is not ready on {at[0]}:{at[1]} within {timeout:.0f} s. See `docker logs {name}`")
        time.sleep(LOOK)


def guard(engine: Docker, name: str, settings: Mapping[str, Any]) -> stuck_load.Guard:
    """Return the guard that ends the stuck loads of this container, whatever ID it has at the moment."""

    def first_process() -> Optional[int]:
        # The thread of the guard goes on if the engine is away or returns nonsense
        with suppress(ContainerError, AttributeError, TypeError, ValueError):
            return int(((engine.inspect(name) or {}).get("State") or {}).get("Pid") or 0) or None
        return None

    # A lease that an older version wrote has no limit
    return stuck_load.Guard(first_process, float(settings.get("stuck_load_limit", stuck_load.LIMIT)))


def ending(container: Mapping[str, Any]) -> Optional[str]:
    """Return how the process of a container ended for good or keeps ending, None if it may still come up."""
    state = container["State"]
    count = container.get("RestartCount") or 0
    if state["Status"] in ("exited", "dead"):
        return f"its process ended with exit code {state['ExitCode']}"
    if count >= KEEPS_ENDING:
        return f"its process keeps ending ({count} times), the last time with exit code {state['ExitCode']}"
    return None
