"""The stand-in SDK out of its source, with device nodes in a directory instead of /dev."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator

import pytest
from onnx import TensorProto, helper

SDK = Path(__file__).resolve().parents[3] / "lab/sdk"
sys.path.insert(0, str(SDK))


SETTINGS = ("NPU_NAME", "DEVICE_MS", "DEVICE_MEMORY", "LEDGER", "FAULTS")
SHAPES = ("0.6.2+lab", "0.9.4+lab", "0.11.2+lab")


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A device directory with two NPUs and their group's node."""
    import rebel
    from rebel import _device

    root = tmp_path / "dev"
    root.mkdir()
    for name in ("rbln0", "rbln1", "rsd0"):
        (root / name).touch()
    monkeypatch.setattr(rebel, "DEV_ROOT", root)
    monkeypatch.setattr(rebel, "VISIBLE", None)
    for name in ("RBLN_DEVICES", *("RBLN_LAB_" + setting for setting in SETTINGS)):
        monkeypatch.delenv(name, raising=False)
    yield root
    for node in root.glob("rbln*"):
        _device.state_path(node).unlink(missing_ok=True)


@pytest.fixture(params=SHAPES)
def sdk(request: pytest.FixtureRequest, dev: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The SDK anew, as each of the three versions that have a shape of their own, on the NPUs of `dev`."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "rebel"}
    for name in before:
        del sys.modules[name]
    monkeypatch.setenv("RBLN_LAB_VERSION", request.param)
    monkeypatch.setenv("RBLN_LAB_DEV_ROOT", str(dev))
    yield importlib.import_module("rebel")
    for name in [name for name in sys.modules if name.partition(".")[0] == "rebel"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(scope="session")
def two_onnx() -> bytes:
    """A float32 [n, 3] -> TWICE; B int64 [n, 2] -> SQUARE; outputs in the order SQUARE, TWICE."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["A", "A"], ["TWICE"]), helper.make_node("Mul", ["B", "B"], ["SQUARE"])],
        "two",
        [
            helper.make_tensor_value_info("A", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("B", TensorProto.INT64, ["n", 2]),
        ],
        [
            helper.make_tensor_value_info("SQUARE", TensorProto.INT64, ["n", 2]),
            helper.make_tensor_value_info("TWICE", TensorProto.FLOAT, ["n", 3]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.fixture
def compiled(two_onnx: bytes, tmp_path: Path) -> Callable[..., Path]:
    """Compile `two` for these batches, in this order, and return the file."""
    import rebel

    def make(*batches: int, **options: Any) -> Path:
        info = [[("A", [batch, 3], "float32"), ("B", [batch, 2], "int64")] for batch in batches]
        path = tmp_path / "two.rbln"
        rebel.compile_from_onnx(two_onnx, input_info=info, **options).save(path)
        return path

    return make
