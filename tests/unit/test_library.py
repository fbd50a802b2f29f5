"""The library that hosts keep: made of what runs there, brought as a whole or not at all, and called in a module's place."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as on_host
from ansible_collections.npufleet.triton.plugins.modules import host_lease, host_library, model_store_info
from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from helpers import ROOT, run_module


def packed(version: str, said: str = "") -> bytes:
    """A small library that says something."""
    return archive.packed({"npufleet_words.py": f"def main():\n    print({version + said!r})\n"}, "npufleet_words")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "library"
    monkeypatch.setattr(on_host, "HOME", str(path))
    monkeypatch.setattr(on_host, "FORMER", str(tmp_path / "former.pyz"))
    return path


def says() -> str:
    done = subprocess.run([sys.executable, "-I", on_host.path()], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# On a host


def test_a_version_is_brought_once_and_the_one_before_it_stays(home: Path, tmp_path: Path) -> None:
    (tmp_path / "former.pyz").touch()
    assert on_host.install("one", packed("one")) is True
    assert (says(), os.readlink(home / "current")) == ("one", "one")
    assert not (tmp_path / "former.pyz").exists()
    assert on_host.install("one", None) is False
    assert on_host.install("two", packed("two")) is True
    assert on_host.install("three", packed("three")) is True
    assert says() == "three"
    # What is at work with it goes on
    assert sorted(path.name for path in home.iterdir()) == ["current", "three", "two"]
    # A controller with the version before comes in between
    assert on_host.install("two", None) is True
    assert says() == "two"
    assert sorted(path.name for path in home.iterdir()) == ["current", "three", "two"]


def test_it_is_compiled_and_is_for_every_user_whatever_the_umask(home: Path) -> None:
    before = os.umask(0o077)
    try:
        on_host.install("one", packed("one"))
    finally:
        os.umask(before)
    (bytecode,) = (home / "one/__pycache__").glob("npufleet_words.*.pyc")
    assert {path.stat().st_mode & 0o777 for path in (home / "one", bytecode.parent)} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in (home / "one/npufleet_words.py", bytecode)} == {0o644}
    (home / "one/npufleet_words.py").write_text("raise SystemExit('compiled again')")
    assert says() == "one"


def test_one_that_breaks_off_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host.install("one", packed("one"))
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *_arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        on_host.install("two", packed("two"))
    assert says() == "one"
    monkeypatch.setattr(os, "rename", rename)
    assert on_host.install("two", packed("two")) is True
    assert says() == "two"
    assert sorted(path.name for path in home.iterdir()) == ["current", "one", "two"]


def test_a_link_that_broke_off_is_made_again(home: Path) -> None:
    on_host.install("one", packed("one"))
    (home / "current").unlink()
    (home / ".current.new").symlink_to("nowhere")
    assert on_host.install("one", None) is True
    assert says() == "one"


def test_a_version_that_is_gone_is_told(home: Path) -> None:
    result = run_module(host_library, {"version": "one", "library": None})
    assert result["failed"] and result["msg"].startswith("the library could not be brought: found no ")
    taken = {"root": str(home.parent), "run": "a/1/1", "by": "a@b", "host": "npu1", "version": "one", "library": None}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_lease.lease, "WATCHDOG", str(home.parent / "watchdog"))
        result = run_module(host_lease, taken)
    assert result["failed"] and "wanted the library that this call came with: run again" in result["msg"]


def test_check_mode_brings_nothing(home: Path) -> None:
    assert run_module(host_library, {"version": "one", "library": "e30="}, check=True)["changed"] is False
    assert not home.exists()


# What it is made of


def _parsed(source: str) -> set[str]:
    """`archive.imports` by a parser."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(f"{name.name}." for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            found.update([f"{node.module}.", *(f"{node.module}.{name.name}." for name in node.names)])
    return {name[len(archive.PREFIX) :].rstrip(".") for name in found if name.startswith(archive.PREFIX)} - {""}


def test_every_import_is_found() -> None:
    files = sorted((ROOT / "plugins").rglob("*.py"))
    assert len(files) > 100
    for path in files:
        source = path.read_text()
        assert archive.imports(source) >= _parsed(source), path


