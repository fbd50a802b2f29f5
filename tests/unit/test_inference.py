"""The check library against a stand-in client: what is sent, how answers are judged, and when it gives up asking."""

from __future__ import annotations

import importlib
import io
import json
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.inference import encoding, judge, packing, pictures, questions, runner
from ansible_collections.npufleet.triton.plugins.module_utils.inference import load as inference_load
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)
REFUSED = {
    "http": ConnectionRefusedError(111, "Connection refused"),
    "grpc": InferenceServerException("Connection refused", "StatusCode.UNAVAILABLE"),
}
LATE = {"http": TimeoutError("timed out"), "grpc": InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED")}
UNKNOWN = {
    "http": InferenceServerException("Request for unknown model: 'm'", "404"),
    "grpc": InferenceServerException("Request for unknown model: 'm'", "StatusCode.NOT_FOUND"),
}


class Server:
    """Answers of a server by model, over both protocols; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.sent: list[dict[str, tuple[str, Any]]] = []
        self.requested: list[list[tuple[str, int]]] = []
        self.probes: list[str] = []
        self.clients: list[tuple[str, str, dict[str, Any]]] = []
        self.index: list[dict[str, str]] | None = []
        # Streams: what they were asked with, how they ended, and what each answers: outputs, or an error
        self.streams: list[dict[str, Any]] = []
        self.cancelled: list[bool] = []
        self.respond: Callable[[str], list[Any]] = lambda _model: []
        self.metrics = ""
        self.live: Callable[[str], bool] = lambda _protocol: True
        # Row r answers with a one at place r // 4 of four scores
        self.answer: Callable[[str, str, Any], dict[str, Any]] = lambda _protocol, _model, rows: {"OUT": scores(rows)}


def of_bytes(*elements: bytes) -> Any:
    """[n] as BYTES are: numpy's own type of bytes would drop zeros at the end."""
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def scores(rows: Any) -> Any:
    """[n, 4]: what the model of these tests answers to rows of ROWS."""
    return np.eye(8, 4, dtype=np.float32)[(rows[:, 0] // 4).astype(int) % 4]


# What ends a stream without an output of its own
FINAL: dict[str, Any] = {}


def client_library(protocol: str, server: Server) -> ModuleType:
    """tritonclient.http or tritonclient.grpc as far as the library knows it."""

    class InferInput:
        def __init__(self, name: str, shape: list[int], dtype: str) -> None:
            self.name, self.shape, self.dtype = name, shape, dtype

        def set_data_from_numpy(self, array: Any) -> None:
            assert list(array.shape) == self.shape
            assert np_to_triton_dtype(array.dtype) == self.dtype
            self.array = array

    class Result:
        def __init__(self, outputs: dict[str, Any]) -> None:
            self.outputs = {}
            for name, output in outputs.items():
                self.outputs[name] = (
                    output if isinstance(output, tuple) else (np_to_triton_dtype(output.dtype), list(output.shape), output)
                )

        def get_response(self) -> Any:
            said = [{"name": name, "datatype": output[0], "shape": output[1]} for name, output in self.outputs.items()]
            return {"outputs": said} if protocol == "http" else SimpleNamespace(outputs=[SimpleNamespace(**line) for line in said])

        def as_numpy(self, name: str) -> Any:
            dtype, shape, array = self.outputs[name]
            return np.frombuffer(array.tobytes(), dtype=triton_to_np_dtype(dtype)).reshape(shape)

    class InferRequestedOutput:
        def __init__(self, name: str, class_count: int = 0) -> None:
            self.name, self.class_count = name, class_count

    class InferenceServerClient:
        def __init__(self, url: str, **options: Any) -> None:
            server.clients.append((protocol, url, options))

        def is_server_live(self, **options: Any) -> bool:
            server.probes.append(protocol)
            assert set(options) == (set() if protocol == "http" else {"client_timeout"})
            return server.live(protocol)

        def infer(self, model: str, inputs: list[InferInput], version: str, outputs: Any, **options: Any) -> Result:
            assert set(options) == (set() if protocol == "http" else {"client_timeout"})
            assert version == ""
            server.requested.append([(entry.name, entry.class_count) for entry in outputs or []])
            server.sent.append({tensor.name: (tensor.dtype, tensor.array) for tensor in inputs})
            server.asked.append((protocol, model, inputs[0].array))
            return Result(server.answer(protocol, model, inputs[0].array))

        def get_model_repository_index(self, as_json: bool = False, client_timeout: float | None = None) -> Any:
            assert as_json is (protocol == "grpc") is bool(client_timeout)
            if server.index is None:
                raise InferenceServerException("restricted", "403")
            return {"models": server.index} if as_json else server.index

        def start_stream(self, callback: Any, stream_timeout: float, headers: dict[str, str]) -> None:
            self.callback = callback
            server.streams.append({"timeout": stream_timeout, "headers": headers})

        def async_stream_infer(
            self, model: str, inputs: list[InferInput], version: str, outputs: Any, enable_empty_final_response: bool
        ) -> None:
            assert enable_empty_final_response
            server.asked.append(("stream", model, inputs[0].array))
            for response in server.respond(model):
                if isinstance(response, Exception):
                    self.callback(None, response)
                else:
                    self.callback(Response(response, response is FINAL), None)

        def stop_stream(self, cancel_requests: bool) -> None:
            server.cancelled.append(cancel_requests)

        def close(self) -> None:
            pass

    class Response(Result):
        """A response of a stream, which says whether it is the last."""

        def __init__(self, outputs: dict[str, Any], final: bool) -> None:
            super().__init__(outputs)
            self.final = final

        def get_response(self) -> Any:
            said = super().get_response()
            said.parameters = {"triton_final_response": SimpleNamespace(bool_param=self.final)}
            said.ByteSize = lambda: 100
            return said

    library = ModuleType(f"tritonclient.{protocol}")
    library.__path__ = [f"{Path(str(tritonclient.__file__)).parent}/{protocol}"]
    for entry in (InferenceServerClient, InferInput, InferRequestedOutput):
        setattr(library, entry.__name__, entry)
    return library


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    for protocol in ("http", "grpc"):
        monkeypatch.setitem(sys.modules, f"tritonclient.{protocol}", client_library(protocol, made))
    raw_stub(monkeypatch, made)
    return made


class RpcError(Exception):
    """grpc's error of a call."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__()
        self.code, self.details = lambda: f"StatusCode.{code}", lambda: details


def raw_stub(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The generated stub with the real messages, and a server behind it that reads and writes raw contents itself."""
    messages = importlib.import_module("tritonclient.grpc.service_pb2")

    class Stub:
        def __init__(self, channel: Any) -> None:
            assert channel == "10.0.0.7:81"

        def ServerLive(self, request: Any, timeout: float) -> Any:
            server.probes.append("raw")
            return messages.ServerLiveResponse(live=server.live("raw"))

        def RepositoryIndex(self, request: Any, timeout: float) -> Any:
            return messages.RepositoryIndexResponse(models=server.index)

        def ModelInfer(self, request: Any, timeout: float) -> Any:
            arrays = {}
            for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
                array = encoding.decode_array(tensor.datatype, list(tensor.shape), content)
                assert array is not None, f"{tensor.name}: {len(content)} bytes for {tensor.datatype} {list(tensor.shape)}"
                arrays[tensor.name] = (tensor.datatype, array)
            server.sent.append(arrays)
            server.requested.append([(tensor.name, tensor.parameters["classification"].int64_param) for tensor in request.outputs])
            first = next(iter(arrays.values()))[1]
            server.asked.append(("raw", request.model_name, first))
            response = messages.ModelInferResponse(model_name=request.model_name)
            for name, output in server.answer("raw", request.model_name, first).items():
                dtype, shape, array = (
                    output if isinstance(output, tuple) else (np_to_triton_dtype(output.dtype), output.shape, output)
                )
                response.outputs.add(name=name, datatype=dtype, shape=shape)
                response.raw_output_contents.append(array if isinstance(array, bytes) else encoding.encode_array(dtype, array))
            return response

    monkeypatch.setitem(sys.modules, "grpc", SimpleNamespace(insecure_channel=lambda url, options: url, RpcError=RpcError))
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.service_pb2_grpc", SimpleNamespace(GRPCInferenceServiceStub=Stub))


def check(name: str = "row", protocols: tuple[str, ...] = ("http", "grpc"), expect: Any = None, **rows: Any) -> dict[str, Any]:
    """A check of rows 0 and 1, as the action plugin sends it: every row packed."""
    rows = {"first": 0, "count": 2, "total": 2, **rows}
    expect = {"OUT": {"dtype": "FP32", "shape": [1, 4], "finite": True, "argmax": [0, 1]}} if expect is None else expect
    return {
        "name": name,
        "protocols": list(protocols),
        "rows": rows,
        "inputs": {"IN": packing.pack(ROWS, range(6))},
        "expect": expect,
    }


def run(*checks: dict[str, Any], model: str = "m", **document: Any) -> list[dict[str, Any]]:
    server = {"address": "10.0.0.7", "http_port": 80, "grpc_port": 81}
    whole = {"host": "npu1", "host_index": 0, "server": server, "timeout": 30, "checks": [{"model": model, "checks": list(checks)}]}
    result = runner.run({**whole, **document})
    assert result["host"] == "npu1"
    # What is returned has to be JSON.
    return json.loads(json.dumps(result))["checks"]


def test_a_right_server_passes_every_request(server: Server) -> None:
    results = run(check())
    assert [result["name"] for result in results] == ["m/http/row 0", "m/http/row 1", "m/grpc/row 0", "m/grpc/row 1"]
    assert {(result["ok"], result["why"]) for result in results} == {(True, "")}
    assert [(result["model"], result["protocol"]) for result in results[1:3]] == [("m", "http"), ("m", "grpc")]
    assert [(result["expected"], result["got"], result["label"]) for result in results] == [(0, 0, 0), (1, 1, 1)] * 2
    assert [result["image"] for result in results] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert all(isinstance(result["ms"], float) and result["ms"] >= 0 for result in results)


LOAD = {"latency": {"clients": 1, "requests": 100, "p50_ms": 1000}}


def test_a_model_whose_loads_are_left_out_is_not_proven(server: Server) -> None:
    load = {**check("fast", ("http",), count=1, total=1), **LOAD}
    (result,) = run(load, latency=False)
    assert (result["name"], result["ok"], server.asked) == ("m/checks", False, [])
    assert result["why"].startswith("no check ran: all checks of its file are load tests, which are skipped here")
    assert [entry["name"] for entry in run(load, check(protocols=("http",)), latency=False)] == ["m/http/row 0", "m/http/row 1"]
    assert [(entry["name"], entry["ok"]) for entry in run(load)] == [("m/http/fast", True)]
    assert [entry["ok"] for entry in run()] == [False]


def test_models_that_nobody_has_to_prove_are_told() -> None:
    document = {"host": "npu1", "host_index": 0, "server": {}, "timeout": 1, "checks": [], "unchecked": ["words"]}
    assert runner.run(document) == {"host": "npu1", "unchecked": ["words"], "checks": []}


def test_one_row_a_request_keeps_the_batch_dimension(server: Server) -> None:
    run(check())
    assert [(protocol, model, array.tolist()) for protocol, model, array in server.asked] == [
        ("http", "m", [[0, 1, 2, 3]]),
        ("http", "m", [[4, 5, 6, 7]]),
        ("grpc", "m", [[0, 1, 2, 3]]),
        ("grpc", "m", [[4, 5, 6, 7]]),
    ]


def test_a_batch_is_one_request(server: Server) -> None:
    expect = {"OUT": {"shape": [3, 4], "argmax": [2, 3, 0]}}
    (result,) = run(check("largest", ("grpc",), expect, first=2, count=3, total=3, batch=True))
    assert [array.tolist() for _protocol, _model, array in server.asked] == [ROWS[2:5].tolist()]
    assert (result["name"], result["ok"], result["expected"], result["got"]) == ("m/grpc/largest", True, [2, 3, 0], [2, 3, 0])
    assert "image" not in result
    assert "label" not in result


def test_a_wrong_label_in_a_batch_shows_all_labels(server: Server) -> None:
    (result,) = run(check("largest", ("http",), {"OUT": {"argmax": [0, 3]}}, batch=True))
    assert (result["ok"], result["why"]) == (False, "OUT: label is [0, 1], expected [0, 3]")


@pytest.mark.parametrize(
    ("host_index", "first_rows"),
    [(0, {"http": 1, "grpc": 3}), (1, {"http": 1, "grpc": 3})],
)
def test_hosts_and_protocols_take_the_next_block(server: Server, host_index: int, first_rows: dict[str, int]) -> None:
    """Two blocks of two rows from row 1 on: the first host takes both, the second begins again."""
    results = run(check(expect={"OUT": {"argmax": [1, 2, 3, 0]}}, first=1, count=2, total=4, spread=True), host_index=host_index)
    sent = {
        protocol: [int(array[0, 0]) // 4 for used, _model, array in server.asked if used == protocol] for protocol in first_rows
    }
    assert sent == {protocol: [row, row + 1] for protocol, row in first_rows.items()}
    assert [result["name"] for result in results] == ["m/http/row 0", "m/http/row 1", "m/grpc/row 0", "m/grpc/row 1"]
    assert {result["why"] for result in results} == {""}


@pytest.mark.parametrize(("host_index", "blocks"), [(0, [0, 1]), (1, [2, 0]), (2, [1, 2])])
def test_blocks_begin_again_when_all_are_taken(host_index: int, blocks: list[int]) -> None:
    entry = {"name": "row", "protocols": ["http", "grpc"], "rows": {"first": 10, "count": 2, "total": 7, "spread": True}}
    found = list(questions.requests("m", entry, host_index))
    assert [request.rows for request in found] == [[10 + 2 * block + place] for block in blocks for place in (0, 1)]
    assert [request.indexes for request in found] == [[2 * block + place] for block in blocks for place in (0, 1)]


# Judging


def why(outputs: dict[str, Any], expect: dict[str, Any], rows: int = 1) -> list[str]:
    answer = {}
    for name, output in outputs.items():
        answer[name] = (
            output
            if isinstance(output, questions.Output)
            else questions.Output(np_to_triton_dtype(output.dtype), list(output.shape), output)
        )
    places = list(range(rows))
    return judge.judge(answer, questions.Request("m/http/x", "http", places, places), packing.with_rows(expect))


class HTTPConnectionClosed(Exception):
    """geventhttpclient's, which has no status and is no OSError."""


def f32(*rows: Any) -> Any:
    return np.array(rows, dtype=np.float32)


GOLDEN = packing.pack(f32([1, 2, 3], [4, 5, 6]), [0, 1])


@pytest.mark.parametrize(
    ("output", "wanted", "reasons"),
    [
        (f32([1, 2, 3]), {"dtype": "FP32", "shape": [1, 3], "finite": True, "argmax": [2], "values": GOLDEN}, []),
        (np.array([[1, 2, 3]]), {"dtype": "FP32"}, ["OUT: dtype is INT64, expected FP32"]),
        (f32([1, 2, 3]), {"shape": [1, 4]}, ["OUT: shape is [1, 3], expected [1, 4]"]),
        (f32([1, np.nan, np.inf]), {"finite": True}, ["OUT: 2 of 3 values are not finite, expected none"]),
        (f32([1, 2, 3]), {"argmax": [0]}, ["OUT: label is 2, expected 0"]),
        (f32([1.5, 2, 7]), {"values": GOLDEN}, ["OUT: 2 of 3 values are off, the worst is 7, expected 3 +- 0"]),
        (f32([1.5, 2, 3.4]), {"values": {**GOLDEN, "atol": 0.5}}, []),
        (
            f32([1.5, 2, 3.6]),
            {"values": {**GOLDEN, "atol": 0.5}},
            ["OUT: 1 of 3 values are off, the worst is 3.6, expected 3 +- 0.5"],
        ),
        (f32([1, 2, 3.4]), {"values": {**GOLDEN, "rtol": 0.15}}, []),
        (
            f32([1.2, 2, 3.4]),
            {"values": {**GOLDEN, "rtol": 0.15}},
            ["OUT: 1 of 3 values are off, the worst is 1.2, expected 1 +- 0.15"],
        ),
        (f32([1, np.nan, 9]), {"values": GOLDEN}, ["OUT: 2 of 3 values are off, the worst is nan, expected 2 +- 0"]),
        (np.array([[1, 2, 3]]), {"values": GOLDEN}, []),
        (f32([[1], [2], [3]]), {"values": GOLDEN}, ["OUT: shape is [1, 3, 1], but the golden values have the shape [1, 3]"]),
        (f32([1, 2, 3], [1, 2, 3]), {"argmax": [2]}, ["OUT: shape is [2, 3], expected 1 row"]),
        (f32([[np.nan] * 3]), {"argmax": [0]}, ["OUT: 3 of 3 values of row 0 are nan, expected label 0"]),
        (f32([1, np.nan, 3]), {"argmax": [1]}, ["OUT: 1 of 3 values of row 0 are nan, expected label 1"]),
        (f32([1, -np.inf, 3]), {"argmax": [2]}, []),
        (f32([0, 0, 0]), {"argmax": [0]}, ["OUT: 3 of 3 values of row 0 equal the largest value 0, expected label 0"]),
        (np.array([[7, 1, 7]]), {"argmax": [0]}, ["OUT: 2 of 3 values of row 0 equal the largest value 7, expected label 0"]),
        (np.array([[True, False]]), {"argmax": [0]}, []),
        (f32([3]), {"argmax": [0]}, ["OUT: a row holds one value, which is always the largest, expected label 0"]),
        (
            np.empty((0, 3), np.float32),
            {"argmax": [2]},
            ["OUT: shape is [0, 3], expected at least one value, which the check of argmax needs"],
        ),
        (
            np.empty((1, 0), np.float32),
            {"finite": True},
            ["OUT: shape is [1, 0], expected at least one value, which the check of finite needs"],
        ),
        (
            np.empty((1, 0), np.float32),
            {"shape": [1, 3], "values": {**packing.pack(np.empty((1, 0), np.float32), [0])}},
            [
                "OUT: shape is [1, 0], expected [1, 3]",
                "OUT: shape is [1, 0], expected at least one value, which the check of values needs",
            ],
        ),
        (np.empty((0, 3), np.float32), {"dtype": "FP32", "shape": [0, 3]}, []),
        (
            f32([1, np.nan, 3]),
            {"values": {**GOLDEN, "atol": 1e30}},
            ["OUT: 1 of 3 values are off, the worst is nan, expected 2 +- 1e+30"],
        ),
        (
            f32([np.inf] * 3),
            {"values": {**GOLDEN, "rtol": 0.5}},
            ["OUT: 3 of 3 values are off, the worst is inf, expected 1 +- 0.5"],
        ),
        (np.float32(3), {"finite": True}, []),
        (np.array([[b"a"]], dtype=np.object_), {"dtype": "BYTES", "shape": [1, 1]}, []),
        (
            np.array([[b"a"]], dtype=np.object_),
            {"finite": True},
            ["OUT: dtype is BYTES, expected numbers, which the check of finite needs"],
        ),
        (questions.Output("FP32", [1, 3], None), {"finite": True}, ["OUT: the data does not fit FP32 of shape [1, 3]"]),
        (
            questions.Output("FP32", [1, 3], None),
            {"dtype": "FP32", "shape": [1, 3]},
            ["OUT: the data does not fit FP32 of shape [1, 3]"],
        ),
    ],
)
def test_an_output_is_judged(output: Any, wanted: dict[str, Any], reasons: list[str]) -> None:
    assert why({"OUT": output}, {"OUT": wanted}) == reasons


def test_every_reason_is_given_at_once() -> None:
    output = np.array([[np.nan, 7, 3, 1]])
    wanted = {"dtype": "FP32", "shape": [1, 3], "finite": True, "argmax": [2], "values": GOLDEN}
    assert why({"OUT": output, "MORE": output}, {"OUT": wanted, "B": {"finite": True}, "A": {"dtype": "FP32"}}) == [
        "OUT: dtype is FP64, expected FP32",
        "OUT: shape is [1, 4], expected [1, 3]",
        "OUT: 1 of 4 values are not finite, expected none",
        "OUT: 1 of 4 values of row 0 are nan, expected label 2",
        "output B is missing, found MORE, OUT",
        "output A is missing, found MORE, OUT",
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_wrong(bad: float) -> None:
    assert why({"OUT": f32([9, 1, bad])}, {"OUT": {"shape": [1, 3], "finite": True}}) == [
        "OUT: 1 of 3 values are not finite, expected none"
    ]


def test_golden_values_are_those_of_the_rows_that_were_sent(server: Server) -> None:
    golden = packing.pack(scores(ROWS) + 0.25, range(6))
    expect = {"OUT": {"values": {**golden, "npy": "x.npy", "atol": 0.25}}}
    assert {result["why"] for result in run(check(expect=expect, first=3))} == {""}
    shifted = {"OUT": {"values": {**packing.pack(scores(ROWS + 4), range(6)), "atol": 0.25}}}
    assert {result["ok"] for result in run(check(expect=shifted, first=3))} == {False}


def test_an_answer_without_an_output(server: Server) -> None:
    server.answer = lambda *_asked: {}
    assert {result["why"] for result in run(check())} == {"output OUT is missing, found no output"}


def test_data_that_does_not_fit_its_shape_is_a_reason(server: Server) -> None:
    server.answer = lambda *_asked: {"OUT": ("FP32", [1, 4], np.zeros(3, np.float32))}
    results = run(check(expect={"OUT": {"shape": [1, 4], "argmax": [0, 1]}}))
    assert {result["why"] for result in results} == {"OUT: the data does not fit FP32 of shape [1, 4]"}
    assert all("got" not in result and result["ms"] is not None for result in results)


# What a report draws


@pytest.mark.parametrize(
    ("rows", "image"),
    [
        (f32([0.4, 0.6, 15.7]), [0, 1, 16]),
        (np.zeros((1, 28, 28), np.uint8), [0] * 784),
        (np.zeros((1, 785), np.uint8), None),
        (np.zeros((2, 4), np.uint8), None),
        (f32([np.nan]), None),
        (np.array([[b"text"]]), None),
    ],
)
def test_rows_that_can_be_drawn(rows: Any, image: Any) -> None:
    places = list(range(len(rows)))
    assert pictures.drawable({"IN": rows}, questions.Request("x", "http", places, places)) == image


def test_two_inputs_are_not_drawn() -> None:
    request = questions.Request("x", "http", [0], [0])
    assert pictures.drawable({"A": f32([1]), "B": f32([1])}, request) is None


# Giving up


def fails(errors: dict[str, Exception]) -> Callable[..., Any]:
    def fail(protocol: str, *_asked: Any) -> Any:
        raise errors[protocol]

    return fail


def test_a_server_that_is_down_is_asked_once_by_protocol(server: Server) -> None:
    server.live = server.answer = fails(REFUSED)
    results = run(check(count=6, total=6), check("batch", batch=True))
    assert len(results) == 14
    assert {(result["protocol"], result["ok"], result["ms"], result["why"]) for result in results} == {
        ("http", False, None, "no Triton answers http at 10.0.0.7:80: [Errno 111] Connection refused"),
        ("grpc", False, None, "no Triton answers grpc at 10.0.0.7:81: Connection refused"),
    }
    assert (server.asked, server.probes) == ([], ["http", "grpc"])


def test_one_protocol_that_is_down_leaves_the_other(server: Server) -> None:
    server.live = lambda protocol: fails(REFUSED)(protocol) if protocol == "grpc" else True
    assert [result["ok"] for result in run(check())] == [True, True, False, False]


def test_a_server_that_dies_on_the_way_is_not_asked_again(server: Server) -> None:
    server.live = lambda protocol: len(server.asked) == 0 or fails(REFUSED)(protocol)
    server.answer = fails({"http": ConnectionResetError(104, "reset by peer"), "grpc": REFUSED["grpc"]})
    results = run(check())
    assert len(server.asked) == 1
    assert results[0]["why"] == results[1]["why"] == "no Triton answers http at 10.0.0.7:80: [Errno 111] Connection refused"


def test_a_sign_of_life_is_not_waited_for_as_long_as_an_answer(server: Server) -> None:
    run(check(protocols=("http",)))
    assert server.clients == [
        ("http", "10.0.0.7:80", {"connection_timeout": 30, "network_timeout": 30}),
        ("http", "10.0.0.7:80", {"connection_timeout": 5.0, "network_timeout": 5.0}),
    ]
    server.clients.clear()
    run(check(protocols=("http",)), timeout=2)
    assert [options["network_timeout"] for _protocol, _url, options in server.clients] == [2]


def test_a_health_api_that_is_restricted_is_a_sign_of_life(server: Server) -> None:
    words = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
    server.live = lambda protocol: (
        fails({"grpc": InferenceServerException(words, "StatusCode.UNAVAILABLE")})(protocol) if protocol == "grpc" else False
    )
    assert {result["ok"] for result in run(check())} == {True}


def test_a_model_that_hangs_costs_one_timeout_by_protocol(server: Server) -> None:
    right = server.answer
    server.answer = lambda protocol, model, rows: fails(LATE)(protocol) if model == "slow" else right(protocol, model, rows)
    slow = {"model": "slow", "checks": [check(count=6, total=6)]}
    results = run(checks=[slow, {"model": "m", "checks": [check()]}])
    assert [model for _protocol, model, _rows in server.asked].count("slow") == 2
    assert {result["why"] for result in results if result["model"] == "slow"} == {
        "no answer within 30 s; slow gets no further request over http",
        "no answer within 30 s; slow gets no further request over grpc",
    }
    assert {result["ok"] for result in results if result["model"] == "m"} == {True}


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (
            [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "Internal:\n  no file"}],
            "UNAVAILABLE Internal: no file",
        ),
        ([{"name": "b", "state": "READY"}, {"name": "a", "state": "READY"}, {"name": "c"}], "it serves a, b"),
        ([], "it serves no model"),
    ],
)
def test_an_unknown_model_is_asked_once_and_the_index_says_why(server: Server, index: Any, said: str) -> None:
    server.answer, server.index = fails(UNKNOWN), index
    results = run(check(count=6, total=6))
    assert {result["why"] for result in results} == {f"Request for unknown model: 'm'; {said}"}
    assert (len(results), len(server.asked)) == (12, 2)


def test_an_index_that_may_not_be_read_adds_nothing(server: Server) -> None:
    server.answer, server.index = fails(UNKNOWN), None
    assert {result["why"] for result in run(check())} == {"Request for unknown model: 'm'"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InferenceServerException("device lost\n\nAt:\n  model.py(3)", "500"), "device lost At: model.py(3)"),
        (InferenceServerException("busy", "StatusCode.UNAVAILABLE"), "busy"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError"),
        (InferenceServerException("", "503"), "503"),
    ],
)
def test_an_error_of_one_request_fails_that_one(server: Server, error: Exception, words: str) -> None:
    right = server.answer
    server.answer = lambda protocol, model, rows: (
        fails({protocol: error})(protocol) if rows[0, 0] == 0 else right(protocol, model, rows)
    )
    results = run(check())
    assert [(result["ok"], result["why"], result["ms"] is None) for result in results] == [
        (False, words, True),
        (True, "", False),
    ] * 2
    assert len(server.asked) == 4


# The way into the container and back


@pytest.mark.parametrize(
    "array", [ROWS, np.array([b"ab", b"c"]), np.zeros((3, 2, 2), np.uint8), np.asfortranarray(ROWS), of_bytes(b"", b"\0a\0")]
)
def test_rows_survive_the_way(array: Any) -> None:
    packed = json.loads(json.dumps(packing.pack(array, [1, 0])))
    back = packing.with_rows({"OUT": {"values": packed}})["OUT"]["values"]["rows"].take([0, 1])
    assert back.dtype == array.dtype
    assert np.array_equal(back, array[:2])


def test_the_result_is_the_last_line_whatever_clients_print(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.live = lambda protocol: print("hello") or True
    runner.main(
        {
            "host": "npu1",
            "host_index": 0,
            "timeout": 1,
            "server": {"address": "a", "http_port": 1, "grpc_port": 2},
            "checks": [{"model": "m", "checks": [check()]}],
        }
    )
    out, err = capsys.readouterr()
    assert [result["ok"] for result in json.loads(out)["checks"]] == [True] * 4
    assert "hello" in err


@pytest.mark.parametrize("error", [ImportError("No module named 'tritonclient'"), RuntimeError("does not include http support")])
def test_an_image_without_the_client_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def missing(name: str) -> Any:
        assert name == "tritonclient.http"
        raise error

    monkeypatch.setattr(importlib, "import_module", missing)
    document = {"host": "npu1", "host_index": 0, "timeout": 1, "server": {"address": "a", "http_port": 1, "grpc_port": 2}}
    runner.main({**document, "checks": [{"model": "m", "checks": [check()]}]})
    assert str(error) in json.loads(capsys.readouterr().out)["error"]


# Every kind of model


def ask(
    expect: Any = None, inputs: Any = None, protocols: tuple[str, ...] = ("http", "grpc", "raw"), **more: Any
) -> list[dict[str, Any]]:
    """The results of a check without rows, of these arrays as they are."""
    given = {"IN": ROWS[:2]} if inputs is None else inputs
    packed = {}
    for name, tensor in given.items():
        dtype, array = tensor if isinstance(tensor, tuple) else ("", tensor)
        packed[name] = {**packing.pack(array), "dtype": dtype}
    expect = {name: {**wanted, **packed_values(wanted)} for name, wanted in (expect or {}).items()}
    return run({"name": "whole", "protocols": list(protocols), "inputs": packed, "expect": expect, **more})


def packed_values(wanted: dict[str, Any]) -> dict[str, Any]:
    """`values` and `text` as the action plugin sends them."""
    if "text" in wanted:
        return {"text": True, "values": packing.pack(of_bytes(*(entry.encode() for entry in wanted["text"])))}
    return {"values": packing.pack(wanted["values"])} if "values" in wanted else {}


def test_without_rows_an_array_is_one_request_as_it_is(server: Server) -> None:
    results = ask({"OUT": {"shape": [2, 4], "argmax": [0, 1]}})
    assert [(result["name"], result["why"]) for result in results] == [
        ("m/http/whole", ""),
        ("m/grpc/whole", ""),
        ("m/raw/whole", ""),
    ]
    assert [array.tolist() for _protocol, _model, array in server.asked] == [ROWS[:2].tolist()] * 3
    assert (results[0]["expected"], results[0]["got"]) == ([0, 1], [0, 1])
    assert {model["why"] for model in ask({"OUT": {"argmax": [0, 1, 2]}})} == {"OUT: shape is [2, 4], expected 3 rows"}


EVERY = {
    "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 2**16 - 1], "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127], "INT16": [-(2**15), 1], "INT32": [-(2**31), 1], "INT64": [-(2**63), 2**63 - 1],
    "FP16": [0.5, -2], "FP32": [0.1, 3e38], "FP64": [0.1, 1e300], "BF16": [0.5, -2],
}  # fmt: skip


@pytest.mark.parametrize("dtype", EVERY)
def test_every_dtype_over_the_stub(server: Server, dtype: str) -> None:
    """Out and back in raw contents; a value that is one off is seen, also in the last bit of 64."""
    array = np.array(EVERY[dtype], questions.NUMPY[dtype])
    server.answer = lambda _protocol, _model, rows: {"OUT": (dtype, list(rows.shape), rows)}
    (result,) = ask({"OUT": {"dtype": dtype, "shape": [2], "values": array}}, {"IN": (dtype, array)}, ("raw",))
    assert result["why"] == ""
    assert server.sent[0]["IN"][0] == dtype
    off = array.copy()
    off[1] = ~off[1] if dtype == "BOOL" else off[1] ^ off.dtype.type(1) if dtype[0] in "UI" else off[1] * 0.5
    (result,) = ask({"OUT": {"values": off}}, {"IN": (dtype, array)}, ("raw",))
    assert result["why"].startswith("OUT: 1 of 2 values are off, the worst is ")


def test_bytes_go_and_come_to_the_last_one(server: Server) -> None:
    words = of_bytes("안녕".encode(), b"", b"\0\xff\0")
    server.answer = lambda protocol, _model, rows: {"OUT": ("BYTES", [3], rows)}
    results = ask({"OUT": {"dtype": "BYTES", "shape": [3], "values": words}}, {"IN": words}, ("raw",))
    assert [entry["why"] for entry in results] == [""]
    assert [list(entry["IN"][1]) for entry in server.sent] == [list(words)]
    (result,) = ask({"OUT": {"values": of_bytes("안녕".encode(), b"", b"\0\xff")}}, {"IN": words}, ("raw",))
    assert result["why"] == "OUT: 1 of 3 texts are off, the first is '\\x00\\\\xff\\x00' at index 2, expected '\\x00\\\\xff'"


def test_texts_are_shown_as_they_are_read(server: Server) -> None:
    server.answer = lambda *_asked: {"OUT": ("BYTES", [2], of_bytes(b"a", "나".encode()))}
    (result,) = ask({"OUT": {"text": ["a", "다"]}}, protocols=("raw",))
    assert (result["why"], result["expected"], result["got"]) == (
        "OUT: 1 of 2 texts are off, the first is '나' at index 1, expected '다'",
        "a | 다",
        "a | 나",
    )
    server.answer = lambda *_asked: {"OUT": f32([1, 2])}
    (result,) = ask({"OUT": {"text": ["a", "다"]}}, protocols=("raw",))
    assert result["why"] == "OUT: dtype is FP32, expected bytes, which the check of values needs"


def test_several_inputs_are_sent_by_name(server: Server) -> None:
    ask({"OUT": {"dtype": "FP32"}}, {"IN": ROWS, "N": np.array([3], np.int32), "T": of_bytes(b"x")})
    for sent in server.sent:
        assert {name: dtype for name, (dtype, _array) in sent.items()} == {"IN": "FP32", "N": "INT32", "T": "BYTES"}


def test_raw_contents_that_do_not_fit_are_a_reason(server: Server) -> None:
    for dtype, data in (("FP32", b"\0" * 7), ("BYTES", b"\5\0\0\0ab"), ("ODD", b"")):
        server.answer = lambda *_asked, dtype=dtype, data=data: {"OUT": (dtype, [2], data)}
        (result,) = ask({"OUT": {"values": f32(1, 2)}}, protocols=("raw",))
        assert result["why"] == f"OUT: the data does not fit {dtype} of shape [2]"


# Classes


def test_classes_are_asked_for_and_the_best_is_judged(server: Server) -> None:
    answer = np.array([[b"0.75:281:tabby", b"0.25:0:a: b"], [b"0.5:3:", b"0.4:4"]], np.object_)
    server.answer = lambda *_asked: {"OUT": ("BYTES", [2, 2], answer)}
    (result,) = ask({"OUT": {"class_count": 2, "label": ["tabby", "dog"]}, "MORE": {"dtype": "FP32"}}, protocols=("raw",))
    assert server.requested == [[("OUT", 2), ("MORE", 0)]]
    assert result["why"] == "OUT: label is ['tabby', ''], expected ['tabby', 'dog']; output MORE is missing, found OUT"
    assert (result["expected"], result["got"]) == (["tabby", "dog"], ["tabby", ""])
    assert judge.classes_of(answer)[0] == [(0.75, 281, "tabby"), (0.25, 0, "a: b")]


def test_a_label_alone_asks_for_the_second_best_too(server: Server) -> None:
    server.answer = lambda *_asked: {"OUT": ("BYTES", [1, 2], np.array([[b"1:281:tabby", b"0.5:1:a"]], np.object_))}
    checked = check("c", ("raw",), {"OUT": {"label": ["tabby"]}}, count=1, total=1)
    (result,) = run(checked)
    assert (result["why"], result["label"], server.requested) == ("", "tabby", [[("OUT", 2)]])


@pytest.mark.parametrize(
    ("output", "wanted", "reason"),
    [
        (np.array([b"1:2:a"], np.object_), {"class_count": 3}, "OUT: holds 1 class for a row, expected 3"),
        (np.array([b"cat"], np.object_), {"label": ["cat"]}, "OUT: holds 'cat', expected a class as score:index:label"),
        (np.array([[b"1:2:a"]] * 2, np.object_), {"label": ["a"]}, "OUT: shape is [2, 1], expected classes of 1 row"),
        (f32([1]), {"label": ["a"]}, "OUT: dtype is FP32, expected bytes, which the check of label needs"),
        (np.array([[b"nan:2:a", b"nan:0:b"]], np.object_), {"label": ["a"]}, "OUT: 2 of 2 scores are nan"),
        (np.array([[b"nan:2:a", b"nan:0:b"]], np.object_), {"class_count": 2}, "OUT: 2 of 2 scores are nan"),
        (
            np.array([[b"0:0:a", b"0:1:b"]], np.object_),
            {"label": ["a"]},
            "OUT: more than one class has the best score 0 of row 0, expected label a",
        ),
        (
            np.empty((1, 0), np.object_),
            {"class_count": 2},
            "OUT: shape is [1, 0], expected at least one value, which the check of class_count needs",
        ),
    ],
)
def test_classes_that_are_not_as_wanted(output: Any, wanted: dict[str, Any], reason: str) -> None:
    answer = {"OUT": questions.Output(np_to_triton_dtype(output.dtype), list(output.shape), output)}
    assert judge.judge(answer, questions.Request("m/http/x", "http", None, None), {"OUT": wanted}) == [reason]


# Errors that have to come, and limits


def refuses(message: str, http: str, grpc: str) -> Callable[..., Any]:
    def fail(protocol: str, *_asked: Any) -> Any:
        if protocol == "raw":
            raise RpcError(grpc, message)
        raise InferenceServerException(message, http if protocol == "http" else f"StatusCode.{grpc}")

    return fail


def test_an_error_that_has_to_come(server: Server) -> None:
    wanted = {"status": "INVALID_ARGUMENT", "contains": "3 inputs"}
    server.answer = refuses("expected 3 inputs but got 2", "400", "INVALID_ARGUMENT")
    assert [(model["ok"], model["why"], model["ms"] is None) for model in ask(error=wanted)] == [(True, "", False)] * 3
    server.answer = refuses("on fire", "500", "INTERNAL")
    assert [model["why"] for model in ask(error=wanted)] == [
        f"the error's status is {status}, expected INVALID_ARGUMENT; the error is 'on fire', expected one that contains '3 inputs'"
        for status in ("500", "INTERNAL", "INTERNAL")
    ]
    server.answer = lambda *_asked: {"OUT": ROWS}
    assert {model["why"] for model in ask(error=wanted)} == {
        "the request was answered, expected an error: contains '3 inputs' status 'INVALID_ARGUMENT'"
    }


def test_a_server_that_is_down_is_not_the_error_that_was_wanted(server: Server) -> None:
    server.live = lambda protocol: len(server.asked) == 0 or fails(REFUSED)(protocol)
    server.answer = fails(REFUSED)
    (result,) = ask(error={"status": "UNAVAILABLE"}, protocols=("grpc",))
    assert (result["ok"], result["why"]) == (False, "no Triton answers grpc at 10.0.0.7:81: Connection refused")
    # One that lives may say that it is busy.
    server.live = lambda _protocol: True
    assert ask(error={"status": "UNAVAILABLE"}, protocols=("grpc",))[0]["ok"] is True


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HTTPConnectionClosed("connection closed."), "no answer: HTTPConnectionClosed: connection closed."),
        (ConnectionResetError(104, "Connection reset by peer"), "no answer: [Errno 104] Connection reset by peer"),
        (InferenceServerException("client received an empty response from the server.", "400"), "no answer: client received an"),
        (
            InferenceServerException("an exception occurred in the client while decoding the response: x", "400"),
            "no answer: an exc",
        ),
        (TimeoutError("timed out"), "no answer in time"),
    ],
)
@pytest.mark.parametrize(
    "wanted", [{"status": "INVALID_ARGUMENT"}, {"contains": "e"}, {"status": "INVALID_ARGUMENT", "contains": "e"}]
)
def test_a_server_that_hangs_up_has_not_refused(server: Server, error: Exception, said: str, wanted: dict[str, str]) -> None:
    server.answer = fails({"http": error})
    (result,) = ask(error=wanted, protocols=("http",))
    assert (result["ok"], result["why"].startswith(said)) == (False, True), result["why"]
    assert result["why"].endswith("expected an error: " + " ".join(f"{key} {value!r}" for key, value in sorted(wanted.items())))


