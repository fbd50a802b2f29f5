"""Files of a host in one call: what differs is written as a whole, a link is never followed, and nothing is half refused."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.modules import host_files
from helpers import ansible_playbook, run_module


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def file(path: Path, content: bytes = b"served\n", bits: int = 0o644) -> dict[str, Any]:
    return {"path": str(path), "content": base64.b64encode(content).decode(), "mode": bits}


def asked(check: bool = False, **request: Any) -> dict[str, Any]:
    return run_module(host_files, {"_request": request, "_ansible_diff": True}, check)


def test_what_differs_is_written_and_a_second_call_changes_nothing(tmp_path: Path) -> None:
    place, unit = tmp_path / "etc", tmp_path / "etc/units/served.service"
    place.mkdir(mode=0o700)
    wanted = {"directories": [{"path": str(place), "mode": 0o755}], "files": [file(unit), file(place / "key", b"k", 0o600)]}
    told = asked(check=True, **wanted)
    assert (told["changed"], told["paths"]) == (True, [str(place), str(unit), str(place / "key")])
    assert (os.listdir(place), mode(place)) == ([], 0o700), "a check changes nothing"
    result = asked(**wanted)
    assert result["diff"] == told["diff"]
    assert result["diff"][1] == {"before_header": str(unit), "after_header": str(unit), "before": "", "after": "served\n"}
    assert (unit.read_text(), mode(unit), mode(place / "key"), mode(place), mode(unit.parent)) == (
        "served\n", 0o644, 0o600, 0o755, 0o755,
    )  # fmt: skip
    again = asked(**wanted)
    assert (again["changed"], again["paths"], again["diff"]) == (False, [], [])
    unit.chmod(0o666)
    (place / "key").write_text("another")
    result = asked(**wanted)
    assert result["paths"] == [str(unit), str(place / "key")]
    assert (mode(unit), (place / "key").read_text()) == (0o644, "k")
    assert sorted(os.listdir(place)) == ["key", "units"]


def test_a_directory_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    theirs.mkdir(mode=0o2775)
    theirs.chmod(0o2775)
    link.symlink_to(theirs)
    result = asked(directories=[{"path": str(theirs)}, {"path": str(link)}, {"path": str(tmp_path / "new/deep")}])
    assert result["paths"] == [str(tmp_path / "new/deep")]
    assert (mode(theirs), link.is_symlink(), mode(tmp_path / "new/deep")) == (0o2775, True, 0o755)


def test_a_directory_that_has_to_be_empty_is_made_anew_with_what_belongs_in_it(tmp_path: Path) -> None:
    place, outside = tmp_path / "build", tmp_path / "outside"
    wanted = {"directories": [{"path": str(place), "mode": 0o700, "empty": True}]}
    assert asked(**wanted)["diff"][0]["before"] == ""
    assert asked(**wanted)["changed"] is False
    (place / "deep").mkdir()
    (place / "deep/left").write_text("of a run before")
    told = asked(check=True, **wanted)
    assert (told["paths"], (place / "deep/left").exists()) == ([str(place)], True)
    assert "mode 0700, 1 entries" in told["diff"][0]["before"]
    asked(**wanted, files=[file(place / "spec")])
    assert (os.listdir(place), mode(place)) == (["spec"], 0o700)
    # A run that was killed has left the very files that this one brings, and a directory
    (place / "wheels").mkdir()
    wheels = {"path": str(place / "wheels"), "mode": 0o700}
    result = asked(directories=[*wanted["directories"], wheels], files=[file(place / "spec")])
    assert result["paths"] == [str(place), str(place / "wheels"), str(place / "spec")]
    assert (sorted(os.listdir(place)), (place / "spec").read_text(), mode(place / "wheels")) == (
        ["spec", "wheels"],
        "served\n",
        0o700,
    )
    (place / "wheels").rmdir()
    place.chmod(0o777)
    (place / "spec").unlink()
    asked(**wanted)
    assert mode(place) == 0o700
    # Of whoever could write where it lies: what a link leads to is left alone
    place.rmdir()
    outside.mkdir()
    (outside / "theirs").write_text("theirs")
    place.symlink_to(outside)
    assert "a link of" in asked(**wanted)["diff"][0]["before"]
    assert (place.is_symlink(), os.listdir(place), os.listdir(outside)) == (False, [], ["theirs"])
    place.rmdir()
    place.write_text("a file")
    asked(**wanted)
    assert place.is_dir()


def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "config"
    outside.write_text("theirs")
    path.symlink_to(outside)
    left = tmp_path / ".config.abc.new"
    left.symlink_to(outside)
    os.utime(left, (1, 1), follow_symlinks=False)
    result = asked(files=[file(path)])
    assert "a link of" in result["diff"][0]["before"]
    assert (path.is_symlink(), path.read_text(), outside.read_text()) == (False, "served\n", "theirs")
    assert sorted(os.listdir(tmp_path)) == ["config", "outside"]


def test_two_runs_that_write_one_file_at_once_leave_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations host is held by nobody: another controller writes it all while this one has its draft."""
    path, replace = tmp_path / "config", os.replace

    def meanwhile(draft: str, place: str) -> None:
        monkeypatch.setattr(os, "replace", replace)
        assert asked(files=[file(path, b"theirs")])["changed"] is True
        replace(draft, place)

    monkeypatch.setattr(os, "replace", meanwhile)
    assert asked(files=[file(path, b"mine")])["changed"] is True
    assert (path.read_text(), os.listdir(tmp_path)) == ("mine", ["config"])


