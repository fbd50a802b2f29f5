"""Rules about configs and files: each finding with its line and field, and nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import directory_version
from linting import GOOD, PYTHON, A, B, findings, of_config, short, write

OLD, NEW = Row("24.01", "2.42.0"), Row("26.07", "2.71.0")
# A warm-up's data for A, of some kind
FIRST = 'inputs {{ key: "A" value {{ data_type: TYPE_FP32 dims: 3 {} }} }}'
FILE = 'input_data_file: "d"'
IO = f"input [ {A} ] output [ {B} ]"


def test_a_good_config_is_clean(tmp_path: Path) -> None:
    assert of_config(tmp_path, GOOD, OLD) == []


def test_a_finding_as_a_line(tmp_path: Path) -> None:
    (finding,) = findings(
        tmp_path, {"m/config.pbtxt": GOOD + "instance_group [\n  { kind: KIND_GPU }\n]\n", "m/1/model.py": PYTHON}
    )
    assert finding.sentence() == (
        f"{tmp_path}/m/config.pbtxt:6: instance_group[0].kind is KIND_GPU, expected KIND_MODEL for a model on the NPU, else "
        "KIND_CPU, as an NPU host has no GPU. Change it. Triton refuses the model."
    )


# The text


def test_every_field_that_no_triton_knows(tmp_path: Path) -> None:
    text = GOOD + "max_batch_sise: 4\ninstance_group [ { count: 1\n cuont: 2 } ]\nstrange { kind: KIND_GPU }\n"
    assert [(line, field) for line, field, _found, _wanted in of_config(tmp_path, text)] == [
        (5, "max_batch_sise"),
        (7, "instance_group[0].cuont"),
        (8, "strange"),
        (8, "strange.kind"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ('name: "m"\nname: "m"', 6, "multiple"),
        ("input [ { dims: [ 3 }", 5, "Expected"),
        ('max_batch_size: "four"', 5, 'Expected integer, got: "four"'),
    ],
)
def test_text_that_cannot_be_parsed(tmp_path: Path, text: str, line: int, found: str) -> None:
    ((at, field, words, _wanted),) = of_config(tmp_path, GOOD.replace("max_batch_size: 4", "") + text)
    assert (at, field) == (line, "")
    assert found in words


def test_places_of_fields() -> None:
    text = """name: "m" # comment { [
input < name: 'A' dims: [ 1,
  2 ] >, input { dims: 3; dims: [] }
parameters: [ { key: "a"
 value: { string_value: "x" "y" } }, { key: "b" } ]
unknown: [ -1, { deep: 2 } ]
instance_group { kind: KIND_CPU }"""
    found = {place.path: (place.line, place.name, place.value) for place in reversed(schema.parse(text, "m", "config.pbtxt")[1])}
    assert found["input[0].dims"][:2] == (2, "ModelInput.dims")
    assert found["input[0].dims[1]"] == (3, "ModelInput.dims", "2")
    assert found["input[1].dims[0]"][0] == 3
    assert found["parameters[a]"][0] == found["parameters[0]"][0] == 4
    assert found["parameters[a]"][0] != found["parameters[b]"][0] == 5
    assert found["parameters[0].value.string_value"] == (5, "ModelParameter.string_value", "xy")
    assert found["unknown.deep"] == (6, None, "2")
    assert found["instance_group[0].kind"] == (7, "ModelInstanceGroup.kind", "ModelInstanceGroup.Kind.KIND_CPU")


# The release


METRICS = 'model_metrics { metric_control [ { metric_identifier { family: "f" } histogram_options { buckets: [ 1 ] } } ] }'


@pytest.mark.parametrize(
    ("text", "line", "field", "found"),
    [
        (GOOD + METRICS, 5, "model_metrics", "ModelConfig.model_metrics, new in Triton 2.52"),
        # Also with the value that it has anyway: Triton refuses the name.
        (
            GOOD.replace('"A"', '"A"\nis_non_linear_format_io: false'),
            4,
            "input[0].is_non_linear_format_io",
            "ModelInput.is_non_linear_format_io, new in Triton 2.49",
        ),
    ],
)
def test_field_that_this_release_does_not_know(tmp_path: Path, text: str, line: int, field: str, found: str) -> None:
    assert of_config(tmp_path, text, OLD) == [(line, field, found, "a field of Triton 2.42.0, which release 24.01 has")]
    assert of_config(tmp_path, text, NEW) == of_config(tmp_path, text) == []


def test_first_versions_of_fields() -> None:
    """As tritonclient's wheels have them; files/schemas/make.py makes the table."""
    _kind, since = schema.load()
    assert {name: first for name, first in since.items() if not name.startswith("ModelMetrics.")} == {
        "ModelConfig.model_metrics": "2.52.0",
        "ModelConfig.runtime": "2.42.0",
        "ModelEnsembling.max_inflight_requests": "2.63.0",
        "ModelInput.is_non_linear_format_io": "2.49.0",
        "ModelOutput.is_non_linear_format_io": "2.49.0",
    }
    assert {first for name, first in since.items() if name.startswith("ModelMetrics.")} == {"2.52.0"}


