# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The judge of a change. It compares the requests of clients on a changed host with a reference.

A window is a period in which load balancers count the requests that each host answers. The reference is the hosts outside the batch
of the changed host, in the same window. If these hosts got fewer requests than a verdict needs, the reference is the changed host
itself, in the window before its drain. Only HAProxy reports these counts. With other load balancers, the judge compares the
counters of the changed Triton server with the counters of this server before the change.

All input comes from load balancers and hosts, so the judge validates its shape first.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import traffic

GOOD, BAD, NOT_JUDGED = "good", "bad", "not judged"
# The failure rate is too high if it exceeds the failure rate of the reference by more than both limits: MIN_DEVIATIONS standard
# deviations, and MIN_EXCESS. The comparison of latencies uses MIN_DEVIATIONS, too.
MIN_DEVIATIONS, MIN_EXCESS = 3.0, 0.005
# The fewest failures that count as evidence
MIN_FAILURES = 3
# (quantile, factor, milliseconds). The latency of a quantile is too high if it exceeds both limits: the latency of the reference
# times the factor, and the latency of the reference plus the milliseconds.
QUANTILES: Tuple[Tuple[float, float, float], ...] = ((0.5, 1.5, 5.0), (0.9, 2.0, 20.0))
# If a host got fewer requests than a verdict needs, its failures do not count below this failure rate.
OUTAGE_SHARE = 0.5
# Failures that clients cause themselves
REASONS_OF_CLIENTS = ("CANCELED",)
# Client errors count only for models that answered requests of the reference. For example, they do not count for a model that no
# host serves.
CLIENT_ERRORS = "4xx"

_NAME = re.compile(r".{1,300}", re.DOTALL)
_COUNTS = {re.compile(r"\w{1,40}"): int}
_LATENCY = {re.compile(r"[0-9]{1,12}"): int}
_MODEL = {"requests": int, "failed": _COUNTS, "latency": _LATENCY}
_TRAFFIC = {**_MODEL, "by_model": {_NAME: _MODEL}}
# The shape of the results of balancer_info, reduced to the keys that the judge reads
WINDOW = {"servers": {_NAME: {"traffic?": {re.compile("http|grpc"): _TRAFFIC}}}, "complete?": bool}
REASON = re.compile(r"\w{1,40}")
# The shape of a result of triton_requests: counters of each model
TRITON = {"models": {_NAME: {"success": shapes.NUMBER, "failed": {REASON: shapes.NUMBER}, "pending": shapes.NUMBER}}}
# The counters of a model when its server starts
NO_REQUESTS: Mapping[str, Any] = {"success": 0, "failed": {}, "pending": 0}


class Requests(NamedTuple):
    """The inference requests of clients on some hosts in a window."""

    total: int = 0
    failed: int = 0
    # {upper bound in milliseconds: number of requests}
    latency: Mapping[str, int] = {}
    # {model: (requests, failed requests)}
    models: Mapping[str, Tuple[int, int]] = {}
    # False if a balancer counted only a part of the window
    complete: bool = True


class Verdict(NamedTuple):
    """The verdict about a change, as a text for operators and as numbers."""

    verdict: str
    text: str
    numbers: Dict[str, Any]


class InvalidWindow(ValueError):
    """A window of a balancer or counters of a server that do not have the expected shape."""


def requests_of(windows: Sequence[Mapping[str, Any]], hosts: Sequence[str], answered: Optional[Sequence[str]] = None) -> Requests:
    """Return the requests that these hosts answered, over all balancers and protocols.

    `answered` lists the models that answered requests of the reference. Client errors (4xx) count only for these models. If
    `answered` is None, all client errors count.
    """
    merged = traffic.merge(
        part for window in windows for host in hosts for part in (window["servers"].get(host, {}).get("traffic") or {}).values()
    )
    models = {}
    failed = traffic.failures(merged)
    for model, counted_of_model in merged["by_model"].items():
        failed_of_model = traffic.failures(counted_of_model)
        if answered is not None and model not in answered:
            failed -= counted_of_model["failed"].get(CLIENT_ERRORS, 0)
            failed_of_model -= counted_of_model["failed"].get(CLIENT_ERRORS, 0)
        models[model] = (counted_of_model["requests"], failed_of_model)
    complete = all(window.get("complete", True) for window in windows)
    return Requests(merged["requests"], failed, merged["latency"], models, complete)


