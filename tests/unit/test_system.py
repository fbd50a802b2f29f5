"""The readers that concerns share: commands, packages, the engine's socket, HTTP."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import system
from ansible_collections.npufleet.triton.plugins.module_utils.engine import docker
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api
from helpers import http_server, unix_server

# Commands and files


def test_run_gives_code_and_output() -> None:
    assert system.run("sh", "-c", "echo ' out '; echo err >&2") == (0, "out")
    assert system.run("sh", "-c", "echo err >&2; exit 3") == (3, "err")
    assert system.run("npufleet-no-such-command") == (127, "npufleet-no-such-command is not installed")


def test_run_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(command: list[str], timeout: float) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(system, "capture", stuck)
    assert system.run("rbln-stat", "-j") == (124, "rbln-stat did not answer within 60 s")


def test_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"caf\xe9\n")
    assert system.read_text(str(tmp_path / "file")) == "caf�\n"
    assert system.read_text(str(tmp_path / "missing")) is None
    assert system.read_text(str(tmp_path)) is None


@pytest.fixture
def dpkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """How dpkg-query was called, of a database below `tmp_path`."""
    rows = [
        "rebellions\t1.2.92\thold\tinstalled",
        "libc6:amd64\t2.36-9\tinstall\tinstalled",
        "docker.io\t20.10.24\tdeinstall\tconfig-files",
        "rsync\t\tunknown\tnot-installed",
        "rebellions-dkms\t3.2\tinstall\thalf-configured",
        "dpkg-query: error: something else that it says",
    ]
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(system, "run", lambda *command: asked.append(command) or (0, "\n".join(rows)))
    monkeypatch.setattr(system, "DPKG", str(tmp_path))
    (tmp_path / "updates").mkdir()
    (tmp_path / "status").write_text("first")
    system._CACHE.clear()
    return asked


def test_packages_are_those_that_are_installed(dpkg: list[tuple[str, ...]]) -> None:
    held = {"rebellions": {"version": "1.2.92", "held": True}}
    assert system.installed_packages(["rebellions", "libc6", "docker.io", "rsync", "linux-image-6.1"]) == {
        **held,
        "libc6": {"version": "2.36-9", "held": False},
    }
    assert system.installed_packages(["rebellions*", "lib"]) == held
    assert system.installed_packages(["rebellions-*"], broken=True) == {"rebellions-dkms": {"version": None, "held": False}}


def test_dpkg_is_asked_once_until_its_database_changes(dpkg: list[tuple[str, ...]], tmp_path: Path) -> None:
    for _time in range(2):
        system.installed_packages(["rebellions"])
    assert len(dpkg) == 1
    (tmp_path / "updates/0001").touch()
    system.installed_packages(["rebellions"])
    assert len(dpkg) == 2
    (tmp_path / "updates/0001").unlink()
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").rename(tmp_path / "status")
    system.installed_packages(["rebellions"])
    assert len(dpkg) == 3
    # Where its changes cannot be seen, nothing is kept
    (tmp_path / "updates").rmdir()
    for _time in range(2):
        system.installed_packages(["rebellions"])
    assert len(dpkg) == 5


def test_what_dpkg_could_not_say_is_asked_again(dpkg: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(system, "run", lambda *_command: asked.append(1) or (124, "dpkg-query did not answer within 60 s"))
    assert (system.installed_packages(["rebellions"]), system.installed_packages(["rebellions"]), len(asked)) == ({}, {}, 2)


def test_no_packages_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "run", lambda *_command: pytest.fail("asked"))
    assert system.installed_packages([]) == {}


SHOWN = """Id=npufleet-watchdog.service
ActiveState=active
UnitFileState=enabled

ActiveState=inactive
Id=npufleet-probe.timer
UnitFileState=

