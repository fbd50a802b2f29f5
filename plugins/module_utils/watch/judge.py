# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The rules of the watchdog, which turn evidence into findings. They read no files and send no requests."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.metrics import Labels
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Watchdog as Settings

# Requests that failed for these reasons never reached the model, so they do not show that it works.
NEVER_RUN = ("REJECTED", "CANCELED")
WORK = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
# The name of the rule for stuck loads
STUCK = "stuck"

Page = Dict[str, List[Tuple[Labels, float]]]


class Evidence(NamedTuple):
    """The facts of one observation of the host."""

    at: float  # Time of `time.monotonic`
    # Container ID and start time, which together identify one run of the container; None if the container does not run
    life: Optional[str]
    age: float  # Seconds since the container started
    # None if the server does not answer
    metrics: Optional[Page]
    # {model: {version: state}}, None if the server does not return its index
    models: Optional[Dict[str, Dict[str, str]]]
    # {model: names of its instances that have no process}
    dead: Dict[str, List[str]]
    ensembles: Tuple[str, ...] = ()
    # Models whose names no HTTP request can carry
    nameless: Tuple[str, ...] = ()
    # Pairs of server and stub that wait for each other in a load
    loads: Optional[stuck_load.Sample] = None


class Finding(NamedTuple):
    """A condition that has lasted for too long. `model` is None if the condition concerns the whole server."""

    rule: str
    model: Optional[str]
    actual: str
    expected: str
    # The waits of stuck loads
    waits: Tuple[stuck_load.Wait, ...] = ()

    def __str__(self) -> str:
        prefix = f"model {self.model}: " if self.model else ""
        return f"{prefix}{self.actual}, expected {self.expected}"


class Judge:
    """The rules, and the time since which each condition has held."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._life: Optional[str] = None
        self._answered = False
        self._since: Dict[Tuple[str, ...], float] = {}
        self._seen: Set[Tuple[str, ...]] = set()
        self._work: Dict[Tuple[str, str], Tuple[float, ...]] = {}
        # If the server could not end a hanging process in a reload, the gauge counts the requests of that process for ever.
        # _lost has their number for each (model, version). _lose is the model that was reloaded since the last observation.
        self._lost: Dict[Tuple[str, str], float] = {}
        self._lose: Optional[str] = None
        self._loads = stuck_load.History(settings.stuck_load_limit)

    def forget(self, reloaded: Optional[str] = None) -> None:
        """Restart all times. Requests that still wait for a `reloaded` model at the next observation are not counted any more."""
        self._since.clear()
        self._work.clear()
        self._loads.forget()
        self._lose = reloaded or self._lose

    def judge(self, evidence: Evidence) -> List[Finding]:
        """Return the conditions that have lasted for longer than their limits, the most certain one first."""
        if evidence.life != self._life:
            self.forget()
            self._lost.clear()
            self._life, self._answered, self._lose = evidence.life, False, None
        if evidence.life is None:
            return []
        stuck = self._loads.add(evidence.loads) if evidence.loads else []
        if stuck:
            # Neither process of such a wait can continue, so the other rules are not applied.
            processes = ", ".join(map(str, stuck))
            actual = f"{processes} waiting for {self._settings.stuck_load_limit:g} s for a server that waits for its end"
            return [Finding(STUCK, None, actual, "a load that goes on", tuple(stuck))]
        self._seen.clear()
        silent = self._lasting(("silent",), evidence.metrics is None, evidence.at)
        if evidence.metrics is None:
            starting = evidence.age <= self._settings.start_limit and not self._answered
            if silent <= self._settings.silence_limit or starting:
                return []
            actual = f"a container that runs, and a server that has not answered for {silent:.0f} s"
            return [Finding("silent", None, actual, "answers")]
        self._answered = True
        findings = self._faults(evidence) + self._stubs(evidence) + self._stalls(evidence)
        # The time of a condition that was not seen, such as that of an unloaded model, starts again.
        self._since = {key: since for key, since in self._since.items() if key in self._seen}
        return findings

    def _lasting(self, key: Tuple[str, ...], holds: bool, now: float) -> float:
        """Return the seconds for which a condition has held at every observation."""
        if not holds:
            self._since.pop(key, None)
            return 0.0
        self._seen.add(key)
        return now - self._since.setdefault(key, now)

    def _faults(self, evidence: Evidence) -> List[Finding]:
        """Return a finding for each model with NPUs that do not answer, as reported by the backend's metrics."""
        silent: Dict[str, List[str]] = {}
        longest = 0.0
        for labels, value in (evidence.metrics or {}).get("rbln_device_fault", []):
            key = ("fault", *(labels.get(name, "") for name in ("model", "version", "instance", "npu")))
            seconds = self._lasting(key, value > 0, evidence.at)
            if seconds > self._settings.fault_limit:
                longest = max(longest, seconds)
                silent.setdefault(labels.get("model", ""), []).append("NPU {} of {}".format(labels.get("npu", "?"), key[3]))
        return [
            Finding(
                "fault", model, "{} without an answer for {:.0f} s".format(", ".join(sorted(npus)), longest), "NPUs that answer"
            )
            for model, npus in sorted(silent.items())
        ]

    def _stubs(self, evidence: Evidence) -> List[Finding]:
        """Return a finding for each model with instances whose process is gone, although health probes return 200."""
        findings = []
        for model, instances in sorted(evidence.dead.items()):
            seconds = self._lasting(("stub", model), True, evidence.at)
            if seconds > self._settings.stub_limit:
                actual = "no process of {} for {:.0f} s".format(", ".join(instances), seconds)
                findings.append(Finding("stub", model, actual, "a process of every instance"))
        return findings

    def _stalls(self, evidence: Evidence) -> List[Finding]:
        """Return a finding for each model whose requests wait without an answer. Ensembles are left out: their steps are judged."""
        page = evidence.metrics or {}
        findings = []
        for labels, pending in page.get("nv_inference_pending_request_count", []):
            model, version = labels.get("model", ""), labels.get("version", "")
            key = (model, version)
            if self._lose == model:
                self._lost[key] = pending
            self._lost[key] = min(self._lost.get(key, 0.0), pending)
            work = self._done(page, model, version)
            stalled = pending > self._lost[key] and self._work.get(key) == work and model not in evidence.ensembles
            # The condition needs two observations with the same counters.
            seconds = self._lasting(("stall", model, version), stalled, evidence.at)
            self._work[key] = work
            if seconds > self._settings.stall_limit:
                actual = f"{pending - self._lost[key]:.0f} requests waiting and none answered for {seconds:.0f} s"
                findings.append(Finding("stall", model, actual, "answers"))
        self._lose = None
        return findings

    @staticmethod
    def _done(page: Page, model: str, version: str) -> Tuple[float, ...]:
        """Return all counters that grow when the model has executed requests, successfully or not."""
        own = {"model": model, "version": version}
        counts = [value for name in WORK for labels, value in page.get(name, []) if own.items() <= labels.items()]
        # Before 24.05 failures have no reason. They are not counted, because some only waited too long in the queue.
        failures = sum(
            value
            for labels, value in page.get("nv_inference_request_failure", [])
            if own.items() <= labels.items() and labels.get("reason") not in (None, *NEVER_RUN)
        )
        return (*counts, failures)
