"""The linter and Triton agree: what Triton refuses is an error, what it loads is none, and each sentence says who minds."""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import python_source
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding, Row, release_rows, row_of
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from linting import GOOD, PYTHON, A, B, findings, short, write

OLD, NEW = Row("24.01", "2.42.0", python="3.10"), Row("26.05", "2.69.0", python="3.12")
IO = f"input [ {A} ] output [ {B} ]"
OWN = "$$TRITON_MODEL_DIRECTORY"


def refused(found: list[Finding]) -> list[tuple[str, str]]:
    """(rule, field) of what Triton refuses."""
    return [(entry.rule, entry.field) for entry in found if entry.severity == ERROR and entry.triton]


def environment(path: str) -> str:
    return GOOD + f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'


def packed(*names: str, mode: str = "w:gz") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as archive:  # type: ignore[call-overload]
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return raw.getvalue()


# Configs


@pytest.mark.parametrize(
    ("text", "field", "triton"),
    [
        ('batch_output { source_input: "A" }', "batch_output[0].target_name", "ends, with every model that it serves"),
        ("model_repository_agents { }", "model_repository_agents", "ends, with every model that it serves"),
        ('model_repository_agents { agents { name: "cheksum" } }', "model_repository_agents.agents[0].name", "refuses the model"),
        ("model_repository_agents { agents { } }", "model_repository_agents.agents[0].name", "refuses the model"),
        ('batch_input { kind: 9 source_input: "A" data_type: TYPE_FP32 }', "batch_input[0].kind", "refuses the model"),
        ("instance_group { kind: 7 }", "instance_group[0].kind", "refuses the model"),
        (
            'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "true" } }',
            "parameters[FORCE_CPU_ONLY_INPUT_TENSORS]",
            "refuses the model",
        ),
        (
            'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { } }',
            "parameters[FORCE_CPU_ONLY_INPUT_TENSORS]",
            "refuses the model",
        ),
        (
            'sequence_batching { } parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/x.so" } }',
            "parameters[TRITON_BATCH_STRATEGY_PATH]",
            "refuses the model",
        ),
    ],
)
def test_what_triton_refuses_in_a_config(text: str, field: str, triton: str, tmp_path: Path) -> None:
    found = findings(tmp_path, {"m/config.pbtxt": GOOD + text, "m/1/model.py": PYTHON})
    assert (field, triton) in [(entry.field, entry.triton) for entry in found if entry.severity == ERROR]


@pytest.mark.parametrize(
    "text",
    [
        'model_repository_agents { agents { name: "checksum" } }',
        "optimization { priority: 99 }",
        'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }',
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "" } }',
        "sequence_batching { state { } }",
        "sequence_batching { direct { minimum_slot_utilization: nan } }",
    ],
)
def test_what_triton_loads_in_a_config(text: str, tmp_path: Path) -> None:
    assert refused(findings(tmp_path, {"m/config.pbtxt": GOOD + text, "m/1/model.py": PYTHON})) == []


# Backends


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ('backend: "pytorch" runtime: "model.py"', ["model.py"]),
        ('backend: "pytorch" runtime: "model.py"', ["model.pt"]),
        ('backend: "pytorch" runtime: "libtriton_pytorch.so"', ["model.pt"]),
        ('platform: "onnxruntime_onnx"', ["model.onnx"]),
        ('default_model_filename: "model.onnx"', ["model.onnx"]),
        ('platform: "tensorflow_graphdef"', ["model.graphdef"]),
        ("", ["model.savedmodel/x"]),
        ("", ["model.xml"]),
        ("", ["model.onnx/model.onnx"]),
        ('platform: "anything" backend: "python"', ["model.py"]),
    ],
)
def test_backends_that_triton_finds_out(text: str, files: list[str], tmp_path: Path) -> None:
    laid = {"m/config.pbtxt": f"{text} {IO}", **{f"m/1/{name}": PYTHON for name in files}}
    assert findings(tmp_path, laid, OLD) == []


