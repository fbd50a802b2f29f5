# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The rules of the watchdog, which turn evidence into findings. They read no files and send no requests."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.metrics import Labels
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Watchdog as Settings

# Triton's reasons for failures of requests that the model never executed. After other failures, the model counts as working.
NEVER_RUN = ("REJECTED", "CANCELED")
# Counters that grow when a model executes requests
WORK_COUNTERS = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
# The name of the rule for stuck loads
STUCK = "stuck"

Page = Dict[str, List[Tuple[Labels, float]]]


class Evidence(NamedTuple):
    """The facts of one observation of the host."""

    at: float  # Time of `time.monotonic`
    # Container ID and start time, which together identify one run of the container, or None if the container does not run
    container_run: Optional[str]
    age: float  # Seconds since the container started
    # The metrics of the server, or None if the server does not answer
    metrics: Optional[Page]
    # {model: {version: state}}, or None if the server does not return its index
    models: Optional[Dict[str, Dict[str, str]]]
    # {model: names of its instances that have no process}
    dead: Dict[str, List[str]]
    ensembles: Tuple[str, ...] = ()
    # Models whose names cannot be a part of an HTTP request
    nameless: Tuple[str, ...] = ()
    # A sample: the stubs (processes of model instances) and the server that wait for each other in a load
    loads: Optional[stuck_load.Sample] = None


class Finding(NamedTuple):
    """A condition that has lasted longer than its limit. `model` is None if the condition concerns the whole server."""

    rule: str
    model: Optional[str]
    actual: str
    expected: str
    # The pairs of processes that wait for each other, if the rule is STUCK
    waits: Tuple[stuck_load.Wait, ...] = ()

    def __str__(self) -> str:
        prefix = f"model {self.model}: " if self.model else ""
        return f"{prefix}{self.actual}, expected {self.expected}"


