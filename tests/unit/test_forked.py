"""How the tests' own ansible-playbook is run and sends modules, and what it does not parse anew (tests/forked)."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import zipimport
from pathlib import Path

import forked
import forked_modules
import forked_parsed
import jinja2
import pytest
from ansible import constants
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.executor import module_common
from ansible.parsing import dataloader
from ansible.parsing.dataloader import DataLoader
from ansible.plugins import loader, strategy
from ansible.template import Templar, trust_as_template
from forked_modules import Compiled
from helpers import ROOT, ansible_playbook, until


@pytest.mark.parametrize(("magic", "taken"), [(importlib.util.MAGIC_NUMBER, "sample.pyc"), (b"\x00\x00\r\n", "sample.py")])
def test_a_host_of_this_python_takes_the_bytecode_and_any_other_the_source(
    magic: bytes, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiled, "HEADER", magic + Compiled.HEADER[len(magic) :])
    monkeypatch.setattr(Compiled, "store", forked_parsed.Kept(tmp_path / "kept"), raising=False)
    with Compiled(tmp_path / "sent.zip", "w") as sent:
        sent.writestr("sample.py", "ANSWER = 42\n")
        sent.writestr("notes.txt", "no code")
    assert sent.namelist() == ["sample.py", "sample.pyc", "notes.txt"]
    importer = zipimport.zipimporter(str(tmp_path / "sent.zip"))
    spec = importlib.util.spec_from_loader("sample", importer)
    assert spec
    sample = importlib.util.module_from_spec(spec)
    importer.exec_module(sample)
    assert (sample.ANSWER, Path(str(sample.__file__)).name) == (42, taken)


def test_a_source_is_compiled_once_for_all_archives_and_another_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiled, "store", forked_parsed.Kept(tmp_path / "kept"), raising=False)
    sent = []
    for number, source in enumerate(("ANSWER = 42\n", "ANSWER = 42\n", "ANSWER = 43\n")):
        with Compiled(tmp_path / f"{number}.zip", "w") as archive:
            archive.writestr("sample.py", source)
            sent.append(archive.read("sample.pyc"))
    assert sent[0] == sent[1] != sent[2]
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.parametrize(("collections", "shared"), [(ROOT / "collections", True), (Path("/elsewhere"), False)])
def test_a_module_is_packed_once_while_its_sources_are_the_same(
    collections: Path, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = []
    monkeypatch.setattr(module_common, "_find_module_utils", lambda **given: packed.append(given))
    monkeypatch.setattr(constants, "COLLECTIONS_PATHS", [str(collections)])
    forked_modules.pack_once(tmp_path / "kept")
    places = []
    for number, mtime in enumerate((1, 1, 2)):
        monkeypatch.setattr(forked_modules, "state", lambda _path, mtime=mtime: (7, mtime, 7))
        own = tmp_path / f"run-{number}"
        own.mkdir()
        monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(own))
        # The second finds what the first has made of it
        for _ in range(2):
            module_common._find_module_utils(module_name="stat")
        places.append(own.joinpath("ansiballz_cache").resolve())
    assert len(packed) == 6
    assert [place.parent == tmp_path / "kept" for place in places] == [shared] * 3
    assert (places[0] == places[1] != places[2]) is shared


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where templates are kept from now on to the end of the test."""
    for name in ("compile", "compile_expression"):
        monkeypatch.setattr(AnsibleEnvironment, name, getattr(AnsibleEnvironment, name))
    forked_parsed.keep_templates(forked_parsed.Kept(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_template_is_compiled_once_for_all_runs(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rendered() -> tuple[object, object]:
        templar = Templar(DataLoader(), variables={"number": 20, "word": trust_as_template("<{{ number }}>")})
        line = templar.template(trust_as_template("{% if number > 3 %}{{ number + 1 }}{% endif %}\n{{ word }}"))
        return line, templar.evaluate_expression(trust_as_template("number * 2"))

    assert rendered() == ("21<20>", 40)
    before = sorted(templates.iterdir())
    assert len(before) == 3
    # As in another run, which has all of them from there
    forked_parsed.keep_templates(forked_parsed.Kept(templates))
    monkeypatch.setattr(jinja2.Environment, "_generate", lambda *_given, **_more: pytest.fail("compiled again"))
    assert rendered() == ("21<20>", 40)
    assert sorted(templates.iterdir()) == before


def test_a_template_with_other_settings_is_another(templates: Path) -> None:
    templar = Templar(DataLoader(), variables={"number": 20})
    text = "[[ number ]] {{ number }}"
    assert templar.template(trust_as_template(text)) == "[[ number ]] 20"
    assert templar.template(trust_as_template(f"#jinja2: variable_start_string:'[[', variable_end_string:']]'\n{text}")) == (
        "20 {{ number }}"
    )
    assert len(list(templates.iterdir())) == 2


def test_what_does_not_compile_is_told_each_time(templates: Path) -> None:
    templar = Templar(DataLoader())
    for _ in range(2):
        with pytest.raises(Exception, match="Syntax error in template"):
            templar.template(trust_as_template("{{ number + }}"))
    assert list(templates.iterdir()) == []


def test_what_a_filter_is_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, look = [], loader.Jinja2Loader.get_with_context
    monkeypatch.setattr(loader.Jinja2Loader, "get_with_context", lambda self, name: looked.append(name) or look(self, name))
    monkeypatch.setattr(loader.PluginLoader, "_load_config_defs", loader.PluginLoader._load_config_defs)
    forked_parsed.look_once.__wrapped__()
    for word in ("one", "two"):
        templar = Templar(DataLoader(), variables={"word": word})
        assert templar.template(trust_as_template("{{ [word, word | upper] | join('-') }}")) == f"{word}-{word.upper()}"
    assert sorted(looked) == ["join", "upper"]


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document that has been parsed beforehand."""
    monkeypatch.setattr(DataLoader, "load_from_file", DataLoader.load_from_file)
    path = tmp_path / "tasks.yml"
    path.write_text("- name: Say it\n  debug:\n    msg: '{{ word }}'\n")
    forked_parsed.parse_documents([path])
    return path


@pytest.mark.parametrize("cache", ["all", "none"])
def test_a_document_that_a_run_changes_is_whole_when_it_is_read_again(cache: str, document: Path) -> None:
    loader = DataLoader()
    for _ in range(3):
        (task,) = loader.load_from_file(str(document), cache=cache, trusted_as_template=True)
        assert task == {"name": "Say it", "debug": {"msg": "{{ word }}"}}
        assert Templar(loader, variables={"word": "well"}).template(task["debug"]["msg"]) == "well"
        task["debug"].clear()


def test_a_document_that_has_changed_is_parsed_anew(document: Path) -> None:
    document.write_text("- name: Say more\n")
    assert DataLoader().load_from_file(str(document), trusted_as_template=True) == [{"name": "Say more"}]


def test_a_quick_copy_shares_nothing_that_may_be_changed(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "copy", dataloader.copy)
    forked_parsed.copy_quickly()
    loader = DataLoader()
    _taken, first = (loader.load_from_file(str(document), trusted_as_template=True) for _ in range(2))
    first[0]["debug"].clear()
    first[0]["more"] = True
    second = loader.load_from_file(str(document), trusted_as_template=True)
    assert second == [{"name": "Say it", "debug": {"msg": "{{ word }}"}}]
    assert type(first[0]) is type(second[0]) is not dict


BOOK = """
- name: Say what there is
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Say it
      ansible.builtin.debug:
        msg: "forked at '{{ lookup('env', 'FORKED_AT') }}', {{ lookup('pipe', said) }}"
    - name: Fail
      ansible.builtin.fail:
        msg: It is wanted
"""


def run_with(command: str, place: Path) -> subprocess.Popen[str]:
    """A command, in this directory, whose runs of ansible-playbook are forks."""
    (place / "book.yml").write_text(BOOK)
    environment = {**os.environ, "PATH": f"{ROOT}/tests/forked/bin:{os.environ['PATH']}"}
    asked = [sys.executable, forked.__file__, "with", "bash", "-c", command]
    return subprocess.Popen(asked, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_of(said: str) -> str:
    """A run of the book, whose shell says this."""
    return f"ansible-playbook -i localhost, -c local book.yml -e {shlex.quote(f'said={shlex.quote(said)}')}"


def test_a_command_has_its_runs_done_by_forks(tmp_path: Path) -> None:
    began = run_with(f"{run_of('pwd')}; echo ended with $?, $FORKED_AT", tmp_path)
    output = " ".join(began.communicate(timeout=60)[0].split())
    assert began.returncode == 0
    # Not what such a run starts itself
    assert f"forked at '', {tmp_path} " in output, output
    assert "It is wanted" in output
    assert "ended with 2, /" in output


MODULE = """
- name: Say whose child a module's own is
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Ask it
      ansible.builtin.command: sh -c 'tr "\\0" " " </proc/$PPID/cmdline'
      register: asked
      changed_when: false
    - name: Tell it
      ansible.builtin.debug:
        msg: "by {{ asked.stdout }}"
"""


def test_a_module_of_such_a_run_is_a_fork_too(tmp_path: Path) -> None:
    (tmp_path / "module.yml").write_text(MODULE)
    output = run_with("ansible-playbook module.yml", tmp_path).communicate(timeout=60)[0]
    assert re.search(rf"by {sys.executable} \S+forked.py host ", " ".join(output.split())), output


def test_a_run_ends_with_the_program_that_asked_for_it(tmp_path: Path) -> None:
    waits = "echo $PPID >run; until [ -e end ]; do sleep 0.05; done"
    began = run_with(f"{run_of(waits)} & echo $! >program; until [ -e end ]; do sleep 0.05; done", tmp_path)
    run, program = tmp_path / "run", tmp_path / "program"
    try:
        until(lambda: run.exists() and run.read_text().endswith("\n"))
        assert Path(f"/proc/{run.read_text().strip()}").exists()
        os.kill(int(program.read_text()), signal.SIGKILL)
        until(lambda: not Path(f"/proc/{run.read_text().strip()}").exists())
    finally:
        (tmp_path / "end").touch()
        began.communicate(timeout=60)


PROCESSES = """
- name: Say by which process
  hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: Where nothing waits
      ansible.builtin.debug:
        msg: "{{ inventory_hostname }} at once: {{ lookup('pipe', 'echo $PPID') }}"
    - name: Where something may wait
      ansible.builtin.command: echo {{ lookup('pipe', 'echo $PPID') }}
      register: waited
      changed_when: false
    - name: On one for all
      ansible.builtin.command: echo {{ lookup('pipe', 'echo $PPID') }}
      run_once: true
      register: once
      changed_when: false
    - name: Tell it
      ansible.builtin.debug:
        msg: "{{ inventory_hostname }} waited: {{ waited.stdout }} once: {{ once.stdout }}"
"""


def test_of_several_hosts_the_last_needs_no_process(tmp_path: Path) -> None:
    (tmp_path / "processes.yml").write_text(PROCESSES)
    output = run_with(
        f"ansible-playbook -i a,b,c, processes.yml -e ansible_python_interpreter={sys.executable}", tmp_path
    ).communicate(timeout=60)[0]
    said = {(host, what): int(number) for host, what, number in re.findall(r"(\w) (at once|waited): (\d+)", output)}
    assert len(said) == 6, output
    run = said["c", "waited"]
    assert {said[host, "at once"] for host in "abc"} == {run}
    assert len({run, said["a", "waited"], said["b", "waited"]}) == 3
    assert set(re.findall(r"once: (\d+)", output.partition("Tell it")[2])) == {str(run)}


def test_a_run_that_waits_is_woken_by_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "deque", strategy.deque)
    monkeypatch.setattr(strategy, "time", strategy.time)
    forked_modules.wait_for_results()
    results, woken = strategy.deque(), threading.Event()

    def wait() -> None:
        strategy.time.sleep(60)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not woken.wait(0.1)
    results.append("done")
    assert woken.wait(30)
    assert results.popleft() == "done"


def test_a_fork_has_what_lies_beside_its_inventory(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("word: well\n")
    (tmp_path / "hosts").write_text("localhost ansible_connection=local\n")
    (tmp_path / "book.yml").write_text(BOOK.replace("It is wanted", "All is {{ word }}"))
    for _ in range(2):
        run = ansible_playbook(tmp_path, "-i", tmp_path / "hosts", tmp_path / "book.yml", "-e", "said=true")
        assert "All is well" in run.stdout, run.stdout + run.stderr
