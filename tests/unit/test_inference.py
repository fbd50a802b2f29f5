"""The check library and its reader: which rows are asked, what counts as wrong, and which check files are refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.action.inference_check import Reader
from ansible_collections.npufleet.triton.plugins.module_utils import inference
from ansible_collections.npufleet.triton.plugins.modules.inference_check import script

CHECK = {
    "name": "digit",
    "protocols": ["http", "grpc"],
    "inputs": {"IN": {"npy": "images.npy"}},
    "rows": {"first": 2, "count": 2, "spread": True},
    "expect": {"OUT": {"dtype": "FP32", "shape": [1, 3], "finite": True, "argmax": [0, 1, 2, 0, 1, 2, 0, 1]}},
}


FIELDS = ("argmax", "dtype", "finite", "shape", "values")


def requests(host_index: int, **rows: Any) -> list[tuple[str, list[int], list[int]]]:
    check = {**CHECK, "rows": {**CHECK["rows"], "total": 8, **rows}}
    found = inference.expand({"model": "m", "checks": [check]}, host_index)
    return [(name, rows, places) for name, _protocol, rows, places, _check in found]


def test_each_host_and_protocol_takes_the_next_block() -> None:
    assert requests(0) == [
        ("m/http/digit 0", [2], [0]),
        ("m/http/digit 1", [3], [1]),
        ("m/grpc/digit 0", [4], [2]),
        ("m/grpc/digit 1", [5], [3]),
    ]
    assert [places for _name, _rows, places in requests(1)] == [[4], [5], [6], [7]]
    assert requests(2) == requests(0)


def test_without_spread_every_host_and_protocol_asks_the_same() -> None:
    same = [("m/http/digit 0", [2], [0]), ("m/http/digit 1", [3], [1]), ("m/grpc/digit 0", [2], [0]), ("m/grpc/digit 1", [3], [1])]
    assert requests(0, spread=False) == requests(5, spread=False) == same


def test_a_batch_is_one_request() -> None:
    assert requests(0, spread=False, batch=True) == [("m/http/digit", [2, 3], [0, 1]), ("m/grpc/digit", [2, 3], [0, 1])]


def judged(array: Any, kind: str = "FP32", **wanted: Any) -> list[str]:
    answers = {"OUT": (kind, np.array(array, np.float32))}
    return inference.judge(answers, [2], [0], {"expect": {"OUT": {**CHECK["expect"]["OUT"], **wanted}}})


def test_a_right_answer_has_no_reasons() -> None:
    assert judged([[9, 1, 2]]) == []


def test_every_reason_is_given_at_once() -> None:
    assert judged([[1, 9, np.inf]], kind="FP64") == [
        "OUT: dtype is FP64, wanted FP32",
        "OUT: 1 of 3 values are not finite",
        "OUT: label is 2, wanted 0",
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_wrong(bad: float) -> None:
    assert judged([[9, 1, bad]], argmax=[int(np.argmax([9, 1, bad]))]) == ["OUT: 1 of 3 values are not finite"]


def test_another_shape_is_wrong() -> None:
    assert judged([9, 1, 2]) == ["OUT: shape is [3], wanted [1, 3]"]


def test_a_missing_output_is_wrong() -> None:
    assert inference.judge({"OTHER": ("FP32", np.zeros(1))}, [0], [0], CHECK) == ["output OUT is missing, found OTHER"]


@pytest.mark.parametrize(("atol", "rtol", "good"), [(0.2, 0, True), (0.05, 0, False), (0, 0.2, True), (0, 0.01, False)])
def test_values_have_a_tolerance(atol: float, rtol: float, good: bool) -> None:
    golden = {"rows": {2: np.array([9.1, 1.1, 2.1])}, "atol": atol, "rtol": rtol}
    assert (judged([[9, 1, 2]], values=golden) == []) is good


def test_values_that_are_nan_are_not_equal_to_anything() -> None:
    golden = {"rows": {2: np.array([9.0, 1.0, 2.0])}, "atol": 1}
    assert len(judged([[9, 1, np.nan]], values=golden, finite=False, argmax=[2])) == 1


def test_arrays_survive_the_journey() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (inference.unpack(inference.pack(array)) == array).all()


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    np.save(tmp_path / "images.npy", np.zeros((10, 4), np.float32))
    return tmp_path


def read(golden: Path, **changes: Any) -> tuple[dict[str, Any], list[str]]:
    path = golden / "m.yml"
    path.write_text(yaml.safe_dump({"model": "m", "checks": [{**CHECK, **changes}]}))
    reader = Reader(str(path), str(golden))
    return reader.read(0), reader.problems


def test_a_document_carries_the_rows_that_are_sent(golden: Path) -> None:
    document, problems = read(golden)
    assert problems == []
    assert document["checks"][0]["inputs"]["IN"]["rows"] == [2, 3, 4, 5]
    assert inference.unpack(document["checks"][0]["inputs"]["IN"]["data"]).shape == (4, 4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"protocols": ["http", "ws"]}, "m.yml: checks[0].protocols: found ['ws'], wanted some of http, grpc"),
        ({"row": 1}, "m.yml: checks[0].row: is not known, wanted one of expect, inputs, name, protocols, rows"),
        ({"rows": {"first": 0}}, "m.yml: checks[0].rows.count: is missing"),
        ({"expect": {"OUT": {"argmax": [1, 2, 3]}}}, "m.yml: checks[0].expect.OUT.argmax: has 3 labels, wanted a multiple of 2"),
        (
            {"expect": {"OUT": {"label": 1}}},
            "m.yml: checks[0].expect.OUT.label: is not known, wanted one of " + ", ".join(FIELDS),
        ),
    ],
)
def test_a_malformed_check_is_refused_with_its_field(golden: Path, changes: dict[str, Any], problem: str) -> None:
    assert read(golden, **changes)[1] == [problem]


def test_missing_golden_data_is_refused(golden: Path) -> None:
    (golden / "images.npy").unlink()
    assert read(golden)[1] == [f"m.yml: checks[0].inputs.IN.npy: found no {golden}/images.npy"]
    np.save(golden / "images.npy", np.zeros((3, 4), np.float32))
    assert read(golden)[1] == [f"m.yml: checks[0].inputs.IN.npy: {golden}/images.npy has 3 rows, wanted row 5"]


class FakeClient:
    """A server that answers each row with its label, or not at all."""

    asked = 0

    def __init__(self, protocol: str, server: Any, timeout: float) -> None:
        self.protocol = protocol

    def infer(self, model: str, inputs: Any) -> Any:
        FakeClient.asked += 1
        if self.protocol == "grpc":
            raise ConnectionRefusedError("connection refused")
        return {"OUT": ("FP32", np.eye(3, dtype=np.float32)[[0]])}, 1.5


def test_every_request_has_a_result_and_a_dead_service_is_asked_once(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "Client", FakeClient)
    monkeypatch.setattr(FakeClient, "asked", 0)
    document = {"host": "npu1", "host_index": 0, "server": {}, "timeout": 5, "checks": [read(golden)[0]]}
    results = inference.run(document)["checks"]
    assert [(one["name"], one["ok"]) for one in results] == [
        ("m/http/digit 0", True),
        ("m/http/digit 1", False),
        ("m/grpc/digit 0", False),
        ("m/grpc/digit 1", False),
    ]
    assert results[0]["ms"] == 1.5
    assert results[1]["why"] == "OUT: label is 0, wanted 1"
    assert results[3]["why"] == "the grpc service does not answer: connection refused"
    assert FakeClient.asked == 3


def test_the_library_runs_as_a_program_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(inference.__file__).read_text()
    program = tmp_path / "program.py"
    program.write_text(script(source, {"host": 'it\'s "npu1"', "host_index": 0, "server": {}, "timeout": 5, "checks": []}))
    spec = importlib.util.spec_from_file_location("__main__", program)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert json.loads(capsys.readouterr().out) == {"host": 'it\'s "npu1"', "checks": []}
