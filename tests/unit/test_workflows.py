"""The files of .github and the hooks for contributors: they parse, and call only make targets and programs that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT
from test_cores import cores

__all__ = ["cores"]

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = {name for line in re.findall(r"^([\w-][\w -]*):(?!=)", MAKEFILE, re.MULTILINE) for name in line.split()}
VARIABLES = set(re.findall(r"\$\((\w+)\)", MAKEFILE))


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["jobs"]


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def make_calls(command: str) -> list[str]:
    """Return what is wrong with a shell command that may only call make."""
    problems = []
    for line in command.strip().splitlines():
        words = shlex.split(re.sub(r"\$\{\{.*?\}\}|\$\(.*?\)", "value", line))
        words = words[1:] if words[:1] == ["sudo"] else words
        if words[:1] != ["make"] or len(words) < 2:
            problems.append(f"{line}: expected a call of make")
            continue
        variables = {word.partition("=")[0] for word in words[1:] if "=" in word}
        targets = {word for word in words[1:] if "=" not in word}
        problems += [f"{line}: the Makefile has no {name}" for name in sorted(targets - TARGETS | variables - VARIABLES)]
    return problems


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make lint CORE=${{ matrix.core }} PYTHON=python", None),
        ('sudo make unit PYTHON="$(command -v python)"', None),
        ("make lints", "make lints: the Makefile has no lints"),
        ("make lint CORES_OF=2.21", "make lint CORES_OF=2.21: the Makefile has no CORES_OF"),
        ("pip install ansible", "pip install ansible: expected a call of make"),
        ("make unit\ncurl x | sh", "curl x | sh: expected a call of make"),
    ],
)
def test_commands_that_are_not_make_targets_are_found(command: str, problem: str | None) -> None:
    assert make_calls(command) == ([problem] if problem else [])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_existing_make_targets(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    assert [problem for command in commands for problem in make_calls(command)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_named_by_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_end_by_themselves(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow["concurrency"]) == {"group", "cancel-in-progress"}
    for job in workflow["jobs"].values():
        assert "permissions" not in job and job["timeout-minutes"] <= 60
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


def test_unit_tests_run_on_each_core_with_each_of_its_pythons(cores: Any) -> None:
    expected = {(name, f"3.{minor}") for name, core in cores.CORES.items() for minor in range(core.python, cores.NEWEST + 1)}
    found = jobs(ROOT / ".github/workflows/tests.yml")
    runs = {name: {(run["core"], run["python"]) for run in job["strategy"]["matrix"]["include"]} for name, job in found.items()}
    assert runs["unit"] == expected
    for job in ("lint", "sanity"):
        assert {core for core, _python in runs[job]} == set(cores.CORES)
        assert {python for _core, python in runs[job]} == {python for _core, python in expected}
        assert runs[job] <= expected


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_github_requires(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    kinds = {"textarea": "label", "checkboxes": "options"}
    assert [part for part in form["body"] if part["type"] not in kinds or not part["attributes"][kinds[part["type"]]]] == []
    names = [part["id"] for part in form["body"]]
    assert len(names) == len(set(names)) and any(part.get("validations", {}).get("required") for part in form["body"])


def test_hooks_use_pinned_tools_and_make_targets() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    pinned = (ROOT / "requirements-dev.txt").read_text()
    for hook in repository["hooks"]:
        program, *rest = hook["entry"].split()
        if program == "make":
            assert make_calls(hook["entry"]) == []
        elif program == ".venv/bin/python":
            assert (ROOT / rest[0]).is_file()
        else:
            assert f"\n{program.removeprefix('.venv/bin/')}==" in pinned
