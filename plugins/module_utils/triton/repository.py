# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Load and unload models in a running server in the right order. After each load, check that the desired release is served."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import URL_UNSAFE, http_json, is_url_safe
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import plain
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import (
    describe_versions,
    in_sync,
    load_failures,
    read_served,
    steps_of,
    versions_in,
)

# Shortest and longest pause between two queries, in seconds. The first pauses are short, because most loads end soon.
MIN_PAUSE, MAX_PAUSE = 0.02, 0.2
# Time limit in seconds of a request that the server answers from memory
MEMORY_TIMEOUT = 5.0
# Seconds within which the index has to show the result of an accepted request
INDEX_TIMEOUT = 10.0


class Refused(Exception):
    """The error of a request that Triton refused, with Triton's reason."""


class Hung(Refused):
    """The error of a request that did not end in time."""


def in_order(names: Iterable[str], steps: Mapping[str, List[str]]) -> List[str]:
    """Return the names in alphabetical order, but each ensemble after its steps (the models that it calls).

    The steps that a server reports can form a cycle, in which the order does not matter.
    """
    requested = set(names)
    order: List[str] = []
    visited: Set[str] = set()
    # The models on the current path, each with its remaining siblings. Recursion would limit the length of a chain.
    path: List[Tuple[str, Iterator[str]]] = []
    for first in sorted(requested):
        remaining: Iterator[str] = iter([first])
        while True:
            step = next((name for name in remaining if name not in visited), None)
            if step is not None:
                visited.add(step)
                path.append((step, remaining))
                remaining = iter(sorted(set(steps.get(step, []))))
                continue
            if not path:
                break
            done, remaining = path.pop()
            order += [done] if done in requested else []
    return order


def short_of_memory(models: Mapping[str, Any], totals: List[int]) -> Set[str]:
    """Return the models whose old release, assumed as large as the new one, does not fit on an NPU beside all new releases."""
    shares = {name: model.get("memory") or [] for name, model in models.items()}
    free = [total - sum(memory[npu] for memory in shares.values() if npu < len(memory)) for npu, total in enumerate(totals)]
    return {name for name in models if any(share > left for share, left in zip(shares[name], free) if share)}


def pauses() -> Iterator[float]:
    """Yield the lengths of the pauses between queries, in seconds."""
    pause = MIN_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, MAX_PAUSE)


class Server(NamedTuple):
    """The repository API of one server. `timeout` is the limit of one load or unload in seconds.

    `run` runs a command in the server's container. With `run`, requests to load and unload use gRPC. Without `run`, they use HTTP.
    """

    address: str
    port: int
    timeout: float
    key: Optional[Mapping[str, str]] = None
    run: Optional[control.Runner] = None

    def served(self) -> Dict[str, Any]:
        """Return {model: {version: {"state", "reason", "release"}}}. Raises Refused if the server does not answer."""
        models_by_name = read_served({"address": self.address, "http_port": self.port, "key": self.key})
        if models_by_name is None:
            raise Refused(f"the server does not answer on port {self.port}")
        return models_by_name

    def steps(self, name: str, versions: Mapping[str, Any]) -> List[str]:
        """Return the models that a loaded ensemble calls, or an empty list for other models."""
        if not is_url_safe(name) or not versions_in(versions, "READY"):
            return []
        status, config = self._http("GET", f"/v2/models/{name}/config")
        return steps_of(config) if status == 200 else []

    def _http(self, method: str, resource: str, timeout: float = MEMORY_TIMEOUT, body: str = "") -> Tuple[int, Any]:
        return http_json(self.address, self.port, method, resource, timeout, body, keys.headers(self.key))

    def request(self, name: str, verb: str) -> None:
        """Send one request to `load` or `unload` a model. Raises Refused with Triton's message, or Hung."""
        started = time.monotonic()
        code, message = self._request(name, verb)
        if code in ("OK", "200"):
            return
        if code in (control.DEADLINE_EXCEEDED, "0") and time.monotonic() - started >= self.timeout:
            raise Hung(f"the {verb} did not end within {self.timeout:.0f} s: only a restart of the server ends it")
        if code == "0" or (code == control.UNAVAILABLE and "restricted" not in message):
            raise Refused(f"the server did not complete the request: {message}")
        raise Refused(f"status {code}: {plain(message)}")

    def _request(self, name: str, verb: str) -> Tuple[str, str]:
        """Send the request over gRPC or HTTP. Return (status code, message)."""
        if self.run:
            try:
                return control.send(self.run, verb, name, self.timeout, self.key)
            except control.ControlError as error:
                raise Refused(f"no response came from the server: {error}") from None
        if not is_url_safe(name):
            raise Refused(f"{URL_UNSAFE}, so no request can {verb} it. Restart the container, which loads the models in served/")
        status, answer = self._http("POST", f"/v2/repository/models/{name}/{verb}", self.timeout, "{}")
        return str(status), str(answer.get("error") if isinstance(answer, dict) else answer)[: control.MAX_MESSAGE]

    def unload(self, name: str) -> None:
        """Unload a model, and wait until no version is loaded any more. Raises Refused or Hung."""
        self.request(name, "unload")
        deadline, waits = time.monotonic() + self.timeout, pauses()
        while versions_in(self.served().get(name, {}), "READY", "UNLOADING", "LOADING"):
            if time.monotonic() >= deadline:
                raise Hung(f"the unload did not end within {self.timeout:.0f} s: only a restart of the server ends it")
            time.sleep(next(waits))

    def load(self, name: str, model: Mapping[str, Any]) -> None:
        """Load a model, and check that the desired release is served. Raises Refused or Hung."""
        self.request(name, "load")
        if self.wait_in_sync(name, model):
            return
        # Triton accepts a load but reloads nothing if the files are not newer than the loaded files, or if an earlier load request
        # contained a config for the model. After an unload, Triton always reads the files.
        self.unload(name)
        self.request(name, "load")
        if not self.wait_in_sync(name, model):
            actual = describe_versions(self.served().get(name, {})) or "no version"
            expected = f"expected release {(model['release'] or 'any')[:12]}. Does it read the files of the store?"
            raise Refused(f"the server accepted the load, but serves {actual}, {expected}")

    def wait_in_sync(self, name: str, model: Mapping[str, Any]) -> bool:
        """Wait until no version of a model is loading or unloading. Return True if the model is in sync. Raises Refused."""
        deadline, waits = time.monotonic() + INDEX_TIMEOUT, pauses()
        while True:
            versions = self.served().get(name, {})
            if in_sync(versions, model):
                return True
            failed, busy = load_failures(versions), versions_in(versions, "LOADING", "UNLOADING")
            if failed and not busy:
                raise Refused(plain("; ".join(failed)))
            if not busy or time.monotonic() >= deadline:
                return False
            time.sleep(next(waits))


