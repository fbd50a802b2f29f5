"""The stand-in SDK: devices, buckets, inputs, compiled files. What time, faults and memory do: test_npu.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import onnx
import pytest
import rebel
from rebel.core.exception import RBLNCompileError, RBLNRuntimeError

SDK = Path(rebel.__file__).resolve().parents[1]
Compile = Callable[..., Path]


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A float32 [rows, 3] and B int64 [rows, 2], every value its own."""
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.arange(10, 10 + rows * 2).reshape(rows, 2)


def open_nodes(dev: Path) -> list[str]:
    """Names of the device nodes that this process holds open, one for each time."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except FileNotFoundError:
            continue
        if target.parent == dev:
            found.append(target.name)
    return sorted(found)


def python(code: str, dev: Path, **environment: str) -> str:
    """Output of a program in a process of its own, where the SDK is imported anew."""
    env = {**os.environ, "PYTHONPATH": str(SDK), "RBLN_LAB_DEV_ROOT": str(dev), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestDevices:
    def test_counts_npus_and_not_the_group(self, dev: Path) -> None:
        assert rebel.device_count() == 2
        assert [rebel.npu_is_available(number) for number in (-1, 0, 1, 2)] == [False, True, True, False]

    def test_ten_npus_keep_their_numbers(self, dev: Path) -> None:
        for number in range(2, 11):
            (dev / f"rbln{number}").touch()
        assert rebel.device_count() == 11
        assert [path.name for path in rebel._nodes()][9:] == ["rbln9", "rbln10"]

    def test_without_the_group_there_is_no_npu(self, dev: Path, compiled: Compile) -> None:
        path = compiled(1)
        (dev / "rsd0").unlink()
        assert rebel.device_count() == 0
        with pytest.raises(RBLNRuntimeError, match=r"NPU 0 is not available: 0 NPUs are visible"):
            rebel.Runtime(path)

    def test_an_npu_that_is_not_there(self, dev: Path, compiled: Compile) -> None:
        with pytest.raises(RBLNRuntimeError, match=r"NPU 2 is not available: 2 NPUs"):
            rebel.Runtime(compiled(1), device=2)

    def test_type_is_told_by_the_lab_and_only_of_an_npu(self, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert rebel.get_npu_name(0) is None
        monkeypatch.setenv("RBLN_LAB_NPU_NAME", "RBLN-CA22")
        assert (rebel.get_npu_name(1), rebel.get_npu_name(2)) == ("RBLN-CA22", None)

    def test_selection_is_read_at_import_and_renumbers(self, dev: Path, compiled: Compile) -> None:
        code = """
import os, rebel
print(rebel.device_count())
runtime = rebel.Runtime({path!r}, device=0)
print(runtime._open[0].name)
os.environ["RBLN_DEVICES"] = "0,1"
print(rebel.device_count())
try:
    rebel.Runtime({path!r}, device=0)
except rebel.RBLNRuntimeError as error:
    print(error)
