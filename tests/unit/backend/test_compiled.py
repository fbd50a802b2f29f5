"""What a compiled file takes and gives: from the SDK, from its record, from the config; and every contradiction between them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
from played import TritonModelException, output, parameters


@pytest.fixture
def compiled(backend: ModuleType) -> Any:
    return backend.compiled


def tensor(name: Optional[str], *shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "dtype": dtype}


def bucket(rows: int, names: bool = True) -> dict[str, Any]:
    """B int64 [2] and A float32 [3] give TWICE float32 [3], for a batch."""
    inputs = [tensor("B" if names else None, rows, 2, dtype="int64"), tensor("A" if names else None, rows, 3)]
    return {"inputs": inputs, "outputs": [tensor("TWICE" if names else None, rows, 3)]}


def inspected(*rows: int, **more: Any) -> dict[str, Any]:
    """What the SDK tells, by the adapter."""
    buckets = [bucket(row, more.pop("names", True)) for row in rows]
    found = {"npu": "RBLN-CA22", "compiler_version": "0.9.4", "num_devices": None, "tensor_parallel_size": None}
    return {**found, **buckets[0], "input_info": buckets, **more}


def record(path: Path, *rows: int, **more: Any) -> None:
    """The compile step's record beside a compiled file, which is made too."""
    path.write_bytes(b"compiled")
    content = {
        "format": 1,
        "sha256": hashlib.sha256(b"compiled").hexdigest(),
        "npu": "RBLN-CA12",
        "compiler_version": "0.6.2+lab",
        "devices": 1,
        "device_memory": [1000],
        "buckets": [bucket(row) for row in rows],
        "source": {"kind": "onnx", "sha256": "0" * 64},
        **more,
    }
    path.with_name(path.name + ".json").write_text(json.dumps(content))


def config(rows: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "name": "two",
        "max_batch_size": rows,
        "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [3]}, {"name": "B", "data_type": "TYPE_INT64", "dims": [2]}],
        "output": [output("TWICE", "TYPE_FP32", [3])],
        **more,
    }


class TestFacts:
    def test_inspect_counts_first(self, compiled: Any, tmp_path: Path) -> None:
        record(tmp_path / "model.rbln", 1, 8)
        facts = compiled.facts_of(str(tmp_path / "model.rbln"), {}, inspected(4, 1, 2))
        assert (facts.source, facts.npu, facts.compiler, facts.devices) == ("inspect", "RBLN-CA22", "0.9.4", None)
        assert [entry.inputs[0].shape for entry in facts.buckets] == [(4, 2), (1, 2), (2, 2)]

    def test_inspect_of_the_first_bucket_alone_is_helped_by_the_record(self, compiled: Any, tmp_path: Path) -> None:
        path = tmp_path / "model.rbln"
        record(path, 1, 2, 4)
        facts = compiled.facts_of(str(path), {}, inspected(1, input_info=None))
        assert [entry.inputs[0].shape[0] for entry in facts.buckets] == [1, 2, 4]
        assert facts.source == "inspect and model.rbln.json"
        path.with_name("model.rbln.json").unlink()
        facts = compiled.facts_of(str(path), config(parameters=parameters(batches="1,3")), inspected(1, input_info=None))
        assert [entry.outputs[0].shape for entry in facts.buckets] == [(1, 3), (3, 3)]
        assert [len(compiled.facts_of(str(path), {}, inspected(1, input_info=None)).buckets)] == [1]

    def test_the_record(self, compiled: Any, tmp_path: Path) -> None:
        record(tmp_path / "resnet.rbln", 1, 4)
        facts = compiled.facts_of(str(tmp_path / "resnet.rbln"), {}, None)
        assert (facts.source, facts.npu, facts.compiler, facts.devices) == ("resnet.rbln.json", "RBLN-CA12", "0.6.2+lab", 1)

    @pytest.mark.parametrize(
        "more, message",
        [
            (
                {"sha256": "f" * 64},
                "model.rbln has SHA-256 .{12}, model.rbln.json describes f{12}: the record belongs to another file",
            ),
            ({"format": 2}, "model.rbln.json has format 2, this backend reads 1"),
            ({"buckets": [{}]}, "model.rbln.json is not a record of a compiled file"),
            ({"buckets": None}, "model.rbln.json is not a record of a compiled file"),
        ],
    )
    def test_a_record_that_does_not_fit_is_refused(self, compiled: Any, tmp_path: Path, more: dict[str, Any], message: str) -> None:
        record(tmp_path / "model.rbln", 1, **more)
        with pytest.raises(compiled.Fault, match=message):
            compiled.facts_of(str(tmp_path / "model.rbln"), {}, None)

    def test_the_config_where_nothing_else_is(self, compiled: Any, tmp_path: Path) -> None:
        whole = config(parameters=parameters(batches="1,4"))
        facts = compiled.facts_of(str(tmp_path / "model.rbln"), whole, None)
        assert [[entry.shape for entry in bucket.inputs] for bucket in facts.buckets] == [[(1, 3), (1, 2)], [(4, 3), (4, 2)]]
        assert all(entry.outputs == () for entry in facts.buckets)

    @pytest.mark.parametrize(
        "whole, message",
        [
            (
                {},
                "this file has no record: compile it with playbooks/compile.yml, or write inputs",
            ),
            (config(input=[{"name": "A", "data_type": "TYPE_FP32", "dims": [-1]}]), r"input A has variable dims \[-1\]"),
            (config(input=[{"name": "A", "data_type": "TYPE_STRING", "dims": [1]}]), "input A is TYPE_STRING, an NPU supports"),
        ],
    )
    def test_a_config_that_does_not_say_enough(self, compiled: Any, tmp_path: Path, whole: dict[str, Any], message: str) -> None:
        with pytest.raises(compiled.Fault, match=message):
            compiled.facts_of(str(tmp_path / "model.rbln"), whole, None)