def test_a_stream_that_the_client_itself_ends_has_not_been_refused(server: Server) -> None:
    server.respond = lambda _model: [ConnectionResetError(104, "Connection reset by peer")]
    (result,) = ask(protocols=("stream",), error={"contains": "reset"})
    assert result["why"] == "no answer: [Errno 104] Connection reset by peer, expected an error: contains 'reset'"
    server.respond = lambda _model: [InferenceServerException("reset: no such word")]
    assert ask(protocols=("stream",), error={"contains": "reset"})[0]["ok"] is True


def test_a_timeout_may_be_what_has_to_come(server: Server) -> None:
    server.answer = fails(LATE)
    results = ask(error={"status": "DEADLINE_EXCEEDED"}, protocols=("http", "grpc"), timeout=0.5)
    assert [result["why"] for result in results] == ["", ""]


def test_an_own_timeout_does_not_keep_the_model_from_other_checks(server: Server) -> None:
    right, server.answer = server.answer, fails(LATE)
    quick = {**check("quick", ("http", "grpc"), count=1, total=1), "timeout": 0.5}
    results = run(quick, check())
    assert [result["why"] for result in results[:2]] == ["no answer within 0.5 s"] * 2
    assert len(server.asked) == 4, "the other check has to be asked, and gives up after its own timeout"
    assert ("http", "10.0.0.7:80", {"connection_timeout": 0.5, "network_timeout": 0.5}) in server.clients
    server.answer = right


