# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Send requests until each instance of a model has answered at least one request."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget
from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import Check, judge_answer, netloc, service_of
from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import SIGN_OF_LIFE
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import reason
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import Request, Result
from ansible_collections.npufleet.triton.plugins.module_utils.triton.metrics import samples
from ansible_collections.npufleet.triton.plugins.module_utils.web_client.opener import open_request

# Metric of the backend `rbln`: number of answered requests of each instance
REQUESTS_METRIC = "rbln_requests_total"
# Largest number of concurrent requests
WIDEST = 64
# Largest size of a metrics page in bytes
MAX_PAGE = 16 << 20


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
