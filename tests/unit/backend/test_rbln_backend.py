"""The `rbln` backend with Triton's utilities and the SDK played: joining, padding, slicing, errors, and which NPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Optional

import numpy as np
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[3]
BACKEND = ROOT / "files/backends/rbln/model.py"
KINDS = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64, "TYPE_FP64": np.float64}


class Tensor:
    """Triton's tensor."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    UNAVAILABLE, INTERNAL, INVALID_ARG = "unavailable", "internal", "invalid_arg"

    def __init__(self, message: str, code: str) -> None:
        self.message, self.code = message, code


class TritonModelException(Exception):
    """A model that cannot be loaded."""


class Response:
    def __init__(self, output_tensors: Any = (), error: Optional[TritonError] = None) -> None:
        self.error = error
        self.names = [tensor.name() for tensor in output_tensors]
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}


class NPU:
    """The SDK with `count` NPUs: B squared and A twice, for the batches that the file was compiled for (0: no batch)."""

    def __init__(self, count: int = 2, batches: tuple[int, ...] = (1, 2, 4)) -> None:
        self.count, self.batches = count, batches
        self.runs: list[tuple[np.ndarray, ...]] = []
        self.devices: list[int] = []
        self.alive = 0
        self.answer: Callable[[np.ndarray, np.ndarray], Any] = lambda a, b: (b * b, a * 2)

    def device_count(self) -> int:
        return self.count

    def RBLNCompiledModel(self, path: str) -> Any:
        assert Path(path).read_bytes() == b"compiled"
        return SimpleNamespace(create_runtime=self.create_runtime)

    def create_runtime(self, *, input_info_index: int, tensor_type: str, device: int) -> Any:
        if device >= self.count:
            raise RuntimeError(f"NPU {device} is not available: {self.count} NPUs are visible.")
        self.devices.append(device)
        npu, batch = self, self.batches[input_info_index]

        class Runtime:
            def __init__(self) -> None:
                npu.alive += 1

            def __del__(self) -> None:
                npu.alive -= 1

            def run(self, a: np.ndarray, b: np.ndarray) -> Any:
                assert batch == 0 or (len(a), len(b)) == (batch, batch), "not a compiled batch"
                npu.runs.append((a.copy(), b.copy()))
                return npu.answer(a, b)

        return Runtime()


