# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The observation of a host by its watchdog: container, metrics, index of models, and the processes of the models."""

from __future__ import annotations

import collections
import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import Docker
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import TooLong
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api, keys, metrics, stubs, stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.watch.judge import Evidence, Page
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Metrics
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Watchdog as Settings

# Time limit in seconds for all requests for model configs
CONFIG_SECONDS = 60.0
# Largest size of a response in bytes
MAX_SIZE = 16 << 20
# Largest number of instances of one instance group
MAX_INSTANCES = 4096


class Failure(Exception):
    """An observation or action that failed, with the reason."""

    next_step = "See `systemctl status docker`"


class TooLarge(Failure):
    """A response that is too large to read. The watchdog does nothing, because a restart would not make the response smaller."""

    next_step = "Find out which model makes the response so large. The server is not watched until then"


class Served(NamedTuple):
    """A READY version of a model whose instances run in processes of their own."""

    model: str
    version: str
    file: str
    instances: Tuple[str, ...]

    def runs(self, stub: stubs.Stub) -> bool:
        """Return True if a stub runs the code of this version."""
        return stub.code.endswith(f"/{self.model}/{self.version}/{self.file}")


class Ready(NamedTuple):
    """The READY models: versions with processes, ensembles, and models whose config the server did not return."""

    served: List[Served]
    ensembles: Tuple[str, ...]
    unknown: Set[str]


