"""Clients of a load balancer that send requests at a fixed rate, whether or not earlier requests are answered.

No request is sent twice. Every answer is compared with the expected answer.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import queue
import select
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

# Seconds after which a request without an answer counts as failed
PATIENCE = 30.0
# The requests of clients have larger numbers than those of checks, so that a bad release can pass its checks and still fail
# clients.
SMALLEST, NUMBERS = 1000, 1000
WORDS = ["one", "two", "three"]
# Answers of a stream of the server, and the milliseconds between them
ANSWERS, WAIT_MS = 5, 100
# Seconds between two requests on the stream that stays open
EVERY = 0.5
WORKERS = 64
HTTP_PORT, GRPC_PORT = 8000, 8001
# The name in the balancer's certificate in tests
CERTIFICATE_NAME = "balancer.lab"


class Sample(NamedTuple):
    """A finished request. `due` is the time at which it had to be sent. `error` is "" for a right answer."""

    kind: str
    due: float
    ended: float
    edition: int
    error: str


class WrongAnswer(Exception):
    """An answer that differs from the expected one."""


def number_of(count: int) -> float:
    """Return the number that the model has to double in the request with this count."""
    return float(SMALLEST + count % NUMBERS)


def doubled(number: float, y: float, edition: int) -> int:
    """Return the edition of the model if it has doubled the number. Raises WrongAnswer."""
    if y != 2 * number:
        raise WrongAnswer(f"{y} for {number}")
    return edition


def double_request(number: float) -> Any:
    """Return a gRPC request to the model `alpha`."""
    request = service_pb2.ModelInferRequest(model_name="alpha")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.float32([number]).tobytes())
    return request


def raw_outputs(response: Any) -> dict[str, bytes]:
    """Return {name of an output: its bytes} of a gRPC answer."""
    return {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents)}


def double_answer(number: float, answer: Any) -> int:
    """Return the edition in a gRPC answer of the model `alpha`. Raises WrongAnswer."""
    outputs = raw_outputs(answer)
    return doubled(number, float(np.frombuffer(outputs["Y"], np.float32)[0]), int(np.frombuffer(outputs["EDITION"], np.int32)[0]))


def stream_request(words: list[str], answers: int, wait_ms: int) -> Any:
    """Return a gRPC request to the model `stream` for a number of answers, each with one word after a wait in milliseconds."""
    request = service_pb2.ModelInferRequest(model_name="stream")
    text = " ".join(words).encode()
    for name, datatype, raw in (
        ("TEXT", "BYTES", len(text).to_bytes(4, "little") + text),
        ("COUNT", "INT32", np.int32([answers]).tobytes()),
        ("WAIT_MS", "INT32", np.int32([wait_ms]).tobytes()),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1])
        request.raw_input_contents.append(raw)
    return request


def stream_word(answer: Any) -> str:
    """Return the word in an answer of the model `stream` on a gRPC stream. Raises WrongAnswer if the answer is an error."""
    if answer.error_message:
        raise WrongAnswer(answer.error_message)
    return raw_outputs(answer.infer_response)["WORD"][4:].decode()


class HttpConnections:
    """Connections that stay open between requests."""

    def __init__(self, address: str, port: int, certificate: Path | None) -> None:
        self.address, self.port = address, port
        # The clients know the balancer by its certificate, not by a name.
        self.tls = ssl.create_default_context(cafile=str(certificate)) if certificate else None
        if self.tls:
            self.tls.check_hostname = False
        self.idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()

    def take(self) -> http.client.HTTPConnection:
        """Return an open connection, or a new one. A connection that the balancer has closed meanwhile is not used."""
        while True:
            try:
                connection = self.idle.get_nowait()
            except queue.Empty:
                if self.tls:
                    return http.client.HTTPSConnection(self.address, self.port, timeout=PATIENCE, context=self.tls)
                return http.client.HTTPConnection(self.address, self.port, timeout=PATIENCE)
            if connection.sock and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def double(self, number: float) -> int:
        connection = self.take()
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [number]}
        try:
            connection.request("POST", "/v2/models/alpha/infer", json.dumps({"inputs": [tensor]}).encode())
            response = connection.getresponse()
            text = response.read()
        except BaseException:
            connection.close()
            raise
        self.idle.put(connection)
        if response.status != 200:
            raise WrongAnswer(f"{response.status} {text[:200]!r}")
        outputs = {output["name"]: output["data"][0] for output in json.loads(text)["outputs"]}
        return doubled(number, outputs["Y"], outputs["EDITION"])


def grpc_channel(address: str, port: int, certificate: Path | None) -> grpc.Channel:
    """Return a channel that sends no request twice. With a certificate, the channel uses TLS."""
    options: list[tuple[str, Any]] = [("grpc.enable_retries", 0)]
    if not certificate:
        return grpc.insecure_channel(f"{address}:{port}", options=options)
    options.append(("grpc.ssl_target_name_override", CERTIFICATE_NAME))
    return grpc.secure_channel(f"{address}:{port}", grpc.ssl_channel_credentials(certificate.read_bytes()), options=options)


class OpenLoop:
    """Clients of the models `alpha` and `stream` behind a balancer.

    `rates` are requests per second by kind: http, grpc, stream. `certificate` is the file with the balancer's certificate for
    CERTIFICATE_NAME, or None without TLS.
    """

    def __init__(self, address: str, rates: dict[str, float], certificate: Path | None = None) -> None:
        self.rates = rates
        self.samples: list[Sample] = []
        # (time, code) of each end of the stream that stays open, and (time, error) of each wrong answer on it
        self.closed: list[tuple[float, str]] = []
        self.wrong: list[tuple[float, str]] = []
        self.sent = 0
        self.http = HttpConnections(address, HTTP_PORT, certificate)
        self.channel = grpc_channel(address, GRPC_PORT, certificate)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.stopped = threading.Event()
        # While this event is not set, no stream stays open.
        self.streaming = threading.Event()
        self.streaming.set()
        self.pool = ThreadPoolExecutor(WORKERS)
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> OpenLoop:
        calls: dict[str, Callable[[int], int]] = {
            "http": lambda count: self.http.double(number_of(count)),
            "grpc": self._grpc,
            "stream": self._server_stream,
        }
        for kind, rate in self.rates.items():
            self.threads.append(threading.Thread(target=self._schedule, args=(kind, rate, calls[kind]), daemon=True))
        self.threads.append(threading.Thread(target=self._keep_open, daemon=True))
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        self.pool.shutdown()
        self.channel.close()

    def _schedule(self, kind: str, rate: float, call: Callable[[int], int]) -> None:
        began = time.monotonic()
        for count in itertools.count():
            due = began + count / rate
            if self.stopped.wait(max(0.0, due - time.monotonic())):
                return
            with self.lock:
                self.sent += 1
            self.pool.submit(self._call, kind, count, due, call)

    def _call(self, kind: str, count: int, due: float, call: Callable[[int], int]) -> None:
        edition, error = 0, ""
        try:
            edition = call(count)
        except grpc.RpcError as failure:
            error = f"{failure.code().name}: {failure.details()}"
        # A failed request of any kind is a result.
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        self.samples.append(Sample(kind, due, time.monotonic(), edition, error))

    def _grpc(self, count: int) -> int:
        number = number_of(count)
        return double_answer(number, self.stub.ModelInfer(double_request(number), timeout=PATIENCE))

    def _server_stream(self, _count: int) -> int:
        words = []
        # Like tritonclient, this client ends the stream after the last answer.
        requests: queue.Queue[Any] = queue.Queue()
        requests.put(stream_request(WORDS, ANSWERS, WAIT_MS))
        try:
            for answer in self.stub.ModelStreamInfer(iter(requests.get, None), timeout=PATIENCE):
                words.append(stream_word(answer))
                if len(words) == ANSWERS:
                    requests.put(None)
        finally:
            requests.put(None)
        if words != [WORDS[count % len(WORDS)] for count in range(ANSWERS)]:
            raise WrongAnswer(f"the stream has {words}")
        return 0

    def _keep_open(self) -> None:
        """Keep a stream open and send requests on it. Open it again if it is closed.

        All streams call the same decoupled model. If streams also call other models, Triton 24.10 can crash, because it writes into
        the state of an ended request, which a request to a decoupled model may use again.
        """
        while not self.stopped.is_set():
            if not self.streaming.wait(EVERY):
                continue
            requests: queue.Queue[Any] = queue.Queue()
            answers = self.stub.ModelStreamInfer(iter(requests.get, None))
            try:
                for count in itertools.count():
                    sent = str(count)
                    requests.put(stream_request([sent], 1, 0))
                    received = stream_word(next(answers))
                    if received != sent:
                        raise WrongAnswer(f"{received} for {sent}")
                    if self.stopped.wait(EVERY) or not self.streaming.is_set():
                        answers.cancel()
                        break
            except grpc.RpcError as error:
                self.closed.append((time.monotonic(), error.code().name))
                self.stopped.wait(EVERY)
            except (WrongAnswer, StopIteration) as error:
                self.wrong.append((time.monotonic(), f"{type(error).__name__}: {error}"))
                answers.cancel()
                self.stopped.wait(EVERY)
            finally:
                requests.put(None)

    @contextlib.contextmanager
    def span(self) -> Iterator[Span]:
        """Yield the requests that are sent during the block. Their samples are complete after the block."""
        requests = Span(self, time.monotonic())
        yield requests
        requests.ended = time.monotonic()
        with self.lock:
            sent = self.sent
        deadline = requests.ended + 2 * PATIENCE
        while len(self.samples) < sent and time.monotonic() < deadline:
            self.stopped.wait(0.1)


class Span:
    """The requests in a span of time."""

    def __init__(self, clients: OpenLoop, began: float) -> None:
        self.clients, self.began, self.ended = clients, began, 0.0

    @property
    def samples(self) -> list[Sample]:
        return [sample for sample in self.clients.samples if self._within(sample.due)]

    @property
    def failed(self) -> list[str]:
        """The failed requests, with the seconds after the begin of the span at which they were sent and ended."""
        return [
            f"{sample.due - self.began:.1f}-{sample.ended - self.began:.1f} s {sample.kind}: {sample.error}"
            for sample in self.samples
            if sample.error
        ]

    @property
    def editions(self) -> set[int]:
        return {sample.edition for sample in self.samples if not sample.error and sample.edition}

    @property
    def closed(self) -> int:
        """Return how often the stream that stays open was closed."""
        return sum(self._within(when) for when, _code in self.clients.closed)

    @property
    def wrong(self) -> list[str]:
        """Return the wrong answers on the stream that stays open."""
        return [error for when, error in self.clients.wrong if self._within(when)]

    def _within(self, when: float) -> bool:
        return self.began <= when <= (self.ended or time.monotonic())

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the milliseconds from the time at which a request was due to its answer, without streams."""
        times = sorted(sample.ended - sample.due for sample in self.samples if sample.kind != "stream" and not sample.error)
        return round(times[min(len(times) - 1, int(share * len(times)))] * 1000, 1) if times else 0.0
