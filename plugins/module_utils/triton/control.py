# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to load and unload models over gRPC. A process in the server's container sends them with the image's grpc package.

The process encodes the requests itself (grpc_service.proto of Triton), because importing tritonclient takes 0.6 s of a core.
The requests do not use HTTP, because a load over HTTP would block one of Triton's few HTTP threads, and all keep-alive connections
of this thread, until the load ends.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine

# Triton's gRPC port in the container
PORT = 8001
# Seconds that the process may take in addition to the timeout of its request, mainly to start python3 in the container
GRACE = 60.0
# Largest number of characters of Triton's message. PROGRAM has the same limit.
MAX_MESSAGE = 4000
# The output of PROGRAM: the gRPC status code, and Triton's message
RESPONSE = {"code": str, "message": shapes.TEXT_OR_NULL}
DEADLINE_EXCEEDED, UNAVAILABLE = "DEADLINE_EXCEEDED", "UNAVAILABLE"
# The gRPC client that python3 runs in the container. Its argument is the request as JSON: port, model, verb, timeout in seconds,
# and key (name of the header, path of the file). The client reads the key from a file, so that no command line contains the key.
PROGRAM = """
import json, os, sys
import grpc
def field(number, value):
    left, length = len(value), b""
    while left > 127:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + value
request = json.loads(sys.argv[1])
metadata = []
try:
    with open(request["key"]["path"]) as source:
        metadata = [("triton-grpc-protocol-" + request["key"]["name"], source.read().strip())]
except (OSError, TypeError):
    pass
# A proxy in the container's environment is not meant for this request. Triton's error message arrives as metadata, which gRPC
# limits to 8 KB by default, so the limit is raised.
options = [("grpc.enable_http_proxy", 0), ("grpc.max_metadata_size", 1 << 22), ("grpc.absolute_max_metadata_size", 1 << 22)]
channel = grpc.insecure_channel("127.0.0.1:%d" % request["port"], options=options)
body = field(2, request["model"].encode())
if request["verb"] == "unload":
    # This is parameters["unload_dependents"] = ModelRepositoryParameter(bool_param=false).
    body += field(3, field(1, b"unload_dependents") + field(2, bytes([8, 0])))
call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModel" + request["verb"].capitalize())
try:
    call(body, timeout=request["timeout"], metadata=metadata)
    response = {"code": "OK", "message": ""}
except grpc.RpcError as error:
    response = {"code": error.code().name, "message": error.details()[:4000]}
# The response must be one write, because the engine sends each write as a separate frame.
os.write(1, json.dumps(response).encode() + b"\\n")
"""

# A function that runs a command in a container, with a limit in seconds, and returns (exit code, output)
Runner = Callable[[List[str], float], Tuple[int, str]]


class ControlError(Exception):
    """The reason why a request was not sent, or why its response is unknown."""


def container_runner(container: str) -> Runner:
    """Return a function that runs commands in a container through the engine."""
    return lambda command, seconds: Engine(timeout=seconds).execute(container, command)


def send(run: Runner, verb: str, model: str, timeout: float, key: Optional[Mapping[str, str]], port: int = PORT) -> Tuple[str, str]:
    """Send one request to `load` or `unload` a model, and return (gRPC code, message). Raises ControlError."""
    request: Dict[str, Any] = {"verb": verb, "model": model, "timeout": timeout, "key": dict(key) if key else None, "port": port}
    try:
        code, output = run(["python3", "-c", PROGRAM, json.dumps(request)], timeout + GRACE)
    except OSError as error:
        raise ControlError(str(error)) from None
    try:
        response = shapes.parse_as(output.strip().rpartition("\n")[2], RESPONSE)
        return response["code"], (response["message"] or "")[:MAX_MESSAGE]
    except ValueError:
        tail = " ".join(output.split())[-600:]
        raise ControlError(f"the client in the container ended with {code} and without a response: {tail}") from None
