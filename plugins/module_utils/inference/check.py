"""A check of a document: what it asks, of which server, and whether the answer is right."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference.clients import SERVICES, Service
from ansible_collections.npufleet.triton.plugins.module_utils.inference.judge import judge, judge_error
from ansible_collections.npufleet.triton.plugins.module_utils.inference.packing import unpack, with_rows
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    Answer,
    Question,
    Request,
    Rows,
    triton_dtype,
)


class Check(NamedTuple):
    """A check of a document with its arrays unpacked."""

    model: str
    inputs: Dict[str, Tuple[str, Rows]]
    expect: Dict[str, Any]
    error: Optional[Mapping[str, str]]
    responses: Optional[int]
    cancel: Optional[Mapping[str, int]]
    most_ms: Optional[float]
    timeout: Optional[float]
    latency: Optional[Mapping[str, Any]] = None

    def question(self, request: Request) -> Question:
        """What this request asks."""
        arrays = {name: (dtype, rows.take(request.rows)) for name, (dtype, rows) in self.inputs.items()}
        inputs = {name: (dtype or triton_dtype(array), array) for name, (dtype, array) in arrays.items()}
        # The second best of a label shows whether the first is better at all.
        classes = {
            name: wanted.get("class_count", 2) for name, wanted in self.expect.items() if {"class_count", "label"} & wanted.keys()
        }
        return Question(self.model, inputs, classes, list(self.expect) if classes else [])


def prepared(model: str, check: Mapping[str, Any]) -> Check:
    """A check of a document, ready to be asked."""
    inputs = {name: (packed.get("dtype", ""), unpack(packed)) for name, packed in check["inputs"].items()}
    expect = with_rows(check.get("expect") or {})
    rest = [check.get(key) for key in ("error", "responses", "cancel", "ms", "timeout", "latency")]
    return Check(model, inputs, expect, *rest)


def netloc(address: str, port: Any) -> str:
    """Address and port as URLs have them: an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def service_of(protocol: str, document: Mapping[str, Any]) -> Service:
    """The service of a document's server."""
    server = document["server"]
    kind = "http" if protocol == "http" else "grpc"
    url = server.get(kind + "_url") or netloc(server["address"], server[kind + "_port"])
    return SERVICES[protocol](url, document["timeout"], server.get(kind + "_tls"), server.get("headers"))


def judge_answer(check: Check, request: Request, answer: Answer) -> List[str]:
    """Every reason why an answer is not the expected one."""
    why = []
    if check.error is not None and answer.error is None:
        wanted = " ".join(f"{key} {entry!r}" for key, entry in sorted(check.error.items()))
        why.append(f"it was answered, wanted an error: {wanted}")
    elif check.error is not None and answer.error is not None:
        why += judge_error(answer.error, check.error, request.protocol)
    if check.responses is not None and answer.responses != check.responses:
        why.append(f"{answer.responses} response{'s' * (answer.responses != 1)} came, wanted {check.responses}")
    why += judge(answer.outputs, request, check.expect)
    if check.most_ms is not None and answer.ms > check.most_ms:
        why.append(f"took {answer.ms:.1f} ms, wanted at most {check.most_ms:g} ms")
    return why
