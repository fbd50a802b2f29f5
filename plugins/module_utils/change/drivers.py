# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a change, and the drivers for the two kinds of servers.

A server runs in a container of its own, or as a process in the container in which Ansible runs. In this file, a driver is the class
that starts, stops and reads one kind of server, and provides the client that requests loads. It is not the vendor's driver of the
cards. host_change.py has the other steps of a change.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
from abc import ABC, abstractmethod
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils.change import accepted_checks, cards, container, lease, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe, server
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import connection
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client, contexts
from ansible_collections.npufleet.triton.plugins.module_utils.process import state, supervised
from ansible_collections.npufleet.triton.plugins.module_utils.system import capture
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, log

# REPLACES: the actions of a plan that replace the server. STARTS: all actions that start a server.
REPLACES = frozenset({"create", "replace"})
STARTS = REPLACES | {"start", "restart"}


class Order(TypedDict):
    """The parameters of a change."""

    # Id of the change, with which a caller finds the result
    id: str
    host: str  # name in the inventory
    root: str  # project directory on the host
    run: str  # id of the run
    by: str  # person who started the run
    # Desired state of the concerns (parts of a host) `models` and `server`, in the form that the module host_state takes
    desired: Dict[str, Any]
    # Parameters of releases.apply, or None to keep the store and its links as they are
    store_change: Optional[Dict[str, Any]]
    # Serve the releases that the served/ links point to, even if the inventory differs
    serve_current: bool
    # Name and time limits of the container (container.py)
    container: Dict[str, Any]
    # A server that was started manually in the old container: {"pid", "options" of docker exec}, or empty
    manual_server: Dict[str, Any]
    # Interval in seconds at which a server in mode `poll` looks for new releases
    poll_seconds: int
    # The image, the input ("document") and the "program" of the client that sends the checks. None: no checks are sent
    checks: Optional[Dict[str, Any]]
    # Number of proven releases that are kept for each model
    keep: int
    # If not empty, the change is only rolled back, for this reason
    rollback_reason: str
    # Seconds that a proven change waits to be accepted, or 0 for no wait
    acceptance_timeout: float
    # Keep the change if nobody accepts or rejects it within `acceptance_timeout`
    keep_unanswered: bool
    # True if the run does nothing on the host after this change. In this case, the change releases the lease when it is kept.
    release_host: bool


class Driver(ABC):
    """The interface with which a change starts, stops and reads a server."""

    # The term for the server in the names of steps
    noun: str
    # Actions of a plan before which `prepare` is called
    prepares: FrozenSet[str]
    # The functions `read` and `diff` for the server (HostSide in concerns/registry.py)
    host_side: Any
    # Context manager that ends stuck loads
    guard: Any

    def __init__(self, order: Order) -> None:
        self.order = order
        self.root: str = order["root"]
        self.settings: Mapping[str, Any] = order["container"]
        self.server: Mapping[str, Any] = order["desired"]["server"]
        self.holder = lease.Holder(order["run"], order["by"])

    @abstractmethod
    def log_lines(self, since: float) -> List[str]:
        """Return the lines of the server's log since `since`, the time of the latest switch of releases."""

    @abstractmethod
    def existed(self, actual: Mapping[str, Any]) -> bool:
        """Return True if there was a server before the change, so that a rollback can restore it."""

    def serves_store(self, actual: Mapping[str, Any]) -> bool:
        """Return True if the previous server read its models from the store."""
        return True

    def busy_cards(self) -> List[str]:
        """Wait until the cards are free. Return the reasons why cards are still busy at the time limit."""
        return []

    @abstractmethod
    def prepare(self) -> List[str]:
        """Prepare the new server and prove that it sees the cards, while the old server still runs. Return what was done."""

    @abstractmethod
    def replace(self) -> List[str]:
        """Replace the old server by the new one. Until `keep` is called, `restore` can undo this. Return what was done."""

    @abstractmethod
    def start(self) -> bool:
        """Start the server. Return False if it was already running."""

    @abstractmethod
    def restart(self) -> None:
        """Stop the server and start it again."""

    @abstractmethod
    def restore(self) -> Optional[str]:
        """Restore the server that was proven last. Return what was done, or None if no server was replaced."""

    @abstractmethod
    def keep(self) -> bool:
        """Mark the server as proven. Return True if a replacement was still open."""

    def keep_checks(self) -> None:
        """Store the checks that the change has passed, for the proof of a later rollback. By default, do nothing."""
        return

    @abstractmethod
    def remove_unused_files(self) -> List[str]:
        """Remove files that the current server does not use. Return their paths."""

    def actual_server(self) -> Mapping[str, Any]:
        """Return the settings of the server with its actual `address`, `http_port` and `key`."""
        return {**self.server, "key": self.settings["key"]}

    @abstractmethod
    def runner(self) -> Optional[control.Runner]:
        """Return the function that runs the gRPC client for loads, or None if loads are requested over HTTP."""

    @abstractmethod
    def infer(self, checks: Mapping[str, Any], document: Mapping[str, Any], headers: Mapping[str, str]) -> Dict[str, Any]:
        """Run the checks and return their report."""

    def renew_probe(self) -> Optional[str]:
        """Run the probe again if its last result is a failure. Return a warning if the repeated probe has no result."""
        return None

    def mask_secrets(self, message: str) -> str:
        """Return a message without the secrets that a server may have printed into it."""
        return message


