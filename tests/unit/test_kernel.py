"""Locks that nobody else can open, a clock that does not step, and directory trees of any depth."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock, locks, trees
from ansible_collections.npufleet.triton.plugins.module_utils.support import readers
from helpers import ROOT

DEEP = 1200


def deep(top: Path, levels: int = DEEP, name: str = "d") -> None:
    """A directory of so many levels, with a file and a link in each. It may be too deep for any path."""
    here = os.getcwd()
    top.mkdir(parents=True)
    os.chdir(top)
    try:
        for _level in range(levels):
            Path("file").write_bytes(b"12345")
            Path("link").symlink_to("/etc")
            Path(name).mkdir()
            os.chdir(name)
    finally:
        os.chdir(here)


# Locks


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("before", [None, 0o644, 0o666, 0o000])
def test_a_lock_file_is_for_its_owner_alone(tmp_path: Path, umask: int, before: int | None) -> None:
    path = tmp_path / "lock"
    if before is not None:
        path.touch()
        path.chmod(before)
    old = os.umask(umask)
    try:
        with locks.open_lock(str(path)) as lock:
            assert path.stat().st_mode & 0o777 == 0o600
            assert locks.take(lock, time.monotonic())
    finally:
        os.umask(old)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)], ids=["pipe", "directory", "link"]
)
def test_what_is_no_lock_file_is_refused_and_closed_once(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "lock")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as refused:
        locks.open_lock(str(tmp_path / "lock"))
    # A descriptor that is closed again may be that of another thread by then
    assert refused.value.errno != errno.EBADF
    assert os.listdir("/proc/self/fd") == before
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_file_is_never_wider_than_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made wider, and corrected, can be opened in between."""
    made: list[int] = []
    real = os.open

    def seen(path: Any, *given: Any, **more: Any) -> int:
        handle = real(path, *given, **more)
        made.append(os.fstat(handle).st_mode & 0o777)
        return handle

    old = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", seen)
        locks.open_lock(str(tmp_path / "lock")).close()
    finally:
        os.umask(old)
    assert made == [0o600]


def test_a_link_is_no_lock_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(mode=0o644)
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        locks.open_lock(str(tmp_path / "lock"))
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o644


def test_the_lock_of_a_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "lock").touch(mode=0o644)
    with store.locked(str(tmp_path), time.monotonic()):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


FLOCKS = [path for path in sorted(ROOT.glob("roles/*/tasks/**/*.yml")) if "flock --" in path.read_text()]


def test_tasks_that_lock_are_known() -> None:
    assert [path.name for path in FLOCKS] == ["remove_probe.yml"]


@pytest.mark.parametrize("before", [None, 0o644])
@pytest.mark.parametrize("path", FLOCKS, ids=lambda path: path.name)
def test_a_task_that_locks_leaves_the_file_for_root_alone(tmp_path: Path, path: Path, before: int | None) -> None:
    (shell,) = [task["ansible.builtin.shell"] for task in yaml.safe_load(path.read_text()) if "flock --" in str(task)]
    (there,) = set(re.findall(r"/run/[\w.-]+", shell))
    lock = tmp_path / "lock"
    if before is not None:
        lock.touch()
        lock.chmod(before)
    command = re.sub(r"\{\{.*?\}\}", "5", shell).replace(there, str(lock)).replace("--wait 900", "--wait 1")
    subprocess.run(["sh", "-c", "umask 0000; " + command], check=True)
    assert lock.stat().st_mode & 0o777 == 0o600
    with locks.open_lock(str(lock)) as held:
        assert locks.take(held, time.monotonic())
        busy = subprocess.run(["sh", "-c", command.replace("--wait 5", "--wait 0")], capture_output=True, text=True, check=False)
    assert busy.returncode == 1 and "expected its end" in busy.stderr


# The clock


def test_seconds_since_a_mark_do_not_follow_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = clock.mark()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    seconds = clock.since(moment)
    assert seconds is not None and 0 <= seconds < 60
    assert clock.age(moment, 1e9) < 60