class Judge:
    """The judge of the watchdog. It applies the rules, and remembers since when each condition has been true."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._container_run: Optional[str] = None
        self._has_answered = False
        self._since: Dict[Tuple[str, ...], float] = {}
        self._checked_conditions: Set[Tuple[str, ...]] = set()
        self._work: Dict[Tuple[str, str], Tuple[float, ...]] = {}
        # {(model, version): number of lost requests}. If the server reloads a model but cannot end a hanging process of that model,
        # the requests of this process are lost. Triton's gauge of pending requests continues to count them.
        self._lost_requests: Dict[Tuple[str, str], float] = {}
        # The model that was reloaded since the last observation
        self._reloaded: Optional[str] = None
        self._loads = stuck_load.History(settings.stuck_load_limit)

    def forget(self, reloaded: Optional[str] = None) -> None:
        """Forget since when the conditions have been true.

        `reloaded` is a model that was reloaded. Its requests that are pending at the next observation count as lost.
        """
        self._since.clear()
        self._work.clear()
        self._loads.forget()
        self._reloaded = reloaded or self._reloaded

    def judge(self, evidence: Evidence) -> List[Finding]:
        """Return the conditions that have lasted longer than their limits, the most certain one first."""
        if evidence.container_run != self._container_run:
            self.forget()
            self._lost_requests.clear()
            self._container_run, self._has_answered, self._reloaded = evidence.container_run, False, None
        if evidence.container_run is None:
            return []
        stuck = self._loads.add(evidence.loads) if evidence.loads else []
        if stuck:
            # The processes of a stuck load cannot continue, so the other rules are not applied.
            processes = ", ".join(map(str, stuck))
            actual = f"{processes} and the server waiting for each other for {self._settings.stuck_load_limit:g} s"
            return [Finding(STUCK, None, actual, "a load that makes progress", tuple(stuck))]
        self._checked_conditions.clear()
        silent = self._lasting(("silent",), evidence.metrics is None, evidence.at)
        if evidence.metrics is None:
            starting = evidence.age <= self._settings.start_timeout and not self._has_answered
            if silent <= self._settings.silence_timeout or starting:
                return []
            actual = f"a container that runs, and a server that has not answered for {silent:.0f} s"
            return [Finding("silent", None, actual, "answers")]
        self._has_answered = True
        findings = self._faults(evidence) + self._stubs(evidence) + self._stalls(evidence)
        # Drop conditions that were not checked now, such as conditions of an unloaded model.
        self._since = {key: since for key, since in self._since.items() if key in self._checked_conditions}
        return findings

    def _lasting(self, key: Tuple[str, ...], holds: bool, now: float) -> float:
        """Return the seconds for which a condition has held at every observation."""
        if not holds:
            self._since.pop(key, None)
            return 0.0
        self._checked_conditions.add(key)
        return now - self._since.setdefault(key, now)

    def _faults(self, evidence: Evidence) -> List[Finding]:
        """Return a finding for each model with NPUs that do not answer according to the metrics of the backend."""
        silent: Dict[str, List[str]] = {}
        longest = 0.0
        for labels, value in (evidence.metrics or {}).get("rbln_device_fault", []):
            key = ("fault", *(labels.get(name, "") for name in ("model", "version", "instance", "npu")))
            seconds = self._lasting(key, value > 0, evidence.at)
            if seconds > self._settings.fault_timeout:
                longest = max(longest, seconds)
                silent.setdefault(labels.get("model", ""), []).append("NPU {} of {}".format(labels.get("npu", "?"), key[3]))
        findings = []
        for model, npus in sorted(silent.items()):
            actual = f"{', '.join(sorted(npus))} without an answer for {longest:.0f} s"
            findings.append(Finding("fault", model, actual, "NPUs that answer"))
        return findings

    def _stubs(self, evidence: Evidence) -> List[Finding]:
        """Return a finding for each model with instances whose process is gone. Triton's health probes do not show this."""
        findings = []
        for model, instances in sorted(evidence.dead.items()):
            seconds = self._lasting(("stub", model), True, evidence.at)
            if seconds > self._settings.process_timeout:
                actual = "no process of {} for {:.0f} s".format(", ".join(instances), seconds)
                findings.append(Finding("stub", model, actual, "a process of every instance"))
        return findings

    def _stalls(self, evidence: Evidence) -> List[Finding]:
        """Return a finding for each model whose requests wait without an answer. For ensembles, the steps are judged instead."""
        page = evidence.metrics or {}
        findings = []
        for labels, pending in page.get("nv_inference_pending_request_count", []):
            model, version = labels.get("model", ""), labels.get("version", "")
            key = (model, version)
            if self._reloaded == model:
                self._lost_requests[key] = pending
            self._lost_requests[key] = min(self._lost_requests.get(key, 0.0), pending)
            work = self._work_of(page, model, version)
            stalled = pending > self._lost_requests[key] and self._work.get(key) == work and model not in evidence.ensembles
            # A stall begins with two observations in a row that have the same counters.
            seconds = self._lasting(("stall", model, version), stalled, evidence.at)
            self._work[key] = work
            if seconds > self._settings.stall_timeout:
                actual = f"{pending - self._lost_requests[key]:.0f} requests waiting and none answered for {seconds:.0f} s"
                findings.append(Finding("stall", model, actual, "answers"))
        self._reloaded = None
        return findings

    @staticmethod
    def _work_of(page: Page, model: str, version: str) -> Tuple[float, ...]:
        """Return all counters that grow if the model executes requests, even if the requests fail."""
        own = {"model": model, "version": version}
        counts = [value for name in WORK_COUNTERS for labels, value in page.get(name, []) if own.items() <= labels.items()]
        # Triton before 24.05 reports failures without a reason. Such failures are not counted, because they include requests
        # that the model never executed, for example requests that waited too long in the queue.
        failures = sum(
            value
            for labels, value in page.get("nv_inference_request_failure", [])
            if own.items() <= labels.items() and labels.get("reason") not in (None, *NEVER_RUN)
        )
        return (*counts, failures)
