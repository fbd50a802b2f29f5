"""Answers of HAProxy as typed rows: recorded ones of 2.6 and 3.0, and answers of a socket that lies, hangs or never ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, runtime
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BalancerError, Runtime, StateRow
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer
from helpers import FIXTURES

VERSIONS = ["2.6", "3.0"]
# Recorded with npu1 drained at the weight 10, and two requests in flight on npu2; the old worker has two more.
STATES = [
    StateRow("npufleet_http", "npu1", 2, 8, 10, 100),
    StateRow("npufleet_http", "npu2", 2, 0, 100, 100),
    StateRow("npufleet_grpc", "npu1", 2, 16, 10, 100),
    StateRow("npufleet_grpc", "npu2", 2, 0, 100, 100),
]


def recorded(version: str, name: str) -> str:
    return (FIXTURES / "haproxy" / version / f"{name}.txt").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_tables_become_rows(version: str) -> None:
    assert runtime.parse_state(recorded(version, "servers_state")) == STATES
    rows = runtime.parse_stat(recorded(version, "stat"))
    assert [(row.backend, row.name) for row in rows] == [(row.backend, row.name) for row in STATES]
    assert [row.status for row in rows] == ["DRAIN", "UP", "DRAIN", "UP"]
    assert sum(row.in_flight for row in rows) == 2
    assert sum(row.counters["responses_4xx"] for row in rows) == 1
    assert sum(row.counters["requests"] for row in rows) == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_processes_and_sessions_are_read(version: str) -> None:
    info = runtime.parse_info(recorded(version, "info"), 1000.0)
    assert info.version.startswith(version + ".") and info.pid > 1 and 990 < info.started < 1000
    (old,) = runtime.parse_old_workers(recorded(version, "proc"))
    assert old not in (info.pid, 0)
    assert sum(row.in_flight for row in runtime.parse_stat(recorded(version, "old_stat"))) == 2
    sessions = [runtime.parse_sessions(recorded(version, "old_sess"), name) for name in ("npu1", "npu2", "npu")]
    assert [len(found) for found in sessions[:2]] == sorted([len(found) for found in sessions[:2]]) and sum(map(len, sessions)) == 2
    assert all(session.startswith("0x") for found in sessions for session in found)


def test_a_text_of_a_server_does_not_shift_the_columns() -> None:
    """The reason of a failed check is chosen by the server: it may have quotes, commas and line breaks."""
    lines = recorded("2.6", "stat").split("\n")
    header = lines[0].split(",")
    for number, line in enumerate(lines):
        if line.startswith("npufleet_http,npu1,"):
            fields = line.split(",")
            fields[header.index("last_chk")] = '"a ""b"", c,\nnpufleet_http,npu9,0,0"'
            lines[number] = ",".join(fields)
    assert runtime.parse_stat("\n".join(lines)) == runtime.parse_stat(recorded("2.6", "stat"))


def edited(name: str, old: str, new: str) -> str:
    text = recorded("2.6", name)
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (runtime.parse_stat, "", "`show stat` has no column # pxname"),
        (runtime.parse_stat, "Unknown command\n", "`show stat` has no column # pxname: Unknown command"),
        (runtime.parse_stat, edited("stat", ",scur,", ",gone,"), "`show stat` has no column scur"),
        (runtime.parse_stat, edited("stat", "npufleet_http,npu1,0,", "npufleet_http,npu1,"), "expected"),
        (runtime.parse_stat, edited("stat", "npufleet_http,npu1,0,", "npufleet_http,npu1,-1,"), "has '-1', expected a number"),
        (runtime.parse_stat, edited("stat", "npufleet_http,npu1,0,", f"npufleet_http,npu1,{'9' * 19},"), "expected a number"),
        (
            runtime.parse_stat,
            edited("stat", "npufleet_http,npu1,", "npufleet_http,np;u1,"),
            "'np;u1', expected the name of a server",
        ),
        (runtime.parse_stat, edited("stat", "npufleet_http,npu1,", f"npufleet_http,{'x' * 200_000},"), "not a table: field larger"),
        (runtime.parse_stat, recorded("2.6", "stat") + "x\n" * 20_000, "expected"),
        (runtime.parse_state, "", "expected a table of version 1"),
        (runtime.parse_state, edited("servers_state", "1\n#", "2\n#"), "expected a table of version 1"),
        (runtime.parse_state, edited("servers_state", "srv_admin_state", "x"), "has no column srv_admin_state"),
        (runtime.parse_state, edited("servers_state", "npufleet_http 1 npu1 127.0.0.1 2 8", "npufleet_http 1 npu1 ::1 2 x"), "'x'"),
        (
            runtime.parse_state,
            "1\n# be_name srv_name srv_op_state srv_admin_state srv_uweight srv_iweight\nx y\n",
            "a row of 2 fields",
        ),
        (runtime.parse_old_workers, "", "expected its processes"),
        (runtime.parse_old_workers, "#<PID>\n# old workers\nx worker 1\n", "'x', expected a number"),
        (runtime.parse_old_workers, "#<PID>\n# old workers\n" + "7 worker 1\n" * 101, "has 101 old workers, expected at most 100"),
        (lambda text: runtime.parse_info(text, 0.0), "Name: HAProxy\n", "has no Pid"),
        (lambda text: runtime.parse_info(text, 0.0), "Pid: x\nVersion: 1\nUptime_sec: 0\n", "'x', expected a number"),
    ],
)
def test_damaged_answers_are_refused(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(BalancerError) as refused:
        parse(text)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300


def test_rows_of_other_backends_are_ignored() -> None:
    assert runtime.parse_stat(edited("stat", "npufleet_grpc,", "other,"))[-1].backend == "npufleet_http"
    assert runtime.parse_state(edited("servers_state", "npufleet_grpc", "other")) == STATES[:2]


# The socket


@contextmanager
def lying(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[Runtime]:
    """A socket whose answers `serve` sends, on any number of connections, and a client of it with a limit of a second."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _address = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(4096)
                        serve(connection)
                    except OSError:
                        pass

        threading.Thread(target=accept, daemon=True).start()
        yield Runtime(str(path), seconds=1.0)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_socket_that_hangs_ends_at_the_time_limit(tmp_path: Path) -> None:
    ended = threading.Event()
    with lying(tmp_path / "s", lambda _connection: ended.wait(20) and None) as client:
        began = time.monotonic()
        with pytest.raises(BalancerError, match=r"did not answer `show info` on .*/s within 1 s"):
            client.command("show info")
        assert time.monotonic() - began < 5
        ended.set()