def test_a_backend_by_the_name_of_the_model(tmp_path: Path) -> None:
    assert findings(tmp_path / "a", {"m.identity/config.pbtxt": IO, "m.identity/1/x": ""}) == []
    assert refused(findings(tmp_path / "b", {"m/config.pbtxt": IO, "m/1/x": ""})) == [("backend", "backend")]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "dali"])
def test_backends_that_complete_a_config(backend: str, tmp_path: Path) -> None:
    file = {"onnxruntime": "model.onnx", "openvino": "model.xml", "dali": "model.dali"}[backend]
    text = f'backend: "{backend}" input {{ name: "A" data_type: TYPE_UINT8 allow_ragged_batch: true }} output {{ name: "B" }}'
    assert findings(tmp_path, {"m/config.pbtxt": text, f"m/1/{file}": "x"}) == []


@pytest.mark.parametrize(
    ("text", "file", "old", "new"),
    [
        ('platform: "torch_aoti"', "model.pt2", [("backend", "platform")], []),
        ("", "model.pt2", [("backend", "backend")], []),
        ('backend: "pytorch" platform: "libtorch"', "model.pt", [("backend", "platform")], []),
        ('platform: "tensorflow_graphdef"', "model.graphdef", [], [("backend", "platform")]),
        ('backend: "tensorflow" default_model_filename: "model.graphdef"', "model.graphdef", [], [("backend", "backend")]),
    ],
)
def test_platforms_and_backends_depend_on_the_release(
    text: str, file: str, old: list[tuple[str, str]], new: list[tuple[str, str]], tmp_path: Path
) -> None:
    files = {"m/config.pbtxt": f"{text} {IO}", f"m/1/{file}": "x"}
    assert refused(findings(tmp_path, files, OLD)) == old
    assert refused(lint([str(tmp_path)], row=NEW).findings) == new


