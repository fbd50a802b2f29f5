"""Loads in which nothing can happen any more: the rule over samples, what /proc shows of real processes, and who is ended."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.stubs import NAME
from ansible_collections.npufleet.triton.plugins.module_utils.triton.stuck_load import (
    Guard,
    History,
    Process,
    Sample,
    Wait,
    lasting_waits,
)
from helpers import until

TICKS = 100.0
LIMIT = 15.0
WAIT = Wait(Process(7, 100), Process(5, 90), 6, "m_0", "/opt/m/1/model.py")
OTHER = Wait(Process(8, 101), Process(5, 90), 9, "m_1", "/opt/m/1/model.py")


def samples(*looks: tuple[float, dict[Wait, int]]) -> list[Sample]:
    return [Sample(at, waits) for at, waits in looks]


def steady(seconds: float, every: float = 1.0, **waits: Any) -> list[Sample]:
    """A look every so many seconds, all with the same waits."""
    return [Sample(number * every, dict(waits.get("waits", {WAIT: 3}))) for number in range(int(seconds / every) + 1)]


# The rule


def test_a_wait_that_lasts_for_the_limit_is_found() -> None:
    assert lasting_waits(steady(LIMIT), LIMIT, TICKS) == [WAIT]
    assert lasting_waits(steady(LIMIT - 1), LIMIT, TICKS) == []


def test_every_wait_of_a_server_is_found_at_once() -> None:
    assert lasting_waits(steady(LIMIT, waits={WAIT: 3, OTHER: 4}), LIMIT, TICKS) == [WAIT, OTHER]


@pytest.mark.parametrize("every", [LIMIT, 60.0])
def test_few_looks_prove_nothing_however_far_apart(every: float) -> None:
    looks = steady(every * 10, every)
    assert [lasting_waits(looks[:count], LIMIT, TICKS) for count in (0, 1, 2, 3)] == [[], [], [], []]
    assert lasting_waits(looks[:4], LIMIT, TICKS) == [WAIT]


def test_a_single_look_without_the_wait_begins_it_again() -> None:
    looks = steady(LIMIT * 2)
    looks[-3] = Sample(looks[-3].at, {})
    assert lasting_waits(looks, LIMIT, TICKS) == []


@pytest.mark.parametrize(
    "changed",
    [
        WAIT._replace(stub=Process(7, 200)),
        WAIT._replace(server=Process(5, 91)),
        WAIT._replace(thread=10),
        WAIT._replace(instance="m_1"),
    ],
    ids=["another process under its number", "another server", "another thread", "another instance"],
)
def test_a_wait_of_others_is_another_wait(changed: Wait) -> None:
    looks = [*steady(LIMIT - 1), Sample(LIMIT, {changed: 3})]
    assert lasting_waits(looks, LIMIT, TICKS) == []


def test_a_thread_that_works_does_not_wait() -> None:
    # 5 % of a processor
    looks = [Sample(float(second), {WAIT: second * 5}) for second in range(60)]
    assert lasting_waits(looks, LIMIT, TICKS) == []


def test_looking_for_messages_is_no_work() -> None:
    looks = [Sample(float(second), {WAIT: second // 10}) for second in range(60)]
    assert lasting_waits(looks, LIMIT, TICKS) == [WAIT]


def test_work_before_the_limit_does_not_count_against_a_wait() -> None:
    looks = [Sample(float(second), {WAIT: min(second, 10) * 100}) for second in range(60)]
    assert lasting_waits(looks[: 10 + int(LIMIT)], LIMIT, TICKS) == []
    assert lasting_waits(looks, LIMIT, TICKS) == [WAIT]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_zero_finds_nothing(limit: float) -> None:
    assert lasting_waits(steady(100), limit, TICKS) == []


def test_a_history_needs_no_more_samples_than_the_rule() -> None:
    history = History(LIMIT)
    found = [history.add(sample) for sample in steady(1000)]
    assert found[: int(LIMIT)] == [[]] * int(LIMIT)
    assert all(entry == [WAIT] for entry in found[int(LIMIT) :])
    assert len(history._samples) <= LIMIT + 1
    assert history.add(Sample(1001, {})) == []
    assert history._samples == []


def test_a_history_with_rare_looks_still_finds_a_wait() -> None:
    history = History(LIMIT)
    assert [history.add(sample) for sample in steady(240, 60)] == [[], [], [], [WAIT], [WAIT]]


# What /proc shows. `server` stands for tritonserver and `model.py` for its stub: the same system calls on the same kind of memory.

SERVER = """
import os, subprocess, sys, threading, time
children = [subprocess.Popen([sys.argv[1], *words.split("|")], executable=sys.executable) for words in sys.argv[3:]]
if sys.argv[2] == "wait4":
    for child in children:
        threading.Thread(target=os.waitpid, args=(child.pid, 0)).start()
