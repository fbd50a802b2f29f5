"""The library that hosts keep: made of what runs there, brought as a whole or not at all, and called in a module's place."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as on_host
from ansible_collections.npufleet.triton.plugins.modules import host_lease, host_library
from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from helpers import ROOT, ansible_playbook, run_module


def packed(version: str, said: str = "") -> bytes:
    """A small library that says something."""
    return archive.pack_program({"npufleet_words.py": f"def main():\n    print({version + said!r})\n"}, "npufleet_words")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "library"
    monkeypatch.setattr(on_host, "HOME", str(path))
    monkeypatch.setattr(on_host, "FORMER", str(tmp_path / "former.pyz"))
    return path


def activated(version: str) -> tuple[bool, bool]:
    """Install a version and make it the current one. Return whether each of the two changed something."""
    return on_host.install(version, packed(version)), on_host.activate(version)


def says() -> str:
    done = subprocess.run([sys.executable, "-I", on_host.path()], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# On a host


def test_a_version_is_brought_once_and_the_one_before_it_stays(home: Path, tmp_path: Path) -> None:
    (tmp_path / "former.pyz").touch()
    assert activated("one") == (True, True)
    assert (says(), os.readlink(home / "current")) == ("one", "one")
    assert not (tmp_path / "former.pyz").exists()
    assert activated("one") == (False, False)
    assert activated("two") == (True, True)
    assert activated("three") == (True, True)
    assert says() == "three"
    # The processes that run the version before go on.
    assert sorted(path.name for path in home.iterdir()) == ["current", "three", "two"]
    # A controller with the version before comes in between.
    assert activated("two") == (False, True)
    assert says() == "two"
    assert sorted(path.name for path in home.iterdir()) == ["current", "three", "two"]


def test_a_query_installs_a_version_and_leaves_the_current_one(home: Path) -> None:
    activated("one")
    assert on_host.install("two", packed("two")) is True
    assert says() == "one"
    assert sorted(path.name for path in home.iterdir()) == ["current", "one", "two"]


def test_two_runs_install_a_version_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = on_host._unpack

    def later(archive: bytes, draft: str, target: str) -> None:
        monkeypatch.setattr(on_host, "_unpack", unpack)
        assert on_host.install("one", packed("one")) is True
        unpack(archive, draft, target)

    monkeypatch.setattr(on_host, "_unpack", later)
    assert on_host.install("one", packed("one")) is False
    assert sorted(path.name for path in home.iterdir()) == ["one"]


def test_unfinished_directories_of_killed_runs_are_removed(home: Path) -> None:
    activated("one")
    for name, age in ((".two.old", 2 * on_host.DRAFT_SECONDS), (".three.new", 0.0)):
        (home / name).mkdir()
        os.utime(home / name, (time.time() - age, time.time() - age))
    activated("two")
    assert sorted(path.name for path in home.iterdir()) == [".three.new", "current", "one", "two"]


def test_a_directory_that_a_run_unpacks_stays_whatever_the_clock_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activated("one")
    unpack, seen = on_host._unpack, []

    def meanwhile(content: bytes, draft: str, target: str) -> None:
        monkeypatch.setattr(on_host, "_unpack", unpack)
        os.utime(draft, (1, 1))
        activated("two")
        seen.append(os.path.isdir(draft))
        unpack(content, draft, target)

    monkeypatch.setattr(on_host, "_unpack", meanwhile)
    activated("three")
    assert seen == [True]
    assert sorted(path.name for path in home.iterdir()) == ["current", "three", "two"]


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_it_is_compiled_and_is_for_every_user_whatever_the_umask(home: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        activated("one")
    finally:
        os.umask(before)
    (bytecode,) = (home / "one/__pycache__").glob("npufleet_words.*.pyc")
    assert {path.stat().st_mode & 0o777 for path in (home.parent, home, home / "one", bytecode.parent)} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in (home / "one/npufleet_words.py", bytecode)} == {0o644}
    (home / "one/npufleet_words.py").write_text("raise SystemExit('compiled again')")
    assert says() == "one"


def test_one_that_breaks_off_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activated("one")
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *_arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        on_host.install("two", packed("two"))
    assert says() == "one"
    assert sorted(path.name for path in home.iterdir()) == ["current", "one"]
    monkeypatch.setattr(os, "rename", rename)
    assert activated("two") == (True, True)
    assert says() == "two"
    assert sorted(path.name for path in home.iterdir()) == ["current", "one", "two"]


def test_a_link_that_broke_off_is_made_again(home: Path) -> None:
    activated("one")
    (home / "current").unlink()
    (home / ".current.new").symlink_to("nowhere")
    assert on_host.activate("one") is True
    assert says() == "one"


def test_a_lease_reports_a_version_that_is_gone(home: Path) -> None:
    taken = {"root": str(home.parent), "run": "a/1/1", "by": "a@b", "host": "npu1", "version": "one"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_lease.lease, "WATCHDOG", str(home.parent / "watchdog"))
        result = run_module(host_lease, taken)
    assert result["failed"] and "one is missing, expected the code of the collection for this run" in result["msg"]


@pytest.mark.parametrize("check", [False, True])
def test_the_module_installs_it_in_check_mode_too(home: Path, check: bool) -> None:
    archive_ = base64.b64encode(packed("one")).decode()
    assert run_module(host_library, {"version": "one", "archive": archive_}, check=check)["changed"] is True
    assert run_module(host_library, {"version": "one", "archive": archive_}, check=check)["changed"] is False
    assert [path.name for path in home.iterdir()] == ["one"]


@pytest.mark.parametrize("archive_", ["e30=", "no base64!"])
def test_an_archive_that_cannot_be_unpacked_is_reported(home: Path, archive_: str) -> None:
    result = run_module(host_library, {"version": "one", "archive": archive_})
    assert result["failed"] and result["msg"].startswith(f"{home}/one cannot be installed: ")
    assert list(home.glob("*")) == []


WATCHES = """
import sys
sys.path.append({collections!r})
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
def main():
    library.lock_version(sys.path[0])
    print("runs", flush=True)
    sys.stdin.read()
    import npufleet_later
    print(npufleet_later.version)