class ContainerDriver(Driver):
    """A server in a container of the host's engine."""

    noun, prepares, host_side = "container", REPLACES, server

    def __init__(self, order: Order, engine: Optional[container.Docker] = None) -> None:
        super().__init__(order)
        self.engine = engine or container.Docker()
        self.name: str = self.settings["name"]
        self.guard = container.guard(self.engine, self.name, self.settings)

    def log_lines(self, since: float) -> List[str]:
        return log.log_lines(self.engine, self.name, since)

    def existed(self, actual: Mapping[str, Any]) -> bool:
        return bool(actual.get("container") or actual.get("previous"))

    def serves_store(self, actual: Mapping[str, Any]) -> bool:
        # A container that was started manually may serve another model repository than the store.
        found = actual.get("container")
        return not found or f"--model-repository={self.root}/served" in (found.get("command") or [])

    def busy_cards(self) -> List[str]:
        return contexts.wait_until_free(self.name, self.settings["free_timeout"])

    def prepare(self) -> List[str]:
        cards.prove(self.engine, self.name, self.server["cards"])
        return []

    def replace(self) -> List[str]:
        return container.replace(self.engine, self.root, self.holder, self.name, self.settings, self.order["manual_server"])

    def start(self) -> bool:
        return container.start(self.engine, self.name, self.settings)

    def restart(self) -> None:
        container.restart(self.engine, self.name, self.settings)

    def restore(self) -> Optional[str]:
        return container.restore(self.engine, self.root, self.name, self.settings)

    def keep(self) -> bool:
        return container.keep(self.engine, self.root, self.name)

    def keep_checks(self) -> None:
        if self.order["checks"]:
            accepted_checks.write(self.root, self.order["checks"])

    def remove_unused_files(self) -> List[str]:
        # Each container has its own file with Triton's keys to object stores. The files of earlier containers are unused.
        paths = sorted(glob.glob(os.path.join(server.CREDENTIALS_HOME, "cloud-*.json")))
        unused = [path for path in paths if path != (self.server.get("credentials") or {}).get("path")]
        for path in unused:
            os.unlink(path)
        return unused

    def actual_server(self) -> Mapping[str, Any]:
        return connection.of_container(super().actual_server(), self.engine.inspect(self.name) or {})

    def runner(self) -> Optional[control.Runner]:
        return control.container_runner(self.name) if self.server["grpc"] else None

    def infer(self, checks: Mapping[str, Any], document: Mapping[str, Any], headers: Mapping[str, str]) -> Dict[str, Any]:
        return check_client.prove(checks["image"], document, checks["program"], headers)

    def renew_probe(self) -> Optional[str]:
        return probe.renew()