def test_an_answer_that_is_late(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 10.25])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    (result,) = ask({"OUT": {"dtype": "FP32"}}, protocols=("grpc",), ms=100)
    assert (result["ok"], result["why"], result["ms"]) == (False, "took 250.0 ms, expected at most 100 ms", 250.0)


# Streams


def words(*numbers: int) -> list[Any]:
    return [{"OUT": np.array([number], np.int32)} for number in numbers]


def test_responses_of_a_stream_are_joined_in_order(server: Server) -> None:
    server.respond = lambda _model: [*words(3, 1, 2), FINAL]
    expect = {"OUT": {"dtype": "INT32", "shape": [3], "values": np.array([3, 1, 2])}}
    (result,) = ask(expect, protocols=("stream",), responses=3, timeout=7)
    assert (result["name"], result["ok"], result["why"]) == ("m/stream/whole", True, "")
    assert server.streams == [{"timeout": 7, "headers": {"triton_grpc_error": "true"}}]
    assert server.cancelled == [False], "what has ended need not be cancelled"
    server.respond = lambda _model: [*words(1, 3, 2, 2), FINAL]
    (result,) = ask(expect, protocols=("stream",), responses=3)
    assert result["why"] == "4 responses came, expected 3; OUT: shape is [4], expected [3]"
    server.respond = lambda _model: [*words(1, 3, 2), FINAL]
    assert "2 of 3 values are off" in ask(expect, protocols=("stream",), responses=3)[0]["why"]


