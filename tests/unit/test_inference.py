"""The check library against a stand-in client: what is sent, how answers are judged, and when it gives up asking."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import inference
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


def client_library(protocol: str, server: Server) -> SimpleNamespace:
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
            for name, one in outputs.items():
                self.outputs[name] = one if isinstance(one, tuple) else (np_to_triton_dtype(one.dtype), list(one.shape), one)

        def get_response(self) -> Any:
            said = [{"name": name, "datatype": one[0], "shape": one[1]} for name, one in self.outputs.items()]
            return {"outputs": said} if protocol == "http" else SimpleNamespace(outputs=[SimpleNamespace(**one) for one in said])

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
            server.requested.append([(one.name, one.class_count) for one in outputs or []])
            server.sent.append({one.name: (one.dtype, one.array) for one in inputs})
            server.asked.append((protocol, model, inputs[0].array))
            return Result(server.answer(protocol, model, inputs[0].array))

        def get_model_repository_index(self, as_json: bool = False) -> Any:
            assert as_json is (protocol == "grpc")
            if server.index is None:
                raise InferenceServerException("restricted", "403")
            return {"models": server.index} if as_json else server.index

    return SimpleNamespace(
        InferenceServerClient=InferenceServerClient, InferInput=InferInput, InferRequestedOutput=InferRequestedOutput
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    for protocol in ("http", "grpc"):
        monkeypatch.setitem(sys.modules, f"tritonclient.{protocol}", client_library(protocol, made))
    return made


def check(name: str = "row", protocols: tuple[str, ...] = ("http", "grpc"), expect: Any = None, **rows: Any) -> dict[str, Any]:
    """A check of rows 0 and 1, as the action plugin sends it: every row packed."""
    rows = {"first": 0, "count": 2, "total": 2, **rows}
    expect = {"OUT": {"dtype": "FP32", "shape": [1, 4], "finite": True, "argmax": [0, 1]}} if expect is None else expect
    return {
        "name": name,
        "protocols": list(protocols),
        "rows": rows,
        "inputs": {"IN": inference.pack(ROWS, range(6))},
        "expect": expect,
    }


def run(*checks: dict[str, Any], model: str = "m", **document: Any) -> list[dict[str, Any]]:
    server = {"address": "10.0.0.7", "http_port": 80, "grpc_port": 81}
    whole = {"host": "npu1", "host_index": 0, "server": server, "timeout": 30, "checks": [{"model": model, "checks": list(checks)}]}
    result = inference.run({**whole, **document})
    assert result["host"] == "npu1"
    # What is returned has to be JSON.
    return json.loads(json.dumps(result))["checks"]


def test_a_right_server_passes_every_request(server: Server) -> None:
    results = run(check())
    assert [one["name"] for one in results] == ["m/http/row 0", "m/http/row 1", "m/grpc/row 0", "m/grpc/row 1"]
    assert {(one["ok"], one["why"]) for one in results} == {(True, "")}
    assert [(one["model"], one["protocol"]) for one in results[1:3]] == [("m", "http"), ("m", "grpc")]
    assert [(one["expected"], one["got"], one["label"]) for one in results] == [(0, 0, 0), (1, 1, 1)] * 2
    assert [one["image"] for one in results] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert all(isinstance(one["ms"], float) and 0 <= one["ms"] < 1000 for one in results)


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
    assert (result["ok"], result["why"]) == (False, "OUT: label is [0, 1], wanted [0, 3]")


@pytest.mark.parametrize(
    ("host_index", "first_rows"),
    [(0, {"http": 1, "grpc": 3}), (1, {"http": 1, "grpc": 3})],
)
def test_hosts_and_protocols_take_the_next_block(server: Server, host_index: int, first_rows: dict[str, int]) -> None:
    """Two blocks of two rows from row 1 on: the first host takes both, the second begins again."""
    results = run(check(expect={"OUT": {"argmax": [1, 2, 3, 0]}}, first=1, count=2, total=4, spread=True), host_index=host_index)
    sent = {protocol: [int(array[0, 0]) // 4 for one, _model, array in server.asked if one == protocol] for protocol in first_rows}
    assert sent == {protocol: [row, row + 1] for protocol, row in first_rows.items()}
    assert [one["name"] for one in results] == ["m/http/row 0", "m/http/row 1", "m/grpc/row 0", "m/grpc/row 1"]
    assert {one["why"] for one in results} == {""}


@pytest.mark.parametrize(("host_index", "blocks"), [(0, [0, 1]), (1, [2, 0]), (2, [1, 2])])
def test_blocks_begin_again_when_all_are_taken(host_index: int, blocks: list[int]) -> None:
    one = {"name": "row", "protocols": ["http", "grpc"], "rows": {"first": 10, "count": 2, "total": 7, "spread": True}}
    found = list(inference.requests("m", one, host_index))
    assert [request.rows for request in found] == [[10 + 2 * block + place] for block in blocks for place in (0, 1)]
    assert [request.places for request in found] == [[2 * block + place] for block in blocks for place in (0, 1)]


# Judging


def why(outputs: dict[str, Any], expect: dict[str, Any], rows: int = 1) -> list[str]:
    answer = {}
    for name, one in outputs.items():
        answer[name] = (
            one if isinstance(one, inference.Output) else inference.Output(np_to_triton_dtype(one.dtype), list(one.shape), one)
        )
    places = list(range(rows))
    return inference.judge(answer, inference.Request("m/http/x", "http", places, places), inference.with_rows(expect))


def f32(*rows: Any) -> Any:
    return np.array(rows, dtype=np.float32)


GOLDEN = inference.pack(f32([1, 2, 3], [4, 5, 6]), [0, 1])


@pytest.mark.parametrize(
    ("output", "wanted", "reasons"),
    [
        (f32([1, 2, 3]), {"dtype": "FP32", "shape": [1, 3], "finite": True, "argmax": [2], "values": GOLDEN}, []),
        (np.array([[1, 2, 3]]), {"dtype": "FP32"}, ["OUT: dtype is INT64, wanted FP32"]),
        (f32([1, 2, 3]), {"shape": [1, 4]}, ["OUT: shape is [1, 3], wanted [1, 4]"]),
        (f32([1, np.nan, np.inf]), {"finite": True}, ["OUT: 2 of 3 values are not finite, wanted all"]),
        (f32([1, np.nan, np.inf]), {"finite": False}, []),
        (f32([1, 2, 3]), {"argmax": [0]}, ["OUT: label is 2, wanted 0"]),
        (f32([1.5, 2, 7]), {"values": GOLDEN}, ["OUT: 2 of 3 values are off, the worst is 7, wanted 3 +- 0"]),
        (f32([1.5, 2, 3.4]), {"values": {**GOLDEN, "atol": 0.5}}, []),
        (
            f32([1.5, 2, 3.6]),
            {"values": {**GOLDEN, "atol": 0.5}},
            ["OUT: 1 of 3 values are off, the worst is 3.6, wanted 3 +- 0.5"],
        ),
        (f32([1, 2, 3.4]), {"values": {**GOLDEN, "rtol": 0.15}}, []),
        (
            f32([1.2, 2, 3.4]),
            {"values": {**GOLDEN, "rtol": 0.15}},
            ["OUT: 1 of 3 values are off, the worst is 1.2, wanted 1 +- 0.15"],
        ),
        (f32([1, np.nan, 9]), {"values": GOLDEN}, ["OUT: 2 of 3 values are off, the worst is nan, wanted 2 +- 0"]),
        (np.array([[1, 2, 3]]), {"values": GOLDEN}, []),
        (f32([[1], [2], [3]]), {"values": GOLDEN}, ["OUT: shape is [1, 3, 1], the golden values' is [1, 3]"]),
        (f32([1, 2, 3], [1, 2, 3]), {"argmax": [2]}, ["OUT: shape is [2, 3], wanted 1 row"]),
        (np.empty((0, 3), np.float32), {"argmax": [2]}, ["OUT: shape is [0, 3], wanted 1 row"]),
        (np.float32(3), {"finite": True}, []),
        (np.array([[b"a"]], dtype=np.object_), {"dtype": "BYTES", "shape": [1, 1]}, []),
        (np.array([[b"a"]], dtype=np.object_), {"finite": True}, ["OUT: holds BYTES, wanted numbers to judge finite by"]),
        (inference.Output("FP32", [1, 3], None), {"finite": True}, ["OUT: the data does not fit FP32 of shape [1, 3]"]),
    ],
)
def test_an_output_is_judged(output: Any, wanted: dict[str, Any], reasons: list[str]) -> None:
    assert why({"OUT": output}, {"OUT": wanted}) == reasons


def test_every_reason_is_given_at_once() -> None:
    output = np.array([[np.nan, 7, 3, 1]])
    wanted = {"dtype": "FP32", "shape": [1, 3], "finite": True, "argmax": [2], "values": GOLDEN}
    assert why({"OUT": output, "MORE": output}, {"OUT": wanted, "B": {"finite": True}, "A": {"dtype": "FP32"}}) == [
        "OUT: dtype is FP64, wanted FP32",
        "OUT: shape is [1, 4], wanted [1, 3]",
        "OUT: 1 of 4 values are not finite, wanted all",
        "OUT: label is 0, wanted 2",
        "output B is missing, found MORE, OUT",
        "output A is missing, found MORE, OUT",
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_wrong(bad: float) -> None:
    assert why({"OUT": f32([9, 1, bad])}, {"OUT": {"shape": [1, 3], "finite": True}}) == [
        "OUT: 1 of 3 values are not finite, wanted all"
    ]


def test_golden_values_are_those_of_the_rows_that_were_sent(server: Server) -> None:
    golden = inference.pack(scores(ROWS) + 0.25, range(6))
    expect = {"OUT": {"values": {**golden, "npy": "x.npy", "atol": 0.25}}}
    assert {one["why"] for one in run(check(expect=expect, first=3))} == {""}
    shifted = {"OUT": {"values": {**inference.pack(scores(ROWS + 4), range(6)), "atol": 0.25}}}
    assert {one["ok"] for one in run(check(expect=shifted, first=3))} == {False}


def test_an_answer_without_an_output(server: Server) -> None:
    server.answer = lambda *_asked: {}
    assert {one["why"] for one in run(check())} == {"output OUT is missing, found no output"}


def test_data_that_does_not_fit_its_shape_is_a_reason(server: Server) -> None:
    server.answer = lambda *_asked: {"OUT": ("FP32", [1, 4], np.zeros(3, np.float32))}
    results = run(check(expect={"OUT": {"shape": [1, 4], "argmax": [0, 1]}}))
    assert {one["why"] for one in results} == {"OUT: the data does not fit FP32 of shape [1, 4]"}
    assert all("got" not in one and one["ms"] is not None for one in results)


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
    assert inference.drawable({"IN": rows}, inference.Request("x", "http", places, places)) == image


def test_two_inputs_are_not_drawn() -> None:
    request = inference.Request("x", "http", [0], [0])
    assert inference.drawable({"A": f32([1]), "B": f32([1])}, request) is None


# Giving up


def fails(errors: dict[str, Exception]) -> Callable[..., Any]:
    def fail(protocol: str, *_asked: Any) -> Any:
        raise errors[protocol]

    return fail


def test_a_server_that_is_down_is_asked_once_by_protocol(server: Server) -> None:
    server.live = server.answer = fails(REFUSED)
    results = run(check(count=6, total=6), check("batch", batch=True))
    assert len(results) == 14
    assert {(one["protocol"], one["ok"], one["ms"], one["why"]) for one in results} == {
        ("http", False, None, "no Triton answers http at 10.0.0.7:80: [Errno 111] Connection refused"),
        ("grpc", False, None, "no Triton answers grpc at 10.0.0.7:81: Connection refused"),
    }
    assert (server.asked, server.probes) == ([], ["http", "grpc"])


def test_one_protocol_that_is_down_leaves_the_other(server: Server) -> None:
    server.live = lambda protocol: fails(REFUSED)(protocol) if protocol == "grpc" else True
    assert [one["ok"] for one in run(check())] == [True, True, False, False]


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
    assert {one["ok"] for one in run(check())} == {True}


def test_a_model_that_hangs_costs_one_timeout_by_protocol(server: Server) -> None:
    right = server.answer
    server.answer = lambda protocol, model, rows: fails(LATE)(protocol) if model == "slow" else right(protocol, model, rows)
    slow = {"model": "slow", "checks": [check(count=6, total=6)]}
    results = run(checks=[slow, {"model": "m", "checks": [check()]}])
    assert [model for _protocol, model, _rows in server.asked].count("slow") == 2
    assert {one["why"] for one in results if one["model"] == "slow"} == {
        "no answer within 30 s; slow is not asked again over http",
        "no answer within 30 s; slow is not asked again over grpc",
    }
    assert {one["ok"] for one in results if one["model"] == "m"} == {True}


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
    assert {one["why"] for one in results} == {f"Request for unknown model: 'm'; {said}"}
    assert (len(results), len(server.asked)) == (12, 2)


def test_an_index_that_may_not_be_read_adds_nothing(server: Server) -> None:
    server.answer, server.index = fails(UNKNOWN), None
    assert {one["why"] for one in run(check())} == {"Request for unknown model: 'm'"}


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
    assert [(one["ok"], one["why"], one["ms"] is None) for one in results] == [(False, words, True), (True, "", False)] * 2
    assert len(server.asked) == 4


# The way into the container and back


@pytest.mark.parametrize(
    "array", [ROWS, np.array([b"ab", b"c"]), np.zeros((3, 2, 2), np.uint8), np.asfortranarray(ROWS), of_bytes(b"", b"\0a\0")]
)
def test_rows_survive_the_way(array: Any) -> None:
    packed = json.loads(json.dumps(inference.pack(array, [1, 0])))
    back = inference.with_rows({"OUT": {"values": packed}})["OUT"]["values"]["rows"].take([0, 1])
    assert back.dtype == array.dtype
    assert np.array_equal(back, array[:2])


def test_the_result_is_the_last_line_whatever_clients_print(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.live = lambda protocol: print("hello") or True
    inference.main(
        {
            "host": "npu1",
            "host_index": 0,
            "timeout": 1,
            "server": {"address": "a", "http_port": 1, "grpc_port": 2},
            "checks": [{"model": "m", "checks": [check()]}],
        }
    )
    out, err = capsys.readouterr()
    assert [one["ok"] for one in json.loads(out)["checks"]] == [True] * 4
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
    inference.main({**document, "checks": [{"model": "m", "checks": [check()]}]})
    assert str(error) in json.loads(capsys.readouterr().out)["error"]


@pytest.fixture(autouse=True)
def standard_output() -> Iterator[None]:
    """`main` is a program's: it leaves standard output redirected."""
    before = sys.stdout
    yield
    sys.stdout = before


def test_the_library_needs_nothing_of_the_collection() -> None:
    source = Path(str(inference.__file__)).read_text()
    assert "ansible" not in source
