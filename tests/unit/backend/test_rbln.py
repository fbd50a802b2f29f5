"""The rbln backend without a server: joining, padding and slicing, buckets, errors of one request, and which NPU."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE = 3, 14

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: Any = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class Request(dict):
    """Inputs by name."""


class Runtime:
    """Adds the inputs up; two outputs: the sum, and the sum times ten. Remembers the rows of every run."""

    def __init__(self, size: int, runs: list[int], device: int, compiled: Any) -> None:
        self.size, self.runs, self.device, self.compiled = size, runs, device, compiled

    def run(self, *inputs: np.ndarray) -> Any:
        assert all(len(array) == self.size for array in inputs), "a bucket takes its own size and no other"
        self.runs.append(self.size)
        if self.compiled.fails:
            raise RuntimeError("Inference failed: 503")
        total = sum(inputs)
        return (total, total * 10) if self.compiled.outputs == 2 else total


class Compiled:
    sizes: tuple[int, ...] = (1, 2, 4)
    outputs = 1
    fails = False
    made: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, path: str) -> None:
        self.runs: list[int] = []
        Compiled.last = self

    def create_runtime(self, *, input_info_index: int, tensor_type: str, device: int) -> Runtime:
        Compiled.made.append((input_info_index, device))
        return Runtime(self.sizes[input_info_index], self.runs, device, self)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """model.py of the backend between a fake Triton and a fake SDK with two NPUs."""
    pb = types.ModuleType("triton_python_backend_utils")
    pb.Tensor, pb.InferenceResponse, pb.TritonError = Tensor, InferenceResponse, TritonError  # type: ignore[attr-defined]
    pb.TritonModelException = RuntimeError  # type: ignore[attr-defined]
    pb.Logger = types.SimpleNamespace(log_info=lambda words: None)  # type: ignore[attr-defined]
    pb.triton_string_to_numpy = {"TYPE_FP32": np.float32}.__getitem__  # type: ignore[attr-defined]
    pb.get_input_tensor_by_name = lambda request, name: Tensor(name, request[name]) if name in request else None  # type: ignore[attr-defined]
    sdk = types.ModuleType("rebel")
    sdk.device_count, sdk.RBLNCompiledModel = lambda: 2, Compiled  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb)
    monkeypatch.setitem(sys.modules, "rebel", sdk)
    for name, value in {"sizes": (1, 2, 4), "outputs": 1, "fails": False, "made": []}.items():
        monkeypatch.setattr(Compiled, name, value)
    spec = importlib.util.spec_from_file_location("rbln_backend", ROOT / "files/backends/rbln/model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(
    backend: Any, directory: Path, inputs: int = 1, outputs: int = 1, batch: int = 4, name: str = "m_0_0", **parameters: str
) -> Any:
    """A loaded instance of a model with these inputs and outputs."""
    (directory / "1").mkdir(exist_ok=True)
    (directory / "1" / "model.rbln").touch()
    config = {
        "max_batch_size": batch,
        "input": [{"name": f"IN{number}"} for number in range(inputs)],
        "output": [{"name": f"OUT{number}", "data_type": "TYPE_FP32"} for number in range(outputs)],
        "parameters": {key: {"string_value": value} for key, value in {"batches": "1,2,4", **parameters}.items()},
    }
    model = backend.TritonPythonModel()
    arguments = {
        "model_config": json.dumps(config),
        "model_instance_name": name,
        "model_name": "m",
        "model_repository": str(directory),
        "model_version": "1",
        "model_instance_device_id": "0",
    }
    model.initialize(arguments)
    return model


def rows(*values: float) -> np.ndarray:
    return np.array([[value, value] for value in values], np.float32)


def test_requests_of_one_call_are_joined_once_padded_and_sliced_in_order(backend: Any, tmp_path: Path) -> None:
    model = load(backend, tmp_path)
    answers = model.execute([Request(IN0=rows(1)), Request(IN0=rows(2, 3))])
    assert Compiled.last.runs == [4]
    assert [answer.outputs["OUT0"][:, 0].tolist() for answer in answers] == [[1], [2, 3]]


def test_every_input_and_output_has_its_own_rows(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiled, "outputs", 2)
    model = load(backend, tmp_path, inputs=2, outputs=2)
    requests = [Request(IN0=rows(1, 2), IN1=rows(10, 20)), Request(IN0=rows(3), IN1=rows(30))]
    answers = model.execute(requests)
    assert [answer.outputs["OUT0"][:, 0].tolist() for answer in answers] == [[11, 22], [33]]
    assert [answer.outputs["OUT1"][:, 1].tolist() for answer in answers] == [[110, 220], [330]]


@pytest.mark.parametrize(
    ("batches", "sizes"), [("1,2,4", (1, 2, 4)), ("4,1,2", (4, 1, 2)), ("1,4,16", (1, 4, 16)), ("1,2,3,4", (1, 2, 3, 4))]
)
def test_any_list_of_buckets(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: str, sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(Compiled, "sizes", sizes)
    model = load(backend, tmp_path, batches=batches)
    for count in range(1, 5):
        answer = model.execute([Request(IN0=rows(*range(count)))])[0]
        assert answer.outputs["OUT0"][:, 0].tolist() == list(range(count))
        assert Compiled.last.runs[-1] == min(size for size in sizes if size >= count)


def test_more_rows_than_the_largest_bucket_are_more_runs(backend: Any, tmp_path: Path) -> None:
    model = load(backend, tmp_path)
    answers = model.execute([Request(IN0=rows(1, 2, 3)), Request(IN0=rows(4, 5)), Request(IN0=rows(6))])
    assert Compiled.last.runs == [4, 4]
    assert [answer.outputs["OUT0"][:, 0].tolist() for answer in answers] == [[1, 2, 3], [4, 5], [6]]


def test_a_request_above_the_largest_bucket_fails_alone_and_names_the_limit(backend: Any, tmp_path: Path) -> None:
    model = load(backend, tmp_path)
    large, good = model.execute([Request(IN0=rows(1, 2, 3, 4, 5)), Request(IN0=rows(7))])
    assert (str(large.error), large.error.code) == (
        "model m: a batch of 5 is above the largest compiled one, 4",
        TritonError.INVALID_ARG,
    )
    assert good.outputs["OUT0"].tolist() == [[7, 7]]


def test_inputs_that_do_not_agree_fail_alone(backend: Any, tmp_path: Path) -> None:
    model = load(backend, tmp_path, inputs=2)
    uneven, missing, good = model.execute(
        [Request(IN0=rows(1), IN1=rows(1, 2)), Request(IN0=rows(1)), Request(IN0=rows(1), IN1=rows(2))]
    )
    assert "different batch sizes: [1, 2]" in str(uneven.error)
    assert "input IN1 is missing" in str(missing.error)
    assert good.outputs["OUT0"].tolist() == [[3, 3]]


def test_a_failed_run_is_unavailable_without_traceback(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(backend, tmp_path)
    monkeypatch.setattr(Compiled, "fails", True)
    answer = model.execute([Request(IN0=rows(1))])[0]
    assert (str(answer.error), answer.error.code) == ("model m: Inference failed: 503", TritonError.UNAVAILABLE)


def test_without_batching_each_request_runs_as_it_is(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiled, "sizes", (3,))
    model = load(backend, tmp_path, batch=0, batches="3")
    answers = model.execute([Request(IN0=rows(1, 2, 3)), Request(IN0=rows(4, 5, 6))])
    assert [answer.outputs["OUT0"][:, 0].tolist() for answer in answers] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("name", "npus", "device"),
    [("m_0_0", "", 0), ("m_0_1", "", 1), ("m_0_2", "", 0), ("npu_1", "", 1), ("m_0_1", "1", 1), ("m_0_0", "1,0", 1)],
)
def test_the_instance_index_chooses_the_npu(backend: Any, tmp_path: Path, name: str, npus: str, device: int) -> None:
    load(backend, tmp_path, name=name, **({"npus": npus} if npus else {}))
    assert {chosen for _index, chosen in Compiled.made} == {device}


def test_nothing_touches_an_npu_before_a_load(backend: Any) -> None:
    config = object()
    assert backend.TritonPythonModel.auto_complete_config(config) is config
    assert Compiled.made == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 8}, "max_batch_size is 8, compiled batches are [1, 2, 4]"),
        ({"batches": "1,x"}, "parameter batches is '1,x', wanted numbers such as 1,2,4"),
        ({"name": "model"}, "instance model has no trailing index"),
    ],
)
def test_a_model_that_cannot_work_does_not_load(backend: Any, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(RuntimeError) as failure:
        load(backend, tmp_path, **change)
    assert words in str(failure.value)


def test_without_an_npu_the_load_says_what_is_missing(backend: Any, tmp_path: Path) -> None:
    sys.modules["rebel"].device_count = lambda: 0  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"no NPU is visible: the container needs /dev/rbln\* and /dev/rsd0"):
        load(backend, tmp_path)


def test_a_missing_compiled_file_is_named_without_its_path(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    model = backend.TritonPythonModel()
    config = json.dumps({"max_batch_size": 1, "input": [], "output": []})
    with pytest.raises(RuntimeError) as failure:
        model.initialize(
            {
                "model_config": config,
                "model_name": "m",
                "model_instance_name": "m_0_0",
                "model_repository": str(tmp_path),
                "model_version": "1",
            }
        )
    assert str(failure.value) == "model m: version 1 has no model.rbln"