def test_a_model_that_answers_once_is_asked_over_a_stream_as_over_any_protocol(server: Server) -> None:
    server.respond = lambda _model: [{"OUT": scores(server.asked[-1][2])}, FINAL]
    results = run(check(protocols=("grpc", "stream")))
    assert [(result["name"], result["why"]) for result in results[2:]] == [("m/stream/row 0", ""), ("m/stream/row 1", "")]


def test_responses_of_different_dtype_or_shape_do_not_fit_together(server: Server) -> None:
    server.respond = lambda _model: [{"OUT": f32([1])}, {"OUT": f32([1, 2])}, {"OUT": np.array([1])}, FINAL]
    (result,) = ask({"OUT": {"dtype": "FP32", "finite": True}}, protocols=("stream",))
    assert result["why"] == (
        "OUT: dtype is FP32 and INT64, expected FP32; OUT: the data does not fit FP32 and INT64 of shape [1, 1]"
    )


def test_no_response_at_all(server: Server) -> None:
    server.respond = lambda _model: [FINAL]
    assert ask(protocols=("stream",), responses=0)[0]["ok"] is True
    server.respond = lambda _model: [*words(1), FINAL]
    assert ask(protocols=("stream",), responses=0)[0]["why"] == "1 response came, expected 0"


def test_an_error_in_a_stream(server: Server) -> None:
    server.respond = lambda _model: [*words(1, 2), InferenceServerException("COUNT is -1")]
    (result,) = ask({"OUT": {"dtype": "INT32"}}, protocols=("stream",))
    assert result["why"] == "COUNT is -1; the error came after 2 responses"
    # Older servers tell no status there: the text alone counts.
    wanted = {"status": "INVALID_ARGUMENT", "contains": "COUNT is"}
    (result,) = ask({"OUT": {"values": np.array([1, 2])}}, protocols=("stream",), error=wanted, responses=2)
    assert result["why"] == ""
    server.respond = lambda _model: [InferenceServerException("COUNT is -1", "StatusCode.INTERNAL")]
    assert ask(protocols=("stream",), error=wanted)[0]["why"] == "the error's status is INTERNAL, expected INVALID_ARGUMENT"


