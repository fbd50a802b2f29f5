# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Loads and unloads over gRPC, sent by a process in the server's container, which uses the grpc package of the image.

The process encodes the requests itself (grpc_service.proto of Triton), because the import of tritonclient takes 0.6 s of a core.
A load over HTTP would block one of Triton's few HTTP threads, with all keep-alive connections of that thread, until the load ends.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine

# Triton's gRPC port in the container
PORT = 8001
# Seconds that the process may take in addition to its request, mainly to start python3 in the container
GRACE = 60.0
# Limit of the characters of Triton's message. PROGRAM has the same limit.
WORDS = 4000
ANSWER = {"code": str, "words": shapes.TEXT_OR_NULL}
DEADLINE, GONE = "DEADLINE_EXCEEDED", "UNAVAILABLE"
# The program that python3 runs in the container. It reads the key from a file, so that no command line contains the key.
PROGRAM = """
import json, os, sys
import grpc
def field(number, value):
    left, length = len(value), b""
    while left > 127:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + value
asked = json.loads(sys.argv[1])
metadata = []
try:
    with open(asked["key"]["path"]) as source:
        metadata = [("triton-grpc-protocol-" + asked["key"]["name"], source.read().strip())]
except (OSError, TypeError):
    pass
# A proxy of the container's environment is for what it fetches. Triton's reason is metadata, of which gRPC takes 8 KB by itself.
options = [("grpc.enable_http_proxy", 0), ("grpc.max_metadata_size", 1 << 22), ("grpc.absolute_max_metadata_size", 1 << 22)]
channel = grpc.insecure_channel("127.0.0.1:%d" % asked["port"], options=options)
request = field(2, asked["model"].encode())
if asked["verb"] == "unload":
    # ModelRepositoryParameter: bool_param, false
    request += field(3, field(1, b"unload_dependents") + field(2, bytes([8, 0])))
call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModel" + asked["verb"].capitalize())
try:
    call(request, timeout=asked["timeout"], metadata=metadata)
    said = {"code": "OK", "words": ""}
except grpc.RpcError as error:
    said = {"code": error.code().name, "words": error.details()[:4000]}
# In one piece, as the engine sends each write as a frame of its own
os.write(1, json.dumps(said).encode() + b"\\n")
"""

# A function that runs a command in a container, with a limit in seconds, and returns (exit code, output)
Runner = Callable[[List[str], float], Tuple[int, str]]


class ControlError(Exception):
    """The reason why no request reached the server."""


def inside(container: str) -> Runner:
    """Return a function that runs commands in a container through the engine."""
    return lambda command, seconds: Engine(timeout=seconds).execute(container, command)


def ask(run: Runner, verb: str, model: str, timeout: float, key: Optional[Mapping[str, str]], port: int = PORT) -> Tuple[str, str]:
    """Send one request to `load` or `unload` a model, and return (gRPC code, message). Raises ControlError."""
    asked: Dict[str, Any] = {"verb": verb, "model": model, "timeout": timeout, "key": dict(key) if key else None, "port": port}
    try:
        code, said = run(["python3", "-c", PROGRAM, json.dumps(asked)], timeout + GRACE)
    except OSError as error:
        raise ControlError(str(error)) from None
    try:
        answer = shapes.parse_as(said.strip().rpartition("\n")[2], ANSWER)
        return answer["code"], (answer["words"] or "")[:WORDS]
    except ValueError:
        words = " ".join(said.split())[-600:]
        raise ControlError(f"the client in the container ended with {code} and without an answer: {words}") from None