def test_what_is_in_the_way_is_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    result = asked(
        directories=[{"path": str(tmp_path / name), "mode": 0o755} for name in ("file", "nowhere")],
        files=[file(tmp_path / "good"), file(tmp_path / "directory"), file(tmp_path / "file/below")],
    )
    assert result["failed"] is True
    for words in (
        f"{tmp_path}/file is a file, expected a directory",
        f"{tmp_path}/nowhere is a broken link",
        f"{tmp_path}/directory is a directory, expected a file",
        f"{tmp_path}/file is not a directory, expected one for below",
    ):
        assert words in result["msg"]
    assert sorted(os.listdir(tmp_path)) == ["directory", "file", "nowhere"]


def test_what_is_to_be_absent_goes_and_a_link_goes_alone(tmp_path: Path) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    kept.mkdir()
    (kept / "data").write_text("theirs")
    (tmp_path / "link").symlink_to(kept)
    wanted = {"absent": [str(tmp_path / name) for name in ("tree", "link", "gone", "kept/data/below")]}
    assert asked(check=True, **wanted)["paths"] == [str(tree), str(tmp_path / "link")]
    assert tree.exists()
    assert asked(**wanted)["changed"] is True
    assert (sorted(os.listdir(tmp_path)), (kept / "data").read_text()) == (["kept"], "theirs")
    assert asked(**wanted)["changed"] is False


def test_what_is_no_text_is_told_by_its_size(tmp_path: Path) -> None:
    result = asked(files=[file(tmp_path / "raw", b"\xff\x00"), file(tmp_path / "long", b"x" * 70000)])
    assert [difference["after"] for difference in result["diff"]] == ["2 bytes that are not text\n", "70000 bytes\n"]


def test_it_is_for_the_controller_to_call() -> None:
    assert "Call it as npufleet.triton.host_files" in run_module(host_files, {})["msg"]


