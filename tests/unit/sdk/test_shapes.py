"""One list of expectations for the three shapes of the SDK's API: what all have, and what sets them apart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

INFO = [[("A", [batch, 3], "float32"), ("B", [batch, 2], "int64")] for batch in (1, 4)]


def shape_of(sdk: ModuleType) -> str:
    return ".".join(sdk.__version__.split(".")[:2])


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.arange(10, 10 + rows * 2).reshape(rows, 2)


@pytest.fixture
def path(sdk: ModuleType, two_onnx: bytes, tmp_path: Path) -> Path:
    """`two`, compiled for batches of 1 and 4."""
    sdk.compile_from_onnx(two_onnx, INFO, npu="RBLN-CA22").save(tmp_path / "two.rbln")
    return tmp_path / "two.rbln"


def field(found: Any, name: str) -> Any:
    return found[name] if isinstance(found, dict) else getattr(found, name)


def test_all_have_devices_runtimes_and_the_vendors_errors(sdk: ModuleType, path: Path) -> None:
    assert (sdk.device_count(), sdk.npu_is_available(1), sdk.get_npu_name(0)) == (2, True, None)
    first, second = inputs(4)
    square, twice = sdk.Runtime(path, device=1, tensor_type="np", input_info_index=1, timeout=60).run(first, second)
    np.testing.assert_array_equal(square, second * second)
    np.testing.assert_array_equal(twice, first * 2)
    from rebel.core.exception import RBLNCompileError, RBLNRuntimeError

    assert issubclass(RBLNRuntimeError, RuntimeError)
    assert issubclass(RBLNCompileError, RuntimeError)
    with pytest.raises(RBLNRuntimeError, match="LOADING_FILE_NOT_FOUND"):
        sdk.RBLNCompiledModel(path.with_name("none.rbln"))


def test_all_refuse_a_file_of_another_card_and_of_another_line(
    sdk: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RBLN_LAB_NPU_NAME", "RBLN-CA12")
    with pytest.raises(sdk.RBLNRuntimeError, match="compiled for RBLN-CA22, NPU 0 is RBLN-CA12"):
        sdk.RBLNCompiledModel(path).create_runtime()
    monkeypatch.setattr(sdk, "__version__", "0.12.0")
    with pytest.raises(sdk.RBLNRuntimeError, match=r"compiled with .*, this runtime is 0\.12\.0: compile it again"):
        sdk.RBLNCompiledModel(path)


def test_all_run_asynchronously_by_wait_by_result_and_by_await(sdk: ModuleType, path: Path) -> None:
    first, second = inputs(1)
    runtime = sdk.RBLNCompiledModel(path).create_async_runtime(device=1, tensor_type="np", parallel=2)
    tasks = [runtime.run(first + number, second) for number in range(8)]
    for number, task in enumerate(tasks):
        np.testing.assert_array_equal(task.wait()[1], (first + number) * 2)
        np.testing.assert_array_equal(task.result()[0], second * second)

    async def both() -> list[Any]:
        return await asyncio.gather(runtime.async_run(first, second), sdk.AsyncRuntime(path).async_run(A=first, B=second))

    for found in asyncio.run(both()):
        np.testing.assert_array_equal(found[1], first * 2)
    with pytest.raises(sdk.RBLNRuntimeError, match=r"input A: float32\[4, 3\] given, compiled for float32\[1, 3\]"):
        runtime.run(*inputs(4))
    with pytest.raises(sdk.RBLNRuntimeError, match="parallel is 3, wanted 1 or 2"):
        sdk.AsyncRuntime(path, parallel=3)


@pytest.mark.parametrize("first", ["create_runtime", "create_async_runtime"])
def test_all_exclude_runtimes_of_two_kinds_on_one_model(sdk: ModuleType, path: Path, first: str) -> None:
    model = sdk.RBLNCompiledModel(path)
    second = ({"create_runtime", "create_async_runtime"} - {first}).pop()
    kept = [getattr(model, first)(input_info_index=index) for index in (0, 1)]
    with pytest.raises(sdk.RBLNRuntimeError, match="either runtimes or async runtimes"):
        getattr(model, second)()
    assert len(kept) == 2


def test_inspect_is_missing_then_a_dict_then_an_object(sdk: ModuleType, path: Path) -> None:
    if shape_of(sdk) == "0.6":
        assert not hasattr(sdk.RBLNCompiledModel, "inspect")
        return
    found = sdk.RBLNCompiledModel.inspect(path)
    assert isinstance(found, dict) == (shape_of(sdk) == "0.9")
    assert (field(found, "npu"), field(found, "compiler_version")) == ("RBLN-CA22", sdk.__version__)
    assert field(found, "alloc_per_node") == sdk.RBLNCompiledModel(path).get_alloc_per_node()
    described = [(field(one, "name"), field(one, "shape"), field(one, "dtype")) for one in field(found, "inputs")]
    assert described == [("A", [1, 3], "float32"), ("B", [1, 2], "int64")]
    buckets = field(found, "input_info")
    assert [field(field(bucket, "outputs")[0], "shape") for bucket in buckets] == [[1, 2], [4, 2]]
    assert len(field(found, "uuid")) == 36


@pytest.mark.parametrize("kind", ["Runtime", "AsyncRuntime"])
def test_a_timeout_of_fractions_is_refused_since_0_11(sdk: ModuleType, path: Path, kind: str) -> None:
    if shape_of(sdk) == "0.11":
        call = {"Runtime": "sync", "AsyncRuntime": "async"}[kind]
        with pytest.raises(TypeError, match=f"create_{call}_runtime"):
            getattr(sdk, kind)(path, timeout=60.0)
    else:
        getattr(sdk, kind)(path, timeout=60.0)


def test_a_model_over_several_npus_is_called_by_another_name_since_0_11(sdk: ModuleType, two_onnx: bytes, tmp_path: Path) -> None:
    known, unknown = "tensor_parallel_size", "num_devices"
    if shape_of(sdk) == "0.11":
        known, unknown = unknown, known
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
        sdk.compile_from_onnx(two_onnx, INFO, **{unknown: 2})
    path = tmp_path / "wide.rbln"
    sdk.compile_from_onnx(two_onnx, INFO, **{known: 2}).save(path)
    model = sdk.RBLNCompiledModel(path)
    assert len(model.get_alloc_per_node()) == 2
    assert model.get_total_device_alloc() == sum(model.get_alloc_per_node())
    if shape_of(sdk) != "0.6":
        assert field(sdk.RBLNCompiledModel.inspect(path), known) == 2
    np.testing.assert_array_equal(model.create_runtime(device=[1, 0]).run(*inputs(1))[1], inputs(1)[0] * 2)
    for device in (0, [0], [0, 0], [0, 1, 2]):
        with pytest.raises(sdk.RBLNRuntimeError, match="compiled for 2 NPUs, device is"):
            model.create_runtime(device=device)