# Environments


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (packed("bin/activate"), ""),
        (packed("./bin/activate"), ""),
        (packed("bin/activate", mode="w"), ""),
        (b"no archive", "e, which cannot be read as an archive"),
        (b"", "e, which cannot be read as an archive"),
        (packed("bin/activate", mode="w:bz2"), "e, which cannot be read as an archive"),
        (packed("e/bin/activate"), "e, an archive without bin/activate"),
    ],
)
def test_an_environment_in_an_archive(content: bytes, found: str, tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": environment(f"{OWN}/e"), "m/1/model.py": PYTHON})
    (tmp_path / "m/e").write_bytes(content)
    assert [entry.actual for entry in findings(tmp_path, {})] == [found] * bool(found)


def test_an_environment_in_a_directory(tmp_path: Path) -> None:
    files = {"m/config.pbtxt": environment(f"{OWN}/e"), "m/1/model.py": PYTHON, "m/e/x": ""}
    assert [entry.actual for entry in findings(tmp_path, files)] == ["e, a directory without bin/activate"]
    (tmp_path / "m/e/bin").mkdir()
    (tmp_path / "m/e/bin/activate").touch()
    assert findings(tmp_path, {}) == []


@pytest.mark.parametrize("path", ["../shared.tar.gz", "../../envs/cpu.tar.gz", "../m/e"])
def test_an_environment_beside_the_model_is_a_matter_of_the_store(path: str, tmp_path: Path) -> None:
    files = {"repo/m/config.pbtxt": environment(f"{OWN}/{path}"), "repo/m/1/model.py": PYTHON, "repo/m/e/bin/activate": ""}
    write(tmp_path, {**files, "repo/shared.tar.gz": "x", "envs/cpu.tar.gz": "x"})
    (entry,) = lint([str(tmp_path / "repo")]).findings
    assert (entry.severity, entry.triton) == ("warning", "")
    assert entry.sentence().endswith("The fleet's store keeps each model in its own directory, without the files beside it.")


def test_an_environment_beside_the_model_that_is_not_there(tmp_path: Path) -> None:
    files = {"m/config.pbtxt": environment(f"{OWN}/../gone.tar.gz"), "m/1/model.py": PYTHON}
    assert refused(findings(tmp_path, files)) == [("files", "parameters[EXECUTION_ENV_PATH]")]


# Directories


def test_a_config_that_is_a_directory_ends_the_server(tmp_path: Path) -> None:
    (entry,) = findings(tmp_path, {"m/config.pbtxt/": "", "m/1/model.py": PYTHON})
    assert (entry.actual, entry.triton) == ("it is a directory", "ends, with every model that it serves")


def test_a_config_that_is_a_pipe_is_never_opened(tmp_path: Path) -> None:
    write(tmp_path, {"m/1/model.py": PYTHON})
    os.mkfifo(tmp_path / "m/config.pbtxt")
    (entry,) = [entry for entry in findings(tmp_path, {}) if entry.triton]
    assert entry.triton == "hangs and never opens its ports"


@pytest.mark.parametrize("path", ["m/x", "m/1/x"])
def test_a_pipe_is_a_matter_of_the_store(path: str, tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    os.mkfifo(tmp_path / path)
    (entry,) = findings(tmp_path, {})
    assert (entry.severity, entry.triton, entry.store) == ("error", "", "refuses the model")


def test_links_and_odd_names_are_a_matter_of_the_store(tmp_path: Path) -> None:
    write(tmp_path / "repo", {"m/config.pbtxt": GOOD})
    write(tmp_path / "elsewhere", {"1/model.py": PYTHON})
    (tmp_path / "repo/m/1").symlink_to(tmp_path / "elsewhere/1")
    (tmp_path / "repo/m/\udcff").touch()
    found = lint([str(tmp_path / "repo")]).findings
    assert refused(found) == []
    assert [entry.store for entry in found] == ["refuses the model"] * 2


def test_a_link_that_leads_nowhere_matters_by_its_place(tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    (tmp_path / "m/1/deep").symlink_to("gone")
    assert [(entry.triton, entry.store) for entry in findings(tmp_path, {})] == [("", "refuses the model")]
    (tmp_path / "m/near").symlink_to("gone")
    assert ("refuses the model", "refuses the model") in [(entry.triton, entry.store) for entry in findings(tmp_path, {})]
    (tmp_path / "root").symlink_to("gone")
    told = {entry.file: entry.triton for entry in findings(tmp_path, {})}
    assert told[f"{tmp_path}/root"] == "loads no model at all when it starts, except in explicit mode"


@pytest.mark.parametrize(
    ("directories", "policy", "kinds"),
    [
        (["1.bak"], "", ["warning"]),
        (["2-old"], "", ["error"]),
        (["2-old", "3"], "", ["warning"]),
        (["2-old"], "version_policy { specific { versions: 1 } }", ["warning"]),
        (["2-old"], "version_policy { all { } }", ["error"]),
        (["-1"], "", ["warning"]),
    ],
)
def test_a_directory_beside_a_version(directories: list[str], policy: str, kinds: list[str], tmp_path: Path) -> None:
    files = {"m/config.pbtxt": GOOD + policy, "m/1/model.py": PYTHON, **{f"m/{name}/model.py": PYTHON for name in directories}}
    assert [entry.severity for entry in findings(tmp_path, files)] == kinds


def test_a_version_without_a_directory_of_its_own_matters_where_files_are_read(tmp_path: Path) -> None:
    text = GOOD.replace('"python"', '"identity"')
    (entry,) = findings(tmp_path, {"m/config.pbtxt": text, "m/9.bak/x": ""})
    assert (entry.severity, entry.triton) == ("warning", "counts it as version 9 and reads 9/")


def test_a_model_without_a_config(tmp_path: Path) -> None:
    (entry,) = findings(tmp_path / "a", {"m/1/model.py": PYTHON})
    assert (entry.rule, entry.triton, entry.store) == ("stray", "", "refuses the model")
    assert entry.actual == "a directory without a config.pbtxt, which Triton serves with backend python"
    assert refused(findings(tmp_path / "b", {"m/1/x": ""})) == [("stray", "")]


# Ensembles


def test_outputs_of_different_decoupled_steps(tmp_path: Path) -> None:
    pair = '{ name: "A" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 3 ] }'
    burst = f'backend: "python" model_transaction_policy {{ decoupled: true }} {IO}'
    step = 'step { model_name: "burst" model_version: -1 input_map { key: "A" value: "Q" } output_map { key: "B" value: "%s" } }'
    both = (
        'platform: "ensemble" input { name: "Q" data_type: TYPE_FP32 dims: [ 3 ] } output [ '
        + pair.replace('"A"', '"LEFT"').replace('"B"', '"RIGHT"')
        + f" ] ensemble_scheduling {{ {step % 'LEFT'} {step % 'RIGHT'} }}"
    )
    files = {"burst/config.pbtxt": burst, "burst/1/model.py": PYTHON, "both/config.pbtxt": both, "both/1/README": ""}
    (entry,) = findings(tmp_path, files)
    assert (entry.model, entry.field) == ("both", "output")
    assert entry.actual == "from decoupled burst and from decoupled burst"


def test_an_ensemble_is_refused_with_its_step(tmp_path: Path) -> None:
    step = 'step { model_name: "s" model_version: -1 input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }'
    files = {"e/config.pbtxt": f'platform: "ensemble" max_batch_size: 4 {IO} ensemble_scheduling {{ {step} }}', "e/1/README": ""}
    found = findings(tmp_path, {**files, "s/config.pbtxt": GOOD + "strange: 1", "s/1/model.py": PYTHON})
    assert short(found, tmp_path) == [
        "error syntax: s/config.pbtxt strange",
        "error ensemble: e/config.pbtxt ensemble_scheduling.step[0].model_name",
    ]


# model.py


def program(method: str) -> str:
    return f"class TritonPythonModel:\n{method}\n    def execute(self, requests):\n        return []\n"


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ("    def initialize(self):\n        pass", "initialize(self), which cannot be called with 2 arguments"),
        (
            "    def initialize(self, args, more):\n        pass",
            "initialize(self, args, more), which cannot be called with 2 arguments",
        ),
        ("    def __init__(self, args):\n        pass", "__init__(self, args), which cannot be called with 1 argument"),
        ("    def initialize(self, args):\n        raise ValueError", "initialize, which always raises"),
        ("    initialize = None", "initialize = None"),
        ("    initialize = lambda self: None", "initialize = lambda self: None"),
        (
            "    def auto_complete_config(self, config):\n        return config",
            "auto_complete_config(self, config), which cannot be called with 1 argument",
        ),
        (
            "    @staticmethod\n    def auto_complete_config(config):\n        config.add()",
            "auto_complete_config without a return value",
        ),
        (
            "    @staticmethod\n    def auto_complete_config(config):\n        return None",
            "auto_complete_config without a return value",
        ),
        (
            "    @staticmethod\n    async def auto_complete_config(config):\n        return config",
            "auto_complete_config without a return value",
        ),
    ],
)
def test_methods_that_fail_when_a_model_is_loaded(method: str, found: str, tmp_path: Path) -> None:
    (entry,) = findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": program(method)})
    assert (entry.rule, entry.severity, entry.actual) == ("python model", "error", f"a TritonPythonModel with {found}")
    assert entry.line is not None


@pytest.mark.parametrize(
    "method",
    [
        "    def initialize(self, args=None):\n        pass",
        "    def initialize(self, *args):\n        pass",
        "    @staticmethod\n    def initialize(args):\n        pass",
        "    def initialize(self, args):\n        if args:\n            return\n        raise ValueError",
        "    @staticmethod\n    def auto_complete_config(config):\n        return config",
        "    def auto_complete_config(config):\n        return config",
        "    @classmethod\n    def auto_complete_config(cls, config):\n        if config:\n            return config",
        "    if True:\n        def initialize(self):\n            pass\n    def initialize(self, args):\n        pass",
        "    @decorated\n    def initialize(self):\n        pass",
    ],
)
def test_methods_that_triton_can_call(method: str, tmp_path: Path) -> None:
    assert findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": program(method)}) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("raise SystemExit(0)\n", "a module that always raises when it is imported"),
        ("assert False\n", "a module that always raises when it is imported"),
        ("import sys\nsys.exit(0)\n", "a module that always raises when it is imported"),
        ("x = gone\n", "a module with the undefined name gone"),
        ("@gone\nclass X:\n    pass\n", "a module with the undefined name gone"),
        ("class X(gone):\n    pass\n", "a module with the undefined name gone"),
    ],
)
def test_a_module_that_cannot_be_imported(line: str, found: str, tmp_path: Path) -> None:
    (entry,) = findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": line + PYTHON})
    assert (entry.severity, entry.actual) == ("error", found)