# Triton's own validation, and NPU hosts


@pytest.mark.parametrize(
    ("text", "field", "found"),
    [
        (f'name: "other" backend: "python" {IO}', "name", "other"),
        (f'platform: "caffe" {IO}', "platform", "caffe"),
        (
            f'backend: "onnxruntime" platform: "pytorch_libtorch" default_model_filename: "model.py" {IO}',
            "platform",
            "pytorch_libtorch",
        ),
        (f'backend: "tensorrt" default_model_filename: "model.py" {IO}', "backend", "tensorrt"),
        (f'backend: "python" max_batch_size: -1 {IO}', "max_batch_size", "-1"),
        (f'backend: "python" {IO} instance_group {{ kind: KIND_CPU gpus: [ 0, 1 ] }}', "instance_group[0].gpus", "0, 1"),
        (f'backend: "python" {IO} instance_group {{ kind: KIND_CPU profile: "0" }}', "instance_group[0].profile", "0"),
        ('backend: "python" input { name: "A" dims: 3 }', "input[0].data_type", "missing"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 }', "input[0].dims", "missing"),
        ('backend: "python" input { data_type: TYPE_FP32 dims: 3 }', "input[0].name", "missing"),
        ('backend: "python" output { name: "A" data_type: TYPE_FP32 dims: [ 4, 0 ] }', "output[0].dims", "[4, 0]"),
        (
            'backend: "python" input { name: "A" data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: [ 2, -1, 2 ] } }',
            "input[0].reshape",
            "[2, -1, 2] for dims [4, -1]",
        ),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 reshape { } }', "input[0].reshape", "empty"),
        (
            'backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 format: FORMAT_NHWC }',
            "input[0].dims",
            "a list of 1 sizes",
        ),
        (GOOD + "dynamic_batching { preferred_batch_size: [ 2, 8, 0 ] }", "dynamic_batching.preferred_batch_size", "8, 0"),
        (GOOD + "dynamic_batching { priority_levels: 2 }", "dynamic_batching.default_priority_level", "0"),
        (
            GOOD + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }",
            "dynamic_batching.priority_queue_policy[3]",
            "for level 3",
        ),
        (
            GOOD + "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "dynamic_batching.priority_levels",
            "2",
        ),
        (
            GOOD + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY "
            "default_timeout_microseconds: 9 } }",
            "dynamic_batching.default_queue_policy.timeout_action",
            "DELAY",
        ),
        (GOOD + "response_cache { enable: true } model_transaction_policy { decoupled: true }", "response_cache.enable", "true"),
        (GOOD + "sequence_batching { } response_cache { enable: true }", "response_cache.enable", "true"),
        (
            GOOD + 'sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: 1 } } }',
            "sequence_batching.control_input[0].control[0]",
            "int32_false_true of 1",
        ),
        (
            GOOD
            + 'sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }',
            "sequence_batching.control_input[0].control[0].data_type",
            "TYPE_FP32",
        ),
        (GOOD + "sequence_batching { oldest { preferred_batch_size: 5 } }", "sequence_batching.oldest.preferred_batch_size", "5"),
        (
            GOOD + "sequence_batching { direct { minimum_slot_utilization: 2 } }",
            "sequence_batching.direct.minimum_slot_utilization",
            "2",
        ),
        (
            GOOD + 'model_metrics { metric_control { metric_identifier { family: "f" } } }',
            "model_metrics.metric_control[0].histogram_options.buckets",
            "missing",
        ),
        (
            GOOD + "version_policy { specific { versions: 2 } }",
            "version_policy.specific",
            "a policy that selects none of versions 1",
        ),
        (GOOD.replace('"B"', '"B" label_filename: "l"'), "output[0].label_filename", "l, which is not in the model's directory"),
        (
            GOOD + f'model_warmup {{ name: "w" batch_size: 9 {FIRST.format("zero_data: true")} }}',
            "model_warmup[0].batch_size",
            "9",
        ),
        (
            GOOD + 'model_warmup { name: "w" batch_size: 1 }',
            "model_warmup[0].inputs",
            "without A",
        ),
        (
            GOOD + f'model_warmup {{ name: "w" batch_size: 1 {FIRST.format(FILE)} }}',
            "model_warmup[0].inputs[A].input_data_file",
            "d, which does not exist",
        ),
        (
            GOOD + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }',
            "parameters[EXECUTION_ENV_PATH]",
            "env.tar.gz, which does not exist",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, field: str, found: str) -> None:
    assert [(at, words) for _line, at, words, _wanted in of_config(tmp_path, text)] == [(field, found)]