@pytest.mark.parametrize(
    "moment",
    [{}, {"boot": "another", "uptime": 1.0}, {"boot": clock.boot(), "uptime": "1"}, {"boot": clock.boot(), "uptime": True}],
)
def test_what_is_no_mark_of_this_boot_has_no_age(moment: dict[str, Any]) -> None:
    assert clock.since(moment) is None


def test_a_mark_of_the_future_has_no_age() -> None:
    assert clock.since({**clock.mark(), "uptime": clock.uptime() + 3600}) is None


def test_what_was_before_this_boot_is_at_least_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"boot": "another", "uptime": 5.0}
    assert clock.age(before, time.time() - 1e9) >= 1e9
    # The clock was wrong then, or is now
    assert clock.age(before, time.time() + 1e9) == pytest.approx(clock.uptime(), abs=60)
    # Without a mark the time of day is all there is
    assert clock.age({}, time.time() + 1e9) == 0
    assert clock.age({}, time.time() - 100) == pytest.approx(100, abs=60)


def test_a_process_started_before_now() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = clock.process_started(process.pid)
        assert started is not None and clock.process_started(os.getpid()) <= started <= clock.uptime()  # type: ignore[operator]
        process.communicate(b"\n")
    assert clock.process_started(process.pid) is None


# Trees


@pytest.mark.parametrize(("levels", "name"), [(DEEP, "d"), (3 * DEEP, "d"), (60, "x" * 200)])
def test_a_tree_of_any_depth_is_removed_and_counted(tmp_path: Path, levels: int, name: str) -> None:
    deep(tmp_path / "tree", levels, name)
    assert trees.remove(str(tmp_path / "tree")) == 5 * levels
    assert os.listdir(tmp_path) == []
    assert Path("/etc").is_dir()


def test_whatever_is_at_a_path_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("123")
    (tmp_path / "link").symlink_to("kept")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("1234")
    assert [trees.remove(str(tmp_path / name)) for name in ("link", "pipe", "file", "nothing")] == [0, 0, 4, 0]
    assert (tmp_path / "kept" / "file").read_text() == "123"


def test_a_tree_that_grows_all_the_time_does_not_keep_it_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    monkeypatch.setattr(trees, "MAX_ENTRIES", 20)
    for number in range(100):
        (tmp_path / "tree" / str(number)).mkdir()
    with pytest.raises(OSError, match="Run again"):
        trees.remove(str(tmp_path / "tree"))
    monkeypatch.setattr(trees, "MAX_ENTRIES", 1000)
    trees.remove(str(tmp_path / "tree"))
    assert os.listdir(tmp_path) == []


def test_a_walk_is_that_of_os_walk(tmp_path: Path) -> None:
    for path in ("b/c/1", "b/2", "a/3", "4"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    for follow in (False, True):
        theirs = sorted((place, sorted(names), sorted(files)) for place, names, files in os.walk(tmp_path, followlinks=follow))
        assert sorted(trees.walk(str(tmp_path), follow)) == theirs
    pruned = []
    for place, names, _files in trees.walk(str(tmp_path)):
        pruned.append(os.path.relpath(place, tmp_path))
        names[:] = [name for name in names if name != "c"]
    assert pruned == [".", "a", "b"]
    assert list(trees.walk(str(tmp_path / "nothing"))) == []


def test_a_walk_ends_in_any_tree(tmp_path: Path) -> None:
    deep(tmp_path / "tree")
    (tmp_path / "tree" / "round").symlink_to(tmp_path / "tree")
    places = [place for place, _names, _files in trees.walk(str(tmp_path / "tree"))]
    assert len(places) == trees.MAX_DEPTH + 1
    *_others, (_place, names, files) = trees.walk(str(tmp_path / "tree"))
    assert (names, files) == ([], ["d", "file", "link"]), "what is too deep is an entry like any other"
    assert len(readers.list_tree(str(tmp_path)).splitlines()) > trees.MAX_DEPTH
    assert trees.remove(str(tmp_path / "tree")) == 5 * DEEP
