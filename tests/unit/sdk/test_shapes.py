"""One list of expectations for the forms of the SDK's API: what all have, what sets them apart; each refuses the others' form."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

INFO = [[("A", [batch, 3], "float32"), ("B", [batch, 2], "int64")] for batch in (1, 4)]


def shape_of(sdk: ModuleType) -> str:
    return ".".join(sdk.__version__.split(".")[:2])


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.arange(10, 10 + rows * 2).reshape(rows, 2)


def compile_two(sdk: ModuleType, model: bytes, info: list[Any] = INFO, **options: Any) -> Any:
    """`two`, compiled in the form of this SDK."""
    if shape_of(sdk) == "0.11":
        shapes = [{name: tuple(shape) for name, shape, _kind in bucket} for bucket in info]
        return sdk.compile_from_onnx(onnx.load_from_string(model), shape=shapes, **options)
    return sdk.compile_from_onnx(model, info, **options)


def of_bucket(sdk: ModuleType, index: int) -> dict[str, int]:
    """What names a bucket to a runtime: nothing where it serves them all."""
    return {} if shape_of(sdk) == "0.11" else {"input_info_index": index}


@pytest.fixture
def path(sdk: ModuleType, two_onnx: bytes, tmp_path: Path) -> Path:
    """`two`, compiled for batches of 1 and 4."""
    compile_two(sdk, two_onnx, npu="RBLN-CA22").save(tmp_path / "two.rbln")
    return tmp_path / "two.rbln"


@pytest.fixture
def single(sdk: ModuleType, two_onnx: bytes, tmp_path: Path) -> Path:
    """`two`, compiled for a batch of 1."""
    compile_two(sdk, two_onnx, INFO[:1], npu="RBLN-CA22").save(tmp_path / "single.rbln")
    return tmp_path / "single.rbln"


def field(found: Any, name: str) -> Any:
    return found[name] if isinstance(found, dict) else getattr(found, name)


def test_all_have_devices_runtimes_and_the_vendors_errors(sdk: ModuleType, path: Path) -> None:
    assert (sdk.device_count(), sdk.npu_is_available(1), sdk.get_npu_name(0)) == (2, True, None)
    first, second = inputs(4)
    square, twice = sdk.Runtime(path, device=1, tensor_type="np", timeout=60, **of_bucket(sdk, 1)).run(first, second)
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


def test_all_run_asynchronously_by_wait_and_by_await(sdk: ModuleType, single: Path) -> None:
    first, second = inputs(1)
    runtime = sdk.RBLNCompiledModel(single).create_async_runtime(device=1, tensor_type="np", parallel=2)
    tasks = [runtime.run(first + number, second) for number in range(8)]
    for number, task in enumerate(tasks):
        square, twice = task.wait()
        np.testing.assert_array_equal(twice, (first + number) * 2)
        np.testing.assert_array_equal(square, second * second)

    async def both() -> list[Any]:
        return await asyncio.gather(runtime.async_run(first, second), sdk.AsyncRuntime(single).async_run(A=first, B=second))

    for found in asyncio.run(both()):
        np.testing.assert_array_equal(found[1], first * 2)
    with pytest.raises(sdk.RBLNRuntimeError, match=r"input A: float32\[4, 3\] given, compiled for float32\[1, 3\]"):
        runtime.run(*inputs(4))
    with pytest.raises(sdk.RBLNRuntimeError, match="parallel is 3, expected 1 or 2"):
        sdk.AsyncRuntime(single, parallel=3)
    with pytest.raises(TypeError, match=r"device has to be an int, not \[0\]"):
        sdk.AsyncRuntime(single, device=[0])


def test_a_run_gives_an_array_or_a_list(sdk: ModuleType, path: Path) -> None:
    assert isinstance(sdk.Runtime(path).run(*inputs(1)), list)


def test_an_async_runtime_takes_several_buckets_since_0_9_2(sdk: ModuleType, path: Path) -> None:
    if shape_of(sdk) == "0.6":
        with pytest.raises(sdk.RBLNRuntimeError, match=r"an async runtime of SDK 0\.6\.2.* takes a model of one bucket"):
            sdk.RBLNCompiledModel(path).create_async_runtime()
    else:
        runtime = sdk.RBLNCompiledModel(path).create_async_runtime(**of_bucket(sdk, 1))
        np.testing.assert_array_equal(runtime.run(*inputs(4)).wait()[1], inputs(4)[0] * 2)


@pytest.mark.parametrize("create", ["create_runtime", "create_async_runtime"])
def test_a_runtime_serves_one_bucket_and_all_of_them_since_0_11(sdk: ModuleType, path: Path, single: Path, create: str) -> None:
    if shape_of(sdk) == "0.11":
        runtime = getattr(sdk.RBLNCompiledModel(path), create)(device=1)
        for rows in (4, 1):
            done = runtime.run(*inputs(rows))
            np.testing.assert_array_equal((done.wait() if create == "create_async_runtime" else done)[1], inputs(rows)[0] * 2)
        with pytest.raises(sdk.RBLNRuntimeError, match=r"\['float32\[2, 3\]', 'int64\[2, 2\]'\] given, compiled for .* or .*4, 2"):
            runtime.run(*inputs(2))
        with pytest.raises(TypeError, match=rf"{create}\(\) got an unexpected keyword argument 'input_info_index'"):
            getattr(sdk.RBLNCompiledModel(path), create)(input_info_index=0)
        with pytest.raises(TypeError, match=r"Runtime\(\) got an unexpected keyword argument 'input_info_index'"):
            sdk.Runtime(path, input_info_index=0)
    elif create == "create_runtime":
        with pytest.raises(sdk.RBLNRuntimeError, match=r"input A: float32\[4, 3\] given, compiled for float32\[1, 3\]"):
            sdk.RBLNCompiledModel(path).create_runtime().run(*inputs(4))


@pytest.mark.parametrize("first", ["create_runtime", "create_async_runtime"])
def test_all_exclude_runtimes_of_two_kinds_on_one_model(sdk: ModuleType, single: Path, first: str) -> None:
    model = sdk.RBLNCompiledModel(single)
    second = ({"create_runtime", "create_async_runtime"} - {first}).pop()
    kept = [getattr(model, first)() for _number in (0, 1)]
    with pytest.raises(sdk.RBLNRuntimeError, match="either runtimes or async runtimes"):
        getattr(model, second)()
    assert len(kept) == 2


def test_onnx_is_compiled_by_input_info_and_as_a_loaded_model_since_0_11(sdk: ModuleType, two_onnx: bytes) -> None:
    loaded, shape = onnx.load_from_string(two_onnx), {"A": (1, 3), "B": (1, 2)}
    if shape_of(sdk) == "0.11":
        assert sdk.compile_from_onnx(loaded, shape=shape).meta["buckets"][0]["inputs"][1] == {
            "name": "B",
            "shape": [1, 2],
            "dtype": "int64",
        }
        with pytest.raises(TypeError, match="bytes given, expected a loaded model"):
            sdk.compile_from_onnx(two_onnx, shape=shape)
        with pytest.raises(TypeError, match="input_info"):
            sdk.compile_from_onnx(loaded, input_info=INFO)
        for wrong in ({"A": (1, 3)}, {"A": [1, 3], "B": [1, 2]}):
            with pytest.raises(sdk.RBLNCompileError, match="expected a tuple for each of"):
                sdk.compile_from_onnx(loaded, shape=wrong)
    else:
        with pytest.raises(TypeError, match="shape"):
            sdk.compile_from_onnx(loaded, shape=shape)


def test_bfloat16_is_that_of_ml_dtypes(sdk: ModuleType, two_onnx: bytes) -> None:
    half = pytest.importorskip("ml_dtypes").bfloat16
    if shape_of(sdk) == "0.11":
        pytest.skip("onnxruntime computes no bfloat16 on a CPU, and this form takes the model's own types")
    made = sdk.compile_from_onnx(two_onnx, [("A", [1, 3], "bfloat16"), ("B", [1, 2], "int64")])
    assert [tensor["dtype"] for tensor in made.meta["buckets"][0]["outputs"]] == ["int64", "bfloat16"]
    first, second = inputs(1)
    square, twice = made.create_runtime().run(first.astype(half), second)
    assert (square.dtype, twice.dtype) == (np.int64, half)
    np.testing.assert_array_equal(twice.astype(np.float32), first * 2)
    with pytest.raises(sdk.RBLNRuntimeError, match=r"input A: float32\[1, 3\] given, compiled for bfloat16\[1, 3\]"):
        made.create_runtime().run(first, second)


def test_inspect_is_missing_then_a_dict_then_an_object(sdk: ModuleType, path: Path) -> None:
    if shape_of(sdk) == "0.6":
        assert not hasattr(sdk.RBLNCompiledModel, "inspect")
        return
    found = sdk.RBLNCompiledModel.inspect(path)
    assert isinstance(found, dict) == (shape_of(sdk) == "0.9")
    assert (field(found, "npu"), field(found, "compiler_version")) == ("RBLN-CA22", sdk.__version__)
    assert field(found, "alloc_per_node") == sdk.RBLNCompiledModel(path).get_alloc_per_node()
    described = [(field(entry, "name"), field(entry, "shape"), field(entry, "dtype")) for entry in field(found, "inputs")]
    assert described == [("A", [1, 3], "float32"), ("B", [1, 2], "int64")]
    buckets = field(found, "input_info")
    assert [field(field(bucket, "outputs")[0], "shape") for bucket in buckets] == [[1, 2], [4, 2]]
    assert len(field(found, "uuid")) == 36


@pytest.mark.parametrize("kind", ["Runtime", "AsyncRuntime"])
def test_a_timeout_of_fractions_is_refused_since_0_11(sdk: ModuleType, single: Path, kind: str) -> None:
    if shape_of(sdk) == "0.11":
        call = {"Runtime": "sync", "AsyncRuntime": "async"}[kind]
        with pytest.raises(TypeError, match=f"create_{call}_runtime"):
            getattr(sdk, kind)(single, timeout=60.0)
    else:
        getattr(sdk, kind)(single, timeout=60.0)


def test_a_model_over_several_npus_is_called_by_another_name_since_0_11(sdk: ModuleType, two_onnx: bytes, tmp_path: Path) -> None:
    known, unknown = "tensor_parallel_size", "num_devices"
    if shape_of(sdk) == "0.11":
        known, unknown = unknown, known
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
        compile_two(sdk, two_onnx, **{unknown: 2})
    path = tmp_path / "wide.rbln"
    compile_two(sdk, two_onnx, **{known: 2}).save(path)
    model = sdk.RBLNCompiledModel(path)
    assert len(model.get_alloc_per_node()) == 2
    assert model.get_total_device_alloc() == sum(model.get_alloc_per_node())
    if shape_of(sdk) != "0.6":
        assert field(sdk.RBLNCompiledModel.inspect(path), known) == 2
    np.testing.assert_array_equal(model.create_runtime(device=[1, 0]).run(*inputs(1))[1], inputs(1)[0] * 2)
    for device in (0, [0], [0, 0], [0, 1, 2]):
        with pytest.raises(sdk.RBLNRuntimeError, match="compiled for 2 NPUs, device is"):
            model.create_runtime(device=device)
