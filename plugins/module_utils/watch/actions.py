# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The watchdog's actions on its host: reload a model, end a stuck load, restart the container, finish an interrupted change.

A stub is the process of a model instance. In a stuck load, the server and a stub wait for each other.
"""

from __future__ import annotations

# This file is part of a program, which has no run_command of a module. pylint: disable=ansible-bad-function
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError, Docker
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import contexts
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock, locks
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, http_api, repository, stubs, stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import version_of
from ansible_collections.npufleet.triton.plugins.module_utils.watch import journal
from ansible_collections.npufleet.triton.plugins.module_utils.watch.evidence import Failure, Observer
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Watchdog as Settings

# Reasons why the watchdog does nothing
MAINTENANCE, DEPLOYMENT = "maintenance", "deployment"
# Seconds between two attempts to resume a change. Each attempt starts a Python process, so attempts must be rare.
RESUME_INTERVAL = 10.0
# A run counts as active if it renewed its lease of the host (change/lease.py) less than this many seconds ago
ACTIVE_SECONDS = 60.0
# Up to this version, Triton itself restarts a stub that has ended, and the whole server ends if a stub is killed during a request.
LAST_TO_RESTART_STUBS = (2, 46)
# Time limits in seconds: for the unload of a model, and for the end of its processes after the unload
UNLOAD_TIMEOUT, END_TIMEOUT = 5.0, 10.0
POLL_SECONDS = 0.2


class Host(Observer):
    """The host of the server, with the actions of the watchdog on models and container."""

    settings: Settings

    def __init__(self, settings: Settings, engine: Optional[Docker] = None) -> None:
        super().__init__(settings, engine)
        self._resume_at = 0.0

    def paused(self) -> Optional[str]:
        """Return the reason why the watchdog must do nothing, or None if it may act."""
        if os.path.exists(os.path.join(self.settings.root, lease.MAINTENANCE_FILE)):
            return MAINTENANCE
        return DEPLOYMENT if os.path.exists(os.path.join(self.settings.root, lease.LEASE)) else None

    def resume(self) -> Optional[str]:
        """Finish the change of an interrupted run. Return the reason why the watchdog must do nothing, or None if it may act."""
        if time.monotonic() < self._resume_at or self._run_is_active():
            return DEPLOYMENT
        command = [sys.executable, "-IS", library.path(), "resume", self.settings.root]
        done = subprocess.run(command, capture_output=True, check=False, env=untranslated())
        for line in (done.stdout + done.stderr).decode("utf-8", "replace").splitlines():
            print(line, flush=True)
        busy = done.returncode == library.BUSY
        self._resume_at = time.monotonic() + RESUME_INTERVAL if busy else 0.0
        return DEPLOYMENT if busy else self.paused()

    def _run_is_active(self) -> bool:
        """Return True if the run that has the lease of the host has renewed the lease recently."""
        if os.path.exists(os.path.join(self.settings.root, replacement.REPLACEMENT)):
            # A replacement of the container is unfinished. The host can be without a server, so the watchdog must act now.
            return False
        current = lease.read(self.settings.root)
        age = clock.since(current) if current else None
        return age is not None and age < ACTIVE_SECONDS

    @contextmanager
    def block_deployments(self) -> Iterator[None]:
        """Prevent runs from taking the lease of the host within the `with` block."""
        with locks.open_lock(lease.WATCHDOG) as lock:
            locks.take(lock, float("inf"))
            yield

    # Models

    def version(self) -> Tuple[int, ...]:
        """Return the server's version, such as (2, 46). An unknown version is (0, 0) and counts as old."""
        status, body = self.request("GET", "/v2")
        numbers = (version_of(http_api.parse_body(body)) or "").split(".") if status == 200 else []
        return tuple(map(int, numbers[:2])) if len(numbers) > 1 and all(part.isdigit() for part in numbers[:2]) else (0, 0)

    def reload(self, model: str) -> str:
        """Unload a model, kill its remaining processes, and load the model. Return a description for the log."""
        init = self.first_process()
        if init is None:
            raise Failure("the container is gone")
        before = self.processes(init, model)
        # Triton ignores a request to load a model that is already loaded.
        self.control(model, "unload", UNLOAD_TIMEOUT)
        left = _remaining(init, before)
        killed = ""
        # Up to the version LAST_TO_RESTART_STUBS, the kill of a stub during a request ends the whole server.
        if left and self.version() > LAST_TO_RESTART_STUBS:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            remaining = _remaining(init, left)
            if remaining:
                raise Failure("its process {} does not end, although it was killed".format(", ".join(map(str, sorted(remaining)))))
            killed = f", killed {len(left)} of its processes that had not ended,"
        self.load(model)
        return f"unloaded it{killed} and loaded it"

    def load(self, model: str) -> str:
        """Load a model, and check that it is READY. A stuck load is ended and repeated."""

        def report(wait: stuck_load.Wait) -> None:
            journal.log(f"{wait} and the server wait for each other. Action: end it and load again", journal.WARNING)

        with stuck_load.Guard(self.first_process, self.settings.stuck_load_limit, log=report) as guard:
            while True:
                ended_before = len(guard.ended_loads)
                journal.notify("WATCHDOG=1")
                try:
                    self.control(model, "load", self.settings.load_timeout)
                    break
                except Failure:
                    if not guard.repeats(ended_before):
                        raise
        states = (self.index() or {}).get(model) or {}
        if "READY" not in states.values():
            raise Failure(f"it is {', '.join(states.values()) or 'missing from the index'} after the load")
        return "loaded it again"

    def control(self, model: str, verb: str, timeout: float) -> None:
        """Send a request to load or unload a model. Raises Failure if Triton refuses the request."""
        settings = self.settings
        run = control.container_runner(settings.container) if settings.grpc else None
        try:
            repository.Server(settings.address, settings.http_port, timeout, settings.key, run).request(model, verb)
        except repository.Refused as reason:
            raise Failure(f"Triton would not {verb} it ({' '.join(str(reason).split())[:400]})") from None

    def end_stuck_loads(self, waits: Iterable[stuck_load.Wait]) -> str:
        """Kill the stubs of stuck loads. Raises Failure if none of these loads is stuck any more."""
        init = self.first_process()
        killed = [str(wait) for wait in waits if init and stuck_load.end(wait, init)]
        if not killed:
            raise Failure("the loads ended by themselves")
        return f"ended {', '.join(killed)}"

    def touch_model(self, model: str) -> str:
        """Give the files of a model a newer time stamp, so that a server that polls loads it again."""
        home = f"{self.settings.root}/served/{model}"
        try:
            for path in (home, *(f"{home}/{entry}" for entry in os.listdir(home) if entry.isdigit())):
                os.utime(path)
        except OSError as error:
            raise Failure(f"the time stamp of {error.filename} could not be changed ({error.strerror})") from None
        return "gave its files a newer time stamp"

    # The container

    def stop(self, identity: str) -> None:
        try:
            self.engine.stop(identity, self.settings.stop_timeout)
        except ContainerError as error:
            raise Failure(f"the engine could not stop the container ({error}): reboot the host") from None

    def start(self, identity: str) -> None:
        try:
            self.engine.start(identity)
        except ContainerError as error:
            raise Failure(f"the engine could not start the container: {error}") from None

    def foreign_contexts(self, init: int) -> List[Tuple[int, str]]:
        """Return (process ID, process name) of each process outside the container that has a context on a card."""
        holders = vendor_tool.query_tool().get("holders") or []
        return [
            _context(holder)
            for holder in holders
            if not contexts.owner_of(holder)["gone"] and not stubs.same_container(holder["pid"], init)
        ]

    def wait_for_cards(self, foreign: List[Tuple[int, str]]) -> bool:
        """Wait until the cards have only `foreign` contexts. Return False if this takes more than `cards_timeout` seconds.

        A card can hang if a server starts while a context ends. While the vendor's tool fails, the contexts are unknown, so the
        wait continues. On a host without this tool, return True at once.
        """
        deadline = time.monotonic() + self.settings.cards_timeout
        while vendor_tool.find_tool() is not None:
            holders = vendor_tool.query_tool().get("holders")
            if holders is not None and {_context(holder) for holder in holders} <= set(foreign):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def _context(holder: Mapping[str, object]) -> Tuple[int, str]:
    return int(str(holder["pid"])), str(holder["process"])


def _remaining(init: int, pids: Iterable[int]) -> Set[int]:
    """Wait at most END_TIMEOUT seconds for stubs to end, and return the IDs of those that still run."""
    deadline = time.monotonic() + END_TIMEOUT
    left = set(pids) & set(stubs.running_stubs(init))
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        left &= set(stubs.running_stubs(init))
    return left
