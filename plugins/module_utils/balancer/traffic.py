# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The traffic of a balancer in a window of time, from the lines that HAProxy keeps in memory for finished requests.

HAProxy writes one line for each finished request into a ring buffer (ring) in its memory. The line contains the path of the
request. A client can send any path, so lines that do not match the format are skipped.

A window counts finished requests by server and protocol. The documentation of the module balancer_info explains its fields.

    {"requests": 120, "streams": 2, "failed": {"5xx": 1}, "latency": {"14": 60, "21": 59},
     "by_model": {"resnet50": {"requests": 120, "failed": {"5xx": 1}, "latency": {"14": 60, "21": 59}}},
     "other": {"requests": 7, "failed": {"4xx": 1}}}

The latency is the time from the connection to the server until the headers of the response. `by_model` has no gRPC requests,
because the path of a gRPC request does not contain the model.
"""

from __future__ import annotations

import bisect
import math
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BACKENDS, NAME

# Name of HAProxy's ring, and size of the ring in bytes (about 160,000 requests)
RING, RING_SIZE = "npufleet", 16 << 20
# First word of a line. A new format gets a new word.
MARK = "npufleet1"
# The format of a line in HAProxy's configuration: time in ms, backend, server, status, gRPC status, time to the response's headers
# and total time in ms, termination state, path without its query string. The path is last, because HAProxy cuts long lines.
LOG_FORMAT = f"{MARK} %[date(0,ms)] %b %s %ST %[var(txn.npufleet_grpc_status)] %Tr %Ta %ts %HPO"
# Largest length of a line, and largest number of lines that are parsed
MAX_LINE_LENGTH, MAX_LINES = 4096, 1 << 20
# Largest number of models in a window, because clients can send any name. All further models are counted together under one name.
MAX_MODELS, OTHER_MODELS = 200, "(other models)"
# Kinds of failures. `connect`: no connection to the server. `aborted`: the server closed the connection or was silent for too
# long. `grpc`: a gRPC status in the response's headers. `client`: the client gave up. `closed`: a drain closed the request.
KINDS = ("4xx", "5xx", "connect", "aborted", "grpc", "client", "closed")
# Kinds for which the server is responsible. They include 4xx, although invalid requests of clients also cause 4xx.
BY_SERVER = ("4xx", "5xx", "connect", "aborted", "grpc")
# The name that HAProxy logs as the server if no server received the request
NO_SERVER = "<NOSRV>"

_HTTP_CALL = re.compile(r"/v2/models/([!-.0-~]{1,255})(?:/versions/[^/]{1,20})?/(infer|generate|generate_stream)")
_GRPC_CALL = re.compile(r"/inference\.GRPCInferenceService/(ModelInfer|ModelStreamInfer)")
_STREAMS = ("generate_stream", "ModelStreamInfer")
_NUMBER = re.compile(r"-?[0-9]{1,15}")
# Upper bounds of the latency in ms. Bounds above 20 ms are 5 % apart. The last bucket also counts all slower requests.
BOUNDS = [1]
while BOUNDS[-1] < 10_000_000:
    BOUNDS.append(max(BOUNDS[-1] + 1, math.ceil(BOUNDS[-1] * 1.05)))


class Request(NamedTuple):
    """A finished request. `at` is in seconds since 1970. The other times are in ms, or -1 if they are unknown."""

    at: float
    protocol: str
    server: str
    status: int
    grpc_status: int
    response_ms: int
    termination: str
    model: Optional[str]
    inference: bool
    stream: bool


def parse_line(line: str) -> Optional[Request]:
    """Return the request that a line of the ring describes, or None for a line in another format."""
    words = line.split(" ") if len(line) <= MAX_LINE_LENGTH else []
    if len(words) != 10 or words[0] != MARK:
        return None
    _mark, at, backend, server, status, grpc_status, response, active, termination, path = words
    protocol = next((name for name, entry in BACKENDS.items() if entry == backend), None)
    numbers = [at, status, "0" if grpc_status == "-" else grpc_status, response, active]
    if protocol is None or not all(_NUMBER.fullmatch(number) for number in numbers):
        return None
    if (server != NO_SERVER and not NAME.fullmatch(server)) or not re.fullmatch(r"[A-Za-z-]{2,4}", termination):
        return None
    call = (_HTTP_CALL if protocol == "http" else _GRPC_CALL).fullmatch(path)
    return Request(
        at=int(at) / 1000,
        protocol=protocol,
        server=server,
        status=int(status),
        grpc_status=int(numbers[2]),
        response_ms=int(response),
        termination=termination,
        model=call[1] if call and protocol == "http" else None,
        inference=call is not None,
        stream=call is not None and call[call.re.groups] in _STREAMS,
    )


def failure(request: Request) -> Optional[str]:
    """Return the kind of a failed request, or None for a successful one."""
    cause, phase = request.termination[0], request.termination[1]
    if cause == "K":
        return "closed"
    if cause in "Cc":
        return "client"
    if cause in "SsDU":
        return "connect" if phase in "CQ" else "aborted"
    if request.grpc_status != 0:
        return "grpc"
    if request.status >= 500:
        return "5xx"
    if request.status >= 400:
        return "4xx"
    # A request without a response
    return "aborted" if request.status < 100 else None


class Ring(NamedTuple):
    """The requests of a window in the memory of a worker. `covers` is False if the worker has lost requests of the window."""

    requests: List[Request]
    covers: bool


def parse_ring(text: str, since: float, until: float = math.inf) -> Ring:
    """Return the requests in a ring that finished at `since` or later and before `until` (seconds since 1970)."""
    requests: List[Request] = []
    oldest = math.inf
    lines = text.split("\n", MAX_LINES)
    # Of the lines before the window, only the first line is parsed. Its time shows how far back the ring reaches.
    window_start = f"{MARK} {max(since, 0) * 1000:013.0f}"
    for line in lines[:MAX_LINES]:
        if oldest <= since and line[: len(window_start)] < window_start:
            continue
        request = parse_line(line)
        if request is not None:
            oldest = min(oldest, request.at)
            if since <= request.at < until:
                requests.append(request)
    # A full ring has overwritten the requests before its oldest line.
    full = len(text) > RING_SIZE * 3 // 4
    return Ring(requests, len(lines) <= MAX_LINES and (not full or oldest <= since))


def window(requests: Iterable[Request]) -> Dict[str, Dict[str, Dict[str, Any]]]:
    """Return the windows of requests as {server: {protocol: window}}. Requests that no server received count for NO_SERVER."""
    found: Dict[str, Dict[str, Dict[str, Any]]] = {}
    for request in requests:
        _count(found.setdefault(request.server, {}).setdefault(request.protocol, empty()), request)
    for by_protocol in found.values():
        for counted in by_protocol.values():
            counted["by_model"] = _limited(counted["by_model"])
    return found


def empty() -> Dict[str, Any]:
    """Return a window without requests."""
    return {"requests": 0, "streams": 0, "failed": {}, "latency": {}, "by_model": {}, "other": {"requests": 0, "failed": {}}}


def _count(counted: Dict[str, Any], request: Request) -> None:
    parts = [counted if request.inference else counted["other"]]
    if request.model is not None:
        parts.append(counted["by_model"].setdefault(request.model, {"requests": 0, "failed": {}, "latency": {}}))
    kind = failure(request)
    counted["streams"] += request.stream
    for part in parts:
        part["requests"] += 1
        if kind:
            part["failed"][kind] = part["failed"].get(kind, 0) + 1
        elif "latency" in part and not request.stream and request.response_ms >= 0:
            bound = str(BOUNDS[min(bisect.bisect_left(BOUNDS, request.response_ms), len(BOUNDS) - 1)])
            part["latency"][bound] = part["latency"].get(bound, 0) + 1


def _limited(by_model: Dict[str, Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Return the models with the most requests, and the sum of all other models."""
    names = sorted(by_model, key=lambda name: (name == OTHER_MODELS, -by_model[name]["requests"], name))
    largest = {name: by_model[name] for name in names[:MAX_MODELS]}
    rest = [by_model[name] for name in names[MAX_MODELS:]]
    return {**largest, OTHER_MODELS: _sum(rest)} if rest else largest


def merge(windows: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the sum of several windows of the same length, such as the windows of all balancers or of all servers of a group."""
    merged: Dict[str, Any] = _sum([empty(), *windows])
    return {**merged, "by_model": _limited(merged["by_model"])}


def _sum(parts: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
    total: Dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = _sum([total.get(key, {}), value]) if isinstance(value, Mapping) else total.get(key, 0) + value
    return total


def quantile(latency: Mapping[str, int], share: float) -> Optional[int]:
    """Return the latency in ms that this share of the requests does not exceed (an upper bound), or None without requests."""
    rank, counted = math.ceil(share * sum(latency.values())), 0
    for bound in sorted(latency, key=int):
        counted += latency[bound]
        if counted >= max(rank, 1):
            return int(bound)
    return None


def failures(counted: Mapping[str, Any], kinds: Iterable[str] = BY_SERVER) -> int:
    """Return the number of failed requests of these kinds."""
    return sum(counted["failed"].get(kind, 0) for kind in kinds)