class Change:
    """The loads and unloads that a server needs to serve the desired models, and their results."""

    def __init__(self, server: Server, models: Mapping[str, Any]) -> None:
        self.server = server
        self.models = models
        self.reasons: Dict[str, str] = {}
        self.hung: List[str] = []
        self.loaded: List[str] = []
        self.unloaded: List[str] = []
        served = server.served()
        self.surplus = sorted(name for name in set(served) - set(models) if versions_in(served[name], "READY", "LOADING"))
        outdated = [name for name in models if not in_sync(served.get(name, {}), models[name])]
        ready = {name for name in outdated if versions_in(served.get(name, {}), "READY")}
        unload_first = {name for name in ready if models[name].get("switch") == "unload_first"}
        if any(any(models[name].get("memory") or []) for name in ready - unload_first):
            devices = vendor_tool.in_process_order(vendor_tool.query_tool().get("devices") or [])
            unload_first |= ready & short_of_memory(models, [device["memory_total"] for device in devices])
        self.steps = {name: list(model.get("steps") or []) for name, model in models.items()}
        for name in self.surplus:
            self.steps[name] = server.steps(name, served[name])
        # If a step is unloaded, the ensembles that call it have to be unloaded and loaded, too.
        unloaded = unload_first | set(self.surplus)
        ensembles = {name for name, steps in self.steps.items() if set(steps) & unloaded and name in models}
        self.to_unload = in_order({*unloaded, *(ensembles & set(served))}, self.steps)[::-1]
        self.to_load = in_order({*outdated, *ensembles}, self.steps)

    def apply(self) -> None:
        """Unload, then load. Continue after a refused request, but not after a request that hangs."""
        for name in self.to_unload:
            if self._try(name, self.server.unload, name) and name in self.surplus:
                self.unloaded.append(name)
        for name in self.to_load:
            missing = sorted(set(self.steps[name]) & set(self.reasons))
            if missing:
                self.reasons[name] = f"not loaded, because its step {', '.join(missing)} was not loaded"
            elif self._try(name, self.server.load, name, self.models[name]):
                self.loaded.append(name)

    def _try(self, name: str, call: Any, *arguments: Any) -> bool:
        if self.hung:
            self.reasons.setdefault(name, f"not tried, because {self.hung[0]} hangs")
            return False
        try:
            call(*arguments)
        except Hung as error:
            self.hung.append(name)
            self.reasons[name] = str(error)
        except Refused as error:
            self.reasons[name] = str(error)
        return name not in self.reasons

    def why(self) -> str:
        """Return the refused models with the reasons, one line for each, or an empty string if no model was refused."""
        lines = "".join(f"\n  - model {name}: {why.strip()}" for name, why in self.reasons.items())
        return f"Triton on port {self.server.port} refused:{lines}" if lines else ""