class ProcessDriver(Driver):
    """A server under a supervisor, in the container in which Ansible runs. `key` is the API key that an operator set, or empty."""

    noun, prepares, host_side = "server", STARTS, state

    def __init__(self, order: Order, key: str = "") -> None:
        super().__init__(order)
        self.key = key
        self.guard = supervised.Guard(self.root)

    def log_lines(self, since: float) -> List[str]:
        return self.mask_secrets(supervised.log_since(self.root, self.guard.since)).splitlines()

    def existed(self, actual: Mapping[str, Any]) -> bool:
        return bool((actual.get("process") or {}).get("command") or self._replaced_config())

    def prepare(self) -> List[str]:
        did = [f"wrote {state.key_path(self.root)}"] if state.write_key(self.server, self.key) else []
        did += ["made the directory of backends"] if state.make_backends(self.server) else []
        if self.server["cards"] is not None:
            environment = {**state.config(self.server)["environment"], "LC_ALL": "C", "LANGUAGE": "C"}
            done = capture([state.python_path(self.root), "-c", cards.PROGRAM], cards.TIMEOUT_SECONDS, env=environment)
            cards.judge(done.returncode, done.stderr + done.stdout, self.server["cards"], "this container")
        return did

    def replace(self) -> List[str]:
        previous = self._replaced_config() or supervised.running(self.root) or {}
        replacement.begin(self.root, self.holder, config=previous)
        stopped = supervised.stop(self.root)
        self._start(state.config(self.server))
        replacement.advance(self.root, replacement.SWAPPED)
        return [*(["stopped the server"] if stopped else []), "started the server"]

    def start(self) -> bool:
        if supervised.holder(self.root) is not None:
            return False
        self._start(state.config(self.server))
        return True

    def restart(self) -> None:
        found = supervised.running(self.root) or state.config(self.server)
        supervised.stop(self.root)
        self._start(found)

    def restore(self) -> Optional[str]:
        previous, running = self._replaced_config(), supervised.running(self.root)
        if not previous:
            # Without a previous server, the new server stays, and the next run proves it.
            if replacement.interrupted(self.root):
                replacement.advance(self.root, replacement.SWAPPED)
            return None
        if running != previous:
            supervised.stop(self.root)
            self._start(previous)
        replacement.close(self.root)
        return None if running == previous else "the previous server runs again"

    def keep(self) -> bool:
        found = replacement.read(self.root) is not None
        replacement.close(self.root)
        return found

    def remove_unused_files(self) -> List[str]:
        return state.remove_backends(self.root)

    def actual_server(self) -> Mapping[str, Any]:
        command = (supervised.running(self.root) or {}).get("command") or []
        return connection.of_process(super().actual_server(), command, state.key_path(self.root))

    def runner(self) -> Optional[control.Runner]:
        return self._run_grpc_client if self.server["grpc"] else None

    def infer(self, checks: Mapping[str, Any], document: Mapping[str, Any], headers: Mapping[str, str]) -> Dict[str, Any]:
        python = state.python_path(self.root)
        return check_client.prove(python, document, checks["program"], headers, check_client.run_in_process)

    def mask_secrets(self, message: str) -> str:
        return state.mask_secrets(self.server, message)

    def _replaced_config(self) -> Dict[str, Any]:
        """Return the configuration of the replaced server, or {} if no replacement is open."""
        return dict((replacement.read(self.root) or {}).get("config") or {})

    def _start(self, config: Mapping[str, Any]) -> None:
        supervised.start(self.root, config, self.server["supervisor"]["archive"], state.python_path(self.root))

    def _run_grpc_client(self, command: List[str], seconds: float) -> Tuple[int, str]:
        """Run the gRPC client with the Python that has the SDK. The client uses the gRPC port of the inventory."""
        request = json.dumps({**json.loads(command[3]), "port": self.server["grpc_port"]})
        try:
            done = capture([state.python_path(self.root), *command[1:3], request], seconds)
        except subprocess.TimeoutExpired as error:
            raise OSError(str(error)) from None
        return done.returncode, done.stdout + done.stderr
