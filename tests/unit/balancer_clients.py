"""Clients of a balancer: requests of a connection that stays open, gRPC calls, and streams that stay open."""

from __future__ import annotations

import http.client
import importlib
import json
import queue
import threading
from typing import Any

import numpy as np


class HttpClient:
    """An HTTP client that keeps its connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def infer(self, model: str = "double", value: float = 1.0) -> int:
        """Return the status of one inference."""
        tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        path = f"/v2/models/{model}/infer?key=hidden"
        self.connection.request("POST", path, head + np.float32([value]).tobytes(), headers)
        response = self.connection.getresponse()
        response.read()
        return response.status


class Call(threading.Thread):
    """An inference in the background. `status` is its result, an exception if it failed."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.status = port, 0
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.status = HttpClient(self.port).infer()
        except Exception as error:
            self.error = error


def request_message(value: float = 1.0) -> Any:
    """Return an inference request of gRPC."""
    messages = importlib.import_module("tritonclient.grpc.service_pb2")
    request = messages.ModelInferRequest(model_name="double")
    request.inputs.add(name="IN", datatype="FP32", shape=[1])
    request.raw_input_contents.append(np.float32([value]).tobytes())
    return request


class GrpcClient:
    """A gRPC client with one channel, and at most one bidirectional stream that stays open."""

    def __init__(self, port: int) -> None:
        grpc = importlib.import_module("grpc")
        services = importlib.import_module("tritonclient.grpc.service_pb2_grpc")
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub = services.GRPCInferenceServiceStub(self.channel)
        self.requests: queue.Queue[Any] = queue.Queue()
        self.answers: Any = None

    def infer(self, value: float = 1.0) -> float:
        """Return the answer to one inference. Raises grpc.RpcError."""
        answer = self.stub.ModelInfer(request_message(value), timeout=30)
        return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])

    def stream(self, value: float = 1.0) -> float:
        """Send one request on the open stream, and return its answer. Raises grpc.RpcError."""
        if self.answers is None:
            self.answers = self.stub.ModelStreamInfer(iter(self.requests.get, None))
        self.requests.put(request_message(value))
        answer = next(self.answers).infer_response
        return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])

    def close(self) -> None:
        self.requests.put(None)
        self.channel.close()