def failed_more(failed: int, total: int, reference_failed: int, reference_total: int) -> bool:
    """Return True if the failure rate exceeds the rate of the reference by both limits, MIN_EXCESS and MIN_DEVIATIONS."""
    if failed < MIN_FAILURES or not total:
        return False
    excess = failed / total - (reference_failed / reference_total if reference_total else 0.0)
    pooled = (failed + reference_failed) / (total + reference_total)
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / total + (1 / reference_total if reference_total else 0.0)))
    return excess > MIN_EXCESS and excess > MIN_DEVIATIONS * deviation


class Counters(NamedTuple):
    """The requests for a model that a server counted in a window. `stuck` is true if requests waited and no request succeeded."""

    success: float
    failed: float
    stuck: bool


def counted(begin: Mapping[str, Any], end: Mapping[str, Any]) -> Dict[str, Counters]:
    """Return {model: requests that the server counted between two results of triton_requests}. Raises InvalidWindow.

    A server that restarts begins its counters at 0. A lower number at the end of the window shows such a restart. After a restart,
    the result has only the requests since the restart.
    """
    for result in (begin, end):
        _require(result, TRITON)
    counters = {}
    for model, last in end["models"].items():
        first = begin["models"].get(model, NO_REQUESTS)
        if last["success"] < first["success"]:
            first = NO_REQUESTS
        failed = sum(
            max(0, number - first["failed"].get(reason, 0))
            for reason, number in last["failed"].items()
            if reason not in REASONS_OF_CLIENTS
        )
        success = last["success"] - first["success"]
        counters[model] = Counters(success, failed, success == 0 and first["pending"] > 0 and last["pending"] > 0)
    return counters


def judge(
    changed: Requests,
    reference: Requests,
    needed: int,
    models: Optional[Mapping[str, Counters]] = None,
    reference_models: Optional[Mapping[str, Counters]] = None,
) -> Verdict:
    """Return the verdict about a change. `needed` is the number of requests that a verdict needs.

    `models` and `reference_models` are the counters of the servers, which include requests that bypass the balancers.
    """
    numbers: Dict[str, Any] = {
        "requests": changed.total,
        "failed": changed.failed,
        "reference_requests": reference.total,
        "reference_failed": reference.failed,
        **{
            f"{prefix}p{round(share * 100)}_ms": traffic.quantile(requests.latency, share)
            for prefix, requests in (("", changed), ("reference_", reference))
            for share, _factor, _more in QUANTILES
        },
    }
    bad = [*_failures(changed, reference, needed), *_counters(models or {}, reference_models or {})]
    if changed.total >= needed and reference.total >= needed:
        bad += _latency(changed, reference)
    if bad:
        return Verdict(BAD, "; ".join(bad), numbers)
    if changed.total < needed:
        incomplete = "" if changed.complete else ", and the balancer lost a part of the window"
        return Verdict(NOT_JUDGED, f"{changed.total} requests, expected at least {needed}{incomplete}", numbers)
    of_reference = f"{reference.failed} of {reference.total}" if reference.total else "no requests"
    return Verdict(GOOD, f"{changed.failed} of {changed.total} requests failed; reference: {of_reference}", numbers)