# From a playbook


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in ("backends/rbln/model.py", "backends/rbln/__pycache__/model.pyc", "backends/empty/.keep", "program.py"):
        (tmp_path / "play/files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "play/files" / name).write_text(name)
    return tmp_path / "play"


def played(play: Path, task: dict[str, Any], *options: str) -> Any:
    (play / "play.yml").write_text(
        json.dumps([{"hosts": "npu1", "gather_facts": False, "tasks": [{"npufleet.triton.host_files": task}]}])
    )
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (play / "hosts.json").write_text(json.dumps({"npu_hosts": {"hosts": {"npu1": variables}}}))
    return ansible_playbook(play, "-i", play / "hosts.json", play / "play.yml", *options)


def test_files_and_directories_of_the_controller_are_brought(sources: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    # A backend that the site has elsewhere
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/model.py").touch()
    (sources / "files/backends/linked").symlink_to(tmp_path / "theirs")
    task = {
        "directories": [{"path": f"{host}/none", "mode": "0750"}],
        "files": [
            {"path": f"{host}/program", "src": "program.py", "mode": "0755"},
            {"path": f"{host}/backends", "src": f"{sources}/files/backends"},
            # What a file holds may look like anything
            {"path": f"{host}/config.json", "content": '{"level": 1}'},
        ],
    }
    done = played(sources, task, "--check", "--diff")
    assert done.returncode == 0, done.stdout
    assert "changed=1" in done.stdout
    assert '+{"level": 1}' in done.stdout
    assert not host.exists()
    done = played(sources, task)
    assert done.returncode == 0, done.stdout
    found = sorted(str(path.relative_to(host)) for path in host.rglob("*") if path.is_file())
    assert found == ["backends/empty/.keep", "backends/linked/model.py", "backends/rbln/model.py", "config.json", "program"]
    assert (mode(host / "program"), mode(host / "none"), (host / "config.json").read_text()) == (0o755, 0o750, '{"level": 1}')
    assert "changed=0" in played(sources, task).stdout


def test_every_flaw_of_a_task_is_told_before_the_host_is_asked(sources: Path, tmp_path: Path) -> None:
    task = {
        "directories": [{"path": f"{tmp_path}/host", "mode": "u=rwx"}],
        "files": [
            {"path": f"{tmp_path}/host/a", "src": "gone.py"},
            {"path": f"{tmp_path}/host/b", "content": "b", "mode": "9"},
        ],
        "absent": ["~/.ssh"],
    }
    done = played(sources, task)
    assert done.returncode == 2
    for words in (
        "is 'u=rwx', expected octal digits",
        "is '9', expected octal digits",
        "gone.py",
        "~/.ssh is a relative path, expected an absolute one",
    ):
        assert words in done.stdout
    assert not (tmp_path / "host").exists()


# Units that read the files

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {calls}
[ "$1" = restart ] || exit 0
[ -f {place}/$2.fails ] && exit 1
grep -q good {file}
"""


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a unit that starts only with `good` in it, below a systemd that is a script."""
    programs, path = tmp_path / "bin", tmp_path / "etc/config.json"
    programs.mkdir()
    path.parent.mkdir()
    script = SYSTEMCTL.format(calls=tmp_path / "calls", place=tmp_path, file=path)
    journal = '#!/bin/sh\necho starting\necho "failed to start daemon: t0ken-secret for gelf is invalid"\n'
    for name, content in (("systemctl", script), ("journalctl", journal)):
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return path


def calls(unit: Path) -> list[str]:
    path = unit.parent.parent / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def test_units_are_restarted_when_a_file_differs(unit: Path) -> None:
    wanted = {"files": [file(unit, b'{"a": "good"}')], "restart": ["below.service", "engine.service"]}
    assert asked(check=True, **wanted)["restarted"] == []
    assert calls(unit) == []
    assert asked(**wanted)["restarted"] == ["below.service", "engine.service"]
    assert [call for call in calls(unit) if "re" in call] == [
        "daemon-reload",
        "reset-failed below.service",
        "restart below.service",
        "reset-failed engine.service",
        "restart engine.service",
    ]
    assert asked(**wanted)["restarted"] == []
    assert calls(unit) == []


def test_previous_files_are_restored_when_a_unit_does_not_start(unit: Path) -> None:
    new, link = unit.parent / "deep/new.conf", unit.parent / "link"
    unit.write_bytes(b'{"a": "good"}')
    unit.chmod(0o640)
    link.symlink_to("elsewhere")
    result = asked(
        files=[file(unit, b'{"token": "t0ken-secret", "log-driver": "gelf"}'), file(new), file(link, b"x")],
        restart=["engine.service"],
    )
    assert result["failed"] and result["restarted"] == ["engine.service"]
    assert result["msg"] == (
        "engine.service does not start (`journalctl --unit engine.service`): failed to start daemon: *** for gelf is invalid; the "
        "previous files are restored, and all units run again"
    )
    assert (unit.read_bytes(), mode(unit), new.exists(), os.readlink(link)) == (b'{"a": "good"}', 0o640, False, "elsewhere")
    assert calls(unit).count("restart engine.service") == 2
    # The first unit fails, the second one is not touched before the files are back
    (unit.parent.parent / "below.service.fails").touch()
    result = asked(files=[file(unit, b"{}")], restart=["below.service", "engine.service"])
    assert "after the previous files were restored, below.service does not start" in result["msg"]
    assert calls(unit).count("restart engine.service") == 0
    assert unit.read_bytes() == b'{"a": "good"}'


def test_previous_files_are_restored_when_a_later_file_cannot_be_written(unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.npufleet.triton.plugins.module_utils import host_files as subject

    unit.write_bytes(b"good")
    real = subject._write

    def full(entry: Any) -> None:
        if entry.path.endswith("later"):
            raise OSError(28, "No space left on device", entry.path)
        real(entry)

    monkeypatch.setattr(subject, "_write", full)
    result = asked(files=[file(unit, b"new"), file(unit.parent / "later")], restart=["engine.service"])
    assert "No space left on device" in result["msg"]
    assert (unit.read_bytes(), calls(unit)) == (b"good", [])


def test_a_file_that_its_reader_refuses_is_not_written(unit: Path) -> None:
    check = ["/bin/sh", "-c", 'grep -q good "$1" || { echo "$1: t0ken-secret is unknown" >&2; exit 3; }', "check", "%s"]
    files = [{**file(unit, b'{"key": "t0ken-secret"}'), "validate": check}, file(unit.parent / "other")]
    result = asked(files=files, restart=["engine.service"])
    assert result["msg"] == f"nothing was written:\n  - {unit}: /bin/sh refuses the new content: {unit}: *** is unknown"
    assert os.listdir(unit.parent) == [] and calls(unit) == []
    assert asked(files=[{**files[0], **file(unit, b"good")}])["changed"] is True
    gone = [{**file(unit, b"new"), "validate": ["npufleet-no-such-program", "%s"]}]
    assert "npufleet-no-such-program is not installed" in asked(files=gone)["msg"]


def test_a_file_has_the_group_that_it_is_to_have(tmp_path: Path) -> None:
    path = tmp_path / "key"
    group = os.getgroups()[-1] if os.geteuid() else 61100
    wanted = {**file(path, b"k", 0o640), "group": str(group)}
    assert asked(files=[wanted])["changed"] is True
    assert (path.stat().st_gid, mode(path)) == (group, 0o640)
    assert asked(files=[wanted])["changed"] is False
    assert asked(files=[{**wanted, "group": None}])["paths"] == [str(path)] or group == os.getegid()
    assert "is nobody-of-here, which does not exist" in asked(files=[{**wanted, "group": "nobody-of-here"}])["msg"]
