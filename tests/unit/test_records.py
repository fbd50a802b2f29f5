"""Records of compiled files: what they fill in, what they contradict, and where a model's instances go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest, tree
from helpers import ROOT, ROW, fleet
from manifests import manifest_of, parse_config

SHA = "a" * 64


def tensor(name: str | None, *shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "dtype": dtype}


def record(*batches: int, **more: Any) -> dict[str, Any]:
    """A record of a ResNet-50 of these batches."""
    buckets = [
        {"inputs": [tensor("INPUT__0", size, 3, 224, 224)], "outputs": [tensor("OUTPUT__0", size, 1000)]} for size in batches
    ]
    return {
        "format": 1,
        "sha256": SHA,
        "npu": "RBLN-CA12",
        "compiler_version": "0.6.2",
        "devices": 1,
        "device_memory": [100],
        "buckets": buckets,
        **more,
    }


def made(tmp_path: Path, config: str, known: Any, entry: dict[str, Any] | None = None, **host: Any) -> tuple[Any, dict[str, Any]]:
    """(rendered config, manifest) of a model `m` of this config.pbtxt and record."""
    directory = tmp_path / "m"
    directory.mkdir(exist_ok=True)
    (directory / "config.pbtxt").write_text(config)
    artefact = {"url": "https://models.example.com/m.rbln", "sha256": SHA, **({"record": known} if known else {})}
    item = manifest_of(
        {"name": "m", "artefacts": {"CA12/0.6": artefact}, **(entry or {})}, fleet(npufleet_model_repository=str(tmp_path), **host)
    )
    return parse_config(item["contents"]["config.pbtxt"].decode(), "config.pbtxt"), item


def refused(tmp_path: Path, config: str, known: Any, entry: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(Refusal) as refusal:
        made(tmp_path, config, known, entry)
    return refusal.value.reasons


# What is filled in


def test_backend_alone_serves(tmp_path: Path) -> None:
    config, item = made(tmp_path, 'backend: "rbln"', record(1, 2, 3, 4))
    assert config.max_batch_size == 4
    assert [(part.name, part.data_type, list(part.dims)) for part in config.input] == [("INPUT__0", 11, [3, 224, 224])]
    assert [(part.name, part.data_type, list(part.dims)) for part in config.output] == [("OUTPUT__0", 11, [1000])]
    assert config.parameters["batches"].string_value == "1,2,3,4"
    assert json.loads(item["contents"]["1/model.rbln.json"]) == record(1, 2, 3, 4)
    assert item["files"]["1/model.rbln.json"]["blob"] is False


def test_buckets_of_any_order_and_size(tmp_path: Path) -> None:
    config, _item = made(tmp_path, 'backend: "rbln"', record(4, 1, 16))
    assert (config.max_batch_size, config.parameters["batches"].string_value) == (16, "4,1,16")


def test_file_without_a_batch_dimension(tmp_path: Path) -> None:
    bucket = {"inputs": [tensor("a", 3, 4), tensor("b", 5)], "outputs": [tensor("c", 7, dtype="int64")]}
    config, _item = made(tmp_path, 'backend: "rbln"', record(buckets=[bucket]))
    assert config.max_batch_size == 0
    assert [list(part.dims) for part in config.input] == [[3, 4], [5]]
    assert "batches" not in config.parameters


def test_one_batch_that_the_config_wants_whole(tmp_path: Path) -> None:
    text = 'backend: "rbln" input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2, 3, 224, 224 ] } ]'
    config, _item = made(tmp_path, text, record(2))
    assert config.max_batch_size == 0
    assert list(config.output[0].dims) == [2, 1000]


@pytest.mark.parametrize("dtype", sorted(subject.DTYPES))
def test_every_dtype_has_its_type(tmp_path: Path, dtype: str) -> None:
    bucket = {"inputs": [tensor("a", 1, 4, dtype=dtype)], "outputs": [tensor("b", 1, 4, dtype=dtype)]}
    row = {**ROW, "triton": {**ROW["triton"], "version": "2.51.0"}}
    config, _item = made(tmp_path, 'backend: "rbln"', record(buckets=[bucket]), npufleet_release_row=row)
    names = config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    assert names[config.input[0].data_type].name == subject.DTYPES[dtype]


def test_bfloat16_is_refused_where_python_does_not_get_it(tmp_path: Path) -> None:
    bucket = {"inputs": [tensor("a", 1, 4, dtype="bfloat16")], "outputs": [tensor("b", 1, 4)]}
    (reason,) = refused(tmp_path, 'backend: "rbln"', record(buckets=[bucket]))
    assert "input[0].data_type is TYPE_BF16, expected a type that Triton 2.42.0 of release 24.01 passes to Python" in reason


def test_what_the_config_says_stays(tmp_path: Path) -> None:
    text = 'backend: "rbln" max_batch_size: 2 output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    config, _item = made(tmp_path, text, record(1, 2, 4))
    assert (config.max_batch_size, list(config.output[0].dims)) == (2, [-1])
    assert list(config.input[0].dims) == [3, 224, 224]


def test_record_beside_a_file_is_found(tmp_path: Path) -> None:
    artefact = {"file": str(tmp_path / "m.rbln"), "sha256": SHA}
    assert subject.record_of(artefact, "RBLN-CA12") == (None, [])
    (tmp_path / "m.rbln.json").write_text(json.dumps(record(1)))
    assert subject.record_of(artefact, "RBLN-CA12") == (record(1), [])


def test_digest_is_the_record_s_where_nobody_says_it(tmp_path: Path) -> None:
    (tmp_path / "m.rbln.json").write_text(json.dumps(record(1)))
    file = str(tmp_path / "m.rbln")
    _config, item = made(tmp_path, 'backend: "rbln"', None, {"artefacts": {"CA12/0.6": {"file": file}}})
    assert item["files"]["1/model.rbln"]["sha256"] == SHA
    assert item["origins"] == {SHA: {"file": file}}
    (reason,) = refused(tmp_path, 'backend: "rbln"', None, {"artefacts": {"CA12/0.6": {"file": str(tmp_path / "other.rbln")}}})
    assert reason == (
        "model m: artefact CA12/0.6 is incomplete, expected `url` or `file`, and `sha256` (64 hex digits) or a record. Add it"
    )


def test_record_does_not_count_in_the_source(tmp_path: Path) -> None:
    text = 'backend: "rbln" max_batch_size: 1'
    _config, without = made(tmp_path, text, None)
    _config, with_record = made(tmp_path, text, record(1))
    assert with_record["source"] == without["source"]
    assert with_record["release"] != without["release"]


# What is refused


def test_all_contradictions_at_once(tmp_path: Path) -> None:
    text = """backend: "rbln" max_batch_size: 8
        input [ { name: "INPUT__0" data_type: TYPE_FP16 dims: [ 3, 224, 224 ] } ]
        output [ { name: "scores" data_type: TYPE_FP32 dims: [ 1000 ] } ]
        parameters { key: "batches" value { string_value: "1,8" } }"""
    todo = ". Compile the model for the values of the config, or correct the config. Triton loads it, and its requests fail."
    file = f"model m: {tmp_path}/m/config.pbtxt"
    assert refused(tmp_path, text, record(1, 4)) == [
        f"{file}:1: max_batch_size is 8, expected at most 4, as the compiled file has batches of 1,4{todo}",
        f"{file}:2: input[0] is INPUT__0 as TYPE_FP16 [3, 224, 224], expected TYPE_FP32 [3, 224, 224] of the compiled file{todo}",
        f"{file}:3: output is scores, expected OUTPUT__0 of the compiled file{todo}",
        f"{file}:4: parameters[batches] is 1,8, expected 1,4 of the compiled file{todo}",
    ]


def test_dims_of_another_shape(tmp_path: Path) -> None:
    text = 'backend: "rbln" max_batch_size: 1 input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 224, 224, 3 ] } ]'
    (reason,) = refused(tmp_path, text, record(1))
    assert "INPUT__0 as TYPE_FP32 [224, 224, 3], expected TYPE_FP32 [3, 224, 224] of the compiled file" in reason


def test_reshape_is_what_the_file_gets(tmp_path: Path) -> None:
    text = """backend: "rbln" max_batch_size: 1
        input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 150528 ] reshape { shape: [ 3, 224, 224 ] } } ]"""
    config, _item = made(tmp_path, text, record(1))
    assert list(config.input[0].reshape.shape) == [3, 224, 224]


def test_batches_for_a_file_without_them(tmp_path: Path) -> None:
    bucket = {"inputs": [tensor("a", 3), tensor("b", 5)], "outputs": [tensor("c", 7)]}
    reasons = refused(tmp_path, 'backend: "rbln" max_batch_size: 4', record(buckets=[bucket]))
    (reason,) = reasons
    assert "max_batch_size is 4, expected 0, as the compiled file has no batch dimension" in reason


def test_record_of_another_file_and_card(tmp_path: Path) -> None:
    first, second = refused(tmp_path, 'backend: "rbln"', record(1, sha256="b" * 64, npu="RBLN-CA22"))
    assert f"is for SHA-256 {'b' * 64}, expected {SHA} of the artefact" in first
    assert "is for RBLN-CA22, expected RBLN-CA12, the npufleet_card" in second


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"devices": 0},
        {"buckets": []},
        {"npu": None},
        {"buckets": [{"inputs": [], "outputs": []}]},
        {"buckets": [{"inputs": [tensor("a", 0)], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": [tensor("a", 1, dtype="complex64")], "outputs": [tensor("b", 1)]}]},
    ],
)
def test_what_is_no_record(tmp_path: Path, change: dict[str, Any]) -> None:
    (reason,) = refused(tmp_path, 'backend: "rbln"', record(1, **change))
    assert "expected a record that playbooks/compile.yml has written" in reason


def test_record_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    for path in ("broken.json", "absent.json"):
        (reason,) = refused(tmp_path, 'backend: "rbln"', str(tmp_path / path))
        assert f"{path} is unreadable (" in reason
        assert "expected a record that playbooks/compile.yml has written" in reason


def test_names_that_nobody_knows(tmp_path: Path) -> None:
    bucket = {"inputs": [tensor(None, 1, 4)], "outputs": [tensor(None, 1, 2)]}
    first, second = refused(tmp_path, 'backend: "rbln"', record(buckets=[bucket]))
    assert "input is missing, expected the inputs, because the compiled file's record has no names for them" in first
    assert "output is missing" in second
    text = """backend: "rbln" max_batch_size: 1 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output [ { name: "y" data_type: TYPE_FP16 dims: [ 2 ] } ]"""
    (reason,) = refused(tmp_path, text, record(buckets=[bucket]))
    assert "y as TYPE_FP16 [2], expected TYPE_FP32 [2]" in reason


# Where instances go, and how they are batched


def groups(config: Any) -> list[int]:
    return [group.count for group in config.instance_group]


def test_npus_of_a_model(tmp_path: Path) -> None:
    config, item = made(tmp_path, 'backend: "rbln"', record(1), {"npus": [1, 3], "instances": 2}, npufleet_npus=4)
    assert config.parameters["npus"].string_value == "1,3"
    assert groups(config) == [4]
    assert item["memory"] == [0, 200, 0, 200]


def test_model_that_spans_npus(tmp_path: Path) -> None:
    known = record(1, devices=2, device_memory=[100, 50])
    config, item = made(tmp_path, 'backend: "rbln"', known, npufleet_npus=5)
    assert config.parameters["npus_per_instance"].string_value == "2"
    assert groups(config) == [2]
    assert item["memory"] == [100, 50, 100, 50, 0]


def test_too_few_npus(tmp_path: Path) -> None:
    (reason,) = refused(tmp_path, 'backend: "rbln"', record(1, devices=4, device_memory=[1] * 4))
    assert reason.startswith("model m: one instance spans 4 NPUs, expected at most 2. ")
    (reason,) = refused(tmp_path, 'backend: "rbln"', record(1), {"npus": [0, 2, 9]})
    assert reason == "model m: npus contains 2, 9, expected numbers from 0 to 1 of this host. Correct it"


@pytest.mark.parametrize(
    ("sizes", "flaw"),
    [
        (100, "device_memory is a whole number, expected a list"),
        (["100"], "device_memory[0] is text, expected a whole number"),
        ([-1], "device_memory is [-1], expected a size for each of 1 devices"),
    ],
)
def test_device_memory_of_a_record_is_numbers(tmp_path: Path, sizes: Any, flaw: str) -> None:
    (reason,) = refused(tmp_path, 'backend: "rbln"', record(1, device_memory=sizes))
    assert f" is not valid ({flaw}), " in reason


def test_device_memory_of_the_entry_counts_before_the_record_s(tmp_path: Path) -> None:
    _config, item = made(tmp_path, 'backend: "rbln"', record(1), {"device_memory": "1k"})
    assert item["memory"] == [1024, 1024]


def batcher(config: Any) -> tuple[list[int], int]:
    return list(config.dynamic_batching.preferred_batch_size), config.dynamic_batching.max_queue_delay_microseconds


def test_profile_bounds_what_waits(tmp_path: Path) -> None:
    for text, most in (
        ("dynamic_batching { }", 256),
        ("dynamic_batching { default_queue_policy { max_queue_size: 9 } }", 9),
        ("", 256),
    ):
        config, _item = made(tmp_path, f'backend: "rbln" {text}', record(1, 4), {"profile": "throughput"})
        assert config.dynamic_batching.default_queue_policy.max_queue_size == most
    config, _item = made(tmp_path, 'backend: "rbln" dynamic_batching { }', record(1, 4))
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 0, "without a profile the config rules"


def test_queue_of_every_model_of_the_collection_that_joins_batches_is_bounded() -> None:
    paths = sorted([*ROOT.glob("model_repository/*/config.pbtxt"), *ROOT.glob("files/dali/*/config.pbtxt")])
    configs = [parse_config(path.read_text(), str(path)) for path in paths]
    joining = [config for config in configs if config.HasField("dynamic_batching")]
    assert len(joining) >= 5
    for entry in joining:
        assert 0 < entry.dynamic_batching.default_queue_policy.max_queue_size <= 256, entry.name


def test_profiles(tmp_path: Path) -> None:
    text = 'backend: "rbln" dynamic_batching { }'
    config, _item = made(tmp_path, text, record(1, 4))
    assert (groups(config), batcher(config)) == ([2], ([], 0)), "without a profile the config rules"
    config, _item = made(tmp_path, text, record(1, 4), {"profile": "throughput"})
    assert (groups(config), batcher(config)) == ([4], ([4], manifest.PROFILES["throughput"]["delay_us"]))
    config, _item = made(tmp_path, text, record(1, 4), {"profile": "latency"})
    assert (groups(config), batcher(config)) == ([4], ([], 0))
    assert config.HasField("dynamic_batching")
    config, _item = made(tmp_path, text, record(1, 4), {"profile": "throughput", "instances": 3})
    assert groups(config) == [6]


def test_profile_does_not_touch_what_a_config_says(tmp_path: Path) -> None:
    text = 'backend: "rbln" dynamic_batching { max_queue_delay_microseconds: 7 }'
    config, _item = made(tmp_path, text, record(1, 4), {"profile": "throughput"})
    assert batcher(config) == ([], 7)
    config, _item = made(tmp_path, 'backend: "rbln"', record(1), {"profile": "throughput"})
    assert not config.HasField("dynamic_batching"), "a batch of one has nothing to wait for"


# Bounds


@pytest.mark.parametrize(
    "more",
    [
        {"devices": True},
        {"devices": 10**12},
        {"devices": 2, "device_memory": [1]},
        {"device_memory": [2**80]},
        {"device_memory": [True]},
        {"buckets": [{"inputs": [tensor("a", 2**70)], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": [tensor("a", True)], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": [tensor("a", *range(1, 99))], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": ["a"], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": [{**tensor("a", 1), "dtype": ["float32"]}], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": [{**tensor("a", 1), "name": {}}], "outputs": [tensor("b", 1)]}]},
        {"buckets": [{"inputs": [{**tensor("a", 1), "shape": None}], "outputs": [tensor("b", 1)]}]},
    ],
)
def test_a_record_has_bounds(tmp_path: Path, more: dict[str, Any]) -> None:
    (reason,) = refused(tmp_path, 'backend: "rbln"', record(1, **more))
    assert "expected a record that playbooks/compile.yml has written" in reason
    assert len(reason) < 400


@pytest.mark.parametrize("content", ["[" * 100000, " " * (subject.MAX_BYTES + 1), '{"format": 1'])
def test_a_record_that_nobody_can_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "m.json").write_text(content)
    (reason,) = refused(tmp_path, 'backend: "rbln"', str(tmp_path / "m.json"))
    assert "expected a record that playbooks/compile.yml has written" in reason


def test_a_path_that_is_a_directory_of_the_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m/1/x").mkdir(parents=True)
    (tmp_path / "m/1/x/y").write_text("")
    for path in ("1/x", "1/x/y/z"):
        artefact = {"url": "https://models.example.com/m.rbln", "sha256": SHA, "path": path}
        (reason,) = refused(tmp_path, 'backend: "python"', None, {"artefacts": {"CA12/0.6": artefact}})
        assert reason == (
            f"model m: the path of its compiled file is {path}, expected a path that is neither above nor below 1/x/y of the "
            "model's directory. Correct `path`."
        )


def test_directories_that_are_too_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m" / "/".join("d" * 40)).mkdir(parents=True)
    reasons = refused(tmp_path, 'backend: "python"', None)
    assert any("is a directory that is nested too deeply, expected at most 32 levels" in reason for reason in reasons), reasons


def test_a_config_and_a_number_of_files_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_CONFIG_BYTES", 64)
    monkeypatch.setattr(tree, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / name).touch()
    reasons = refused(tmp_path, "#" * 65, None)
    assert any("is a config that is too large, expected at most 64 bytes" in reason for reason in reasons), reasons
    assert any("is a directory of 4 files, expected at most 2" in reason for reason in reasons), reasons
