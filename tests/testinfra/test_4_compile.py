"""compile.yml on the lab: compiled once, left alone, compiled again for a reason; failures are told together."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from conftest import NPU_HOSTS, connect, playbook
from onnx import TensorProto, helper

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
INPUTS = [{"name": "lengths", "shape": [4], "dtype": "float32"}]


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """Variables of a run that compiles one small network."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["lengths"], ["positive"])],
        "net",
        [helper.make_tensor_value_info("lengths", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("positive", TensorProto.FLOAT, ["n", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    write(tmp_path / "vars.json", {"name": "net", "batches": [1, 4]})
    return tmp_path / "vars.json"


def write(path: Path, *models: dict) -> None:
    """Specs of these models, all of the same source."""
    same = {"source": {"onnx": str(path.with_name("net.onnx"))}, "inputs": INPUTS}
    compiled = {"model_compile_dir": str(path.with_name("compiled"))}
    path.write_text(json.dumps({**compiled, "model_compile_models": [{**same, **model} for model in models]}))


def test_compiled_once_and_again_for_a_reason(specs: Path):
    plan = playbook("compile.yml", "-e", f"@{specs}", "--check")
    assert (plan.code, plan.changed()[FIRST] > 0) == (0, True), plan.output
    assert "it has no compiled file yet" in plan.output
    assert not specs.with_name("compiled").exists()
    first = playbook("compile.yml", "-e", f"@{specs}")
    assert first.code == 0, first.output
    (path,) = specs.with_name("compiled").glob("net/*/model.rbln")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = json.loads(path.with_name("model.rbln.json").read_text())
    assert record["sha256"] == digest
    assert [bucket["outputs"][0]["shape"] for bucket in record["buckets"]] == [[1, 4], [4, 4]]
    assert digest in first.output, "what to list under artefacts"
    for arguments in ([], ["--check"]):
        again = playbook("compile.yml", "-e", f"@{specs}", *arguments)
        assert (again.code, set(again.changed().values())) == (0, {0}), again.output
        assert "its compiled file is up to date" in again.output
    write(specs, {"name": "net", "batches": [1, 2]})
    other = playbook("compile.yml", "-e", f"@{specs}")
    assert (other.code, other.changed()[FIRST] > 0) == (0, True), other.output
    assert "its spec or the SDK changed" in other.output
    assert hashlib.sha256(path.read_bytes()).hexdigest() != digest


def test_specs_that_are_wrong_are_refused_together(specs: Path):
    write(specs, {"name": "net", "batches": [0]}, {"name": "net", "devices": 0}, {"name": "none", "source": {"onnx": "/none.onnx"}})
    run = playbook("compile.yml", "-e", f"@{specs}")
    output = " ".join(run.output.split())
    assert run.code == 2, run.output
    for reason in ("batches is [0]", "devices is 0", "is listed several times", "source is /none.onnx"):
        assert reason in output, reason
    assert set(run.changed().values()) == {0}


def test_a_model_that_does_not_compile_keeps_no_other_from_it(specs: Path):
    wrong = [{**INPUTS[0], "shape": [5]}]
    write(specs, {"name": "bad", "inputs": wrong}, {"name": "good"}, {"name": "worse", "inputs": [{**INPUTS[0], "name": "widths"}]})
    run = playbook("compile.yml", "-e", f"@{specs}")
    output = " ".join(run.output.split())
    assert run.code == 2, run.output
    assert f"{FIRST}: 2 of 3 models were not compiled:" in output
    assert "does not take [[1, 5]]" in output
    assert "input_info names ['widths'], the model has ['lengths']" in output
    assert [path.parent.parent.name for path in specs.with_name("compiled").rglob("model.rbln")] == ["good"]
    host = connect(FIRST)
    assert not host.file("/var/lib/npufleet/compile").exists
    assert not host.file("/var/lib/npufleet/incoming/model.rbln").exists
