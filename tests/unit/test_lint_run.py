"""The linter as people run it: the program, and the module against an inventory, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.__main__ import main
from helpers import ROOT, ansible_playbook
from linting import GOOD, PYTHON, write

RBLN = GOOD.replace("python", "rbln")
RECORD = {
    "format": 1,
    "sha256": "a" * 64,
    "npu": "RBLN-CA12",
    "devices": 1,
    "device_memory": [100],
    "buckets": [
        {side: [{"name": name, "shape": [batch, 3], "dtype": "float32"}] for side, name in (("inputs", "A"), ("outputs", "B"))}
        for batch in (1, 2)
    ],
}


# The program


def test_program_says_one_finding_a_line_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = GOOD + "model_metrics { }\ninstance_group { kind: KIND_GPU }\nresponse_cache { enable: true }\n"
    write(tmp_path, {"m/config.pbtxt": bad, "m/1/model.py": PYTHON, "n/config.pbtxt": GOOD, "n/1/model.py": PYTHON})
    assert main([str(tmp_path), "--release", "24.01"]) == 1
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert [line.partition(" is ")[0] for line in lines] == [
        f"{tmp_path}/m/config.pbtxt:5: model_metrics",
        f"{tmp_path}/m/config.pbtxt:6: instance_group[0].kind",
        f"{tmp_path}/m/config.pbtxt:7: response_cache.enable",
    ]
    assert [line.endswith(" (warning)") for line in lines] == [False, False, True]
    assert output.err == "2 models: 2 errors, 1 warnings\n"


def test_a_release_that_nobody_vouches_for_is_told_beside_the_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    assert main([str(tmp_path), "--release", "26.07-sdk0.9", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == []
    assert output.err.startswith("release 26.07-sdk0.9 is untested: the vendor pairs SDK 0.9.4 with Triton 25.08")


def test_warnings_alone_do_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD + "response_cache { enable: true }", "m/1/model.py": PYTHON})
    assert main([str(tmp_path), "--json", "--model", "m"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["model"], entry["severity"], entry["line"], entry["field"]) == ("m", "warning", 5, "response_cache.enable")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{place}/nowhere"], "is no directory"),
        (["{place}", "--release", "23.01"], "release is '23.01', expected one of 24.01, "),
        (["{place}", "--model", "m"], "model 'm' is not in "),
    ],
)
def test_nothing_to_look_at(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument.format(place=tmp_path) for argument in arguments]) == 2
    assert words in capsys.readouterr().err


def test_make_lint_models(tmp_path: Path) -> None:
    command = ["make", "--no-print-directory", "--old-file", f"{sys.prefix}/.done", f"VENV={sys.prefix}", "lint-models"]
    run = {"cwd": ROOT, "capture_output": True, "text": True, "check": False, "env": {**os.environ, "MAKEFLAGS": ""}}
    done = subprocess.run([*command, f"REPO={tmp_path}"], **run)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    write(tmp_path, {"m/config.pbtxt": "backend: 'python'"})
    done = subprocess.run([*command, f"REPO={tmp_path}", "RELEASE=24.01"], **run)
    assert done.returncode == 2
    assert done.stdout.startswith(f"{tmp_path}/m/config.pbtxt: version_policy is without a version directory")


# The module


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """{host: result} of playbooks/lint_models.yml for hosts that nobody could reach; `lying` is of a directory."""
    place = tmp_path_factory.mktemp("site")
    models = write(
        place / "models",
        {
            "good/config.pbtxt": GOOD,
            "good/1/model.py": PYTHON,
            "cached/config.pbtxt": GOOD + "response_cache { enable: true }",
            "cached/1/model.py": PYTHON,
            "bad/config.pbtxt": GOOD + "instance_group { kind: KIND_GPU }",
            "bad/1/model.py": PYTHON,
            "typo/config.pbtxt": GOOD + "outptu { }",
            "typo/1/model.py": PYTHON,
            "digits/config.pbtxt": RBLN + "model_metrics { }",
        },
    )
    fleet = {"rbln_release": "24.01", "npufleet_npus": 2, "npufleet_card": "RBLN-CA12", "npufleet_model_repository": str(models)}
    artefact = {"CA12/0.6": {"url": "https://models.example.com/d.rbln", "sha256": "a" * 64, "record": RECORD}}
    hosts = {
        "good": {"triton_models": [{"name": "good"}, {"name": "cached"}]},
        "bad": {"triton_models": [{"name": "bad"}, {"name": "typo"}, {"name": "none"}, {"name": "digits", "artefacts": artefact}]},
        "unset": {"npufleet_card": "RBLN-CA99", "triton_models": []},
    }
    inventory = {
        "npu_hosts": {"hosts": {name: {"ansible_host": "192.0.2.1", **fleet, **variables} for name, variables in hosts.items()}}
    }
    (place / "hosts.json").write_text(json.dumps(inventory))
    task = {
        "name": "Lint",
        "npufleet.triton.model_manifest": {"repositories": ["models"], "models": ["good"], "release": "26.07-sdk0.9"},
    }
    lie = {"name": "Lie", "hosts": "good", "gather_facts": False, "tasks": [task]}
    (place / "play.yml").write_text(json.dumps([lie, {"import_playbook": str(ROOT / "playbooks/lint_models.yml")}]))
    callback = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}
    done = ansible_playbook(place, "-i", place / "hosts.json", place / "play.yml", **callback)
    assert done.returncode == 2, done.stderr
    # The play behind them ends a run in which a step has no result.
    (lying, placed, *_ends) = json.loads(done.stdout[done.stdout.index("{") :])["plays"]
    return {**placed["tasks"][0]["hosts"], "lying": lying["tasks"][0]["hosts"]["good"]}


def test_models_of_a_host_as_it_would_get_them(played: dict[str, dict[str, Any]]) -> None:
    good = played["good"]
    assert not good["changed"]
    assert sorted(good["models"]) == ["cached", "good"]
    entry = good["models"]["good"]
    assert entry["versions"] == ["1"]
    assert sorted(entry["files"]) == ["1/model.py", "config.pbtxt"]
    assert entry["source"] != entry["release"]
    (finding,) = good["findings"]
    assert (finding["model"], finding["rule"], finding["line"]) == ("cached", "response cache", 5)
    assert len(good["warnings"]) == 1


def test_every_error_of_every_model_in_one_message(played: dict[str, dict[str, Any]]) -> None:
    bad = played["bad"]
    assert bad["failed"]
    head, *lines = bad["msg"].splitlines()
    assert head == "bad: 5 errors in models:"
    expected = [
        "bad/config.pbtxt:5: instance_group[0].kind is ",
        "typo/config.pbtxt:5: outptu: ",
        "digits/config.pbtxt:5: model_metrics is ",
        "digits/config.pbtxt:2: max_batch_size is 4, expected at most 2, as the compiled file",
    ]
    assert all(any(words in line for line in lines) for words in expected), lines
    assert len(lines) == 5
    assert sum("model none: " in line for line in lines) == 1


def test_variables_that_are_wrong_are_refused(played: dict[str, dict[str, Any]]) -> None:
    assert played["unset"]["failed"]
    assert "npufleet_card is RBLN-CA99, expected one of RBLN-CA02, RBLN-CA12 for release 24.01" in played["unset"]["msg"]


def test_a_directory_as_it_lies(played: dict[str, dict[str, Any]]) -> None:
    lying = played["lying"]
    assert list(lying["models"]) == ["good"]
    entry = lying["models"]["good"]
    assert (entry["release"], entry["source"]) == (None, played["good"]["models"]["good"]["source"])
    assert lying["findings"] == []
    (remark,) = lying["warnings"]
    assert remark.startswith("release 26.07-sdk0.9 is untested: ")
