"""Commands whose output is read speak English, whatever the language of the host."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import system
from helpers import ROOT
from test_concern_driver import script
from test_house import tasks_of

# Everything of the collection that runs on hosts. The server's own files run in its container
ON_HOSTS = sorted(
    path for pattern in ("plugins/**/*.py", "roles/*/files/**/*.py", "files/compile/**/*.py") for path in ROOT.glob(pattern)
)
TASK_FILES = sorted(path for pattern in ("roles/*/tasks/*.yml", "playbooks/**/*.yml") for path in ROOT.glob(pattern))
CALLS = ("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "popen", "system", "run_command")
ENGLISH = {"LC_ALL": "C", "LANGUAGE": "C"}
# Environments that are made from it: name of the function -> why
MADE = {
    "_cards": "the server's environment, and English",
    "_rclone": "a login beside it",
}


def reads_output(call: ast.Call) -> bool:
    """Whether a call of a command has its output."""
    name = getattr(call.func, "attr", "")
    if name in ("check_output", "getoutput", "getstatusoutput", "popen", "run_command"):
        return True
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return given.get("capture_output") == "True" or "PIPE" in given.get("stdout", "") + given.get("stderr", "")


def calls_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Each call of a command, with the function that it is in."""
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                owner = ast.unparse(node.func.value) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
                if owner in ("subprocess", "os", "module") and node.func.attr in CALLS:  # type: ignore[attr-defined]
                    yield function.name, node  # type: ignore[misc]


def test_every_command_whose_output_is_read_is_run_in_english() -> None:
    found = [(path, name, call) for path in ON_HOSTS for name, call in calls_of(path) if reads_output(call)]
    assert len(found) > 5
    wrong = []
    for path, name, call in found:
        env = next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "env"), "")
        if "untranslated()" not in env and name not in MADE:
            wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:80]}")
    assert wrong == []


def test_nothing_is_imported_past_the_scan() -> None:
    aliased = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in ON_HOSTS
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and node.module == "subprocess")
        or (isinstance(node, ast.Import) and any(name.name == "subprocess" and name.asname for name in node.names))
    ]
    assert aliased == []


def environment(task: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the environment of a task. If it is a variable, the variable is one of its role."""
    value = task.get("environment") or {}
    if isinstance(value, str):
        variables = yaml.safe_load((path.parents[1] / "vars/main.yml").read_text())
        value = variables[value.strip("{} ")]
    return value


@pytest.mark.parametrize("path", TASK_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_task_whose_output_is_kept_runs_its_command_in_english(path: Path) -> None:
    def tasks() -> Iterator[dict[str, Any]]:
        for entry in yaml.safe_load(path.read_text()) or []:
            yield from tasks_of([entry] if "hosts" not in entry else [*entry.get("pre_tasks", []), *entry.get("tasks", [])])

    modules = ("ansible.builtin.command", "ansible.builtin.shell", "ansible.builtin.raw", "ansible.builtin.script")
    kept = [task for task in tasks() if any(module in task for module in modules) and "register" in task]
    assert [task["name"] for task in kept if not environment(task, path).items() >= ENGLISH.items()] == []


def test_a_command_that_translates_itself_is_run_in_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LANG": "ko_KR.UTF-8", "LC_ALL": "ko_KR.UTF-8", "LANGUAGE": "ko:de", "LC_MESSAGES": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    policy = 'case "$LC_ALL,$LANGUAGE" in C,C) echo "  Candidate: 5:27.3.1-1";; *) echo "  후보: 5:27.3.1-1";; esac\n'
    script(tmp_path / "apt-cache", policy)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert system.candidate_version("docker-ce") == "5:27.3.1-1"
    assert system.untranslated()["PATH"] == os.environ["PATH"]