def test_another_file_is_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = {library.version.__wrapped__()}
    files = library._own()
    assert {"ansible_collections/npufleet/triton/plugins/modules/host_state.py"} <= set(files)
    monkeypatch.setattr(library, "_own", lambda: {**files, "x.py": ""})
    versions.add(library.version.__wrapped__())
    assert len(versions) == 2 and all(len(version) == 16 for version in versions)


def test_it_is_packed_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = library.packed(str(tmp_path))
    monkeypatch.setattr(archive, "packed", lambda *_arguments: 1 / 0)
    assert library.packed(str(tmp_path)) == first
    assert len(list(tmp_path.iterdir())) == 1


# Called in a module's place


class Caller(FleetAction):
    """An action on a host that is this machine, or one that says what it was told to."""

    def __init__(self, home: Path, output: str | None = None, python: str = "auto", pipelines: bool = True) -> None:
        self._task = SimpleNamespace(async_val=0, check_mode=False, diff=False, no_log=False)
        self._templar = Templar(DataLoader())
        self.commands: list[tuple[str, bytes]] = []
        self.output, self.pipelines = output, pipelines
        self.output_errors = "its last words"
        self.variables_ = {"inventory_hostname": "npu1", "ansible_python_interpreter": python}

    def act(self, host: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def call(self, module: str, given: dict[str, Any]) -> Any:
        return self._by_library(module, given, self.variables_)

    def _is_pipelining_enabled(self, _style: str) -> bool:
        return self.pipelines

    def _compute_environment_string(self) -> str:
        return "A=b"

    def _low_level_execute_command(self, cmd: str, in_data: bytes) -> dict[str, Any]:
        self.commands.append((cmd, in_data))
        if self.output is not None:
            return {"rc": 1, "stdout": self.output, "stderr": self.output_errors}
        done = subprocess.run(cmd, shell=True, input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}


@pytest.fixture
def there(hosts_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(on_host, "HOME", str(hosts_library))
    return hosts_library


def test_a_module_answers_as_it_does_when_it_is_sent(there: Path) -> None:
    caller = Caller(there, python=sys.executable)
    answer = caller.call("model_store_info", {"root": "/nowhere"})
    assert {"failed": False, **answer} == run_module(model_store_info, {"root": "/nowhere"})
    ((command, sent),) = caller.commands
    assert command == f"A=b {sys.executable} -IS {there}/{library.version()} call model_store_info"
    assert json.loads(sent) == {"options": {"root": "/nowhere"}, "check_mode": False, "diff": False}
    # What is handed over is in no command line, and its failure is the module's own
    failed = caller.call("host_library", {})
    assert (failed["failed"], failed["msg"].startswith("what is brought is known on the controller")) == (True, True)


def test_options_that_are_wrong_or_mean_something_on_the_host_are_for_the_module_that_is_sent(there: Path) -> None:
    caller = Caller(there, python=sys.executable)
    for given in ({"roots": "/nowhere"}, {"root": "~/npufleet"}, {"root": ["a", {}], "x": 1}):
        assert caller.call("model_store_info", given) is None
    assert caller.commands == []


def test_a_module_that_is_called_imports_nothing_of_ansible(there: Path) -> None:
    names = [path.stem for path in (ROOT / "plugins/modules").glob("*.py") if "def run(module: request.Module)" in path.read_text()]
    assert len(names) >= 14
    own = "ansible_collections.npufleet.triton.plugins.modules."
    program = (
        f"import importlib, sys; sys.path.insert(0, {str(there / library.version())!r}); "
        f"[importlib.import_module({own!r} + name) for name in {names!r}]; "
        "print([name for name in sys.modules if name.split('.')[0] == 'ansible'])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_secret_is_in_nothing_that_a_host_answers(there: Path) -> None:
    handed = {"_request": {"step": {}, "secrets": {"token": "s3cret-word"}}}
    given = {"sha256": [], "root": "/nowhere", **handed}
    said = json.dumps({"msg": "found s3cret-word", "list": ["s3cret-word"]})
    answer = Caller(there, f"{on_host.CALLED}\n{said}").call("model_blobs", given)
    assert answer == {"msg": "found ********", "list": ["VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"]}
    silent = Caller(there, on_host.CALLED)
    silent.output_errors = "Traceback: s3cret-word"
    assert "s3cret-word" not in json.dumps(silent.call("model_blobs", given))


def test_a_warning_of_a_module_that_is_called_is_in_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    module = request.Called({"options": {"_request": {"a": 1}, "b": 2}, "check_mode": True, "diff": False})
    assert (module.check_mode, module._diff, request.received(module, {})) == (True, False, {"a": 1, "b": 2})
    module.warn("first")
    with pytest.raises(SystemExit) as ended:
        module.exit_json(changed=True, warnings=["second"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {"changed": True, "warnings": ["first", "second"]}
    with pytest.raises(SystemExit) as ended:
        request.Called({"options": {}, "check_mode": False, "diff": True}).fail_json("no", back="x")
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out) == {"failed": True, "msg": "no", "back": "x"}


def test_python_is_the_systems_or_the_one_that_is_named(there: Path) -> None:
    for named, command in (("auto_silent", "/usr/bin/python3"), ("{{ 'py' }}", "{{ 'py' }}"), ("/opt/py", "/opt/py")):
        caller = Caller(there, "", python=named)
        assert caller.call("host_state", {}) is None
        assert caller.commands[0][0].split(" -IS ")[0] == f"A=b {command}"


def test_a_host_without_it_has_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "HOME", str(tmp_path / "none"))
    assert Caller(tmp_path, python=sys.executable).call("host_state", {}) is None
    caller = Caller(tmp_path, pipelines=False)
    assert caller.call("host_state", {}) is None and caller.commands == []


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ('motd {"a": 1}\n' + on_host.CALLED + '\n\n{"changed": false}\n', {"changed": False}),
        (on_host.CALLED + '\n{"changed": {"x": "}"}}bye', {"changed": {"x": "}"}}),
        ('{"changed": false}', None),
        (
            on_host.CALLED + "\nsegfault",
            {"failed": True, "msg": "host_state ended with 1 and without an answer", "module_stderr": "its last words"},
        ),
        (
            on_host.CALLED + "\n[1]}",
            {"failed": True, "msg": "host_state ended with 1 and without an answer", "module_stderr": "its last words"},
        ),
    ],
)
def test_what_a_host_says_is_an_answer_or_is_told(there: Path, said: str, answer: Any) -> None:
    assert Caller(there, said).call("host_state", {}) == answer


# How its calls end


@pytest.mark.parametrize(
    ("body", "code", "out", "errors"),
    [
        ("module.exit_json(said='all')", 0, '{"said": "all"}', ""),
        ("module.fail_json(msg='no')", 1, '{"failed": true, "msg": "no"}', ""),
        ("return", 1, "", ""),
        ("raise SystemExit", 0, "", ""),
        ("raise SystemExit(75)", 75, "", ""),
        ("print('a word'); raise SystemExit(75)", 75, "a word", ""),
        ("raise SystemExit('words')", 1, "", "words"),
        ("raise ValueError('odd')", 1, "", "ValueError: odd"),
        ("print('told' * 50000); module.exit_json()", 0, "told", ""),
    ],
)
def test_a_call_ends_with_its_module_and_leaves_nothing_untold(tmp_path: Path, body: str, code: int, out: str, errors: str) -> None:
    room = tmp_path / "ansible_collections/npufleet/triton/plugins"
    shutil.copytree(ROOT / "plugins/module_utils", room / "module_utils")
    (room / "modules").mkdir()
    (room / "modules/words.py").write_text(f"def run(module):\n    {body}\n")
    (tmp_path / "__main__.py").write_text(f"from {library.MAIN} import main\nmain()\n")
    told = json.dumps({"options": {}, "check_mode": False, "diff": False})
    command = [sys.executable, "-IS", tmp_path, "call", "words"]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert done.stdout.startswith(on_host.CALLED) and out in done.stdout
    assert errors in done.stderr and bool(done.stderr) == bool(errors)
    assert len(done.stdout) > 200000 or "50000" not in body