def test_warnings_are_no_errors(tmp_path: Path) -> None:
    rbln = GOOD.replace("python", "rbln").replace("input [ ", f"input [ {A}, ") + (
        'model_warmup { name: "w" inputs { key: "C" value { } } } '
        'parameters { key: "batches" value { string_value: "1,4" } } dynamic_batching { preferred_batch_size: 2 } '
        'response_cache { enable: true } instance_group { count: 1 } cc_model_filenames { key: "8.0" value: "a.rbln" }'
    )
    files = {
        "m/config.pbtxt": rbln,
        "m/1/model.rbln": "",
        "m/1/model.py": PYTHON,
        "m/1/config.pbtxt": "",
        "m/v2/x": "",
        "m/02/x": "",
    }
    assert short(findings(tmp_path, files), tmp_path) == [
        "warning npu host: m/config.pbtxt instance_group[0].kind",
        "warning tensor: m/config.pbtxt input[1].name",
        "warning batch: m/config.pbtxt dynamic_batching.preferred_batch_size",
        "warning response cache: m/config.pbtxt response_cache.enable",
        "warning warm-up: m/config.pbtxt model_warmup[0].batch_size",
        "warning version directory: m/02",
        "warning version directory: m/v2",
        "warning files: m/1/config.pbtxt",
        "warning files: m/1/model.py",
        "warning files: m/config.pbtxt cc_model_filenames[8.0]",
    ]


def test_labels_are_counted(tmp_path: Path) -> None:
    text = GOOD.replace('"B"', '"B" label_filename: "labels.txt"')
    (finding,) = findings(tmp_path, {"m/config.pbtxt": text, "m/1/model.py": PYTHON, "m/labels.txt": "a\nb\n"})
    assert (finding.severity, finding.actual, finding.expected) == (
        "warning",
        "labels.txt with 2 labels",
        "3, one for each value of B",
    )


# Directories


@pytest.mark.parametrize(
    ("directory", "version"),
    [
        ("1", 1),
        ("0", 0),
        ("9.bak", 9),
        ("2_old", 2),
        ("3.tmp", 3),
        (" 4", 4),
        ("-1", -1),
        ("+5", 5),
        ("01", None),
        ("007", None),
        ("v2", None),
        (".2.x", None),
        ("configs", None),
        ("", None),
    ],
)
def test_directory_version_a_directory_is_std_stoll_s(directory: str, version: int | None) -> None:
    assert directory_version(directory) == version


@pytest.mark.parametrize("name", ["resnet50", "a.b-c_d+e=f@g,h:i%j~k", "2"])
def test_name_that_a_request_and_a_shell_take(tmp_path: Path, name: str) -> None:
    assert findings(tmp_path, {f"{name}/config.pbtxt": GOOD, f"{name}/1/model.py": PYTHON}) == []


@pytest.mark.parametrize(
    ("name", "python", "other"),
    [
        ("with space", 1, 1),
        ("new\nline", 1, 1),
        ("what?", 1, 1),
        ("a#b", 1, 1),
        # Triton 24.01 hangs at these, 24.10 says UnicodeEncodeError to the first one
        ("\ubaa8\ub378", 1, 0),
        ("back\\slash", 1, 0),
        ('quo"te', 1, 0),
        ("$(id)", 1, 0),
        ("a;b", 1, 0),
    ],
)
def test_name_that_they_do_not_take(tmp_path: Path, name: str, python: int, other: int) -> None:
    found = findings(tmp_path / "a", {f"{name}/config.pbtxt": GOOD, f"{name}/1/model.py": PYTHON})
    assert [(entry.severity, entry.rule, entry.actual) for entry in found] == [("error", "model name", repr(name))] * python
    onnx = GOOD.replace('"python"', '"onnxruntime"')
    found = findings(tmp_path / "b", {f"{name}/config.pbtxt": onnx, f"{name}/1/model.onnx": "graph"})
    assert [entry.rule for entry in found if entry.rule == "model name"] == ["model name"] * other


