# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""One check of a document (see runner.py): build its requests, connect to the server, and judge the answers."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference import questions
from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import SERVICES, Service
from ansible_collections.npufleet.triton.plugins.module_utils.inference.judge import judge, judge_error
from ansible_collections.npufleet.triton.plugins.module_utils.inference.packing import unpack, with_rows


class Check(NamedTuple):
    """A check of a document, with unpacked arrays."""

    model: str
    inputs: Dict[str, Tuple[str, questions.Rows]]
    expect: Dict[str, Any]
    error: Optional[Mapping[str, str]]
    responses: Optional[int]
    cancel: Optional[Mapping[str, int]]
    most_ms: Optional[float]
    timeout: Optional[float]
    latency: Optional[Mapping[str, Any]] = None

    def question(self, request: questions.Request) -> questions.Question:
        """Return the inputs and outputs of a request."""
        arrays = {name: (dtype, rows.take(request.rows)) for name, (dtype, rows) in self.inputs.items()}
        inputs = {name: (dtype or questions.triton_dtype(array), array) for name, (dtype, array) in arrays.items()}
        # For a label, two classes are requested: if the two best classes have the same score, the label is ambiguous.
        classes = {
            name: expected.get("class_count", 2)
            for name, expected in self.expect.items()
            if {"class_count", "label"} & expected.keys()
        }
        return questions.Question(self.model, inputs, classes, list(self.expect) if classes else [])


def unpack_check(model: str, check: Mapping[str, Any]) -> Check:
    """Return the Check for an entry of a document, with its arrays unpacked."""
    inputs = {name: (packed.get("dtype", ""), unpack(packed)) for name, packed in check["inputs"].items()}
    expect = with_rows(check.get("expect") or {})
    other_fields = [check.get(key) for key in ("error", "responses", "cancel", "ms", "timeout", "latency")]
    return Check(model, inputs, expect, *other_fields)


def netloc(address: str, port: Any) -> str:
    """Return address and port for a URL, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def service_of(protocol: str, document: Mapping[str, Any]) -> Service:
    """Return a client for the server of a document."""
    server = document["server"]
    kind = "http" if protocol == "http" else "grpc"
    url = server.get(kind + "_url") or netloc(server["address"], server[kind + "_port"])
    return SERVICES[protocol](url, document["timeout"], server.get(kind + "_tls"), server.get("headers"))


def judge_answer(check: Check, request: questions.Request, answer: questions.Answer) -> List[str]:
    """Return all reasons why an answer is wrong."""
    reasons = []
    if check.error is not None and answer.error is None:
        expected = " ".join(f"{key} {entry!r}" for key, entry in sorted(check.error.items()))
        reasons.append(f"the request was answered, expected an error: {expected}")
    elif check.error is not None and answer.error is not None:
        reasons += judge_error(answer.error, check.error, request.protocol)
    if check.responses is not None and answer.responses != check.responses:
        reasons.append(f"{answer.responses} response{'s' * (answer.responses != 1)} came, expected {check.responses}")
    reasons += judge(answer.outputs, request, check.expect)
    if check.most_ms is not None and answer.ms > check.most_ms:
        reasons.append(f"took {answer.ms:.1f} ms, expected at most {check.most_ms:g} ms")
    return reasons
