"""The program that compiles, in a process of its own with each shape of the SDK: file, record, and clear failures."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "files/compile/rbln_compile.py"
SDK = ROOT / "lab/sdk"
SHAPES = ("0.6.2+lab", "0.9.4+lab", "0.11.2+lab")
INPUTS = [{"name": "A", "shape": [3], "dtype": "float32"}, {"name": "B", "shape": [2], "dtype": "int64"}]


def run(place: Path, version: str, path: str = str(SDK), **spec: Any) -> subprocess.CompletedProcess[str]:
    """Compile what lies in `place`."""
    whole: dict[str, Any] = {
        "name": "two",
        "npu": "RBLN-CA22",
        "sdk": version,
        "devices": 1,
        "batches": [1, 4, 2],
        "source": {"kind": "onnx", "path": "two.onnx"},
        "inputs": INPUTS,
        "outputs": None,
        "digests": {"sha256": "of the source", "spec": "of the spec"},
        "output": "model.rbln",
        **spec,
    }
    (place / "spec.json").write_text(json.dumps(whole))
    environment = {**os.environ, "PYTHONPATH": path, "RBLN_LAB_VERSION": version}
    command = [sys.executable, str(PROGRAM), str(place / "spec.json")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")


@pytest.fixture
def place(tmp_path: Path, two_onnx: bytes) -> Path:
    (tmp_path / "two.onnx").write_bytes(two_onnx)
    return tmp_path


@pytest.mark.parametrize("version", SHAPES)
def test_the_record_says_all_of_the_file(place: Path, version: str) -> None:
    done = run(place, version)
    assert done.returncode == 0, done.stderr
    record = json.loads((place / "model.rbln.json").read_text())
    assert record == json.loads(done.stdout)
    content = (place / "model.rbln").read_bytes()
    memory = record.pop("device_memory")
    assert record == {
        "format": 1,
        "sha256": hashlib.sha256(content).hexdigest(),
        "npu": "RBLN-CA22",
        "compiler_version": version,
        "devices": 1,
        "buckets": [
            {
                "inputs": [{**tensor, "shape": [batch, *tensor["shape"]]} for tensor in INPUTS],
                "outputs": [
                    {"name": "SQUARE", "shape": [batch, 2], "dtype": "int64"},
                    {"name": "TWICE", "shape": [batch, 3], "dtype": "float32"},
                ],
            }
            for batch in (1, 4, 2)
        ],
        "source": {"kind": "onnx", "sha256": "of the source", "spec": "of the spec"},
    }
    assert len(memory) == 1 and memory[0] > 0
    assert sorted(path.name for path in place.iterdir()) == ["model.rbln", "model.rbln.json", "spec.json", "two.onnx"]
    assert (run(place, version).returncode, (place / "model.rbln").read_bytes()) == (0, content)


@pytest.mark.parametrize("version", SHAPES)
def test_over_several_npus(place: Path, version: str) -> None:
    done = run(place, version, devices=2)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["devices"], len(record["device_memory"])) == (2, 2)


def test_a_loaded_model_says_its_types_itself(place: Path) -> None:
    """Since 0.11 the compiler gets no types: what the spec says has to be what the model has."""
    done = run(place, SHAPES[2], inputs=[{**INPUTS[0], "dtype": "float16"}, INPUTS[1]])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "the spec names input A as float16, the model has float32\n"


def test_a_loaded_model_needs_onnx(place: Path) -> None:
    (place / "shadow").mkdir()
    (place / "shadow/onnx.py").write_text("raise ImportError('no onnx')")
    done = run(place, SHAPES[2], path=f"{place / 'shadow'}:{SDK}")
    assert done.returncode == 1
    assert "has no onnx" in done.stderr
    assert run(place, SHAPES[1], path=f"{place / 'shadow'}:{SDK}").returncode == 0


@pytest.mark.parametrize("version", SHAPES)
def test_without_a_batch_dimension(place: Path, version: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "X"], ["Y"])],
        "one",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [5])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (place / "two.onnx").write_bytes(model.SerializeToString())
    done = run(place, version, batches=[], inputs=[{"name": "X", "shape": [5], "dtype": "float32"}])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["buckets"] == [
        {"inputs": [{"name": "X", "shape": [5], "dtype": "float32"}], "outputs": [{"name": "Y", "shape": [5], "dtype": "float32"}]}
    ]


def test_outputs_that_the_spec_says_count(place: Path) -> None:
    named = [{"name": "FIRST", "shape": [2], "dtype": "int64"}, {"name": "SECOND", "shape": [3], "dtype": "float32"}]
    record = json.loads(run(place, SHAPES[0], outputs=named).stdout)
    assert [[tensor["name"] for tensor in bucket["outputs"]] for bucket in record["buckets"]] == [["FIRST", "SECOND"]] * 3
    assert record["buckets"][1]["outputs"][0]["shape"] == [4, 2]


@pytest.mark.parametrize(
    "spec, why",
    [
        (
            {"inputs": [{**INPUTS[0], "shape": [5]}, INPUTS[1]]},
            "the compiler of SDK 0.9.4+lab refuses the model: the model does not take",
        ),
        (
            {"inputs": INPUTS[:1]},
            "the compiler of SDK 0.9.4+lab refuses the model: input_info names ['A'], the model has ['A', 'B']",
        ),
        ({"source": {"kind": "onnx", "path": "none.onnx"}}, "not a model that can be compiled"),
        ({"sdk": "0.11.2"}, "expected 0.11.2 of the release row"),
        ({"path": "/nowhere"}, "has no usable SDK"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(place: Path, spec: dict[str, Any], why: str) -> None:
    done = run(place, SHAPES[1], **spec)
    assert (done.returncode, done.stdout) == (1, "")
    assert why in done.stderr and done.stderr.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == ["spec.json", "two.onnx"]


def test_a_torch_source_without_pytorch_is_named(place: Path) -> None:
    (place / "source").mkdir()
    (place / "source/torch.py").write_text("raise ImportError('no torch')")
    source = {"kind": "torch", "path": "source", "module": "net", "function": "make"}
    done = run(place, SHAPES[1], path=f"{SDK}:{place / 'source'}", source=source)
    assert done.returncode == 1
    assert "has no PyTorch" in done.stderr