def test_version_directories(tmp_path: Path) -> None:
    files = {
        "m/config.pbtxt": GOOD,
        "m/1/model.py": PYTHON,
        "m/1_old/x": "",
        "m/9.bak/model.py": PYTHON,
        "m/-3/model.py": PYTHON,
        f"m/{2**63}/model.py": PYTHON,
        "m/lib/x.py": "",
        "m/README": "",
    }
    found = findings(tmp_path, files)
    # 1_old is version 1, which is there, and -3 is not the latest
    kinds = {"-3": "warning", "1_old": "warning", "9.bak": "error", 2**63: "error"}
    assert short(found, tmp_path) == [f"{kind} version directory: m/{entry}" for entry, kind in kinds.items()]
    assert found[2].actual == "a directory that Triton reads as version 9"


@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("python", "model.py"),
        ("onnxruntime", "model.onnx"),
        ("pytorch", "model.pt"),
        ("openvino", "model.xml"),
        ("dali", "model.dali"),
    ],
)
def test_each_backend_wants_its_file(tmp_path: Path, backend: str, wanted: str) -> None:
    text = GOOD.replace("python", backend)
    files = {"m/config.pbtxt": text, "m/1/other": "", "m/2/other": "", "n/config.pbtxt": text, f"n/1/{wanted}": PYTHON}
    found = findings(tmp_path, files)
    # Nothing waits for a version that is not served.
    assert [(entry.severity, entry.file, entry.expected) for entry in found] == [
        ("warning", f"{tmp_path}/m/1", f"{wanted} for backend {backend}"),
        ("error", f"{tmp_path}/m/2", f"{wanted} for backend {backend}"),
    ]
    # Triton imports the one of Python, which takes a name in .py.
    other = "other.py" if backend == "python" else "other"
    named = {"m/config.pbtxt": text + f'default_model_filename: "{other}"\n', f"m/1/{other}": PYTHON, f"m/2/{other}": PYTHON}
    assert findings(tmp_path, named) == []


def test_empty_version_directory_hangs_an_older_poll_server(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/": ""})
    assert (finding.actual, finding.expected) == ("an empty version directory", "a directory with model.py")
    assert finding.triton.endswith("before 25.08 hangs and never opens its ports")


def test_compiled_file_of_the_inventory_is_not_missed(tmp_path: Path) -> None:
    rbln = GOOD.replace("python", "rbln")
    assert findings(tmp_path, {"m/config.pbtxt": rbln, "n/config.pbtxt": rbln, "n/1/": ""}) == []


def test_files_beside_the_config_are_no_version(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {"m/config.pbtxt": GOOD, "m/model.py": PYTHON})
    assert (finding.actual, finding.todo) == ("without a version directory", "Move model.py into a version directory, such as 1/")


def test_backend_by_the_file_alone(tmp_path: Path) -> None:
    bare = GOOD.replace('backend: "python"\n', "")
    (finding,) = findings(tmp_path, {"m/config.pbtxt": bare, "m/1/model.onnx": "", "n/config.pbtxt": bare, "n/1/other": ""})
    assert (finding.model, finding.field) == ("n", "backend")


# Repositories


def test_what_lies_in_a_repository(tmp_path: Path) -> None:
    files = {
        ".git/HEAD": "",
        "lost+found/": "",
        "draft/notes": "",
        "README.md": "",
        ".hidden": "",
        "m/config.pbtxt": GOOD,
        "m/1/model.py": PYTHON,
        "m/1/__pycache__/model.pyc": "",
    }
    assert short(findings(tmp_path, files), tmp_path) == [
        "error stray: .git",
        "error stray: draft",
        "error stray: lost+found",
        "warning bytecode: m/1/__pycache__",
    ]


def test_a_variant_is_linted_too(tmp_path: Path) -> None:
    files = {
        "m/config.pbtxt": GOOD,
        "m/1/model.py": PYTHON,
        "m/configs/gpu.pbtxt": GOOD + "instance_group { kind: KIND_GPU }",
        "m/configs/notes.txt": "",
    }
    assert short(findings(tmp_path, files), tmp_path) == ["error npu host: m/configs/gpu.pbtxt instance_group[0].kind"]


def test_a_link_out_of_the_repository_is_an_error_and_never_read(tmp_path: Path) -> None:
    place = tmp_path / "models"
    write(tmp_path / "elsewhere", {"config.pbtxt": "secret of ours", "1/model.py": PYTHON})
    write(place, {"m/config.pbtxt": GOOD, "other/1/model.py": PYTHON})
    (place / "m/1").symlink_to(tmp_path / "elsewhere/1")
    (place / "other/config.pbtxt").symlink_to(tmp_path / "elsewhere/config.pbtxt")
    found = findings(place, {})
    assert "error files: m/1" in short(found, place)
    assert "error files: other/config.pbtxt" in short(found, place)
    assert not any("secret" in entry.sentence() for entry in found)
