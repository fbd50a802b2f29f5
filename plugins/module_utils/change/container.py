# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Replace, restore, start and restart the container of the server. A later run can finish steps that were interrupted.

Besides the container `<name>`, at most two other containers of the server exist:
- `<name>-next` was created and has never served.
- `<name>-previous` is stopped. It is the last proven container, and is removed as soon as `<name>` is proven.
"""

from __future__ import annotations

# Programs without an AnsibleModule import this file, too. pylint: disable=ansible-bad-function
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import (
    ENGINE_TIMEOUT,
    ContainerError,
    Docker,
    refuse_missing_mounts,
)
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.connection import api_key, command_of, endpoint
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text, run, untranslated
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys, stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import ending_reason

# Number of restarts after which the process of a container counts as failed. A single failed start may be a coincidence.
MAX_RESTARTS = 3
# Seconds between two polls, and time limits in seconds of one request to the server and of one call of the vendor's tool
POLL_SECONDS, RESPONSE_TIMEOUT, TOOL_TIMEOUT = 0.2, 5.0, 20.0


def replace(
    engine: Docker, root: str, holder: lease.Holder, name: str, settings: Mapping[str, Any], manual: Mapping[str, Any]
) -> List[str]:
    """Replace `<name>` by `<name>-next`. Keep the old container as `<name>-previous` until `keep` or `restore` is called.

    If `<name>-previous` exists already, `<name>` was never proven, so `<name>` is removed. `manual` is a server that an operator
    started in the old container: its "pid", and the "options" of docker exec. It is empty if there is no such server. Raises
    ContainerError.
    """
    _finish_proven(engine, root, name)
    current, previous, next_container = (engine.inspect(name + suffix) for suffix in ("", "-previous", "-next"))
    if next_container is None:
        raise ContainerError(f"container {name}-next is missing, expected it to exist before it replaces {name}")
    refuse_missing_mounts(next_container)
    record = replacement.read(root)
    was_running = record["ran"] if record else bool(current and current["State"]["Running"]) or not current
    manual_server = dict(manual)
    if record and previous:
        manual_server = record["inside"]
    elif manual:
        # The command line is read here and is not a part of `manual`: it may contain keys, so it must not leave the host.
        command = (read_text(f"/proc/{int(manual['pid'])}/cmdline") or "").split("\0")[:-1]
        manual_server = {"command": command, **manual}
    replacement.begin(root, holder, ran=was_running, old=(previous or current or {}).get("Id"), inside=manual_server)
    done = []
    if current:
        # Stop before the rename: the engine refuses to rename a container that it is about to restart
        _stop(engine, current, settings, {} if previous else manual)
        if previous:
            engine.remove(current["Id"])
            done.append(f"removed {current['Id'][:12]}, which was never proven")
        else:
            engine.rename(current["Id"], name + "-previous")
            done.append(f"stopped {current['Id'][:12]} and renamed it")
        why = wait_for_cards(settings)
        if why:
            raise ContainerError(
                f"{why} {settings['free_timeout']} s after the old container ended, expected free cards. See "
                f"{vendor_tool.find_tool()} for the processes that use them, and reload the module or reboot the host"
            )
    engine.rename(next_container["Id"], name)
    engine.start(next_container["Id"])
    replacement.advance(root, replacement.SWAPPED)
    return [*done, f"started {next_container['Id'][:12]}"]


def stop(engine: Docker, root: str, holder: lease.Holder, name: str, settings: Mapping[str, Any]) -> bool:
    """Stop the container for another change, such as a change of the driver. Return False if it did not run."""
    _finish_proven(engine, root, name)
    found = engine.inspect(name)
    if not found or not found["State"]["Running"]:
        return False
    if replacement.read(root) is None and not engine.inspect(name + "-previous"):
        replacement.begin(root, holder, phase=replacement.STOPPED, old=found["Id"])
    engine.stop(found["Id"], settings["stop_timeout"])
    return True


def _stop(engine: Docker, container: Mapping[str, Any], settings: Mapping[str, Any], manual: Mapping[str, Any]) -> None:
    """Stop a container. First terminate a manually started server in it, because the engine would kill it without SIGTERM."""
    if manual:
        pid = int(manual["pid"])
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
    """Wait until the vendor's tool lists no context (a process on an NPU). Return why the cards are not free, or an empty text.

    If a server starts while another process has a context, the card can hang. Without the tool, the cards count as free. If the
    tool fails or hangs, they do not.
    """
    deadline = time.monotonic() + settings["free_timeout"]
    while True:
        why = _busy_cards()
        if not why or time.monotonic() >= deadline:
            return why
        time.sleep(POLL_SECONDS)


def _busy_cards() -> str:
    tool = vendor_tool.find_tool()
    if tool is None:
        return ""
    code, output = run(tool, "-j", timeout=TOOL_TIMEOUT)
    if code:
        return f"{tool} does not report who has the cards open ({output or f'it ended with {code}'})"
    return "the cards are still in use" if "ctx_id" in output else ""


def keep(engine: Docker, root: str, name: str) -> bool:
    """Mark the container as proven, and remove the previous container. Return True if a replacement was open."""
    previous, record = engine.inspect(name + "-previous"), replacement.read(root)
    if previous:
        # From now on `restore` never uses the previous container, even if the engine fails to remove it.
        replacement.advance(root, replacement.PROVEN)
        engine.remove(previous["Id"])
    replacement.close(root)
    return bool(previous) or record is not None


def _finish_proven(engine: Docker, root: str, name: str) -> None:
    """Remove the previous container if the new one is already proven."""
    record = replacement.read(root)
    if record is not None and record["phase"] == replacement.PROVEN:
        keep(engine, root, name)


def restore(engine: Docker, root: str, name: str, settings: Mapping[str, Any]) -> Optional[str]:
    """Restore the container that was proven last. Return what was done, or None if there was nothing to restore.

    An interrupted call can be repeated. Raises ContainerError if the restored server does not become ready.
    """
    _finish_proven(engine, root, name)
    current, previous = engine.inspect(name), engine.inspect(name + "-previous")
    record = replacement.read(root, previous is not None)
    if record is None or not (previous or (current and record["old"] == current["Id"])):
        # No earlier container exists, so the current container stays. The next run proves it.
        if record is not None and record["phase"] == replacement.SWAPPING:
            replacement.advance(root, replacement.SWAPPED)
        if record is None:
            # The new container was created but never started, so it is removed.
            _remove_if_present(engine, name + "-next")
        return None
    manual = record["inside"]
    if not previous and current and current["State"]["Running"] and (not manual or _is_server(manual["pid"])):
        # In phase SWAPPING, the replacement was interrupted before it changed the container, so the replacement is closed. In phase
        # STOPPED, the container was stopped and runs again. It still has to be proven, so the replacement stays open.
        if record["phase"] == replacement.SWAPPING:
            _remove_if_present(engine, name + "-next")
            replacement.close(root)
        return None
    if previous:
        # If this call is interrupted after the rename, only replacement.json shows that the container has to be started.
        replacement.write(root, {**record, "old": previous["Id"], "phase": replacement.SWAPPING})
        if current:
            with suppress(ContainerError):
                # If the stop fails, the removal kills the container
                engine.stop(current["Id"], settings["stop_timeout"])
            engine.remove(current["Id"])
        engine.rename(previous["Id"], name)
    _remove_if_present(engine, name + "-next")
    restored = _existing(engine, name)
    if record["ran"]:
        # The container can still run although the server in it has ended, so stop the container first.
        engine.stop(restored["Id"], settings["stop_timeout"])
        # Start the container even if the cards do not become free, because no other container is proven.
        wait_for_cards(settings)
        engine.start(restored["Id"])
        if manual:
            _start_manual_server(name, manual)
        wait_ready(engine, name, settings["ready_timeout"])
    replacement.close(root)
    return f"the container {restored['Id'][:12]} {'serves' if record['ran'] else 'exists'} again"


def _remove_if_present(engine: Docker, name: str) -> None:
    found = engine.inspect(name)
    if found:
        engine.remove(found["Id"])


def _is_server(pid: Any) -> bool:
    return "tritonserver" in (read_text(f"/proc/{pid}/comm") or "")


def _start_manual_server(name: str, manual: Mapping[str, Any]) -> None:
    """Start the server in the container again with the recorded command and options of docker exec."""
    command = ["docker", "exec", "--detach", *map(str, manual["options"]), name, *map(str, manual["command"])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ENGINE_TIMEOUT, check=False, env=untranslated())
        why = done.stderr.decode("utf-8", "replace").strip() if done.returncode else None
    except (OSError, subprocess.SubprocessError) as error:
        # The text of the error contains the command, whose options may be secret.
        why = type(error).__name__
    if why is not None:
        raise ContainerError(f"the server in the container could not be started again: {why}")


def restart(engine: Docker, name: str, settings: Mapping[str, Any]) -> None:
    """Restart the container, even if the cards do not become free. In that case, raise ContainerError after the start."""
    found = _existing(engine, name)
    refuse_missing_mounts(found)
    engine.stop(found["Id"], settings["stop_timeout"])
    why = wait_for_cards(settings)
    engine.start(found["Id"])
    if why:
        raise ContainerError(f"{why} {settings['free_timeout']} s after {name} was stopped, expected free cards")


def start(engine: Docker, name: str, settings: Mapping[str, Any]) -> bool:
    """Start the container. Return False if it runs already."""
    found = _existing(engine, name)
    if found["State"]["Status"] == "running":
        return False
    # The engine may be about to restart the container by itself. The stop prevents this restart.
    engine.stop(found["Id"], settings["stop_timeout"])
    engine.start(found["Id"])
    return True


def _existing(engine: Docker, name: str) -> Dict[str, Any]:
    found = engine.inspect(name)
    if found is None:
        raise ContainerError(f"container {name} is missing, expected it to exist. Find out who removed it, then run again")
    return found


def _is_ready(address: str, port: int, left: float, key: Optional[Mapping[str, str]]) -> bool:
    timeout = min(max(left, POLL_SECONDS), RESPONSE_TIMEOUT)
    return http_json(address, port, "GET", "/v2/health/ready", timeout, headers=keys.headers(key))[0] == 200


def wait_ready(engine: Docker, name: str, timeout: float) -> None:
    """Wait until the server is ready. Raises ContainerError at the time limit, or as soon as the container's process has ended."""
    deadline = time.monotonic() + timeout
    while True:
        found = _existing(engine, name)
        end_message = ending_message(found)
        if end_message:
            raise ContainerError(f"{end_message}: {ending_reason(engine, name) or 'its log is empty'}")
        at = endpoint(found)
        if at is None or _is_ready(*at, deadline - time.monotonic(), api_key(command_of(found), keys.FILE)):
            return
        if time.monotonic() >= deadline:
            raise ContainerError(f"{name} is not ready on {at[0]}:{at[1]} within {timeout:.0f} s. See `docker logs {name}`")
        time.sleep(POLL_SECONDS)


def guard(engine: Docker, name: str, settings: Mapping[str, Any]) -> stuck_load.Guard:
    """Return the guard that ends stuck loads in the container that currently has this name."""

    def first_process() -> Optional[int]:
        # The guard's thread must survive an engine that does not answer or answers with invalid data.
        with suppress(ContainerError, AttributeError, TypeError, ValueError):
            return int(((engine.inspect(name) or {}).get("State") or {}).get("Pid") or 0) or None
        return None

    # `settings` may come from a lease that an older version wrote without this limit. In this case, the default applies.
    return stuck_load.Guard(first_process, float(settings.get("stuck_load_limit", stuck_load.DEFAULT_LIMIT)))


def ending_message(container: Mapping[str, Any]) -> Optional[str]:
    """Return a message if the process of a container has ended for good or ends repeatedly, or None if it can still start."""
    state = container["State"]
    count = container.get("RestartCount") or 0
    if state["Status"] in ("exited", "dead"):
        return f"its process ended with exit code {state['ExitCode']}"
    if count >= MAX_RESTARTS:
        return f"its process ended repeatedly ({count} restarts), the last time with exit code {state['ExitCode']}"
    return None