def test_a_stream_that_stays_silent_ends_with_its_timeout(server: Server) -> None:
    server.respond = lambda _model: [*words(1), InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED")]
    (result, again) = run(*[{**check(f"c{number}", ("stream",)), "rows": None} for number in (1, 2)])
    assert result["why"] == again["why"] == "no answer within 30 s; m gets no further request over stream"
    assert len(server.asked) == 1


def test_cancelled_streams_make_room_for_the_next(server: Server) -> None:
    server.respond = lambda _model: words(*range(50))
    cancel = {"after": 3, "times": 4}
    (result,) = ask({"OUT": {"values": np.array([0, 1, 2])}}, protocols=("stream",), cancel=cancel)
    assert (result["ok"], result["why"]) == (True, "")
    assert (len(server.asked), server.cancelled) == (4, [True] * 4)


def test_a_server_that_goes_on_with_cancelled_streams_is_found(server: Server) -> None:
    late = InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED")
    server.respond = lambda _model: words(0, 1, 2) if len(server.asked) <= 2 else [late]
    (result,) = ask({"OUT": {"dtype": "INT32"}}, protocols=("stream",), cancel={"after": 1, "times": 4}, timeout=5)
    assert (result["ok"], result["why"]) == (False, "stream 3, after 2 were cancelled: no answer within 5 s")
    server.respond = lambda _model: [*words(0), FINAL]
    (result,) = ask(protocols=("stream",), cancel={"after": 2})
    assert result["why"] == "the stream ended after 1 responses, expected at least 2 before it is cancelled"


# Every instance


@pytest.fixture
def instances(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Two instances that take turns, counted on a page of metrics as the backend does."""
    counts = {"m_0_0": 5, "m_0_1": 0}
    server.answer = lambda _protocol, _model, rows: count(rows)
    turn: list[int] = []

    def count(rows: Any) -> dict[str, Any]:
        turn.append(1)
        counts["m_0_1" if len(turn) % 8 == 0 else "m_0_0"] += 1
        return {"OUT": scores(rows)}

    def page(request: Any, proxies: Any, ca: Any, budget: Any) -> Any:
        assert request.full_url == "http://10.0.0.7:8002/metrics" and not proxies and not ca and budget.remaining() > 0
        lines = [
            f'rbln_requests_total{{instance="{name}",model="m",npu="{name[-1]}",version="1"}} {n}' for name, n in counts.items()
        ]
        lines += ['rbln_requests_total{instance="x_0_0",model="x"} 1', 'nv_inference_count{model="m"} 3', "# HELP"]
        text = "\n".join(lines if counts else lines[2:])
        return nullcontext(SimpleNamespace(read=text.encode))

    monkeypatch.setattr(inference_load, "open_request", page)
    return counts


def test_requests_go_on_until_every_instance_has_answered(server: Server, instances: dict[str, int]) -> None:
    results = run({**check(), "instances": True})
    assert [(result["name"], result["ok"], result["why"], result["instances"]) for result in results] == [
        ("m/http/row", True, "", 2),
        ("m/grpc/row", True, "", 2),
    ]
    assert instances["m_0_1"] >= 2
    assert all(result["ms"] is not None for result in results)


def test_instances_of_a_server_that_is_down_are_not_asked(server: Server, instances: dict[str, int]) -> None:
    server.live = fails(REFUSED)
    (result,) = run({**check(protocols=("grpc",)), "instances": True})
    assert (result["name"], result["why"], server.asked) == (
        "m/grpc/row",
        "no Triton answers grpc at 10.0.0.7:81: Connection refused",
        [],
    )


def test_an_instance_that_does_not_answer_is_named(server: Server, instances: dict[str, int]) -> None:
    instances["m_0_7"] = 1
    (result,) = run({**check(protocols=("grpc",)), "instances": True}, timeout=0)
    assert (result["ok"], result["why"]) == (False, f"instance m_0_7 on NPU 7 answered none of {len(server.asked)} requests")


def test_a_wrong_answer_of_any_instance_counts(server: Server, instances: dict[str, int]) -> None:
    wrong = {"OUT": {"argmax": [3, 3]}}
    (result,) = run({**check(protocols=("grpc",), expect=wrong), "instances": True})
    assert result["why"] == "OUT: label is 0, expected 3; OUT: label is 1, expected 3"


def test_a_backend_that_does_not_count_by_instance_is_told(server: Server, instances: dict[str, int]) -> None:
    instances.clear()
    (result,) = run({**check(protocols=("grpc",)), "instances": True})
    assert (result["ok"], result["why"]) == (
        False,
        "http://10.0.0.7:8002/metrics does not report which instance of m answers, "
        "expected rbln_requests_total of the backend rbln",
    )


# Pictures in bytes


def test_the_bytes_of_a_picture_are_drawn_where_they_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    request = questions.Request("x", "http", None, None)
    jpeg = of_bytes(b"\xff\xd8\xff...")
    levels = np.full((8, 8, 3), 7, np.uint8)

    class Image:
        draft = thumbnail = staticmethod(lambda *_sizes: None)

        def convert(self, mode: str) -> Any:
            assert mode == "RGB"
            return levels

    monkeypatch.setitem(sys.modules, "PIL.Image", SimpleNamespace(open=lambda source: Image()))
    for array in (jpeg, np.frombuffer(jpeg[0], np.uint8)):
        seen = pictures.picture({"IN": array}, request)
        assert seen is not None and (seen["width"], seen["channels"]) == (8, 3)
    assert pictures.picture({"IN": of_bytes(b"no picture")}, request) is None

    def broken(source: Any) -> Any:
        raise OSError("truncated")

    monkeypatch.setitem(sys.modules, "PIL.Image", SimpleNamespace(open=broken))
    assert pictures.picture({"IN": jpeg}, request) is None


@pytest.fixture(autouse=True)
def standard_output() -> Iterator[None]:
    """`main` is a program's: it leaves standard output redirected."""
    before = sys.stdout
    yield
    sys.stdout = before


def test_what_travels_is_this_room_alone() -> None:
    with zipfile.ZipFile(io.BytesIO(archive.program(check_client.ENTRY))) as program:
        names = program.namelist()
    packages = archive.PREFIX.replace(".", "/")
    assert f"{packages}inference/judge.py" in names
    others = [name for name in names if not name.startswith(packages + "inference/") and not name.endswith("__init__.py")]
    assert others == ["__main__.py", *(packages + name for name in ("exchange.py", "triton/metrics.py", "web_client/opener.py"))]