"""
        told = python(code.format(path=str(compiled(1))), dev, RBLN_DEVICES="1").splitlines()
        assert told == ["1", str(dev / "rbln1"), "1", "RBLN_DEVICES environment variable changed at runtime"]


class TestRuntime:
    def test_positional_inputs_give_all_outputs_in_order(self, dev: Path, compiled: Compile) -> None:
        first, second = inputs(1)
        square, twice = rebel.Runtime(compiled(1)).run(first, second)
        np.testing.assert_array_equal(square, second * second)
        np.testing.assert_array_equal(twice, first * 2)

    def test_named_inputs_in_any_order_and_by_call(self, dev: Path, compiled: Compile) -> None:
        first, second = inputs(1)
        square, twice = rebel.Runtime(compiled(1))(B=second, A=first)
        np.testing.assert_array_equal(square, second * second)
        np.testing.assert_array_equal(twice, first * 2)

    def test_buckets_by_index_in_the_order_they_were_compiled(self, dev: Path, compiled: Compile) -> None:
        model = rebel.RBLNCompiledModel(compiled(4, 1, 2))
        for index, rows in enumerate((4, 1, 2)):
            runtime = model.create_runtime(input_info_index=index, tensor_type="np", device=1)
            first, second = inputs(rows)
            np.testing.assert_array_equal(runtime.run(first, second)[1], first * 2)
        with pytest.raises(RBLNRuntimeError, match="input_info_index 3 is not one of 0 to 2"):
            model.create_runtime(input_info_index=3)

    @pytest.mark.parametrize(
        "given, why",
        [
            (lambda a, b: (a[:, :2], b), r"input A: float32\[2, 2\] given, compiled for float32\[2, 3\]"),
            (lambda a, b: (a[:1], b[:1]), r"input A: float32\[1, 3\] given, compiled for float32\[2, 3\]"),
            (lambda a, b: (a, b.astype(np.int32)), r"input B: int32\[2, 2\] given, compiled for int64\[2, 2\]"),
            (lambda a, b: (a.tolist(), b), "input A: list given, expected a numpy array"),
            (lambda a, b: (np.asfortranarray(a), b), "input A: not C-contiguous"),
            (lambda a, b: (a,), "1 inputs given, the model takes 2"),
        ],
    )
    def test_wrong_inputs(self, dev: Path, compiled: Compile, given: Callable[..., Any], why: str) -> None:
        runtime = rebel.Runtime(compiled(2))
        with pytest.raises(RBLNRuntimeError, match=why):
            runtime.run(*given(*inputs(2)))

    def test_wrong_names(self, dev: Path, compiled: Compile) -> None:
        first, second = inputs(1)
        runtime = rebel.Runtime(compiled(1))
        with pytest.raises(RBLNRuntimeError, match="unexpected inputs"):
            runtime.run(A=first, C=second)
        with pytest.raises(RBLNRuntimeError, match="1 inputs given, the model takes 2"):
            runtime.run(A=first)

    def test_arguments_of_a_runtime(self, dev: Path, compiled: Compile) -> None:
        path = compiled(1)
        with pytest.raises(RBLNRuntimeError, match="tensor_type 'pt'"):
            rebel.Runtime(path, tensor_type="pt")
        with pytest.raises(TypeError, match="unexpected keyword argument 'devices'"):
            rebel.Runtime(path, devices=1)
        rebel.Runtime(path, timeout=60)

    def test_keeps_its_node_open_as_long_as_it_lives(self, dev: Path, compiled: Compile) -> None:
        path = compiled(1)
        first, second = rebel.Runtime(path, device=1), rebel.Runtime(path, device=0)
        assert open_nodes(dev) == ["rbln0", "rbln1"]
        first.close()
        assert open_nodes(dev) == ["rbln0"]
        with pytest.raises(RBLNRuntimeError, match="closed"):
            first.run(*inputs(1))
        del second
        assert open_nodes(dev) == []


class TestCompiledFile:
    def test_missing(self, dev: Path, tmp_path: Path) -> None:
        with pytest.raises(RBLNRuntimeError, match=r"^LOADING_FILE_NOT_FOUND: The specified file does not exist\.$"):
            rebel.Runtime(tmp_path / "none.rbln")

    def test_half_a_file(self, dev: Path, compiled: Compile) -> None:
        path = compiled(1)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(RBLNRuntimeError, match="LOADING_FILE_BROKEN"):
            rebel.Runtime(path)

    def test_a_broken_model_inside(self, dev: Path, compiled: Compile) -> None:
        model = rebel.RBLNCompiledModel(compiled(1))
        model._onnx = model.onnx[:20]
        with pytest.raises(RBLNRuntimeError, match="LOADING_FILE_BROKEN"):
            model.create_runtime()
        assert open_nodes(dev) == []

    def test_of_another_card(self, dev: Path, compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
        path = compiled(1, npu="RBLN-CA22")
        rebel.Runtime(path)
        monkeypatch.setenv("RBLN_LAB_NPU_NAME", "RBLN-CA12")
        with pytest.raises(RBLNRuntimeError, match="compiled for RBLN-CA22, NPU 1 is RBLN-CA12"):
            rebel.Runtime(path, device=1)
        monkeypatch.setenv("RBLN_LAB_NPU_NAME", "RBLN-CA22")
        rebel.Runtime(path)

    @pytest.mark.parametrize("runtime, fits", [("0.6.9", True), ("0.9.4+lab", False), ("0.60.2", False)])
    def test_of_another_line_of_the_sdk(
        self, dev: Path, compiled: Compile, monkeypatch: pytest.MonkeyPatch, runtime: str, fits: bool
    ) -> None:
        monkeypatch.setattr(rebel, "__version__", "0.6.2+lab")
        path = compiled(1)
        monkeypatch.setattr(rebel, "__version__", runtime)
        if fits:
            rebel.RBLNCompiledModel(path)
        else:
            with pytest.raises(RBLNRuntimeError, match=rf"compiled with 0\.6\.2\+lab, this runtime is {runtime[:4]}"):
                rebel.RBLNCompiledModel(path)

    def test_holds_the_model_once_and_equal_bytes_each_time(self, compiled: Compile, two_onnx: bytes) -> None:
        path = compiled(1, 2, 4, npu="RBLN-CA12")
        before = path.read_bytes()
        assert compiled(1, 2, 4, npu="RBLN-CA12").read_bytes() == before
        with zipfile.ZipFile(path) as archive:
            assert archive.namelist() == ["meta.json", "model.onnx"]
            assert archive.read("model.onnx") == two_onnx
            meta = json.loads(archive.read("meta.json"))
        assert meta["npu"] == "RBLN-CA12"
        assert [bucket["outputs"][0] for bucket in meta["buckets"]] == [
            {"name": "SQUARE", "shape": [rows, 2], "dtype": "int64"} for rows in (1, 2, 4)
        ]

    def test_allocation_grows_with_the_buckets(self, compiled: Compile, two_onnx: bytes) -> None:
        entry = rebel.RBLNCompiledModel(compiled(1)).get_total_device_alloc()
        three = rebel.RBLNCompiledModel(compiled(1, 2, 4))
        assert len(two_onnx) < entry < three.get_total_device_alloc()
        assert three.get_alloc_per_node() == [three.get_total_device_alloc()]


class TestCompile:
    def test_one_bucket_without_a_list_around_it(self, two_onnx: bytes) -> None:
        for kind in (list, tuple):
            info = kind([("A", [2, 3], "float32"), ("B", [2, 2], "int64")])
            assert len(rebel.compile_from_onnx(two_onnx, input_info=info).meta["buckets"]) == 1

    def test_from_a_path(self, two_onnx: bytes, tmp_path: Path) -> None:
        path = tmp_path / "two.onnx"
        path.write_bytes(two_onnx)
        info = [("A", [2, 3], "float32"), ("B", [2, 2], "int64")]
        for model in (path, str(path), onnx.load(path)):
            assert (
                rebel.compile_from_onnx(model, input_info=info).meta["buckets"]
                == (rebel.compile_from_onnx(two_onnx, input_info=info).meta["buckets"])
            )

    def test_types_by_any_name(self, two_onnx: bytes) -> None:
        info = [("A", (2, 3), np.float32), ("B", (2, 2), "torch.int64")]
        found = rebel.compile_from_onnx(two_onnx, input_info=info).meta["buckets"][0]["inputs"]
        assert [(entry["shape"], entry["dtype"]) for entry in found] == [([2, 3], "float32"), ([2, 2], "int64")]

    def test_the_type_of_npu_is_asked_for_or_forced_or_the_one_here(
        self, two_onnx: bytes, dev: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = [("A", [2, 3], "float32"), ("B", [2, 2], "int64")]

        def compiled_for(**options: Any) -> str:
            return rebel.compile_from_onnx(two_onnx, info, **options).meta["npu"]

        monkeypatch.setenv("RBLN_LAB_NPU_NAME", "RBLN-CA25")
        assert compiled_for() == "RBLN-CA25"
        monkeypatch.setenv("RBLN_FORCE_NPU_NAME", "RBLN-CA22")
        assert (compiled_for(), compiled_for(npu="RBLN-CA12")) == ("RBLN-CA22", "RBLN-CA12")

    def test_pytorch_that_is_not_there_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(RBLNCompileError, match="needs PyTorch, and there is none here"):
            rebel.compile_from_torch(object(), [("A", [1], "float32")])

    @pytest.mark.parametrize(
        "info, why",
        [
            ([("A", [1, 3], "float32")], r"input_info names \['A'\], the model has \['A', 'B'\]"),
            ([("A", [1, 5], "float32"), ("B", [1, 2], "int64")], r"does not take \[\[1, 5\], \[1, 2\]\]"),
        ],
    )
    def test_input_info_that_does_not_fit(self, two_onnx: bytes, info: list[Any], why: str) -> None:
        with pytest.raises(RBLNCompileError, match=why):
            rebel.compile_from_onnx(two_onnx, input_info=info)

    def test_what_is_no_model(self, tmp_path: Path) -> None:
        for model in (b"no model", tmp_path / "none.onnx"):
            with pytest.raises(RBLNCompileError, match="not a model that can be compiled"):
                rebel.compile_from_onnx(model, input_info=[("A", [1], "float32")])
