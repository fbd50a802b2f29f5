# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The facts of a host that Triton does not report, as metrics: releases, processes, shared memory, changes and holds."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.textfile import Families
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import load_failures, versions_in

HELP = {
    "npufleet_change_running": "Whether a run of a playbook changes the host (1).",
    "npufleet_drained_since_timestamp_seconds": "Time from which the balancers send the host no or fewer requests.",
    "npufleet_hold_since_timestamp_seconds": "Time from which a model keeps its release after a rollback.",
    "npufleet_host_last_read_timestamp_seconds": "Time of the last read of the host's facts.",
    "npufleet_maintenance_since_timestamp_seconds": "Time at which the host's maintenance began.",
    "npufleet_model_desired": "Versions and release of a model that the server of the host should serve.",
    "npufleet_model_load_failed": "Whether the server could not load a version of the model (1).",
    "npufleet_model_loaded": "Versions and release of a model that the server has loaded.",
    "npufleet_shm_size_bytes": "Size of the shared memory of the server's container.",
    "npufleet_shm_used_bytes": "Used shared memory of the server's container.",
    "npufleet_stubs": "Processes of a model by state.",
}


class Stubs(NamedTuple):
    """The numbers of processes (stubs) of a model by state. A `hung` process waits for an NPU that does not answer."""

    running: int
    missing: int
    hung: int


class Facts(NamedTuple):
    """The facts of a host. Times are in seconds since 1970. None means that a fact is unknown, or that a condition is not true."""

    now: float
    # {model: its desired state with "versions" and "release"}
    desired: Mapping[str, Mapping[str, Any]]
    # {model: {version: {"state", "reason", "release"}}}, or None if the server does not answer
    served: Optional[Mapping[str, Mapping[str, Mapping[str, Any]]]]
    stubs: Mapping[str, Stubs]
    # Size and used bytes of the shared memory of the server's container
    shm: Optional[Tuple[int, int]]
    changing: bool
    maintenance: Optional[float]
    limited: Optional[float]  # Time at which a rollout lowered the host's share of the traffic
    holds: Mapping[str, float]


def condition(now: float, changing: bool, maintenance: Optional[float]) -> Families:
    """Return the metrics that every host has: when they were read, and whether a run or maintenance silences its alerts."""
    return {
        "npufleet_change_running": [({}, changing)],
        "npufleet_host_last_read_timestamp_seconds": [({}, now)],
        "npufleet_maintenance_since_timestamp_seconds": [] if maintenance is None else [({}, maintenance)],
    }


def families(facts: Facts) -> Families:
    """Return the metrics of a host with NPUs."""
    drained = {"rollout": facts.limited, "maintenance": facts.maintenance}
    return {
        **condition(facts.now, facts.changing, facts.maintenance),
        "npufleet_drained_since_timestamp_seconds": [({"by": by}, since) for by, since in drained.items() if since is not None],
        "npufleet_hold_since_timestamp_seconds": [({"model": model}, since) for model, since in facts.holds.items()],
        "npufleet_model_desired": [
            (_release(model, version, entry["release"]), 1)
            for model, entry in facts.desired.items()
            for version in entry["versions"]
        ],
        "npufleet_model_load_failed": [
            ({"model": model}, bool(load_failures(versions))) for model, versions in (facts.served or {}).items()
        ],
        "npufleet_model_loaded": [
            (_release(model, number, versions[number]["release"]), 1)
            for model, versions in (facts.served or {}).items()
            for number in versions_in(versions, "READY")
        ],
        "npufleet_shm_size_bytes": [({}, facts.shm[0])] if facts.shm else [],
        "npufleet_shm_used_bytes": [({}, facts.shm[1])] if facts.shm else [],
        "npufleet_stubs": [
            ({"model": model, "state": state}, count)
            for model, stubs in facts.stubs.items()
            for state, count in stubs._asdict().items()
        ],
    }


def _release(model: str, version: str, release: Optional[str]) -> Dict[str, str]:
    return {"model": model, "version": version, "digest": (release or "")[:12]}


def count_stubs(
    instance_counts: Mapping[str, int], missing: Mapping[str, List[str]], page: Mapping[str, List[Tuple[Dict[str, str], float]]]
) -> Dict[str, Stubs]:
    """Return {model: numbers of its processes by state}.

    `instance_counts` is {model: number of instances}, `missing` is {model: instances without a process}, `page` has Triton's
    metrics.
    """
    silent: Dict[str, Set[Tuple[str, str]]] = {}
    # This gauge of the backend is 1 if an NPU of an instance does not answer.
    for labels, value in page.get("rbln_device_fault", []):
        if value > 0:
            silent.setdefault(labels.get("model", ""), set()).add((labels.get("version", ""), labels.get("instance", "")))
    found = {}
    for model, count in instance_counts.items():
        missing_count = min(len(missing.get(model, ())), count)
        hung = min(len(silent.get(model, ())), count - missing_count)
        found[model] = Stubs(count - missing_count - hung, missing_count, hung)
    return found