Id=another.service
ActiveState=active
UnitFileState=enabled"""


def test_units_are_all_told_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(system, "run", lambda *command: asked.append(command) or (0, SHOWN))
    assert system.unit_states("npufleet-watchdog.service", "npufleet-probe.timer", "gone.service") == {
        "npufleet-watchdog.service": {"enabled": True, "active": "active"},
        "npufleet-probe.timer": {"enabled": False, "active": "inactive"},
        "gone.service": {"enabled": False, "active": "unknown"},
    }
    assert len(asked) == 1


def test_units_where_there_is_no_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "run", lambda *_command: (127, "systemctl is not installed"))
    assert system.unit_states("a.service") == {"a.service": {"enabled": False, "active": "unknown"}}


def test_no_units_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "run", lambda *_command: pytest.fail("asked"))
    assert system.unit_states() == {}


# The engine


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="npf") as directory:
        yield Path(directory) / "docker.sock"


def test_engine_answers_over_its_socket(place: Path) -> None:
    with unix_server(place, {"GET /version": (200, {"Version": "20.10.24"})}) as server:
        engine = docker.Engine(str(place))
        assert engine.get("/version") == {"Version": "20.10.24"}
        assert engine.get("/containers/triton/json") is None
        assert engine.is_running()
    assert server.asked == ["GET /version", "GET /containers/triton/json", "GET /version"]


def test_engine_that_refuses_is_an_error_with_its_words(place: Path) -> None:
    with unix_server(place, {"GET /info": (500, {"message": "driver failed"})}):
        with pytest.raises(OSError, match=r"the engine answered 500: .*driver failed"):
            docker.Engine(str(place)).get("/info")
        assert not docker.Engine(str(place)).is_running()


def test_engine_that_is_not_there_is_an_error(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        docker.Engine(str(place)).get("/info")
    assert not docker.Engine(str(place)).is_running()


def _talk(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", b"not HTTP\r\n\r\n"])
def test_engine_that_breaks_off_is_an_error(place: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place))
        listener.listen(1)
        thread = threading.Thread(target=_talk, args=(listener, answer))
        thread.start()
        with pytest.raises(OSError):
            docker.Engine(str(place)).get("/info")
        thread.join()


def test_engine_that_hangs_is_given_up(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place))
        listener.listen(1)
        with pytest.raises(OSError):
            docker.Engine(str(place), timeout=0.05).get("/info")


# HTTP


def test_http_json() -> None:
    answers = {
        "GET /json": (200, [{"name": "digits"}]),
        "POST /empty": (200, b""),
        "GET /words": (503, b"Service Unavailable"),
        "GET /long": (500, b"x" * 600),
    }
    with http_server(answers) as server:

        def ask(method: str, resource: str) -> tuple[int, Any]:
            return http_api.http_json("127.0.0.1", server.port, method, resource)

        assert ask("GET", "/json") == (200, [{"name": "digits"}])
        assert ask("POST", "/empty") == (200, None)
        assert ask("GET", "/words") == (503, "Service Unavailable")
        assert ask("GET", "/long") == (500, "x" * 500)
        assert ask("GET", "/missing") == (404, {"error": "nothing at GET /missing"})
    status, reason = ask("GET", "/json")
    assert status == 0
    assert "refused" in reason


def test_a_program_is_found_on_the_path_and_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("a/tool", 0o755), ("b/tool", 0o755), ("a/notes", 0o644), ("b/other", 0o755)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(mode)
    (tmp_path / "a/other").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/missing::{tmp_path}/a")
    assert system.which("tool") == shutil.which("tool") == f"{tmp_path}/a/tool"
    assert system.which("tool", f"{tmp_path}/b") == f"{tmp_path}/a/tool"
    assert system.which("other") is None and system.which("other", f"{tmp_path}/b") == f"{tmp_path}/b/other"
    assert system.which("notes") is None
    monkeypatch.delenv("PATH")
    assert system.which("sh") in ("/bin/sh", "/usr/bin/sh")


def test_free_bytes_are_those_of_users(tmp_path: Path) -> None:
    device, free = system.free_space(str(tmp_path / "not/there/yet"))
    assert device == tmp_path.stat().st_dev
    assert abs(free - shutil.disk_usage(tmp_path).free) < 1 << 30


def test_a_command_that_prints_without_end_is_killed(tmp_path: Path) -> None:
    for script in ("yes", "yes >&2"):
        with pytest.raises(system.OutputTooLarge, match="sh printed more than 1000000 bytes"):
            system.capture(["sh", "-c", f"{script}; touch {tmp_path}/ended"], 60, size=1_000_000)
    assert not (tmp_path / "ended").exists()


def test_a_command_that_does_not_end_is_killed_whatever_it_closes() -> None:
    for script in ("sleep 60", "exec >&- 2>&-; sleep 60", "while :; do echo x; sleep 0.05; done"):
        with pytest.raises(subprocess.TimeoutExpired):
            system.capture(["sh", "-c", script], 0.5)


def test_a_command_takes_what_it_is_given_and_says_both() -> None:
    given = "x" * 3_000_000
    done = system.capture(["sh", "-c", "cat; echo err >&2; exit 3"], 60, given)
    assert (done.returncode, done.stdout, done.stderr) == (3, given, "err\n")
    # One that does not read
    assert system.capture(["sh", "-c", "echo out"], 60, given).stdout == "out\n"


def test_output_beyond_the_limit_is_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "MAX_OUTPUT", 1000)
    assert system.run("yes") == (126, "yes printed more than 1000 bytes")