class Observer:
    """A read-only view of the host, its server and its models."""

    def __init__(self, settings: Union[Settings, Metrics], engine: Optional[Docker] = None) -> None:
        self.settings = settings
        self.engine = engine or Docker()

    def observe(self) -> Evidence:
        """Observe the host once, and return the evidence. Raises Failure if the engine does not answer."""
        now = time.monotonic()
        facts = self.container()
        state = (facts or {}).get("State") or {}
        if not facts or state.get("Status") != "running":
            return Evidence(now, None, 0.0, None, None, {})
        init = int(state["Pid"])
        started = clock.process_started(init)
        # The engine reports the start as a time of day, which can be set back. So the age comes from /proc.
        age = 0.0 if started is None else clock.uptime() - started
        page = self.metrics()
        index = self.index() if page is not None else None
        ready = self.ready(index or {})
        nameless = tuple(sorted(model for model in index or {} if not http_api.is_url_safe(model)))
        dead, loads = self.missing_instances(init, ready.served), stuck_load.take_sample(init)
        return Evidence(now, facts["Id"] + state["StartedAt"], age, page, index, dead, ready.ensembles, nameless, loads)

    def container(self) -> Optional[Dict[str, Any]]:
        """Return `docker inspect` of the container, or None if it does not exist. Raises Failure if the engine does not answer."""
        try:
            return self.engine.container(self.settings.container)
        except OSError as error:
            raise Failure(f"the engine does not answer ({error})") from None

    def first_process(self) -> Optional[int]:
        """Return the process ID of the container's first process, or None if the container does not run."""
        try:
            return int((self.container() or {})["State"]["Pid"]) or None
        except (Failure, KeyError):
            return None

    def request(self, method: str, resource: str, port: Optional[int] = None) -> Tuple[int, bytes]:
        """Return (status, body) of a response of the server, with status 0 if no response came. Raises TooLarge."""
        settings = self.settings
        try:
            # The key is read for each request, because it can change. The metrics need no key.
            headers = keys.headers(settings.key) if port is None else {}
            address = settings.address if port is None else settings.metrics_address or settings.address
            port = settings.http_port if port is None else port
            return http_api.http_bytes(address, port, method, resource, headers=headers, size=MAX_SIZE)
        except TooLong:
            raise TooLarge(f"the response to {method} {resource} has more than {MAX_SIZE} bytes") from None
        except OSError:
            return 0, b""

    def metrics(self) -> Optional[Page]:
        """Return the server's metrics, {} if it offers none, or None if it does not answer. Raises TooLarge."""
        if self.settings.metrics_port is None:
            return {} if self.request("GET", "/v2/health/live")[0] else None
        status, body = self.request("GET", "/metrics", self.settings.metrics_port)
        return parse_page(body.decode("utf-8", "replace")) if status == 200 else None

    def index(self) -> Optional[Dict[str, Dict[str, str]]]:
        """Return {model: {version: state}} from the index, or None if the server does not return its index. Raises TooLarge."""
        status, body = self.request("POST", "/v2/repository/index")
        entries = http_api.parse_body(body, MAX_SIZE) if status == 200 else None
        if not isinstance(entries, list):
            return None
        index: Dict[str, Dict[str, str]] = {}
        for entry in entries:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                index.setdefault(entry["name"], {})[str(entry.get("version", "-"))] = str(entry.get("state", ""))
        return index

    def ready(self, index: Mapping[str, Mapping[str, str]]) -> Ready:
        """Return the READY models of an index. Raises Failure if the server takes too long to return their configs."""
        served, ensembles, unknown = [], [], set()
        deadline = time.monotonic() + CONFIG_SECONDS
        for model, versions in index.items():
            for version, state in versions.items():
                if state != "READY" or not version.isdigit() or not http_api.is_url_safe(model):
                    continue
                if time.monotonic() >= deadline:
                    raise Failure(f"the server did not return its {len(index)} models within {CONFIG_SECONDS:.0f} s")
                status, body = self.request("GET", f"/v2/models/{model}/versions/{version}/config")
                config = http_api.parse_body(body, MAX_SIZE) if status == 200 else None
                if not isinstance(config, dict):
                    unknown.add(model)
                elif config.get("platform") == "ensemble":
                    ensembles.append(model)
                # In the python backend, and in backends written in Python, each instance is a process.
                elif config.get("backend") == "python" or str(config.get("runtime")).endswith(".py"):
                    file = str(config.get("default_model_filename") or "model.py")
                    served.append(Served(model, version, file, tuple(instances(config))))
        return Ready(served, tuple(ensembles), unknown)

    def processes(self, init: int, model: str) -> Set[int]:
        """Return the IDs of a model's processes (stubs). Leave out processes that could also belong to another model."""
        ready = self.ready(self.index() or {})
        living = stubs.running_stubs(init)
        assigned, unassigned = self._assign_processes(living, ready.served)
        own_versions = [entry for entry in ready.served if entry.model == model]
        pids = {pid for entry in own_versions for pid in assigned.get(entry, ())}
        names = {name for entry in own_versions if entry not in assigned for name in entry.instances}
        other_models = [entry for entry in ready.served if entry.model != model and entry not in assigned]
        # A model whose config the server did not return can have instances of any name.
        if ready.unknown - {model} or any(names & set(entry.instances) for entry in other_models):
            return pids
        return pids | {pid for pid in unassigned if living[pid].instance in names}

    def missing_instances(self, init: int, ready: List[Served]) -> Dict[str, List[str]]:
        """Return {model: names of its instances that have no process}."""
        living = stubs.running_stubs(init) if ready else {}
        assigned, unassigned = self._assign_processes(living, ready)
        process_counts = collections.Counter(living[pid].instance for pid in unassigned)
        expected_counts = collections.Counter(name for entry in ready if entry not in assigned for name in entry.instances)
        dead: Dict[str, Set[str]] = {}
        for entry in ready:
            if entry in assigned:
                running = collections.Counter(living[pid].instance for pid in assigned[entry])
                missing = set(collections.Counter(entry.instances) - running)
            else:
                missing = {name for name in entry.instances if expected_counts[name] > process_counts[name]}
            dead.setdefault(entry.model, set()).update(missing)
        return {model: sorted(names) for model, names in dead.items() if names}

    def _assign_processes(self, living: Mapping[int, stubs.Stub], ready: List[Served]) -> Tuple[Dict[Served, Set[int]], Set[int]]:
        """Return {version: its processes} for versions whose processes have a known path, and the processes without such a path.

        Triton copies code from an object store to a local directory. The path of such a copy does not contain the model's name, so
        the processes that run the copy cannot be assigned.
        """
        home = self.settings.root + "/served/"
        found = {entry: {pid for pid, stub in living.items() if entry.runs(stub)} for entry in ready}
        own = {entry: pids for entry, pids in found.items() if pids or os.path.lexists(home + entry.model)}
        assigned = {pid for pids in own.values() for pid in pids}
        return own, {pid for pid, stub in living.items() if pid not in assigned and not stub.code.startswith(home)}


def parse_page(text: str) -> Page:
    """Return a page of metrics as {name: [(labels, value)]}. Raises TooLarge."""
    page: Page = {}
    try:
        for name, labels, value in metrics.samples(text):
            page.setdefault(name, []).append((labels, value))
    except ValueError as error:
        raise TooLarge(str(error)) from None
    return page


def instances(config: Mapping[str, Any]) -> List[str]:
    """Return the names of a model's instances. Groups on GPUs are left out, because their instances have other names."""
    groups = config.get("instance_group")
    return [
        "{}_{}".format(group.get("name"), number)
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict) and group.get("kind") in ("KIND_CPU", "KIND_MODEL")
        for number in range(_count(group.get("count")))
    ]


def _count(number: Any) -> int:
    return number if isinstance(number, int) and number <= MAX_INSTANCES else 0