class TestInspect:
    """What the SDK's own word is, in every form that it was seen in."""

    def told(self, compiled: Any, monkeypatch: pytest.MonkeyPatch, found: Any) -> Any:
        sdk = SimpleNamespace(__version__="0.11.2", RBLNCompiledModel=SimpleNamespace(inspect=lambda path: found))
        monkeypatch.setitem(sys.modules, "rebel", sdk)  # type: ignore[arg-type]
        return sys.modules["npufleet_rbln.sdk"].SDK().inspect("/none")  # type: ignore[attr-defined]

    @pytest.mark.parametrize("kind", [dict, SimpleNamespace])
    @pytest.mark.parametrize("dtype", ["float32", "torch.float32", np.float32, np.dtype(np.float32)])
    @pytest.mark.parametrize("shape", [[4, 3], (4, 3), (np.int64(4), np.int64(3))])
    def test_mappings_and_objects_of_lists_and_tuples(
        self, compiled: Any, monkeypatch: pytest.MonkeyPatch, kind: Any, dtype: Any, shape: Any
    ) -> None:
        """The number of NPUs may be null, so may be names; neither outputs nor buckets have to be told."""
        entry = kind(name=None, shape=shape, dtype=dtype)
        found = kind(
            npu="RBLN-CA25", compiler_version="0.11.2", tensor_parallel_size=None, uuid="u", inputs=[entry], alloc_per_node=[1]
        )
        told = self.told(compiled, monkeypatch, found)
        assert (told["npu"], told["devices"], told["input_info"], told["outputs"]) == ("RBLN-CA25", None, [], [])
        assert told["inputs"] == [{"name": None, "shape": [4, 3], "dtype": "float32"}]
        facts = compiled.facts_of("/none", {}, told)
        assert (facts.source, facts.flaw, facts.buckets[0].inputs[0].shape) == ("inspect", "", (4, 3))

    @pytest.mark.parametrize(
        "found, why",
        [
            (None, "returns NoneType with no fields, which this backend cannot read (it has no inputs)"),
            (
                {"version": 2, "graph": {}},
                "returns dict with version, graph, which this backend cannot read (it has no inputs)",
            ),
            (
                {"inputs": ["A"]},
                "returns dict with inputs, which this backend cannot read (a tensor is 'A', expected name, shape",
            ),
            ({"inputs": [{"shape": [1], "dtype": "fp4"}]}, "(a tensor's dtype is 'fp4', expected one of bool, uint8"),
            ({"inputs": [{"shape": "dynamic", "dtype": "int8"}]}, "(invalid literal for int()"),
            ({"inputs": 3}, "('int' object is not iterable)"),
            (
                SimpleNamespace(inputs=[{"shape": [None], "dtype": "int8"}]),
                "returns SimpleNamespace with inputs",
            ),
        ],
    )
    def test_an_unknown_form_is_named_and_the_record_counts(
        self, compiled: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Any, why: str
    ) -> None:
        told = self.told(compiled, monkeypatch, found)
        assert why in told["flaw"] and told["flaw"].startswith("inspect of SDK 0.11.2 ")
        with pytest.raises(compiled.Fault) as refusal:
            compiled.facts_of(str(tmp_path / "model.rbln"), {}, told)
        assert str(refusal.value).startswith(told["flaw"]) and "this file has no record" in str(refusal.value)
        record(tmp_path / "model.rbln", 1, 4)
        facts = compiled.facts_of(str(tmp_path / "model.rbln"), {}, told)
        assert (facts.source, facts.flaw, len(facts.buckets)) == ("model.rbln.json", told["flaw"], 2)


