#!/usr/bin/env python3
"""Check that answers are right if Triton computes requests in batches: answers.py MODEL NETWORK.onnx.

The program runs in the server's container. It sends requests of one to four rows. Each row is a random picture. Many requests are
in flight at once, so that the server joins them. Every row of an answer is compared with the answer of onnxruntime for this
picture, so the answer of another request or row counts as wrong. The program prints {"requests", "rows", "wrong": [the first
reasons]} as JSON.
"""

from __future__ import annotations

import json
import sys
import threading

import numpy as np
import onnxruntime
import tritonclient.grpc as client

REQUESTS = 240
IN_FLIGHT = 16
PICTURES = 40
# Rows of the requests. Requests of several rows cause batches that end within a request.
ROWS = (1, 1, 1, 2, 1, 3, 1, 1, 4, 1)
TOLERANCE = 1e-4
MAX_REASONS = 5


def main(model: str, network: str) -> None:
    """Send the requests, compare the answers, and print the result."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(7)
    pictures = random.standard_normal((PICTURES, 3, 224, 224), np.float32)
    expected = np.concatenate([session.run(None, {"INPUT__0": pictures[[number]]})[0] for number in range(PICTURES)])
    apart = min(np.abs(answer - earlier).max() for index, answer in enumerate(expected) for earlier in expected[:index])
    if apart < 100 * TOLERANCE:
        sys.exit(f"the answers of two pictures differ only by {apart:g}, so a mix-up would not be noticed")
    wrong: list[str] = []
    free = threading.Semaphore(IN_FLIGHT)
    server = client.InferenceServerClient("localhost:8001")
    rows = 0

    def done(number: int, chosen: np.ndarray) -> object:
        def answered(result: client.InferResult, error: Exception | None) -> None:
            if error is not None:
                wrong.append(f"request {number}: {error}")
            else:
                scores = result.as_numpy("OUTPUT__0")
                if scores.shape != (len(chosen), 1000):
                    wrong.append(f"request {number}: the shape is {list(scores.shape)}, expected {[len(chosen), 1000]}")
                elif (difference := float(np.abs(scores - expected[chosen]).max())) > TOLERANCE:
                    wrong.append(f"request {number} of {len(chosen)} rows differs from onnxruntime by {difference:g}")
            free.release()

        return answered

    for number in range(REQUESTS):
        chosen = random.integers(0, PICTURES, ROWS[number % len(ROWS)])
        rows += len(chosen)
        tensor = client.InferInput("INPUT__0", [len(chosen), 3, 224, 224], "FP32")
        tensor.set_data_from_numpy(pictures[chosen])
        free.acquire()
        server.async_infer(model, [tensor], done(number, chosen), client_timeout=30)
    for _ in range(IN_FLIGHT):
        free.acquire()
    print(json.dumps({"requests": REQUESTS, "rows": rows, "wrong": wrong[:MAX_REASONS]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