print(*(child.pid for child in children), flush=True)
while True:
    time.sleep(3600)
"""
STUB = """
import ctypes, mmap, os, platform, sys, threading, time
libc = ctypes.CDLL(None)
libc.prctl(15, b"triton_python_backend_stub")
region, doing = sys.argv[1], sys.argv[2]
with open("/dev/shm/" + region, "r+b") as source:
    memory = mmap.mmap(source.fileno(), 4096)
if doing == "private":
    memory = mmap.mmap(-1, 4096)
def wait():
    place = ctypes.c_int.from_buffer(memory, 128)
    number = {"x86_64": 202, "aarch64": 98}[platform.machine()]
    while True:
        libc.syscall(number, ctypes.byref(place), 0, 0, None, None, 0)
def work():
    while True:
        pass
if doing == "beside":
    threading.Thread(target=wait, daemon=True).start()
if doing == "busy threads":
    threading.Thread(target=work, daemon=True).start()
if doing in ("message", "private", "busy threads"):
    wait()
elif doing == "works":
    work()
else:
    time.sleep(3600)
"""
needs_numbers = pytest.mark.skipif(platform.machine() not in stuck_load.CALL_NUMBERS, reason="system calls have other numbers here")


class Played:
    """A server with stubs: `serve` starts it, once."""

    def __init__(self, directory: Path) -> None:
        self.code = directory / "model.py"
        self.code.write_text(STUB)
        self.region = f"npufleet_test_{os.getpid()}"
        Path("/dev/shm", self.region).write_bytes(bytes(4096))
        self.server: subprocess.Popen[str] | None = None

    def serve(self, waits: str, *stubs: str) -> list[int]:
        """The processes of stubs that each do something, below a server that `waits` for them by this system call."""
        words = [f"{self.code}|{self.region}|{doing}|m_{number}|DEFAULT" for number, doing in enumerate(stubs)]
        line = [sys.executable, "-c", SERVER, "stub", waits, *words]
        self.server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.server.stdout
        return [int(word) for word in self.server.stdout.readline().split()]

    @property
    def pid(self) -> int:
        assert self.server
        return self.server.pid

    def found(self) -> list[int]:
        return sorted(wait.stub.pid for wait in stuck_load.take_sample(self.pid).waits)

    def end(self) -> None:
        if self.server:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.communicate()
        Path("/dev/shm", self.region).unlink()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    found = Played(tmp_path)
    yield found
    found.end()


def names(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def settled(stubs: list[int], state: str = "S") -> None:
    """Until each stub has its name, and its main thread this state."""
    until(lambda: all(names(pid) == NAME for pid in stubs))
    until(lambda: all(f") {state} " in Path(f"/proc/{pid}/stat").read_text() for pid in stubs))


@needs_numbers
def test_both_ends_of_a_wait_are_seen(played: Played) -> None:
    (stub,) = played.serve("wait4", "message")
    until(lambda: played.found() == [stub])
    ((wait, used),) = stuck_load.take_sample(played.pid).waits.items()
    assert (wait.stub.pid, wait.server.pid, wait.instance, wait.code) == (stub, played.pid, "m_0", str(played.code))
    assert used < 1000
    assert str(wait) == f"process {stub} of m_0"
    # Of an ancestor it is seen as well, and of a stranger it is not
    assert wait in stuck_load.take_sample(os.getpid()).waits
    assert stuck_load.take_sample(stub).waits == {}


@needs_numbers
@pytest.mark.parametrize(
    ("waits", "doing"),
    [
        ("sleep", "message"),
        ("wait4", "sleeps"),
        ("wait4", "works"),
        ("wait4", "beside"),
        ("wait4", "private"),
    ],
    ids=[
        "an idle stub of a served model",
        "an initialize that sleeps",
        "an initialize that works",
        "a thread beside an initialize",
        "a lock of the model's own",
    ],
)
def test_one_end_alone_is_no_wait(played: Played, waits: str, doing: str) -> None:
    stubs = played.serve(waits, doing, "message")
    settled(stubs[:1], "R" if doing == "works" else "S")
    if waits == "wait4":
        # What the reader can see here, it sees
        until(lambda: stubs[1] in played.found())
    assert stubs[0] not in played.found()


@needs_numbers
def test_a_stub_that_is_stopped_does_not_wait(played: Played) -> None:
    (stub,) = played.serve("wait4", "message")
    until(lambda: played.found() == [stub])
    os.kill(stub, signal.SIGSTOP)
    until(lambda: played.found() == [])
    os.kill(stub, signal.SIGCONT)
    until(lambda: played.found() == [stub])


@needs_numbers
def test_threads_of_the_model_that_work_do_not_hide_a_wait(played: Played) -> None:
    (stub,) = played.serve("wait4", "busy threads")
    with Guard(lambda: played.pid, 0.5, 0.1) as guard:
        until(lambda: [wait.stub.pid for wait in guard.ended_loads] == [stub])


@needs_numbers
def test_a_guard_ends_the_stubs_that_wait_and_no_other(played: Played) -> None:
    stuck, working, also = played.serve("wait4", "message", "sleeps", "message")
    settled([stuck, working, also])
    with Guard(lambda: played.pid, 0.5, 0.1) as guard:
        until(lambda: {wait.stub.pid for wait in guard.ended_loads} == {stuck, also})
        until(lambda: not Path(f"/proc/{stuck}").exists() and not Path(f"/proc/{also}").exists())
    assert names(working) == NAME
    assert played.server and played.server.poll() is None


@needs_numbers
@pytest.mark.parametrize(("root", "limit"), [(None, 0.5), ("other", 0.5), ("server", 0.0)])
def test_a_guard_without_its_server_or_limit_ends_nothing(played: Played, root: str | None, limit: float) -> None:
    (stub,) = played.serve("wait4", "message")
    until(lambda: played.found() == [stub])
    of = {None: None, "other": stub, "server": played.pid}[root]
    with Guard(lambda: of, limit, 0.05) as guard:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            assert played.found() == [stub]
            time.sleep(0.1)
    assert guard.ended_loads == []


@needs_numbers
def test_only_the_very_process_that_was_seen_is_ended(played: Played) -> None:
    (stub,) = played.serve("wait4", "message")
    until(lambda: played.found() == [stub])
    (wait,) = stuck_load.take_sample(played.pid).waits
    for changed in (
        wait._replace(stub=Process(stub, wait.stub.started + 1)),
        wait._replace(server=Process(os.getpid(), wait.server.started)),
        wait._replace(stub=Process(os.getpid(), wait.stub.started)),
    ):
        assert stuck_load.end(changed, played.pid) is False
    assert played.found() == [stub]
    assert stuck_load.end(wait, played.pid) is True
    until(lambda: not Path(f"/proc/{stub}").exists())
    assert stuck_load.end(wait, played.pid) is False


def test_a_machine_with_unknown_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_load, "CALL_NUMBERS", {})
    assert stuck_load.take_sample(1).waits == {}


def test_what_no_process_would_write_is_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with brackets, an empty command line, a call that may not be seen, and processes that are their own ancestors."""
    stat = "{pid} ({name}) S {parent} " + " ".join(["0"] * 30)
    for pid, name, parent in ((1, "a) S 0 (b", 0), (5, "tritonserver", 6), (6, "x", 5), (7, NAME, 5), (8, "", 7)):
        place = tmp_path / str(pid)
        (place / "task" / str(pid)).mkdir(parents=True)
        for file in (place / "stat", place / "task" / str(pid) / "stat"):
            file.write_text(stat.format(pid=pid, name=name, parent=parent))
        (place / "cmdline").write_bytes(b"")
        (place / "status").write_text(f"NSpid:\t{pid}\n")
        (place / "maps").write_text("no line of a map\n")
        (place / "task" / str(pid) / "syscall").write_text("61 0x7 0x0\n" if pid == 5 else "running\n")
    (tmp_path / "9").mkdir()
    monkeypatch.setattr(stuck_load, "PROC", str(tmp_path))
    assert stuck_load.take_sample(1).waits == {}
    assert stuck_load.take_sample(5).waits == {}
    assert stuck_load._stat("1") == stuck_load._Stat("a) S 0 (b", "S", 0, 0, 0)