class TestPlan:
    def plan(self, compiled: Any, whole: dict[str, Any], *rows: int, **more: Any) -> Any:
        return compiled.plan_of(whole, compiled.facts_of("/none/model.rbln", whole, inspected(*rows, **more)))

    def test_the_files_order_and_the_configs_names(self, compiled: Any) -> None:
        plan = self.plan(compiled, config(), 4, 1)
        assert [entry.name for entry in plan.buckets[0].inputs] == ["B", "A"]
        assert (plan.batched, plan.sizes, plan.limit) == (True, (4, 1), 4)
        assert compiled.Plan.from_dict(json.loads(json.dumps(plan.as_dict()))) == plan

    def test_tensors_by_position(self, compiled: Any) -> None:
        """INPUT__n names a place, whatever the file calls what is there; so does any name where the file has none."""
        inputs = [
            {"name": "INPUT__1", "data_type": "TYPE_FP32", "dims": [3]},
            {"name": "INPUT__0", "data_type": "TYPE_INT64", "dims": [2]},
        ]
        plan = self.plan(compiled, config(input=inputs, output=[output("OUTPUT__0", "TYPE_FP32", [-1])]), 4)
        assert [entry.name for entry in (*plan.buckets[0].inputs, *plan.buckets[0].outputs)] == [
            "INPUT__0",
            "INPUT__1",
            "OUTPUT__0",
        ]
        swapped = config(input=config()["input"][::-1], output=[output("Y", "TYPE_FP32", [3])])
        assert [entry.name for entry in self.plan(compiled, swapped, 4, names=False).buckets[0].inputs] == ["B", "A"]

    def test_every_contradiction_is_named_at_once_with_both_sides(self, compiled: Any) -> None:
        whole = config(
            rows=8,
            input=[{"name": "A", "data_type": "TYPE_FP64", "dims": [5]}, {"name": "B", "data_type": "TYPE_INT64", "dims": [2]}],
            output=[output("THRICE", "TYPE_FP32", [3])],
            parameters=parameters(batches="1,8"),
        )
        with pytest.raises(compiled.Fault) as told:
            self.plan(compiled, whole, 1, 4)
        assert str(told.value) == (
            "config.pbtxt does not match the compiled file as inspect describes it: "
            "parameter batches is [1, 8], the file was compiled for "
            "[1, 4]; max_batch_size is 8, compiled batches are [1, 4]; input A is TYPE_FP64, in the file TYPE_FP32; "
            "input A has dims [5], in the file [3]; config names outputs ['THRICE'], the file ['TWICE']"
        )

    def test_more_or_fewer_tensors(self, compiled: Any) -> None:
        with pytest.raises(compiled.Fault, match=r"config has 1 inputs \['A'\], the file 2 \['B', 'A'\]"):
            self.plan(compiled, config(input=config()["input"][:1]), 4)

    def test_shapes_that_share_no_batch(self, compiled: Any) -> None:
        with pytest.raises(compiled.Fault, match="max_batch_size is 4, but the compiled shapes share no batch dimension"):
            self.plan(compiled, config(), 4, outputs=[], input_info=[{**bucket(4), "outputs": [tensor("TWICE", 3)]}])

    def test_without_a_batch_the_whole_shape_counts(self, compiled: Any) -> None:
        inputs = [{"name": "A", "data_type": "TYPE_FP32", "dims": [4, 3]}, {"name": "B", "data_type": "TYPE_INT64", "dims": [4, 2]}]
        whole = config(rows=0, input=inputs, output=[output("TWICE", "TYPE_FP32", [-1, 3])])
        assert (self.plan(compiled, whole, 4).batched, self.plan(compiled, whole, 4).limit) == (False, 1)
        with pytest.raises(compiled.Fault, match=r"input A has dims \[4, 3\], in the file \[2, 3\]"):
            self.plan(compiled, whole, 4, 2)

    def test_the_sdks_line(self, compiled: Any) -> None:
        facts = compiled.facts_of("/none", {}, inspected(4))
        assert compiled.sdk_mismatches(facts, "0.9.1") == compiled.sdk_mismatches(facts, "") == []
        wanted = ["the file was compiled with SDK 0.9.4, the image has 0.11.2: compile it again with 0.11"]
        assert compiled.sdk_mismatches(facts, "0.11.2") == wanted

    def test_the_card_and_how_many(self, compiled: Any) -> None:
        facts = compiled.facts_of("/none", {}, inspected(4, num_devices=2))
        assert compiled.card_mismatches(facts, {0: "RBLN-CA22", 1: None}, 2) == []
        assert compiled.card_mismatches(facts, {0: "RBLN-CA22", 1: "RBLN-CA12"}, 1) == [
            "the file was compiled for RBLN-CA22, NPU 1 is RBLN-CA12",
            "the file was compiled for 2 NPUs together, parameter npus_per_instance is 1",
        ]


