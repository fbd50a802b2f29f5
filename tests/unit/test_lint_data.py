"""Data that a config brings along, names, instances, and what a model.py has to be."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from linting import GOOD, PYTHON, A, findings, of_config, short, write


def warm(inputs: str, size: int = 1) -> str:
    return GOOD + f'model_warmup {{ name: "w" batch_size: {size} {inputs} }}'


def data(inner: str, name: str = "A") -> str:
    return f'inputs {{ key: "{name}" value {{ {inner} }} }}'


def state(inner: str, names: str = 'input_name: "I" output_name: "O"') -> str:
    more = f"initial_state {{ {inner} }}" if inner else ""
    return GOOD + f"sequence_batching {{ state {{ {names} data_type: TYPE_FP32 dims: [ 2, -1 ] {more} }} }}"


FP32 = "data_type: TYPE_FP32 dims: 3"
FIRST = 'name: "f" data_type: TYPE_FP32 dims: [ 2, 5 ]'


@pytest.mark.parametrize(
    ("text", "field", "found"),
    [
        (warm(data("data_type: TYPE_INT32 dims: 3 zero_data: true")), "model_warmup[0].inputs[A].data_type", "TYPE_INT32"),
        (warm(data("data_type: TYPE_FP32 dims: 4 zero_data: true")), "model_warmup[0].inputs[A].dims", "[4]"),
        (warm(data("data_type: TYPE_FP32 dims: [ 1, 3 ] zero_data: true")), "model_warmup[0].inputs[A].dims", "[1, 3]"),
        (warm(data("data_type: TYPE_FP32 dims: -1 zero_data: true")), "model_warmup[0].inputs[A].dims", "[-1]"),
        (warm(data(FP32)), "model_warmup[0].inputs[A]", "without data"),
        (warm(""), "model_warmup[0].inputs", "without A"),
        (warm(data(FP32 + ' input_data_file: "short"')), "model_warmup[0].inputs[A].input_data_file", "short of 11 bytes"),
        (warm(data(FP32 + " zero_data: true"), 5), "model_warmup[0].batch_size", "5"),
        (state(FIRST), "sequence_batching.state[0].initial_state[0]", "without data"),
        (
            state(FIRST.replace("FP32", "FP16") + " zero_data: true"),
            "sequence_batching.state[0].initial_state[0].data_type",
            "TYPE_FP16",
        ),
        (state(FIRST.replace('name: "f"', "") + " zero_data: true"), "sequence_batching.state[0].initial_state[0].name", "missing"),
        (state(FIRST.replace("2, 5", "3, 5") + " zero_data: true"), "sequence_batching.state[0].initial_state[0].dims", "[3, 5]"),
        (state(FIRST.replace("2, 5", "2, -1") + " zero_data: true"), "sequence_batching.state[0].initial_state[0].dims", "[2, -1]"),
        (
            state(FIRST + ' data_file: "gone"'),
            "sequence_batching.state[0].initial_state[0].data_file",
            "gone, which does not exist",
        ),
        (state(FIRST + ' data_file: "short"'), "sequence_batching.state[0].initial_state[0].data_file", "short of 11 bytes"),
        (state(FIRST + " zero_data: true } initial_state { " + FIRST), "sequence_batching.state[0].initial_state", "a list of 2"),
        (
            GOOD + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" data_type: TYPE_INT64 source_input: "A" }',
            "batch_input[0].data_type",
            "TYPE_INT64",
        ),
        (GOOD + 'batch_input { target_name: "C" data_type: TYPE_FP32 }', "batch_input[0].source_input", "none"),
        (GOOD + 'batch_input { data_type: TYPE_FP32 source_input: "X" }', "batch_input[0].source_input[0]", "X"),
        (GOOD + 'batch_output { target_name: "X" source_input: "A" }', "batch_output[0].target_name[0]", "X"),
        (GOOD + 'batch_output { target_name: [ "B", "B" ] source_input: "A" }', "batch_output[0].target_name[1]", "B again"),
        (GOOD + "instance_group { kind: KIND_CPU passive: true }", "instance_group", "a list of passive groups only"),
        (GOOD + 'metric_tags { key: "a-b" value: "x" }', "metric_tags[a-b]", "'a-b'"),
        (GOOD + 'metric_tags { key: "_a" value: "x" }', "metric_tags[_a]", "'_a'"),
        (GOOD.replace('"python"', '"pyhton"'), "backend", "pyhton"),
        (GOOD.replace('"python"', '"Python"'), "backend", "Python"),
        (GOOD + 'runtime: "model.py"', "runtime", "model.py"),
        (
            GOOD + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$TRITON_MODEL_DIRECTORY/e.tar.gz" } }',
            "parameters[EXECUTION_ENV_PATH]",
            "$TRITON_MODEL_DIRECTORY/e.tar.gz",
        ),
        (
            GOOD + 'instance_group [ { name: "a" kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 1 } ] } }, '
            '{ name: "b" kind: KIND_CPU rate_limiter { resources [ { name: "R" global: true count: 1 } ] } } ]',
            "instance_group[1].rate_limiter.resources[0]",
            "R, both global and of a device",
        ),
    ],
)
def test_an_error(text: str, field: str, found: str, tmp_path: Path) -> None:
    files = {
        "m/config.pbtxt": text,
        "m/1/model.py": PYTHON,
        "m/warmup/short": "elevenbytes",
        "m/initial_state/short": "elevenbytes",
    }
    told = [(finding.severity, finding.field, finding.actual) for finding in findings(tmp_path, files)]
    assert told == [("error", field, found)]


@pytest.mark.parametrize(
    "text",
    [
        warm(data(FP32 + " zero_data: true"), 4),
        warm(data(FP32 + ' input_data_file: "twelve"')),
        warm(data(FP32 + " random_data: true") + data("data_type: TYPE_INT32 dims: 1 zero_data: true", "S"))
        + 'sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }',
        warm(data(FP32 + " zero_data: true")).replace(
            "input [ ", 'input [ { name: "O" data_type: TYPE_INT8 dims: 1 optional: true }, '
        ),
        state(FIRST + " zero_data: true"),
        state(""),
        GOOD + 'batch_input { target_name: "C" data_type: TYPE_INT32 source_input: "A" }',
        GOOD + 'batch_output { target_name: "B" source_input: "A" }',
        GOOD + "instance_group [ { kind: KIND_CPU passive: true }, { kind: KIND_CPU } ]",
        GOOD + 'metric_tags { key: "team_1" value: "a b" } metric_tags { key: "1a" value: "" }',
        GOOD + 'runtime: "libtriton_python.so"',
        GOOD + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/env" } }',
    ],
)
def test_what_is_right(text: str, tmp_path: Path) -> None:
    files = {"m/config.pbtxt": text, "m/1/model.py": PYTHON, "m/warmup/twelve": "twelve bytes"}
    assert findings(tmp_path, files) == []


def test_a_backend_of_one_s_own_is_a_warning(tmp_path: Path) -> None:
    text = GOOD.replace('"python"', '"zebra"')
    ours = {"n/config.pbtxt": text, "n/1/libtriton_zebra.so": "\x7fELF"}
    assert short(findings(tmp_path, {"m/config.pbtxt": text, "m/1/x": "", **ours}), tmp_path) == [
        "warning backend: m/config.pbtxt backend"
    ]


def test_a_library_that_is_none_or_in_another_place(tmp_path: Path) -> None:
    text = GOOD.replace('"python"', '"zebra"')
    files = {
        "m/config.pbtxt": text,
        "m/1/libtriton_zebra.so": "text",
        "n/config.pbtxt": text,
        "n/1/lib/libtriton_zebra.so": "\x7fELF",
    }
    assert short(findings(tmp_path, files), tmp_path) == [
        "error backend: m/1/libtriton_zebra.so",
        "error backend: n/1/lib/libtriton_zebra.so",
    ]


def test_a_backend_as_a_platform(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {"m/config.pbtxt": f'platform: "python" input [ {A} ]', "m/1/model.py": PYTHON})
    assert (finding.field, finding.todo) == ("platform", 'Write backend: "python" instead of platform')


# model.py


@pytest.mark.parametrize(
    ("program", "severity", "line", "found"),
    [
        ("", "error", None, "an empty file"),
        ("\n \n", "error", None, "an empty file"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "error", None, "a pointer of Git LFS"),
        ("import os\n\ndef f(:\n", "error", 3, "not valid for Python 3."),
        ("a = '\0'\n", "error", None, "not valid for Python 3."),
        ("class Model:\n    def execute(self): pass\n", "error", None, "a module without TritonPythonModel"),
        ("def f():\n    TritonPythonModel = 1\n", "error", None, "a module without TritonPythonModel"),
        ("class TritonPythonModel:\n    def initialize(self, args): pass\n", "warning", 1, "a TritonPythonModel without execute"),
    ],
)
def test_a_program_that_triton_does_not_take(program: str, severity: str, line: int, found: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": program})
    assert (finding.file, finding.severity) == (f"{tmp_path}/m/1/model.py", severity)
    assert finding.actual.startswith(found)
    assert line is None or finding.line == line


@pytest.mark.parametrize(
    "program",
    [
        "from ours import TritonPythonModel\n",
        "from ours import Model as TritonPythonModel\n",
        "from ours import *\n",
        "import ours\nTritonPythonModel = ours.Model\n",
        "try:\n    import fast\n    class TritonPythonModel(fast.Model): pass\nexcept ImportError:\n    raise\n",
        "from base import Base\n\nclass TritonPythonModel(Base):\n    pass\n",
        "class TritonPythonModel:\n    async def execute(self, requests): pass\n",
        "pattern = '\\d'\n" + PYTHON,
    ],
)
def test_a_program_that_may_be_right(program: str, tmp_path: Path) -> None:
    assert findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": program}) == []


def test_a_program_that_is_not_served_may_wait(tmp_path: Path) -> None:
    assert findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": "", "m/2/model.py": PYTHON}) == []


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/": ""})
    (tmp_path / "m/1/model.py").symlink_to("gone.py")
    assert {finding.severity for finding in findings(tmp_path, {})} == {"error"}


def test_a_compiled_file_that_is_a_pointer(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    files = {"m/config.pbtxt": GOOD.replace("python", "rbln"), "m/1/model.rbln": pointer}
    assert short(findings(tmp_path, files), tmp_path) == ["error files: m/1/model.rbln"]


def test_auto_complete_config_says_what_the_config_does_not(tmp_path: Path) -> None:
    bare = GOOD.replace("data_type: TYPE_FP32 dims: [ 3 ]", "")
    told = {field for _line, field, _found, _wanted in of_config(tmp_path / "a", bare)}
    assert told == {f"{side}[0].{key}" for side in ("input", "output") for key in ("data_type", "dims")}
    completing = PYTHON + "    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    assert findings(tmp_path / "b", {"m/config.pbtxt": bare, "m/1/model.py": completing}) == []


# Directories


def test_a_config_of_another_name(tmp_path: Path) -> None:
    files = {"m/Config.pbtxt": GOOD, "n/config.pbtxt.txt": GOOD, "deep/m/config.pbtxt": GOOD}
    assert [(finding.model, finding.todo) for finding in findings(tmp_path, files)] == [
        ("deep", "Name this directory as the repository"),
        ("m", "Rename Config.pbtxt to config.pbtxt"),
        ("n", "Rename config.pbtxt.txt to config.pbtxt"),
    ]


def test_a_model_that_is_named_as_a_repository(tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    with pytest.raises(Refusal, match="Name the directory above it"):
        lint([str(tmp_path / "m")])


def test_a_label_file_by_another_way(tmp_path: Path) -> None:
    text = GOOD.replace('"B"', '"B" label_filename: "./labels.txt"')
    assert findings(tmp_path, {"m/config.pbtxt": text, "m/1/model.py": PYTHON, "m/labels.txt": "a\nb\nc\n"}) == []


@pytest.mark.parametrize("name", ["m (1)", "my model", "a&b", "a'b", "\ubaa8\ub378"])
def test_a_python_model_of_a_name_that_a_shell_reads(name: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, {f"{name}/config.pbtxt": GOOD, f"{name}/1/model.py": PYTHON})
    assert (finding.severity, finding.rule) == ("error", "model name")
    assert "hangs" in finding.triton


def test_a_key_that_is_nearly_the_environment_s(tmp_path: Path) -> None:
    text = GOOD + 'parameters { key: "execution_env_path" value { string_value: "/opt/env" } }'
    (finding,) = findings(tmp_path, {"m/config.pbtxt": text, "m/1/model.py": PYTHON})
    assert (finding.severity, finding.triton) == ("warning", "ignores it")
    assert finding.todo.startswith("Did you mean EXECUTION_ENV_PATH?")


def test_an_ensemble_s_output_that_is_its_input_is_no_error(tmp_path: Path) -> None:
    maps = 'input_map { key: "A" value: "A" } output_map { key: "B" value: "B" }'
    step = f'ensemble_scheduling {{ step [ {{ model_name: "s" model_version: -1 {maps} }} ] }}'
    text = GOOD.replace('backend: "python"', 'platform: "ensemble"').replace("output [ ", f"output [ {A}, ") + step
    files = {"m/config.pbtxt": text, "m/1/README": "", "s/config.pbtxt": GOOD, "s/1/model.py": PYTHON}
    assert findings(tmp_path, files) == []
