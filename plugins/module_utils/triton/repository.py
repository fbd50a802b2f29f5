# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads of models in a running server, in the right order, each proven by the release that the server then serves."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import NAMELESS, can_be_asked, http_json
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import plain
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served, steps_of

# Shortest and longest seconds between two queries. The pauses begin short, because most loads end soon.
SOON, POLL_SECONDS = 0.02, 0.2
# Limit of the characters of an error message
WORDS = 4000
# Seconds for a response that the server only takes from its memory
ANSWER = 5.0
# Seconds after an accepted request within which the index has to show its result
SETTLE = 10.0


class Refused(Exception):
    """The error of a request that Triton refused, with Triton's reason."""


class Hung(Refused):
    """The error of a request that did not end in time."""


def good(versions: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Return True if exactly the desired versions are READY with the desired release, and no other version is loaded.

    A model that Triton itself reads from an object store has no release. One READY version of it is enough.
    """
    if model["release"] is None:
        return any(version["state"] == "READY" for version in versions.values())
    right = {
        number for number, version in versions.items() if version["state"] == "READY" and version["release"] == model["release"]
    }
    loaded = {number for number, version in versions.items() if version["state"] in ("READY", "LOADING")}
    return right == set(model["versions"]) and not loaded - right


def in_order(names: Iterable[str], steps: Mapping[str, List[str]]) -> List[str]:
    """Return the names sorted, but each ensemble after its steps. The steps that a server reports may form a cycle."""
    wanted = set(names)
    order: List[str] = []
    seen: Set[str] = set()
    # The models on the current path, each with its remaining siblings. A chain may be longer than Python's limit of recursion.
    path: List[Tuple[str, Iterator[str]]] = []
    for first in sorted(wanted):
        waiting: Iterator[str] = iter([first])
        while True:
            step = next((name for name in waiting if name not in seen), None)
            if step is not None:
                seen.add(step)
                path.append((step, waiting))
                waiting = iter(sorted(set(steps.get(step, []))))
                continue
            if not path:
                break
            done, waiting = path.pop()
            order += [done] if done in wanted else []
    return order


def short_of_memory(models: Mapping[str, Any], totals: List[int]) -> Set[str]:
    """Return the models whose old release does not fit on an NPU next to all new models. It counts as large as the new one."""
    needed = [
        sum((model.get("memory") or [])[npu] for model in models.values() if npu < len(model.get("memory") or []))
        for npu in range(len(totals))
    ]
    return {
        name
        for name, model in models.items()
        if any(
            share and npu < len(totals) and needed[npu] + share > totals[npu] for npu, share in enumerate(model.get("memory") or [])
        )
    }


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each next query."""
    pause = SOON
    while True:
        yield pause
        pause = min(2 * pause, POLL_SECONDS)


class Server:
    """The repository API of one server. With `run`, which runs a command in the container, requests use gRPC, else HTTP."""

    def __init__(
        self, address: str, port: int, timeout: float, key: Optional[Mapping[str, str]] = None, run: Optional[control.Runner] = None
    ) -> None:
        self.address = address
        self.port = port
        self.timeout = timeout
        self.key = key
        self.run = run

    def served(self) -> Dict[str, Any]:
        """Return {model: {version: {"state", "reason", "release"}}}. Raises Refused if the server does not answer."""
        found = read_served({"address": self.address, "http_port": self.port, "key": self.key})
        if found is None:
            raise Refused(f"the server does not answer on port {self.port}")
        return found

    def steps(self, name: str, versions: Mapping[str, Any]) -> List[str]:
        """Return the models that a loaded ensemble calls, an empty list for other models."""
        if not can_be_asked(name) or not any(version["state"] == "READY" for version in versions.values()):
            return []
        status, config = self._http("GET", f"/v2/models/{name}/config")
        return steps_of(config) if status == 200 else []

    def _http(self, method: str, resource: str, timeout: float = ANSWER, body: str = "") -> Tuple[int, Any]:
        return http_json(self.address, self.port, method, resource, timeout, body, keys.headers(self.key))

    def ask(self, name: str, verb: str) -> None:
        """Send one request to load or unload a model. Raises Refused with Triton's message, or Hung."""
        began = time.monotonic()
        code, words = self._by_grpc(name, verb) if self.run else self._by_http(name, verb)
        if code in ("OK", "200"):
            return
        if code in (control.DEADLINE, "0") and time.monotonic() - began >= self.timeout:
            raise Hung(f"the {verb} did not end within {self.timeout:.0f} s: only a restart of the server ends it")
        if code == "0" or (code == control.GONE and "restricted" not in words):
            raise Refused(f"the server broke off: {words}")
        raise Refused(f"status {code}: {plain(words)}")

    def _by_grpc(self, name: str, verb: str) -> Tuple[str, str]:
        try:
            return control.ask(self.run, verb, name, self.timeout, self.key) if self.run else ("0", "")
        except control.ControlError as error:
            raise Refused(f"no request reached the server: {error}") from None

    def _by_http(self, name: str, verb: str) -> Tuple[str, str]:
        if not can_be_asked(name):
            raise Refused(f"{NAMELESS}, so that no request can {verb} it. Restart the container, which loads only what is linked")
        status, answer = self._http("POST", f"/v2/repository/models/{name}/{verb}", self.timeout, "{}")
        return str(status), str(answer.get("error") if isinstance(answer, dict) else answer)[:WORDS]

    def unload(self, name: str) -> None:
        """Unload a model, and wait until no version is loaded any more. Raises Refused or Hung."""
        self.ask(name, "unload")
        deadline, waits = time.monotonic() + self.timeout, pauses()
        while any(entry["state"] in ("READY", "UNLOADING", "LOADING") for entry in self.served().get(name, {}).values()):
            if time.monotonic() >= deadline:
                raise Hung(f"the unload did not end within {self.timeout:.0f} s: only a restart of the server ends it")
            time.sleep(next(waits))

    def load(self, name: str, model: Mapping[str, Any]) -> None:
        """Load a model, and prove that the desired release is served. Raises Refused or Hung."""
        self.ask(name, "load")
        if self.settled(name, model):
            return
        # Triton accepts a load and reloads nothing if the files are not newer, or if the config came with an earlier request.
        self.unload(name)
        self.ask(name, "load")
        if not self.settled(name, model):
            raise Refused(
                "the server accepted the load and serves {}, expected release {}. Does it read the files of the store?".format(
                    self.words(name), (model["release"] or "any")[:12]
                )
            )

    def settled(self, name: str, model: Mapping[str, Any]) -> bool:
        """Wait until no version of a model is loading or unloading. Return True if the model is in sync. Raises Refused."""
        deadline, waits = time.monotonic() + SETTLE, pauses()
        while True:
            versions = self.served().get(name, {})
            if good(versions, model):
                return True
            failed = [
                version["reason"]
                for version in versions.values()
                if version["state"] == "UNAVAILABLE" and version["reason"] not in ("", "unloaded")
            ]
            moving = any(version["state"] in ("LOADING", "UNLOADING") for version in versions.values())
            if failed and not moving:
                raise Refused(plain("; ".join(failed)))
            if not moving or time.monotonic() >= deadline:
                return False
            time.sleep(next(waits))

    def words(self, name: str) -> str:
        """Return the served versions of a model, with state and release, as text."""
        versions = self.served().get(name, {})
        return ", ".join(
            f"version {number} {version['state']} {(version['release'] or 'no release')[:12]}"
            for number, version in sorted(versions.items())
        )


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
        self.gone = sorted(
            name
            for name in set(served) - set(models)
            if any(entry["state"] in ("READY", "LOADING") for entry in served[name].values())
        )
        self.stale = [name for name in models if not good(served.get(name, {}), models[name])]
        there = {name for name in self.stale if any(entry["state"] == "READY" for entry in served.get(name, {}).values())}
        first = {name for name in there if models[name].get("switch") == "unload_first"}
        if any(any(models[name].get("memory") or []) for name in there - first):
            devices = vendor_tool.in_process_order(vendor_tool.query_tool().get("devices") or [])
            first |= there & short_of_memory(models, [device["memory_total"] for device in devices])
        self.steps = {name: list(model.get("steps") or []) for name, model in models.items()}
        for name in self.gone:
            self.steps[name] = server.steps(name, served[name])
        # If a step is unloaded, the ensembles that call it have to be unloaded and loaded, too.
        above = {name for name, steps in self.steps.items() if set(steps) & (first | set(self.gone)) and name in models}
        self.down = in_order({*first, *self.gone, *(above & set(served))}, self.steps)[::-1]
        self.up = in_order({*self.stale, *above}, self.steps)
        self.unchanged = sorted(set(models) - set(self.up))

    def apply(self) -> None:
        """Unload, then load. A refused request does not stop the remaining ones, but a request that hangs does."""
        for name in self.down:
            if self._try(name, self.server.unload, name) and name in self.gone:
                self.unloaded.append(name)
        for name in self.up:
            missing = sorted(set(self.steps[name]) & set(self.reasons))
            if missing:
                self.reasons[name] = f"not loaded, because its step {', '.join(missing)} was not"
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
        """Return the refused models with the reasons, one line for each; an empty string if no model was refused."""
        lines = "".join(f"\n  - model {name}: {why.strip()}" for name, why in self.reasons.items())
        return f"Triton on port {self.server.port} refused:{lines}" if lines else ""
