# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Run the checks of a document. This is the main program in the container.

Document: {"host", "host_index", "server": {"address", "http_port", "grpc_port", "metrics_port"}, "timeout": seconds,
           "checks": [{"model", "checks": [check of a check file, with arrays as `pack` makes them]}]}
          Optional in `server`: "http_url" and "grpc_url" (host:port) instead of address and ports, "http_tls" and "grpc_tls"
          ({"ca", "cert", "key"}: paths or PEM texts), "headers".
          Optional at the top level: `latency: false` skips load tests. For models without a check file, "no_check_file" has failed
          results, or "unchecked" has the names of these models if they need no proof.
Result:   {"host", "unchecked", "checks": [{"name", "model", "check", "protocol", "ok", "why", "ms", ...}]}, or {"error"} if the
          image has no tritonclient.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import Check, judge_answer, service_of, unpack_check
from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import Service
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import not_served, of_connection, reason, timed_out
from ansible_collections.npufleet.triton.plugins.module_utils.inference.judge import describe
from ansible_collections.npufleet.triton.plugins.module_utils.inference.load import check_instances, check_latency
from ansible_collections.npufleet.triton.plugins.module_utils.inference.packing import with_files
from ansible_collections.npufleet.triton.plugins.module_utils.inference.pictures import drawable, picture
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    Answer,
    Output,
    Question,
    Request,
    Result,
    join_outputs,
    requests,
)


def run(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Send the requests of a document, and return their results.

    If the server does not answer over a protocol, the remaining requests over this protocol are not sent, and fail with the same
    reason. If a model is not served or times out, the remaining requests to this model over the same protocol fail in the same way.
    """
    services: Dict[str, Service] = {}
    given_up: Dict[Tuple[str, str], str] = {}
    results: List[Result] = list(document.get("no_check_file", []))
    for entry in document["checks"]:
        model = entry["model"]
        checks = [raw for raw in entry["checks"] if document.get("latency", True) or not raw.get("latency")]
        if not checks:
            results.append(without_checks(model))
        for raw in checks:
            check = unpack_check(model, raw)
            all_requests = list(requests(model, raw, document["host_index"]))
            groups = [(request.name, [request]) for request in all_requests]
            if raw.get("instances") or raw.get("latency"):
                # All requests of a protocol are repeated together, and share one result.
                by_protocol = {kind: [request for request in all_requests if request.protocol == kind] for kind in raw["protocols"]}
                groups = [("{}/{}/{}".format(model, kind, raw["name"]), group) for kind, group in by_protocol.items()]
            for name, group in groups:
                protocol = group[0].protocol
                result: Result = {"name": name, "model": model, "check": raw["name"], "protocol": protocol, "ok": False, "ms": None}
                results.append(result)
                if protocol not in services:
                    services[protocol] = service_of(protocol, document)
                    given_up[protocol, ""] = services[protocol].unreachable()
                result["why"] = given_up[protocol, ""] or given_up.get((protocol, model), "")
                if result["why"]:
                    result["unanswered"] = True
                elif raw.get("instances"):
                    check_instances(document, check, group, result)
                elif raw.get("latency"):
                    check_latency(document, check, group, result)
                else:
                    service_failure, model_failure = send(services[protocol], check, group[0], result)
                    given_up[protocol, ""], given_up[protocol, model] = service_failure, model_failure
                    if service_failure or model_failure:
                        result["unanswered"] = True
    return {"host": document["host"], "unchecked": list(document.get("unchecked", [])), "checks": results}


def without_checks(model: str) -> Result:
    """Return a failed result for a model whose checks are all skipped."""
    why = "no check ran: all checks of its file are load tests, which are skipped here. Add a check without latency"
    return {"name": f"{model}/checks", "model": model, "check": "checks", "protocol": None, "ok": False, "why": why, "ms": None}


def send(service: Service, check: Check, request: Request, result: Result) -> Tuple[str, str]:
    """Send a request, and complete its result. Return (reason to give up the service, reason to give up the model).

    An empty reason means that the next requests are sent.
    """
    try:
        question = check.question(request)
        arrays = {name: array for name, (_dtype, array) in question.inputs.items()}
        values, pixels = drawable(arrays, request), picture(arrays, request)
        if values is not None:
            result["image"] = values
        if pixels is not None:
            result["picture"] = pixels
        answer = cancel_streams(service, question, check) if check.cancel else service.infer(question, check.timeout)
        given_up = _complete_failure(service, check, answer, result)
        if given_up is not None:
            return given_up
        result["ms"] = round(answer.ms, 2)
        reasons = judge_answer(check, request, answer)
        result.update(describe(answer.outputs, request, check.expect))
        result["ok"], result["why"] = not reasons, "; ".join(reasons)
    except Exception as error:
        result["why"] = reason(error)
    return "", ""


def _complete_failure(service: Service, check: Check, answer: Answer, result: Result) -> Optional[Tuple[str, str]]:
    """Complete the result of a failed request, and return the reasons to give up, as `send` does.

    Return None if the answer still has to be judged: the request did not fail, or the check expects an error.
    """
    error = answer.error
    if error is None:
        return None
    unreachable = service.unreachable() if of_connection(error) else ""
    if unreachable:
        result["why"] = unreachable
        return unreachable, ""
    if check.error is not None:
        return None
    result["why"] = service.explain(error)
    if timed_out(error):
        limit = check.timeout or service.timeout
        result["why"] = f"no answer within {limit:g} s"
        if limit >= service.timeout:
            result["why"] += f"; {check.model} gets no further request over {service.protocol}"
            return "", str(result["why"])
    elif not_served(error):
        state = service.index_entry(check.model)
        result["why"] += f"; {state}" if state else ""
        return "", str(result["why"])
    elif answer.responses and not check.cancel:
        result["why"] += f"; the error came after {answer.responses} response{'s' * (answer.responses > 1)}"
    return "", ""


def cancel_streams(service: Service, question: Question, check: Check) -> Answer:
    """Cancel streams after some responses, as often as the check requires. Return the answer of the last stream.

    If the server does not end cancelled streams, it has no capacity for the next stream, and the check fails.
    """
    cancel = check.cancel or {}
    after, times = cancel["after"], cancel.get("times", 2)
    timeout = check.timeout or service.timeout
    began = time.monotonic()
    responses: List[Dict[str, Output]] = []
    failure: Optional[Exception] = None
    for number in range(times):
        stream = service.answers(question, timeout)
        responses = []
        try:
            responses.extend(itertools.islice(stream, after))
        except Exception as error:
            failure = error
        # Closing the generator cancels the stream.
        stream.close()  # type: ignore[attr-defined]
        if failure is None and len(responses) < after:
            why = f"the stream ended after {len(responses)} responses, expected at least {after} before it is cancelled"
            failure = ValueError(why)
        if failure is not None:
            if number:
                message = f"no answer within {timeout:g} s" if timed_out(failure) else reason(failure)
                failure = ValueError(f"stream {number + 1}, after {number} were cancelled: {message}")
            break
    return Answer(join_outputs(responses), len(responses), (time.monotonic() - began) * 1000, failure)


def main(document: Mapping[str, Any]) -> None:
    """Run a document, and print the result as the only line of standard output."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with tempfile.TemporaryDirectory() as directory:
            result = run(with_files(document, directory))
    except ImportError as error:
        result = {"error": str(error)}
    out.write(json.dumps(result) + "\n")
    out.flush()