def test_a_socket_that_drips_ends_at_the_time_limit(tmp_path: Path) -> None:
    def drip(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    with lying(tmp_path / "s", drip) as client, pytest.raises(BalancerError, match="did not answer `show info`"):
        client.command("show info")


def test_a_worker_that_just_ends_is_asked_until_the_master_has_noticed_it(tmp_path: Path) -> None:
    answers = iter([b"Can't connect to the target CLI!\n", b"Can't find the target PID matching the prefix '@!7'.\n"])
    with lying(tmp_path / "s", lambda connection: connection.sendall(next(answers))) as client:
        assert runtime.is_gone(client.command("show stat"))
    assert list(answers) == []


def test_a_worker_that_never_answers_ends_at_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "RETRY_SECONDS", 0.3)
    message = "the master does not reach the worker"
    with (
        lying(tmp_path / "s", lambda connection: connection.sendall(b"Can't connect to the target CLI!\n")) as client,
        pytest.raises(BalancerError, match=message),
    ):
        client.command("show stat")


def test_an_endless_answer_ends_at_the_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MAX_BYTES", 1 << 20)

    def pour(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x" * 65536)

    with lying(tmp_path / "s", pour) as client, pytest.raises(BalancerError, match=r"/s has more than 1048576 bytes"):
        client.command("show info")


def test_a_connection_without_an_answer_is_retried(tmp_path: Path) -> None:
    """HAProxy closes connections while it reloads."""
    answers = [b"", b"", b"fine\n"]
    with lying(tmp_path / "s", lambda connection: connection.sendall(answers.pop(0))) as client:
        assert client.command("show info") == "fine\n"
    assert answers == []


def test_garbage_is_reported_as_one_printable_line(tmp_path: Path) -> None:
    garbage = b"\x1b[31m\xff\xfe\0 npu\n" * 2000
    with lying(tmp_path / "s", lambda connection: connection.sendall(garbage)) as client:
        for read in (
            Balancer(client.path, "none").servers,
            lambda: client.execute("set x"),
            lambda: drains.save_state("/none", client),
        ):
            with pytest.raises(BalancerError) as refused:
                read()
            assert str(refused.value).isprintable() and len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ["", "show stat\nshutdown", "a;b", "a  b", " a", "\u200b", "a\tb", "x\0"])
def test_a_command_is_one_line_of_plain_words(text: str) -> None:
    with pytest.raises(BalancerError, match="is not one line of plain words"):
        Runtime("/none").command(text)


def test_backends_that_differ_are_refused(tmp_path: Path) -> None:
    answers = {
        b"show servers state\n": edited("servers_state", "5 npufleet_grpc 2 npu2", "5 npufleet_grpc 2 npu3"),
        b"show stat\n": recorded("2.6", "stat"),
    }

    class Recorded(Runtime):
        def command(self, text: str) -> str:
            return answers[text.encode() + b"\n"]

    balancer = Balancer("none", "none")
    balancer.runtime = Recorded("none")
    with pytest.raises(BalancerError, match=r"the server npu[23] is not in the backend npufleet_(http|grpc), expected it in"):
        balancer.servers()
