"""Asks everything that a document names, and says what came of it.

Document: {"host", "host_index", "server": {"address", "http_port", "grpc_port", "metrics_port"}, "timeout": seconds,
           "checks": [{"model", "checks": [check of a check file, with arrays as `pack` makes them]}]}
          `server` may have "http_url" and "grpc_url" (host:port) instead, "http_tls" and "grpc_tls" ({"ca", "cert", "key"}:
          paths, or the PEM itself) and "headers"; `latency: false` leaves loads out, "unproven" are results that stand, and
          "unasked" models that nobody has to prove.
Result:   {"host", "unasked", "checks": [{"name", "model", "check", "protocol", "ok", "why", "ms", ...}]}, or {"error"} where the
          image lacks a client.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import Check, judge_answer, prepared, service_of
from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import Service
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import not_served, of_connection, reason, timed_out
from ansible_collections.npufleet.triton.plugins.module_utils.inference.instances import ask_instances
from ansible_collections.npufleet.triton.plugins.module_utils.inference.judge import describe
from ansible_collections.npufleet.triton.plugins.module_utils.inference.load import ask_latency
from ansible_collections.npufleet.triton.plugins.module_utils.inference.packing import with_files
from ansible_collections.npufleet.triton.plugins.module_utils.inference.pictures import drawable, picture
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    Answer,
    Output,
    Question,
    Request,
    Result,
    joined,
    requests,
)


def run(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Every request of the document, each with a result.

    A service that does not answer, a model that is unknown and one that lets a request time out are not asked again:
    the requests that would follow carry the same reason.
    """
    services: Dict[str, Service] = {}
    given_up: Dict[Tuple[str, str], str] = {}
    results: List[Result] = list(document.get("unproven", []))
    for of_model in document["checks"]:
        model = of_model["model"]
        if not any(document.get("latency", True) or not raw.get("latency") for raw in of_model["checks"]):
            results.append(unasked(model))
        for raw in of_model["checks"]:
            if raw.get("latency") and not document.get("latency", True):
                continue
            check = prepared(model, raw)
            asked = list(requests(model, raw, document["host_index"]))
            groups = [(request.name, [request]) for request in asked]
            if raw.get("instances") or raw.get("latency"):
                # One result for each protocol: its requests are repeated.
                by_protocol = {entry: [request for request in asked if request.protocol == entry] for entry in raw["protocols"]}
                groups = [("{}/{}/{}".format(model, entry, raw["name"]), group) for entry, group in by_protocol.items()]
            for name, group in groups:
                protocol = group[0].protocol
                result: Result = {"name": name, "model": model, "check": raw["name"], "protocol": protocol, "ok": False, "ms": None}
                results.append(result)
                if protocol not in services:
                    services[protocol] = service_of(protocol, document)
                    given_up[protocol, ""] = services[protocol].silent()
                result["why"] = given_up[protocol, ""] or given_up.get((protocol, model), "")
                if result["why"]:
                    result["unanswered"] = True
                if not result["why"] and raw.get("instances"):
                    ask_instances(document, check, group, result)
                elif not result["why"] and raw.get("latency"):
                    ask_latency(document, check, group, result)
                elif not result["why"]:
                    whole, one_model = ask(services[protocol], check, group[0], result)
                    given_up[protocol, ""], given_up[protocol, model] = whole, one_model
                    if whole or one_model:
                        result["unanswered"] = True
    return {"host": document["host"], "unasked": list(document.get("unasked", [])), "checks": results}


def unasked(model: str) -> Result:
    """The result of a model that no request was for: nothing is known of its answers."""
    why = "nothing was asked: every check of its file is a load, and those are left out here: add one without latency"
    return {"name": f"{model}/checks", "model": model, "check": "checks", "protocol": None, "ok": False, "why": why, "ms": None}


def ask(service: Service, check: Check, request: Request, result: Result) -> Tuple[str, str]:
    """Send one request and complete its result. Returns why to give up on the (whole service, model), empty to go on."""
    try:
        question = check.question(request)
        arrays = {name: array for name, (_dtype, array) in question.inputs.items()}
        values, pixels = drawable(arrays, request), picture(arrays, request)
        if values is not None:
            result["image"] = values
        if pixels is not None:
            result["picture"] = pixels
        answer = cancelled(service, question, check) if check.cancel else service.infer(question, check.timeout)
        if answer.error is not None:
            given_up = _failed(service, check, answer, result)
            if given_up is not None:
                return given_up
        result["ms"] = round(answer.ms, 2)
        reasons = judge_answer(check, request, answer)
        result.update(describe(answer.outputs, request, check.expect))
        result["ok"], result["why"] = not reasons, "; ".join(reasons)
    except Exception as error:
        result["why"] = reason(error)
    return "", ""


def _failed(service: Service, check: Check, answer: Answer, result: Result) -> Optional[Tuple[str, str]]:
    """Complete the result of a request that ended in an error; returns as `ask` does, None where the error was to come."""
    error = answer.error
    if error is None:
        return None
    gone = service.silent() if of_connection(error) else ""
    if gone:
        result["why"] = gone
        return gone, ""
    if check.error is not None:
        return None
    result["why"] = service.told(error)
    if timed_out(error):
        limit = check.timeout or service.timeout
        result["why"] = f"no answer within {limit:g} s"
        if limit >= service.timeout:
            result["why"] += f"; {check.model} is not asked again over {service.protocol}"
            return "", str(result["why"])
    elif not_served(error):
        said = service.index_says(check.model)
        result["why"] += f"; {said}" if said else ""
        return "", str(result["why"])
    elif answer.responses and not check.cancel:
        result["why"] += f"; it came after {answer.responses} response{'s' * (answer.responses > 1)}"
    return "", ""


def cancelled(service: Service, question: Question, check: Check) -> Answer:
    """Cancel a stream after so many responses, and again as often as the check says: each has to begin to answer.

    A server that went on with the cancelled ones would have no room left. The outputs are those of the last stream.
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
        # Closing the generator is what cancels.
        stream.close()  # type: ignore[attr-defined]
        if failure is None and len(responses) < after:
            failure = ValueError(f"it ended after {len(responses)} responses, wanted to cancel it after {after}")
        if failure is not None:
            if number:
                said = f"no answer within {timeout:g} s" if timed_out(failure) else reason(failure)
                failure = ValueError(f"stream {number + 1}, after {number} were cancelled: {said}")
            break
    return Answer(joined(responses), len(responses), (time.monotonic() - began) * 1000, failure)


def main(document: Mapping[str, Any]) -> None:
    """Run a document and write the result as the last line of standard output; nothing else may write there."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with tempfile.TemporaryDirectory() as place:
            result = run(with_files(document, place))
    except ImportError as error:
        result = {"error": str(error)}
    out.write(json.dumps(result) + "\n")
    out.flush()