@pytest.fixture
def log() -> list[str]:
    """Errors that the backend wrote to the server's log."""
    return []


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> ModuleType:
    """The backend's module, imported anew with Triton's utilities played."""
    utils = ModuleType("triton_python_backend_utils")
    utils.__dict__.update(
        Tensor=Tensor,
        TritonError=TritonError,
        TritonModelException=TritonModelException,
        InferenceResponse=Response,
        Logger=SimpleNamespace(log_info=lambda message: None, log_error=log.append),
        triton_string_to_numpy=KINDS.__getitem__,
        get_input_tensor_by_name=lambda request, name: Tensor(name, request[name]) if name in request else None,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    return load_backend()


def load_backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("npufleet_backend_rbln", BACKEND)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


Serve = Callable[..., Any]


@pytest.fixture
def serve(backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Load model `two` on an NPU: serve(npu, instance=..., batches="1,2,4", npus=..., <config keys>=...)."""

    def load(npu: NPU, instance: str = "two_0_0", **config: Any) -> Any:
        monkeypatch.setitem(sys.modules, "rebel", npu)  # type: ignore[arg-type]
        parameters = {name: {"string_value": config.pop(name)} for name in ("batches", "npus") if name in config}
        parameters.setdefault("batches", {"string_value": ",".join(str(one) for one in npu.batches)})
        whole = {
            "max_batch_size": max(npu.batches),
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [3]}, {"name": "B", "data_type": "TYPE_INT64", "dims": [2]}],
            "output": [output("SQUARE", "TYPE_INT64", [2]), output("TWICE", "TYPE_FP32", [3])],
            "parameters": parameters,
            **config,
        }
        path = tmp_path / "two" / "1" / (whole.get("default_model_filename") or "model.rbln")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"compiled")
        model = backend.TritonPythonModel()
        model.initialize(arguments(tmp_path / "two", whole, instance))
        return model

    return load


def arguments(repository: Path, config: dict[str, Any], instance: str) -> dict[str, str]:
    """What Triton 24.01 hands to initialize(); the device id of a KIND_MODEL instance is always 0."""
    return {
        "model_config": json.dumps(config),
        "model_name": "two",
        "model_instance_name": instance,
        "model_instance_kind": "MODEL",
        "model_instance_device_id": "0",
        "model_repository": str(repository),
        "model_version": "1",
    }


def output(name: str, kind: str, dims: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": dims, **more}


def request(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs that are nobody else's: no value is 0, which pads."""
    base = 1 + 1000 * seed
    return {
        "A": np.arange(base, base + rows * 3, dtype=np.float32).reshape(rows, 3),
        "B": np.arange(base, base + rows * 2, dtype=np.int64).reshape(rows, 2),
    }


def requests(*sizes: int) -> list[dict[str, np.ndarray]]:
    return [request(rows, seed) for seed, rows in enumerate(sizes)]


def is_answer(response: Response, asked: dict[str, np.ndarray]) -> bool:
    """Whether a response has both outputs of this very request, in the config's order and types."""
    if response.error is not None or response.names != ["SQUARE", "TWICE"]:
        return False
    square, twice = response.outputs["SQUARE"], response.outputs["TWICE"]
    kinds = (square.dtype, twice.dtype) == (np.int64, np.float32)
    return kinds and np.array_equal(square, asked["B"] ** 2) and np.array_equal(twice, asked["A"] * 2)


class TestJoining:
    @pytest.mark.parametrize(
        "batches, sizes, runs",
        [
            ((1, 2, 4), [1], [1]),
            ((1, 2, 4), [1, 1], [2]),
            ((1, 2, 4), [1, 2], [4]),  # three rows, one of padding
            ((1, 2, 4), [3], [4]),
            ((1, 2, 4), [1, 2, 1, 1], [4, 1]),
            ((1, 2, 4), [2, 1, 1, 3, 1, 4, 2, 1], [4, 4, 4, 4]),
            ((4, 1, 2), [1, 1, 3, 1], [2, 4]),  # a file's order need not be sorted
            ((1, 8), [3, 4], [8]),
            ((8,), [1], [8]),
            ((3, 5), [2, 2, 2], [5, 3]),
        ],
    )
    def test_each_request_gets_its_own_rows(
        self, serve: Serve, batches: tuple[int, ...], sizes: list[int], runs: list[int]
    ) -> None:
        npu = NPU(batches=batches)
        model = serve(npu)
        asked = requests(*sizes)
        responses = model.execute(asked)
        assert len(responses) == len(asked)
        assert all(is_answer(response, one) for response, one in zip(responses, asked))
        assert sorted(len(a) for a, _b in npu.runs) == sorted(runs)

    def test_groups_keep_order_and_limit(self, backend: ModuleType) -> None:
        random = np.random.RandomState(7)
        for _round in range(200):
            limit = int(random.randint(1, 9))
            sizes = [int(size) for size in random.randint(0, limit + 1, random.randint(0, 12))]
            joined = backend.groups(sizes, limit)
            assert [index for members in joined for index in members] == list(range(len(sizes)))
            totals = [sum(sizes[index] for index in members) for members in joined]
            assert all(total <= limit for total in totals)
            firsts = [sizes[members[0]] for members in joined[1:]]
            assert all(total + first > limit for total, first in zip(totals, firsts)), "joined too little"

    def test_padding_is_zeros_and_is_not_answered(self, serve: Serve) -> None:
        npu = NPU()
        asked = requests(2, 1)
        responses = serve(npu).execute(asked)
        (a, b), *more = npu.runs
        assert not more
        np.testing.assert_array_equal(a, [*asked[0]["A"], *asked[1]["A"], [0, 0, 0]])
        np.testing.assert_array_equal(b, [*asked[0]["B"], *asked[1]["B"], [0, 0]])
        assert [len(response.outputs["TWICE"]) for response in responses] == [2, 1]

    def test_no_requests_no_run(self, serve: Serve) -> None:
        npu = NPU()
        assert serve(npu).execute([]) == []
        assert npu.runs == []

    def test_a_model_without_a_batch_runs_request_by_request(self, serve: Serve) -> None:
        npu = NPU(batches=(0,))
        model = serve(npu, batches="1", max_batch_size=0)
        asked = [{name: array[0] for name, array in one.items()} for one in requests(1, 1)]
        assert all(is_answer(response, one) for response, one in zip(model.execute(asked), asked))
        assert [a.shape for a, _b in npu.runs] == [(3,), (3,)]

    def test_outputs_as_a_list_and_one_as_an_array(self, serve: Serve) -> None:
        npu = NPU()
        npu.answer = lambda a, b: [b * b, a * 2]
        assert is_answer(serve(npu).execute(requests(1))[0], request(1))
        npu.answer = lambda a, b: a * 2
        (response,) = serve(npu, output=[output("TWICE", "TYPE_FP32", [3])]).execute(requests(1))
        np.testing.assert_array_equal(response.outputs["TWICE"], request(1)["A"] * 2)


class TestErrors:
    def test_too_many_rows_fail_alone_and_name_the_limit(self, serve: Serve) -> None:
        asked = requests(1, 5, 2)
        first, second, third = serve(NPU()).execute(asked)
        assert is_answer(first, asked[0]) and is_answer(third, asked[2])
        assert second.error.code == TritonError.INVALID_ARG
        assert second.error.message == "model two: a batch of 5 is above the largest compiled one, 4"

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda one: one.pop("B"), "model two: input B is missing"),
            (lambda one: one.update(B=request(3)["B"]), "model two: inputs have different batch sizes: [1, 3]"),
        ],
    )
    def test_a_bad_request_fails_alone(self, serve: Serve, change: Callable[..., Any], message: str) -> None:
        npu = NPU()
        asked = requests(1, 1, 1)
        change(asked[1])
        first, second, third = serve(npu).execute(asked)
        assert is_answer(first, asked[0]) and is_answer(third, asked[2])
        assert (second.error.code, second.error.message) == (TritonError.INVALID_ARG, message)

    @pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError, OSError])
    def test_a_run_that_fails_fails_its_requests_only(self, serve: Serve, log: list[str], kind: type[Exception]) -> None:
        npu = NPU()

        def answer(a: np.ndarray, b: np.ndarray) -> Any:
            if len(npu.runs) == 1:
                raise kind("Inference failed: 501 in /opt/vendor/lib/librbln.so\n  at /opt/vendor/src/run.cc:7")
            return b * b, a * 2

        npu.answer = answer
        asked = requests(2, 2, 3)
        first, second, third = serve(npu, instance="two_0_1").execute(asked)
        assert is_answer(third, asked[2])
        for response in (first, second):
            assert response.error.code == TritonError.UNAVAILABLE
            assert response.error.message == "model two: Inference failed: 501 in librbln.so"
        assert len(log) == 1
        assert "NPU 1" in log[0] and "run.cc:7" in log[0] and "Traceback" in log[0]

    def test_every_failed_request_has_a_response_of_its_own(self, serve: Serve) -> None:
        """One object for two requests crashes Triton 24.01, all of it."""
        npu = NPU()
        npu.answer = lambda a, b: 1 / 0
        responses = serve(npu).execute(requests(1, 1, 1, 1))
        assert len({id(response) for response in responses}) == len({id(response.error) for response in responses}) == 4

    def test_an_error_without_words_says_its_kind(self, serve: Serve) -> None:
        npu = NPU()

        def answer(a: np.ndarray, b: np.ndarray) -> Any:
            raise MemoryError

        npu.answer = answer
        assert serve(npu).execute(requests(1))[0].error.message == "model two: MemoryError"

    @pytest.mark.parametrize(
        "answer, message",
        [
            (lambda a, b: b * b, "the compiled file has 1 outputs, the config names 2"),
            (lambda a, b: (a * 2, b * b), "output SQUARE of the compiled file is float32[2, 3], the config says int64[2, 2]"),
            (
                lambda a, b: (b * b, (a * 2).astype(np.float64)),
                "output TWICE of the compiled file is float64[2, 3], the config says float32[2, 3]",
            ),
            (lambda a, b: (b * b, a[:1]), "output TWICE of the compiled file is float32[1, 3], the config says float32[2, 3]"),
            (lambda a, b: (b * b, a.ravel()), "output TWICE of the compiled file is float32[6], the config says float32[2, 3]"),
        ],
    )
    def test_outputs_that_are_not_the_configs(self, serve: Serve, answer: Callable[..., Any], message: str) -> None:
        npu = NPU()
        npu.answer = answer
        (response,) = serve(npu).execute([request(2)])
        assert (response.error.code, response.error.message) == (TritonError.INTERNAL, f"model two: {message}")

    def test_open_and_reshaped_dims_of_the_config(self, serve: Serve) -> None:
        outputs = [output("SQUARE", "TYPE_INT64", [-1]), output("TWICE", "TYPE_FP32", [1, 3], reshape={"shape": [3]})]
        assert is_answer(serve(NPU(), output=outputs).execute([request(2)])[0], request(2))


