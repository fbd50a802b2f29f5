# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that repeat requests: load tests, and requests until each instance of a model has answered at least one."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget
from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import Check, judge_answer, netloc, service_of
from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import SIGN_OF_LIFE
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import reason
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import Request, Result
from ansible_collections.npufleet.triton.plugins.module_utils.triton.metrics import samples
from ansible_collections.npufleet.triton.plugins.module_utils.web_client.opener import open_request

# {name of a limit in check files: percentile}
PERCENTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
# If all clients together use at least this many CPU cores, they are the bottleneck, because Python runs one thread at a time.
SATURATED_CORES = 0.9
# Metric of the backend `rbln`: number of answered requests of each instance
REQUESTS_METRIC = "rbln_requests_total"
# Largest number of concurrent requests
WIDEST = 64
# Largest size of a metrics page in bytes
MAX_PAGE = 16 << 20


class Load:
    """A load test. Each client sends one request after the other.

    Each client has its own thread, because only one thread may use an HTTP client of tritonclient.
    """

    def __init__(self, document: Mapping[str, Any], check: Check, requests: Sequence[Request]) -> None:
        self.document, self.check, self.requests, self.limits = document, check, requests, check.latency or {}
        self.ms: List[float] = []
        self.reasons: List[str] = []
        self.seconds = self.cores = self.began = self.cpu = 0.0
        self._numbers = itertools.count()
        self._ready = threading.Barrier(self.limits["clients"], self._begin)

    def _begin(self) -> None:
        self.began, self.cpu = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Run until the requests have been sent, the time is over, or a request fails."""
        threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(self.limits["clients"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - self.began
        self.cores = (time.process_time() - self.cpu) / self.seconds if self.began else 0.0

    def _client(self, number: int) -> None:
        try:
            request = self.requests[number % len(self.requests)]
            question = self.check.question(request)
            service = service_of(request.protocol, self.document)
            # The first answer is judged but not measured, because its time includes the connection setup.
            answer = service.infer(question, self.check.timeout)
            self._fail([reason(answer.error)] if answer.error is not None else judge_answer(self.check, request, answer))
            self._ready.wait()
            while self._continues():
                answer = service.infer(question, self.check.timeout)
                if answer.error is not None:
                    self._fail([f"request {len(self.ms) + 1} of the load failed: {reason(answer.error)}"])
                    return
                self.ms.append(answer.ms)
        except threading.BrokenBarrierError:
            # Another client failed before the measurement, and recorded the reason.
            return
        except Exception as error:
            self._fail([reason(error)])

    def _fail(self, reasons: Sequence[str]) -> None:
        self.reasons += [entry for entry in reasons if entry not in self.reasons]
        if reasons:
            self._ready.abort()

    def _continues(self) -> bool:
        if self.reasons:
            return False
        if "requests" in self.limits:
            return next(self._numbers) < self.limits["requests"]
        return time.monotonic() - self.began < self.limits["seconds"]

    def figures(self) -> Dict[str, Any]:
        """Return the measurements. For `infer_per_s`, each row of a batch counts as one inference."""
        ordered = sorted(self.ms)
        rows = len(self.requests[0].rows or [0])
        percentiles = {name: round(percentile(ordered, share), 2) for name, share in PERCENTILES.items()}
        return {
            "clients": self.limits["clients"],
            "requests": len(ordered),
            "seconds": round(self.seconds, 2),
            **percentiles,
            "max_ms": round(ordered[-1], 2),
            "infer_per_s": round(len(ordered) * rows / self.seconds, 1),
            "client_cores": round(self.cores, 2),
        }


def percentile(ordered: Sequence[float], share: int) -> float:
    """Return the percentile `share` of sorted values: the smallest value that `share` percent of the values do not exceed."""
    return ordered[max(math.ceil(len(ordered) * share / 100), 1) - 1]


def check_latency(document: Mapping[str, Any], check: Check, requests: Sequence[Request], result: Result) -> None:
    """Run a load test, judge its latencies, and write measurements and reasons into `result`. `ms` is the median latency."""
    load = Load(document, check, requests)
    load.run()
    reasons = load.reasons
    if not reasons and not load.ms:
        reasons = [f"no request ended within {load.limits.get('seconds', 0):g} s"]
    if load.ms:
        result["latency"] = figures = load.figures()
        result["ms"] = figures["p50_ms"]
        reasons = reasons or judge_latency(figures, load.limits)
    result["ok"], result["why"] = not reasons, "; ".join(reasons)


def judge_latency(figures: Mapping[str, Any], limits: Mapping[str, Any]) -> List[str]:
    """Return a message for each limit that a load test violated."""
    size = "{} client{}, {} requests".format(figures["clients"], "s" * (figures["clients"] > 1), figures["requests"])
    reasons = []
    for name in PERCENTILES:
        if name in limits and figures[name] > limits[name]:
            reasons.append(f"{name[:-3]} is {figures[name]:g} ms, expected at most {limits[name]:g} ms, {size}")
    if "infer_per_s" in limits and figures["infer_per_s"] < limits["infer_per_s"]:
        reasons.append("infer/s is {:g}, expected at least {:g}, {}".format(figures["infer_per_s"], limits["infer_per_s"], size))
    if reasons and figures["client_cores"] >= SATURATED_CORES:
        reasons.append(f"the client itself used {figures['client_cores']:g} CPU cores, so it was the bottleneck: use fewer clients")
    return reasons


def check_instances(document: Mapping[str, Any], check: Check, requests: Sequence[Request], result: Result) -> None:
    """Repeat requests with growing concurrency until the metrics show an answer of each instance of the model.

    The metrics are needed because an answer does not name its instance. Each answer is judged. `ms` of the result is the time of
    the slowest answer.
    """
    from concurrent.futures import ThreadPoolExecutor

    server = document["server"]
    url = server.get("metrics_url") or "http://{}/metrics".format(netloc(server["address"], server.get("metrics_port", 8002)))
    deadline = time.monotonic() + document["timeout"]

    def request_once(request: Request) -> Tuple[float, List[str]]:
        # Each request has its own client, because only one thread may use an HTTP client of tritonclient.
        answer = service_of(request.protocol, document).infer(check.question(request), check.timeout)
        return answer.ms, [reason(answer.error)] if answer.error is not None else judge_answer(check, request, answer)

    try:
        before = answered_requests(url, check.model)
        unanswered, sent, failures, width = sorted(before), 0, [], 2 * len(before)
        if not before:
            failures = [
                f"{url} does not report which instance of {check.model} answers, expected {REQUESTS_METRIC} of the backend rbln"
            ]
        while unanswered and not failures and (not sent or time.monotonic() < deadline):
            width = min(width, WIDEST)
            with ThreadPoolExecutor(width) as threads:
                for milliseconds, reasons in threads.map(request_once, list(requests) * width):
                    result["ms"] = max(result["ms"] or 0, round(milliseconds, 2))
                    failures += [entry for entry in reasons if entry not in failures]
                    sent += 1
            now = answered_requests(url, check.model)
            unanswered = [instance for instance in unanswered if now.get(instance, 0) <= before[instance]]
            width *= 2
        if before and not failures:
            failures = [f"instance {instance} answered none of {sent} requests" for instance in unanswered]
        result["ok"], result["why"], result["instances"] = not failures, "; ".join(failures), len(before)
    except Exception as error:
        result["why"] = reason(error)


def answered_requests(url: str, model: str) -> Dict[str, float]:
    """Return {instance: answered requests} of a model from the metrics page."""
    import urllib.request

    # The request has no proxies ({}), because the server is not behind the site's proxy.
    with open_request(urllib.request.Request(url), {}, None, Budget(SIGN_OF_LIFE, MAX_PAGE)) as page:
        text = page.read().decode("utf-8", "replace")
    counts: Dict[str, float] = {}
    for metric, labels, value in samples(text, REQUESTS_METRIC):
        if metric == REQUESTS_METRIC and labels.get("model") == model:
            name = "{} on NPU {}".format(labels.get("instance", "?"), labels.get("npu", "?"))
            # Each load of the model starts a process with its own counter, so the counters of an instance are added.
            counts[name] = counts.get(name, 0.0) + value
    return counts