"""


def test_a_process_goes_on_with_the_version_that_it_runs(home: Path) -> None:
    """Runs of other versions move the link and remove what is older, while the process has more to import."""
    files = {
        "npufleet_watches.py": WATCHES.format(collections=str(ROOT / "collections")),
        "npufleet_later.py": "version = 'one'\n",
    }
    on_host.install("one", archive.pack_program(files, "npufleet_watches"))
    on_host.activate("one")
    command = [sys.executable, "-I", on_host.path()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "runs\n"
        activated("two"), activated("three")
        assert sorted(path.name for path in home.iterdir()) == ["current", "one", "three", "two"]
        assert process.communicate()[0] == "one\n"
    activated("four")
    assert sorted(path.name for path in home.iterdir()) == ["current", "four", "three"]


def test_each_program_has_a_digest_of_its_own_sources(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_host.install(library.version(), library.packed(str(tmp_path)))
    on_host.activate(library.version())
    digests = json.loads(Path(on_host.programs_file()).read_text())
    assert digests == {name: archive.digest(entry) for name, entry in on_host.ENTRIES.items()}
    assert len(set(digests.values())) == len(on_host.ENTRIES)
    files = archive._collect("watch.watchdog", {})
    names = {name.partition("module_utils/")[2] for name in files}
    assert {"watch/judge.py", "change/lease.py", "triton/stuck_load.py", "exchange.py"} <= names
    # A change of another part of the library restarts no watchdog.
    assert not {"commands.py", "watch/probe.py", "change/detached.py", "concerns/server/__init__.py", "store/blobs.py"} & names
    monkeypatch.setattr(archive, "_collect", lambda _entry, _files: {**files, "x.py": ""})
    assert archive.digest.__wrapped__("watch.watchdog") != digests["watchdog"]


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
    files = library._host_sources()
    assert {"ansible_collections/npufleet/triton/plugins/modules/host_state.py"} <= set(files)
    monkeypatch.setattr(library, "_host_sources", lambda: {**files, "x.py": ""})
    versions.add(library.version.__wrapped__())
    assert len(versions) == 2 and all(len(version) == 16 for version in versions)


def test_it_is_packed_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = library.packed(str(tmp_path))
    monkeypatch.setattr(archive, "pack_program", lambda *_arguments: 1 / 0)
    assert library.packed(str(tmp_path)) == first
    assert len(list(tmp_path.iterdir())) == 1


# The call of a module


class Caller(FleetAction):
    """An action whose host returns these results, one for each module that Ansible runs on it."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self._display = SimpleNamespace(display=lambda line: self.lines.append(line))
        self.results = list(results)
        self.lines: list[str] = []
        self.ran: list[tuple[str, dict[str, Any]]] = []

    def act(self, host: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def call(self, module: str, options: dict[str, Any]) -> Any:
        return self.call_module(module, options, {"inventory_hostname": "npu1", "ansible_syslog_facility": "LOG_LOCAL0"})

    def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert (task_vars["ansible_no_target_syslog"], task_vars["ansible_syslog_facility"]) == (True, "LOG_USER")
        self.ran.append((module_name, {**module_args}))
        # As Ansible does it
        module_args["_ansible_check_mode"] = False
        return self.results.pop(0)


MISSING = {"library_missing": True, "changed": False}


def test_a_module_runs_from_the_library_of_this_version() -> None:
    caller = Caller({"changed": False, "models": {}})
    assert caller.call("host_lease", {}) == {"changed": False, "models": {}}
    ((name, arguments),) = caller.ran
    assert (name, arguments["module"]) == ("npufleet.triton.library_call", "host_lease")
    assert arguments["library"] == f"{on_host.HOME}/{library.version()}"
    assert arguments["parameters"]["root"] == "/var/lib/npufleet"
    assert caller.lines == []


def test_a_missing_library_is_installed_and_the_module_called_again() -> None:
    caller = Caller({**MISSING, "as_root": True}, {"changed": True}, {"changed": False})
    assert caller.call("host_lease", {}) == {"changed": False}
    assert [name.rpartition(".")[2] for name, _arguments in caller.ran] == ["library_call", "host_library", "library_call"]
    assert caller.ran[1][1]["version"] == library.version()
    assert base64.b64decode(caller.ran[1][1]["archive"]).startswith(b"PK")
    assert caller.lines == [f"npu1: installed the library {on_host.HOME}/{library.version()}"]


def test_ansible_sends_the_module_to_an_account_that_is_not_root() -> None:
    caller = Caller({**MISSING, "as_root": False}, {"changed": False})
    assert caller.call("host_lease", {"root": "/srv"}) == {"changed": False}
    assert caller.ran[1] == ("npufleet.triton.host_lease", {"root": "/srv"})


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([{"changed": True}, {**MISSING, "as_root": True}], "is missing, expected the library that was just installed"),
        ([{"failed": True, "msg": "no room\x1b"}], r"npu1: no room\\x1b"),
        ([{"failed": True}], "npu1: the library cannot be installed"),
    ],
)
def test_a_library_that_cannot_be_installed_fails_the_host(results: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(AnsibleActionFail, match=reason):
        Caller({**MISSING, "as_root": True}, *results).call("host_lease", {})


def test_a_secret_is_in_no_result_of_a_host() -> None:
    options = {"sha256": [], "root": "/nowhere", "_request": {"step": {}, "secrets": {"token": "s3cret-word"}}}
    result = {"msg": "found s3cret-word", "list": ["s3cret-word"], "module_stderr": "Traceback: s3cret-word"}
    assert Caller(result).call("model_blobs", options) == {
        "msg": "found ********",
        "list": ["VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"],
        "module_stderr": "Traceback: ********",
    }


def test_a_password_that_is_part_of_the_interpreter_s_path_leaves_the_path() -> None:
    """Ansible calls the host with it from then on, and keeps it for later runs."""
    options = {"sha256": [], "root": "/nowhere", "_request": {"step": {}, "secrets": {"token": "python"}}}
    facts = {"discovered_interpreter_python": "/usr/bin/python3.11"}
    assert Caller({"changed": False, "ansible_facts": {**facts, "other": "python"}}).call("model_blobs", options) == {
        "changed": False,
        "ansible_facts": facts,
    }


def test_modules_of_the_library_import_nothing_of_ansible(hosts_library: Path) -> None:
    names = [path.stem for path in (ROOT / "plugins/modules").glob("*.py") if "def run(module: request.Module)" in path.read_text()]
    assert len(names) >= 13
    own = "ansible_collections.npufleet.triton.plugins.modules."
    program = (
        f"import importlib, sys; sys.path.insert(0, {str(hosts_library / library.version())!r}); "
        f"[importlib.import_module({own!r} + name) for name in {names!r}]; "
        "print([name for name in sys.modules if name.split('.')[0] == 'ansible'])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_warning_of_a_module_in_the_library_is_in_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    module = request.LibraryModule({"_request": {"a": 1}, "b": 2}, check_mode=True, diff=False)
    assert (module.check_mode, module._diff, request.merge_request(module, {})) == (True, False, {"a": 1, "b": 2})
    module.warn("first")
    with pytest.raises(SystemExit) as ended:
        module.exit_json(changed=True, warnings=["second"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {"changed": True, "warnings": ["first", "second"]}
    with pytest.raises(SystemExit) as ended:
        request.LibraryModule({}, check_mode=False, diff=True).fail_json("no", back="x")
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out) == {"failed": True, "msg": "no", "back": "x"}


# The module that carries its arguments, run by Ansible

HOSTILE = {
    "triple": 'a"""b',
    "quotes": "'\"`''\"\"",
    "ends in quotes": '""',
    "backslashes": "\\ \\\\ \\n \\u0041 \\",
    "lines": "one\ntwo\r\n\ttab\0nul",
    "marker": "<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>",
    "other markers": "<<INCLUDE_ANSIBLE_MODULE_COMPLEX_ARGS>> <<ANSIBLE_VERSION>> <<SELINUX_SPECIAL_FILESYSTEMS>>",
    "facility": "syslog.LOG_USER",
    "code": '""")); raise SystemExit(3) #',
    "template": "{{ 7 * 7 }}",
    "Korean": "\ubaa8\ub378 \uc11c\ubc84",
    "emoji": "\U0001f680",
    "line separator": "\u2028",
}


@pytest.mark.parametrize("pipelining", [True, False])
def test_values_reach_a_module_as_they_are(tmp_path: Path, pipelining: bool) -> None:
    room = tmp_path / "library/ansible_collections/npufleet/triton/plugins"
    shutil.copytree(ROOT / "plugins/module_utils", room / "module_utils")
    (room / "modules").mkdir()
    (room / "modules/echo.py").write_text("def run(module):\n    module.exit_json(given=module.params, check=module.check_mode)\n")
    # Files beside the script, or in the working directory, are not those that it imports.
    for place in (tmp_path, tmp_path / "remote"):
        place.mkdir(exist_ok=True)
        for name in ("__future__", "importlib", "json", "typing", "re", "enum"):
            (place / f"{name}.py").write_text("raise SystemExit('imported the wrong file')")
    call = {"library": str(tmp_path / "library"), "module": "echo", "parameters": {"values": HOSTILE}}
    tasks = [
        {"npufleet.triton.library_call": "{{ call }}", "register": "result"},
        {
            "ansible.builtin.copy": {"content": "{{ result | to_json }}", "dest": str(tmp_path / "result.json")},
            "check_mode": False,
            # Ansible's own modules import from the working directory.
            "environment": {"PYTHONSAFEPATH": "1"},
        },
    ]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.json").write_text(json.dumps([play]))
    (tmp_path / "vars.json").write_text(json.dumps({"call": marked_unsafe(call)}))
    settings = {"ANSIBLE_PIPELINING": str(pipelining), "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote")}
    python = ["-e", f"ansible_python_interpreter={sys.executable}", "-e", "ansible_syslog_facility=LOG_USER"]
    arguments = ["-i", "localhost,", *python, "-e", f"@{tmp_path}/vars.json", "--check", tmp_path / "play.json"]
    done = ansible_playbook(tmp_path, *arguments, cwd=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(ROOT / "collections"), **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["given"]["values"], result["check"]) == (HOSTILE, True)


def marked_unsafe(value: Any) -> Any:
    """Return the value for a file of variables: none of its texts is a template."""
    if isinstance(value, dict):
        return {key: marked_unsafe(entry) for key, entry in value.items()}
    return {"__ansible_unsafe": value}


def test_the_module_is_python_before_ansible_fills_it_in() -> None:
    source = (ROOT / "plugins/modules/library_call.py").read_text()
    ast.parse(source)
    assert source.count("<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>") == 1
    # Ansible would take it for a module that it packs.
    assert not re.search(r"^\s*(from|import) ansible", source, re.MULTILINE)


@pytest.mark.parametrize(
    ("body", "code", "out", "errors"),
    [
        ("module.exit_json(said='all')", 0, '{"said": "all"}', ""),
        ("module.fail_json(msg='no')", 1, '{"failed": true, "msg": "no"}', ""),
        ("raise ValueError('odd')", 1, "", "ValueError: odd"),
        ("print('told' * 50000); module.exit_json()", 0, "told", ""),
    ],
)
def test_a_call_ends_with_its_module(tmp_path: Path, body: str, code: int, out: str, errors: str) -> None:
    room = tmp_path / "ansible_collections/npufleet/triton/plugins"
    shutil.copytree(ROOT / "plugins/module_utils", room / "module_utils")
    (room / "modules").mkdir()
    (room / "modules/words.py").write_text(f"def run(module):\n    {body}\n")
    call = json.dumps({"library": str(tmp_path), "module": "words", "parameters": {}})
    source = (ROOT / "plugins/modules/library_call.py").read_text().replace("<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>", call)
    done = subprocess.run([sys.executable], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert out in done.stdout
    assert errors in done.stderr and bool(done.stderr) == bool(errors)
    assert len(done.stdout) > 200000 or "50000" not in body


def test_files_beside_the_module_are_not_imported(tmp_path: Path) -> None:
    """Ansible copies the file to a directory that the connecting user can write to, if pipelining is off."""
    for name in ("importlib", "json", "typing", "re", "enum"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported the wrong file')")
    call = json.dumps({"library": str(tmp_path / "missing"), "module": "host_state", "parameters": {}})
    source = (ROOT / "plugins/modules/library_call.py").read_text().replace("<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>", call)
    (tmp_path / "library_call.py").write_text(source)
    done = subprocess.run([sys.executable, tmp_path / "library_call.py"], cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["library_missing"] is True


@pytest.mark.parametrize("words", [[], ["resume"], ["call", "host_state"], ["change", "/a", "/b"]])
def test_an_unknown_command_of_the_library_prints_its_commands(hosts_library: Path, words: list[str]) -> None:
    command = [sys.executable, "-IS", hosts_library / library.version(), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "resume ROOT" in done.stderr) == (2, True)