class TestWhichNPU:
    @pytest.mark.parametrize(
        "instance, count, npus, npu",
        [
            ("two_0_0", 2, None, 0),
            ("two_0_1", 2, None, 1),
            ("two_0_5", 4, None, 1),
            ("npu_3", 4, None, 3),
            ("two_0_10", 16, None, 10),
            ("two_0_0", 4, "2,3", 2),
            ("two_0_1", 4, "2,3", 3),
            ("two_0_2", 4, "2, 3", 2),
        ],
    )
    def test_by_the_instances_index(self, serve: Serve, instance: str, count: int, npus: Optional[str], npu: int) -> None:
        sdk = NPU(count=count)
        serve(sdk, instance=instance, **({"npus": npus} if npus else {}))
        assert sdk.devices == [npu] * 3

    def test_nothing_is_touched_before_initialize(self) -> None:
        """In a process of its own, where importing the SDK would fail."""
        code = f"""
import importlib.util, sys, types
sys.dont_write_bytecode = True
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
sys.modules["rebel"] = None
spec = importlib.util.spec_from_file_location("model", {str(BACKEND)!r})
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
config = object()
assert model.TritonPythonModel.auto_complete_config(config) is config
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_finalize_gives_the_npu_back(self, serve: Serve) -> None:
        sdk = NPU()
        model = serve(sdk)
        assert sdk.alive == 3
        model.finalize()
        assert sdk.alive == 0


class TestLoading:
    @pytest.mark.parametrize(
        "npu, config, message",
        [
            (NPU(count=0), {}, "no NPU is visible: the container needs /dev/rbln* and /dev/rsd0"),
            (NPU(), {"npus": "5"}, "NPU 5 is not available: 2 NPUs are visible."),
            (NPU(), {"npus": "all"}, "parameter npus is 'all', wanted numbers such as 1,2,4"),
            (NPU(), {"npus": "-1"}, "parameter npus is '-1', wanted numbers such as 1,2,4"),
            (NPU(), {"batches": "1;2"}, "parameter batches is '1;2', wanted numbers such as 1,2,4"),
            (NPU(), {"batches": ""}, "parameter batches is '', wanted numbers such as 1,2,4"),
            (NPU(), {"batches": "0,4"}, "parameter batches names 0, wanted sizes of 1 and above"),
            (NPU(), {"max_batch_size": 8}, "max_batch_size is 8, compiled batches are [1, 2, 4]"),
            (NPU(), {"instance": "two"}, "instance two has no trailing index to choose an NPU by"),
        ],
    )
    def test_refusals_say_why(self, serve: Serve, npu: NPU, config: dict[str, Any], message: str) -> None:
        with pytest.raises(TritonModelException) as refusal:
            serve(npu, **config)
        assert str(refusal.value) == f"model two: {message}"
        assert npu.alive == 0

    def test_no_file(self, backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rebel", NPU())  # type: ignore[arg-type]
        config = {"max_batch_size": 0, "input": [], "output": []}
        for name, wanted in ((None, "model.rbln"), ("other.rbln", "other.rbln")):
            with pytest.raises(TritonModelException, match=f"^model two: version 1 has no {wanted}$"):
                args = arguments(tmp_path, {**config, "default_model_filename": name}, "two_0_0")
                backend.TritonPythonModel().initialize(args)

    def test_no_sdk(self, backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rebel", None)  # type: ignore[arg-type]
        with pytest.raises(TritonModelException, match=r"^model two: the image has no usable SDK, rebel-compiler: "):
            backend.TritonPythonModel().initialize(arguments(tmp_path, {}, "two_0_0"))

    def test_file_of_another_name(self, serve: Serve, tmp_path: Path) -> None:
        model = serve(NPU(), default_model_filename="resnet.rbln")
        assert [path.name for path in (tmp_path / "two/1").iterdir()] == ["resnet.rbln"]
        assert is_answer(model.execute(requests(1))[0], request(1))


def test_with_the_stand_in_sdk(backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that the backend makes are those of the SDK: a compiled file, and an instance on its own node."""
    monkeypatch.syspath_prepend(str(ROOT / "lab/sdk"))
    import rebel

    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("rbln0", "rbln1", "rsd0"):
        (dev / name).touch()
    monkeypatch.setattr(rebel, "DEV_ROOT", dev)
    monkeypatch.setattr(rebel, "VISIBLE", None)
    monkeypatch.delenv("RBLN_DEVICES", raising=False)

    def held() -> set[str]:
        """Nodes that this process holds open."""
        links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        # The listing's own descriptor is gone by now.
        targets = [link.readlink() for link in links if link.is_symlink()]
        return {target.name for target in targets if target.parent == dev}

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["A", "A"], ["TWICE"])],
        "twice",
        [value("A", TensorProto.FLOAT, ["n", 3])],
        [value("TWICE", TensorProto.FLOAT, ["n", 3])],
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    buckets = [[("A", [rows, 3], "float32")] for rows in (1, 4)]
    (tmp_path / "two/1").mkdir(parents=True)
    rebel.compile_from_onnx(whole, input_info=buckets).save(tmp_path / "two/1/model.rbln")
    config = {
        "max_batch_size": 4,
        "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [output("TWICE", "TYPE_FP32", [3])],
        "parameters": {"batches": {"string_value": "1,4"}},
    }
    model = backend.TritonPythonModel()
    model.initialize(arguments(tmp_path / "two", config, "two_0_1"))
    asked = requests(1, 2, 1, 1)
    for one, response in zip(asked, model.execute(asked)):
        np.testing.assert_array_equal(response.outputs["TWICE"], one["A"] * 2)
    assert held() == {"rbln1"}
    model.finalize()
    assert held() == set()
