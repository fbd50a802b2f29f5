"""The linter's formats: what GitHub and SARIF's readers get, with names that would break either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import output
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.__main__ import main
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import command_line
from helpers import ROOT
from linting import GOOD, write

PYTHON = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
BAD = GOOD + "instance_group { kind: KIND_GPU }\nresponse_cache { enable: true }\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository below the current directory, whose one model has an error and a warning."""
    write(tmp_path / "models", {"m/config.pbtxt": BAD, "m/1/model.py": PYTHON})
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("absolute", [False, True])
def test_annotations_are_beside_their_lines(repository: Path, capsys: pytest.CaptureFixture[str], absolute: bool) -> None:
    code, out, _err = ask(capsys, str(repository) if absolute else "models", "--format", "github")
    error, warning = out.splitlines()
    assert code == 1
    place = "file=models/m/config.pbtxt,line=5,title=npufleet-lint%3A npu host::instance_group[0].kind is KIND_GPU, expected "
    assert error.startswith(f"::error {place}")
    assert warning.startswith("::warning file=models/m/config.pbtxt,line=6,title=npufleet-lint%3A response cache::")


def test_annotations_escape_what_would_end_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"a,b:c%\n::set/config.pbtxt": GOOD + "response_cache { enable: true }\n", "a,b:c%\n::set/1/model.py": PYTHON})
    _code, out, _err = ask(capsys, str(tmp_path), "--format", "github")
    assert out
    for line in out.splitlines():
        command, properties, words = line[2:].split("::", 2)[0].partition(" ")[0], *line[2:].partition(" ")[2].split("::", 1)
        assert command in ("error", "warning")
        assert "a%2Cb%3Ac%25%0A%3A%3Aset" in properties
        assert [word.partition("=")[0] for word in properties.split(",")] in (["file", "title"], ["file", "line", "title"])
        assert words and "%0A" not in words.replace("a,b:c%25%0A::set", ""), words


def of_sarif(out: str) -> Any:
    document = json.loads(out)
    assert (document["version"], document["$schema"]) == ("2.1.0", output.SCHEMA)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        # What the standard and GitHub's reader ask of a result
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1
    assert len({rule["id"] for rule in rules}) == len(rules)
    return run


def test_sarif_has_each_finding_with_rule_and_place(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(repository, {"stray/README": ""})
    code, out, err = ask(capsys, "models", "--format", "sarif")
    assert (code, err) == (1, "")
    found = {result["ruleId"]: result for result in of_sarif(out)["results"]}
    assert {rule: result["level"] for rule, result in found.items()} == {
        "npu-host": "error",
        "response-cache": "warning",
        "stray": "error",
    }
    physical = found["npu-host"]["locations"][0]["physicalLocation"]
    assert physical == {
        "artifactLocation": {"uri": "models/m/config.pbtxt", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 5},
    }
    assert found["npu-host"]["message"]["text"].startswith("instance_group[0].kind is KIND_GPU, expected ")
    assert found["npu-host"]["locations"][0]["logicalLocations"] == [{"fullyQualifiedName": "m/instance_group[0].kind"}]
    assert found["stray"]["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}


def test_sarif_names_any_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the current directory, not in UTF-8, and with what a URI escapes."""
    name = os.fsdecode(b"50% \xff#")
    os.makedirs(tmp_path / "models" / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _code, out, _err = ask(capsys, "../models", "--format", "sarif")
    (result,) = of_sarif(out)["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": f"file://{tmp_path}/models/50%25%20%FF%23"}


def test_nothing_found_is_a_document_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    code, out, err = ask(capsys, str(tmp_path), "--format", "sarif")
    assert (code, of_sarif(out)["results"], err) == (0, [], "")
    assert ask(capsys, str(tmp_path), "--json") == (0, "[]\n", "")
    assert ask(capsys, str(tmp_path), "--format", "github") == (0, "", "1 models: 0 errors, 0 warnings\n")


# Wrong use, and other ends


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: REPOSITORY; see --help"),
        ([""], "'' is no directory"),
        (["{place}/none", "{place}/no"], "/none' is no directory, expected a Triton repository. Correct the path; "),
        ([__file__], "is no directory"),
        (["{place}", "--format", "xml"], "--format: invalid choice: 'xml'"),
        (["{place}", "--format"], "--format: expected one argument"),
        (["{place}", "--release"], "--release: expected one argument"),
        (["{place}", "--release", ""], "--release is '', expected one of 24.01, "),
        (["{place}", "--release", "23.01"], "--release is '23.01', expected one of 24.01, "),
        (["{place}", "--model", "m"], "model 'm' is not in "),
        (["{place}", "--model", ""], "model '' is not in "),
        (["{place}", "--form", "json"], "unrecognized arguments: --form"),
        (["{place}", "--json=1"], "--json: ignored explicit argument '1'"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, *(word.format(place=tmp_path) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("npufleet-lint: ") and said in err


PROGRAM = [sys.executable, "-m", "ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}


def test_output_that_nobody_reads_or_that_is_full(repository: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for target, code, said in (
        (writing, 141, ""),
        (os.open("/dev/full", os.O_WRONLY), 2, "standard output: No space left on device"),
    ):
        command = [*PROGRAM, str(repository), "--format", "sarif"]
        done = subprocess.run(command, stdout=target, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
        os.close(target)
        assert (done.returncode, done.stderr.removeprefix("npufleet-lint: ").strip()) == (code, said)


def test_an_interrupt_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert command_line.run("npufleet-lint", interrupted) == 130
    assert capsys.readouterr().err == "npufleet-lint: interrupted\n"


# What strangers install

# The wheel's content with what it depends on, and nothing of Ansible
INSTALLED = """
import importlib, os, sys
place, *words = sys.argv[1:]
sys.path.insert(0, place)
sys.modules.update(dict.fromkeys(("ansible", "numpy", "tritonclient", "grpc")))
entry = importlib.import_module("ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.__main__")
assert entry.__file__.startswith(place), entry.__file__
sys.exit(entry.main(words))
"""


def test_what_is_installed_lints_by_itself(repository: Path, tmp_path: Path) -> None:
    setuptools = pytest.importorskip("setuptools")
    assert setuptools
    place = tmp_path / "installed"
    build = [sys.executable, "-c", "from setuptools import setup; setup()", "--quiet", "build_py", "--build-lib", str(place)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (place / "ansible_collections/npufleet/triton/files/schemas/model_config.json").is_file()
    command = [sys.executable, "-I", "-c", INSTALLED, str(place), str(repository), "--release", "24.01"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "1 models: 1 errors, 1 warnings\n")
    assert "config.pbtxt:5: instance_group[0].kind is KIND_GPU" in done.stdout


def test_the_hook_calls_what_is_installed() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("npufleet-lint", "python", False)
    assert f'\n{hook["entry"]} = "{main.__module__}:main"\n' in (ROOT / "pyproject.toml").read_text()
