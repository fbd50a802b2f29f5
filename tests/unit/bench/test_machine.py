"""Processes, their memory and their processor time, read from this machine's own /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

import machine
import pytest

MIB = 2**20


def test_descendants_are_children_of_children_and_nobody_else() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout
        child = int(shell.stdout.readline())
        try:
            assert machine.descendants(shell.pid) == {shell.pid: os.getpid(), child: shell.pid}
        finally:
            os.kill(child, 15)


def test_memory_is_that_of_the_processes_without_what_they_share() -> None:
    program = """
import mmap
own = b"x" * (40 << 20)
shared = mmap.mmap(-1, 80 << 20)
for _mib in range(80):
    shared.write(b"x" * (1 << 20))
print(1, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        before, (mib, shm), after = used(Path("/dev/shm")), machine.memory(child.pid), used(Path("/dev/shm"))
        child.stdin.close()
    assert 40 < mib < 70
    # Other processes of this machine make and unlink there too.
    assert min(before, after) - 1 < shm < max(before, after) + 1


def used(path: Path) -> float:
    state = os.statvfs(path)
    return (state.f_blocks - state.f_bfree) * state.f_frsize / MIB


@pytest.mark.parametrize(
    ("groups", "file", "content", "seconds"),
    (
        ("3:cpuacct:/docker/abc\n0::/docker/abc\n", "cpuacct/docker/abc/cpuacct.usage", "1500000000\n", 1.5),
        ("3:cpu,cpuacct:/docker/abc\n", "cpu,cpuacct/docker/abc/cpuacct.usage", "1500000000\n", 1.5),
        ("0::/docker/abc\n", "docker/abc/cpu.stat", "usage_usec 2500000\nuser_usec 1\n", 2.5),
        ("0::/elsewhere\n", "docker/abc/cpu.stat", "usage_usec 2500000\n", None),
    ),
)
def test_processor_time_of_a_control_group_of_either_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, file: str, content: str, seconds: Optional[float]
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(content)
    (tmp_path / "cgroup").write_text(groups)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "cgroup").rename(tmp_path / "7/cgroup")
    assert machine.container_seconds(7) == seconds


def test_others_are_what_is_busy_and_not_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"time": 100.0, "busy": 50.0, "own": 20.0}
    monkeypatch.setattr(machine.Others, "_now", lambda _self: (now["time"], now["busy"], now["own"]))
    others = machine.Others(7)
    now.update(time=110.0, busy=67.0, own=32.0)
    assert others.cores() == 0.5