@pytest.mark.parametrize(
    "line",
    [
        "import os\nx = os.environ\n",
        "try:\n    import gone\nexcept ImportError:\n    gone = None\nx = gone\n",
        "for x in []:\n    pass\ny = x\n",
        "from gone import *\nx = y\n",
        "if False:\n    x = gone\n",
        "x = [y for y in []]\n",
        "x = lambda: gone\n",
        "x = True or gone\n",
        "x = 1 if True else gone\n",
        "x: int = 1\ny = x\n",
        "x = (y := 1)\nz = y\n",
        "x = __file__, __name__\n",
    ],
)
def test_a_module_that_may_be_imported(line: str, tmp_path: Path) -> None:
    assert findings(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": line + PYTHON}) == []


NEWER = {
    "a type statement": "type Row = dict[str, float]\n",
    "a type statement with parameters": "type Row[T] = dict[str, T]\n",
    "a generic function": "def first[T](row: list[T]) -> T:\n    return row[0]\n",
    "a generic class": "class Box[T](object):\n    pass\n",
    "an f-string with its own quotes": 'row = {"a": 1}\ntext = f"{row["a"]}"\n',
    "an f-string with a backslash": "text = f'{chr(10).join([\"\\n\"])}'\n",
}


@pytest.mark.parametrize("source", NEWER.values(), ids=NEWER)
def test_a_model_py_is_judged_by_the_python_of_the_image(source: str, tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": source + PYTHON})
    assert findings(tmp_path, {}, NEW) == []
    (entry,) = findings(tmp_path, {}, OLD)
    assert entry.actual.startswith("not valid for Python 3.10 (")
    assert entry.expected == "a program for Python 3.10 of the image"


@pytest.mark.parametrize("source", ["def f(:\n", "type X int\n", "text = f'{row'\n", "return 1\n", "class A[T:\n    pass\n"])
def test_a_program_that_no_python_reads(source: str, tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": source + PYTHON})
    for row in (None, OLD, NEW):
        assert refused(findings(tmp_path, {}, row)) == [("python model", "")]


def test_a_program_that_is_nested_too_deeply_is_said_to_be(tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": f"x = {'-' * 50000}1\n" + PYTHON})
    (entry,) = findings(tmp_path, {}, OLD)
    # Which of them is said differs from Python to Python
    assert re.fullmatch(r"not valid for Python 3\.10 \((nested too deeply|.*(recursion|nested).*)\)", entry.actual), entry.actual


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\ny = f'{x}' f\"{'x'}\"\n", 0),
        ("x = 1\ny = f'{x['a']}'\n", 2),
        ("y = f'''{\n'x'}'''\n", 0),
        ("y = f'''{x # c\n}'''\n", 1),
        ("y = '{' + f'{x:%H:%M}' + rf'\\{x}'\n", 0),
        ("# f'{x['a']}'\n", 0),
    ],
)
def test_f_strings_that_an_older_python_does_not_read(source: str, line: int) -> None:
    """What a linter on 3.12 looks for, whose own parser reads them."""
    assert next((at for _part, at, new in python_source._text_and_strings(source) if new), 0) == line


def test_rows_know_the_python_of_their_image() -> None:
    rows = {name: row_of(name, facts) for name, facts in release_rows().items()}
    assert {row.python for row in rows.values()} <= {"3.10", "3.12"}
    assert rows["24.01"] == Row("24.01", "2.42.0", "", "3.10")
    assert sys.version_info >= (3, 9)


def test_a_variant_matters_where_a_server_chooses_it(tmp_path: Path) -> None:
    files = {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON, "m/configs/big.pbtxt": "strange: 1"}
    (entry,) = findings(tmp_path, files)
    assert entry.triton == "refuses the whole file, if it starts with --model-config-name=big"