def _failures(changed: Requests, reference: Requests, needed: int) -> List[str]:
    too_few = changed.total < needed
    if failed_more(changed.failed, changed.total, reference.failed, reference.total) and (
        not too_few or changed.failed >= OUTAGE_SHARE * changed.total
    ):
        return [f"{changed.failed} of {changed.total} requests failed; reference: {reference.failed} of {reference.total}"]
    if too_few:
        return []
    reasons = []
    for model, (total, failed) in sorted(changed.models.items()):
        of_reference = reference.models.get(model, (0, 0))
        if of_reference[0] and failed_more(failed, total, of_reference[1], of_reference[0]):
            reasons.append(f"model {model}: {failed} of {total} requests failed; reference: {of_reference[1]} of {of_reference[0]}")
    return reasons


def _latency(changed: Requests, reference: Requests) -> List[str]:
    reasons = []
    for share, factor, more in QUANTILES:
        actual, expected = traffic.quantile(changed.latency, share), traffic.quantile(reference.latency, share)
        if actual is None or expected is None:
            continue
        # Among few requests, a quantile can be high by chance. So a lower quantile is compared with the limits.
        variance = sum(share * (1 - share) / sum(window.latency.values()) for window in (changed, reference))
        lower = traffic.quantile(changed.latency, max(share - MIN_DEVIATIONS * math.sqrt(variance), 0.0))
        if lower is not None and lower > max(expected * factor, expected + more):
            reasons.append(f"{share:.0%} of the requests were answered within {actual} ms; reference: {expected} ms")
    return reasons


def _counters(models: Mapping[str, Counters], reference: Mapping[str, Counters]) -> List[str]:
    reasons = []
    for model, count in sorted(models.items()):
        other = reference.get(model, Counters(0, 0, False))
        total, other_total = round(count.success + count.failed), round(other.success + other.failed)
        if count.stuck and not other.stuck:
            reasons.append(f"model {model}: requests wait, and none was answered")
        elif failed_more(round(count.failed), total, round(other.failed), other_total):
            reasons.append(
                f"model {model}: Triton counts {count.failed:.0f} failures in {total} requests; "
                f"reference: {other.failed:.0f} in {other_total}"
            )
    return reasons


def _require(value: Any, shape: Any) -> None:
    flaw = shapes.mismatch(value, shape)
    if flaw:
        raise InvalidWindow(flaw)


def verdict_of_host(
    windows: Sequence[Mapping[str, Any]],
    host: str,
    batch: Sequence[str],
    needed: int,
    before: Sequence[Mapping[str, Any]] = (),
    counters: Sequence[Mapping[str, Any]] = (),
) -> Verdict:
    """Return the verdict about the change of a host. Raises InvalidWindow.

    `windows` and `before` have a result of balancer_info for each balancer: `windows` for the window after the change, and `before`
    for the window before the drain of the host. `counters` are three results of triton_requests: before the change, at the
    beginning of the window after the change, and at its end. `batch` has the hosts that change together.
    """
    for window in (*windows, *before):
        _require(window, WINDOW)
    unchanged = sorted({name for window in windows for name in window["servers"]} - set(batch))
    reference = requests_of(windows, unchanged)
    if reference.total < needed and before:
        reference = requests_of(before, [host])
    answered = [model for model, (total, failed) in reference.models.items() if total > failed]
    models: Dict[str, Counters] = {}
    reference_models: Dict[str, Counters] = {}
    if len(counters) == 3:
        earlier, first, last = counters
        models, reference_models = counted(first, last), counted({"models": {}}, earlier)
    changed = requests_of(windows, [host], answered)
    if not windows:
        # Only HAProxy reports the requests of clients. With another load balancer, the requests that the server counted are used.
        changed, reference = _of_server(models), _of_server(reference_models)
    return judge(changed, reference, needed, models, reference_models)


def _of_server(models: Mapping[str, Counters]) -> Requests:
    """Return the requests that a server has counted itself. Their latency is unknown."""
    failed = sum(count.failed for count in models.values())
    return Requests(round(failed + sum(count.success for count in models.values())), round(failed))