class Config:
    """Triton's object for auto_complete_config."""

    def __init__(self, **said: Any) -> None:
        self.said = {"name": "two", "max_batch_size": 0, "input": [], "output": [], **said}
        self.batching = False

    def as_dict(self) -> dict[str, Any]:
        return self.said

    def set_max_batch_size(self, rows: int) -> None:
        self.said["max_batch_size"] = rows

    def set_dynamic_batching(self) -> None:
        self.batching = True

    def add_input(self, entry: dict[str, Any]) -> None:
        self.said["input"].append(entry)

    def add_output(self, entry: dict[str, Any]) -> None:
        self.said["output"].append(entry)


class TestAutoComplete:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (tmp_path / "two/1").mkdir(parents=True)
        (tmp_path / "two/1/model.rbln").write_bytes(b"compiled")
        return tmp_path / "two/1/model.rbln"

    def complete(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, found: Any, **said: Any) -> Config:
        """An SDK that has `inspect` and nothing that would touch an NPU."""
        model = SimpleNamespace() if found is None else SimpleNamespace(inspect=lambda path: found)
        monkeypatch.setitem(sys.modules, "rebel", SimpleNamespace(RBLNCompiledModel=model))  # type: ignore[arg-type]
        whole: Config = backend.TritonPythonModel.auto_complete_config(Config(**said))
        return whole

    def test_all_of_it_from_inspect(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        whole = self.complete(backend, monkeypatch, inspected(1, 2, 4))
        assert whole.said["max_batch_size"] == 4 and whole.batching
        assert whole.said["input"] == [
            {"name": "B", "data_type": "TYPE_INT64", "dims": [2]},
            {"name": "A", "data_type": "TYPE_FP32", "dims": [3]},
        ]
        assert whole.said["output"] == [{"name": "TWICE", "data_type": "TYPE_FP32", "dims": [3]}]

    def test_all_of_it_from_the_record(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        record(file, 1, 2)
        whole = self.complete(backend, monkeypatch, None)
        assert whole.said["max_batch_size"] == 2
        assert [entry["name"] for entry in whole.said["input"]] == ["B", "A"]

    def test_nameless_tensors_get_the_conventions_names(
        self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path
    ) -> None:
        found = inspected(1, input_info=None, **bucket(1, names=False))
        whole = self.complete(backend, monkeypatch, found)
        assert [entry["name"] for entry in (*whole.said["input"], *whole.said["output"])] == ["INPUT__0", "INPUT__1", "OUTPUT__0"]
        assert whole.said["max_batch_size"] == 1 and not whole.batching

    def test_what_is_said_stays(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        outputs = [output("TWICE", "TYPE_FP32", [3], label_filename="labels.txt")]
        whole = self.complete(backend, monkeypatch, inspected(1, 4), max_batch_size=2, output=outputs)
        assert (whole.said["max_batch_size"], whole.said["output"]) == (2, outputs)
        assert [entry["dims"] for entry in whole.said["input"]] == [[2], [3]]

    def test_shapes_without_a_common_batch(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        sizes = [{"inputs": [tensor("A", 1, size, size)], "outputs": [tensor("Y", 1, 8)]} for size in (32, 64)]
        whole = self.complete(backend, monkeypatch, inspected(1, **sizes[0], input_info=sizes))
        assert whole.said["max_batch_size"] == 0
        assert whole.said["input"] == [{"name": "A", "data_type": "TYPE_FP32", "dims": [1, -1, -1]}]
        assert whole.said["output"] == [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1, 8]}]

    def test_why_not(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        with pytest.raises(TritonModelException, match=r"^model two: the SDK cannot inspect compiled files and this file"):
            self.complete(backend, monkeypatch, None)
        file.unlink()
        with pytest.raises(TritonModelException, match=r"^model two: version 1 has no model\.rbln$"):
            self.complete(backend, monkeypatch, None)
