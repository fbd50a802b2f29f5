"""Requests until every instance of a model has answered one."""

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

# The counter by which the backend `rbln` tells what each instance of a model answered
ANSWERED = "rbln_requests_total"
# Most requests that are in flight at once, to reach every instance or as a load
WIDEST = 64
# Bytes of a page of metrics
PAGE = 16 << 20


def ask_instances(document: Mapping[str, Any], check: Check, asked: Sequence[Request], result: Result) -> None:
    """Repeat requests, ever more at once, until each instance of the model has answered one: its backend counts them.

    Triton itself does not tell which instance answers. Every answer is judged; `ms` is that of the slowest.
    """
    from concurrent.futures import ThreadPoolExecutor

    server = document["server"]
    url = server.get("metrics_url") or "http://{}/metrics".format(netloc(server["address"], server.get("metrics_port", 8002)))
    until = time.monotonic() + document["timeout"]

    def ask(request: Request) -> Tuple[float, List[str]]:
        # A client for each thread, which tritonclient's HTTP needs
        answer = service_of(request.protocol, document).infer(check.question(request), check.timeout)
        return answer.ms, [reason(answer.error)] if answer.error is not None else judge_answer(check, request, answer)

    try:
        before = answered(url, check.model)
        silent, sent, why, width = sorted(before), 0, [], 2 * len(before)
        if not before:
            why = [f"{url} does not tell which instance of {check.model} answers, wanted {ANSWERED} of the backend rbln"]
        while silent and not why and (not sent or time.monotonic() < until):
            width = min(width, WIDEST)
            with ThreadPoolExecutor(width) as threads:
                for taken, reasons in threads.map(ask, list(asked) * width):
                    result["ms"] = max(result["ms"] or 0, round(taken, 2))
                    why += [each for each in reasons if each not in why]
                    sent += 1
            now = answered(url, check.model)
            silent = [instance for instance in silent if now.get(instance, 0) <= before[instance]]
            width *= 2
        why += [f"instance {instance} answered none of {sent} requests" for instance in silent] if before and not why else []
        result["ok"], result["why"], result["instances"] = not why, "; ".join(why), len(before)
    except Exception as error:
        result["why"] = reason(error)


def answered(url: str, model: str) -> Dict[str, float]:
    """{instance: requests that it has answered} of a model, from a page of metrics."""
    import urllib.request

    # Straight to the server: a site's proxy is not for it.
    with open_request(urllib.request.Request(url), {}, None, Budget(SIGN_OF_LIFE, PAGE)) as page:
        text = page.read().decode("utf-8", "replace")
    found: Dict[str, float] = {}
    for metric, labels, value in samples(text, ANSWERED):
        if metric == ANSWERED and labels.get("model") == model:
            name = "{} on NPU {}".format(labels.get("instance", "?"), labels.get("npu", "?"))
            # One process for each time that it was loaded
            found[name] = found.get(name, 0.0) + value
    return found
