"""A container is replaced, put back and kept; killed between any two steps, the proven one is never lost and serves again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import container, lease, replacement
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from helpers import fleet, unix_server, until
from played_engine import Killed, PlayedEngine

SETTINGS = {"free_timeout": 1, "stop_timeout": 1, "ready_timeout": 5}
ME = lease.Holder("alice/1/1", "alice@ops1")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PlayedEngine:
    """A host whose proven container serves, and a new one that is made."""
    played = PlayedEngine()
    monkeypatch.setattr(container, "_is_ready", lambda _address, port, *_more: played.serving(str(port)) is not None)
    return played


def replace(engine: PlayedEngine, root: Path) -> list[str]:
    return container.replace(engine, str(root), ME, "triton", SETTINGS, {})


def put_back(engine: PlayedEngine, root: Path) -> str | None:
    return container.restore(engine, str(root), "triton", SETTINGS)


def test_the_new_one_serves_and_the_old_one_stays_until_it_is_proven(engine: PlayedEngine, tmp_path: Path) -> None:
    old, new = engine.add("triton"), engine.add("triton-next", "created")
    replace(engine, tmp_path)
    assert engine.serving() == new
    assert engine.names() == {"triton": "running", "triton-previous": "exited"}
    assert replacement.read(str(tmp_path))["phase"] == replacement.SWAPPED
    assert container.keep(engine, str(tmp_path), "triton") is True
    assert engine.names() == {"triton": "running"}
    assert old not in engine.containers
    assert replacement.read(str(tmp_path)) is None
    assert container.keep(engine, str(tmp_path), "triton") is False


@pytest.mark.parametrize(
    ("says", "asking", "why"),
    [
        ("""echo '{"contexts": [{"ctx_id": "1"}]}'""", 20, "the cards are still in use 0 s after"),
        ("exit 3", 20, "does not report who has the cards open \\(it ended with 3\\) 0 s after"),
        ("exec tail -f /dev/null", 0.2, "does not report who has the cards open \\(.* did not answer within"),
    ],
)
def test_a_new_one_is_not_started_where_the_cards_may_be_held(
    engine: PlayedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, asking: float, why: str
) -> None:
    monkeypatch.setattr(container, "TOOL_TIMEOUT", asking)
    tool = tmp_path / "rbln-stat"
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    old = engine.add("triton")
    engine.add("triton-next", "created")
    monkeypatch.setattr(container.vendor_tool, "TOOLS", (str(tool),))
    settings = {**SETTINGS, "free_timeout": 0}
    with pytest.raises(container.ContainerError, match=why):
        container.replace(engine, str(tmp_path / "store"), ME, "triton", settings, {})
    assert "running" not in engine.names().values()
    # What served before goes on, free or not
    assert container.restore(engine, str(tmp_path / "store"), "triton", settings)
    assert engine.serving() == old


def test_a_first_container_has_nothing_to_go_back_to(engine: PlayedEngine, tmp_path: Path) -> None:
    new = engine.add("triton-next", "created", works=False)
    replace(engine, tmp_path)
    assert put_back(engine, tmp_path) is None
    assert list(engine.containers) == [new]


def test_a_first_container_that_was_never_started_is_nobodys_who_broke_off(engine: PlayedEngine, tmp_path: Path) -> None:
    """Or the next run would lose its lease to the watchdog, which finds a replacement that broke off."""
    engine.add("triton-next", "created")
    engine.kill_at = 1
    with suppress(Killed):
        replace(engine, tmp_path)
    engine.kill_at = None
    assert replacement.interrupted(str(tmp_path)) is True
    assert replacement.interrupted(str(tmp_path), "bob/2/2") is False
    assert put_back(engine, tmp_path) is None
    assert replacement.interrupted(str(tmp_path)) is False
    assert replacement.read(str(tmp_path)) is not None


def test_a_container_that_restarts_in_a_loop_is_replaced(engine: PlayedEngine, tmp_path: Path) -> None:
    engine.add("triton", "restarting", works=False)
    new = engine.add("triton-next", "created")
    replace(engine, tmp_path)
    assert engine.serving() == new


def test_a_container_that_nobody_proved_gives_way_and_the_proven_one_stays(engine: PlayedEngine, tmp_path: Path) -> None:
    proven = engine.add("triton")
    engine.add("triton-next", "created", works=False)
    replace(engine, tmp_path)
    # Killed before its proof; the next run has another one, as bad
    engine.add("triton-next", "created", works=False)
    replace(engine, tmp_path)
    assert proven in engine.containers
    assert put_back(engine, tmp_path) == f"the container {proven[:12]} serves again"
    assert engine.serving() == proven
    assert engine.names() == {"triton": "running"}


def test_a_put_back_waits_at_the_port_of_the_container_that_is_put_back(engine: PlayedEngine, tmp_path: Path) -> None:
    old = engine.add("triton", port="8000")
    engine.add("triton-next", "created", works=False, port="9000")
    replace(engine, tmp_path)
    put_back(engine, tmp_path)
    assert engine.serving("8000") == old


def test_a_container_that_did_not_run_is_put_back_and_not_started(engine: PlayedEngine, tmp_path: Path) -> None:
    engine.add("triton", "exited")
    engine.add("triton-next", "created", works=False)
    replace(engine, tmp_path)
    assert "exists again" in str(put_back(engine, tmp_path))
    assert engine.names() == {"triton": "exited"}


def test_an_old_container_that_does_not_come_up_is_told_with_its_exit_code(engine: PlayedEngine, tmp_path: Path) -> None:
    engine.add("triton", works=False)
    engine.add("triton-next", "created", works=False)
    replace(engine, tmp_path)
    with pytest.raises(
        container.ContainerError, match=r"ended repeatedly \(3 restarts\), the last time with exit code 1: its log is empty"
    ):
        put_back(engine, tmp_path)
    # It is not over: the next run sees it
    assert replacement.read(str(tmp_path)) is not None


def test_a_container_aside_without_a_word_is_what_to_go_back_to(engine: PlayedEngine, tmp_path: Path) -> None:
    proven = engine.add("triton-previous", "exited")
    engine.add("triton", works=False)
    assert replacement.read(str(tmp_path), previous=True) == replacement.UNKNOWN
    put_back(engine, tmp_path)
    assert engine.serving() == proven


@pytest.mark.parametrize("content", ["", "{", "[]", '{"phase": "swapping"}', '{"phase": 7, "old": []}'])
def test_a_file_that_somebody_damaged_counts_as_a_replacement_that_nobody_proved(
    engine: PlayedEngine, tmp_path: Path, content: str
) -> None:
    proven = engine.add("triton-previous", "exited")
    engine.add("triton")
    (tmp_path / replacement.REPLACEMENT).write_text(content)
    assert replacement.read(str(tmp_path)) == replacement.UNKNOWN
    put_back(engine, tmp_path)
    assert engine.serving() == proven


# Kills


# Orders of the longest replacement or put back, which the kills below have to reach
ORDERS = 5


def stages(kind: str) -> Iterator[tuple[str, int]]:
    """Every number of orders after which a run may be killed, and after all of them."""
    yield from ((kind, number) for number in range(ORDERS + 1))


@pytest.mark.parametrize("kind", ["first", "again"])
def test_every_order_is_reached_by_a_kill(engine: PlayedEngine, tmp_path: Path, kind: str) -> None:
    host(kind, engine, tmp_path)
    replace(engine, tmp_path)
    assert 4 <= len(engine.orders) <= ORDERS, engine.orders
    engine.orders.clear()
    put_back(engine, tmp_path)
    assert 4 <= len(engine.orders) <= ORDERS, engine.orders


def host(kind: str, engine: PlayedEngine, root: Path) -> str:
    """What was there before the killed run; returns the proven container."""
    proven = engine.add("triton")
    if kind == "again":
        engine.add("triton-next", "created")
        replace(engine, root)
    engine.add("triton-next", "created")
    engine.orders.clear()
    return proven


@pytest.mark.parametrize(("kind", "number"), [*stages("first"), *stages("again")])
def test_killed_anywhere_in_a_replacement_the_proven_one_serves_again(
    engine: PlayedEngine, tmp_path: Path, kind: str, number: int
) -> None:
    proven = host(kind, engine, tmp_path)
    engine.kill_at = number
    with suppress(Killed):
        replace(engine, tmp_path)
    engine.kill_at = None
    assert proven in engine.containers
    put_back(engine, tmp_path)
    assert engine.serving() == proven
    assert engine.names() == {"triton": "running"}
    assert replacement.read(str(tmp_path)) is None


@pytest.mark.parametrize("number", range(ORDERS + 1))
def test_killed_anywhere_in_a_put_back_the_next_one_goes_on(engine: PlayedEngine, tmp_path: Path, number: int) -> None:
    proven = host("first", engine, tmp_path)
    replace(engine, tmp_path)
    engine.orders.clear()
    engine.kill_at = number
    with suppress(Killed):
        put_back(engine, tmp_path)
    engine.kill_at = None
    put_back(engine, tmp_path)
    assert engine.serving() == proven
    assert engine.names() == {"triton": "running"}


@pytest.mark.parametrize(("kind", "number"), [*stages("first"), *stages("again")])
def test_killed_anywhere_in_a_replacement_the_next_run_replaces(
    engine: PlayedEngine, tmp_path: Path, kind: str, number: int
) -> None:
    """Whoever takes over ends a half-made one first, then makes its own container and lets it take the place."""
    proven = host(kind, engine, tmp_path)
    engine.kill_at = number
    with suppress(Killed):
        replace(engine, tmp_path)
    engine.kill_at = None
    opened = replacement.read(str(tmp_path))
    if opened and opened["phase"] == replacement.SWAPPING:
        put_back(engine, tmp_path)
    left = engine.named("triton-next")
    if left:
        engine.remove(left["Id"])
    new = engine.add("triton-next", "created")
    replace(engine, tmp_path)
    assert engine.serving() == new
    assert engine.named("triton-previous")["Id"] == proven
    container.keep(engine, str(tmp_path), "triton")
    assert engine.names() == {"triton": "running"}


# Where a container answers


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "9000"}]}}}, ("127.0.0.1", 9000)),
        ({"HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "9000"}]}}}, ("127.0.0.1", 9000)),
        ({"HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": "192.0.2.7", "HostPort": "9000"}]}}}, ("192.0.2.7", 9000)),
        ({"HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": "::", "HostPort": "9000"}]}}}, ("::1", 9000)),
        ({"HostConfig": {"NetworkMode": "host"}, "Config": {"Cmd": ["tritonserver", "--http-port=7000"]}}, ("127.0.0.1", 7000)),
        ({"HostConfig": {"PortBindings": {"8001/tcp": [{"HostIp": "", "HostPort": "9001"}]}}}, None),
        ({"HostConfig": {"PortBindings": {"8000/tcp": [{"HostPort": "no number"}]}}}, None),
        ({}, None),
    ],
)
def test_where_a_container_answers(facts: dict[str, Any], wanted: tuple[str, int] | None) -> None:
    assert container.endpoint(facts) == wanted


@pytest.mark.parametrize("restricted", [True, False])
def test_readiness_is_queried_with_the_key_of_a_restricted_health_api(
    restricted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_key, "START", server_key.START.replace(server_key.FILE, str(tmp_path / "key")))
    monkeypatch.setattr(container.keys, "FILE", str(tmp_path / "key"))
    (tmp_path / "key").write_text("s3cret")
    sent: list[dict[str, str]] = []
    engine = PlayedEngine()

    def answer(*_request: Any, headers: dict[str, str]) -> tuple[int, Any]:
        sent.append(headers)
        return (200, None) if headers or not restricted else (403, None)

    monkeypatch.setattr(container, "http_json", answer)
    engine.add("triton")
    command = engine.named("triton")["Config"]
    if restricted:
        command["Cmd"] = server_key.command(fleet(triton_server_restricted_apis=["health"]), command["Cmd"])
    container.wait_ready(engine, "triton", 1)
    assert sent == [{"npufleet-key": "s3cret"} if restricted else {}]


# Its process


def test_a_process_that_ended_is_told_at_once(engine: PlayedEngine) -> None:
    identity = engine.add("triton", "exited", works=False)
    engine.containers[identity]["State"]["ExitCode"] = 3
    with pytest.raises(container.ContainerError, match="its process ended with exit code 3"):
        container.wait_ready(engine, "triton", 3600)


def test_one_start_that_failed_is_bad_luck(engine: PlayedEngine) -> None:
    identity = engine.add("triton")
    engine.containers[identity]["RestartCount"] = 1
    container.wait_ready(engine, "triton", 5)


def test_the_command_line_of_a_server_inside_is_read_on_its_host(engine: PlayedEngine, tmp_path: Path) -> None:
    """It is kept for root alone, as it may hold keys."""
    engine.add("triton")
    engine.add("triton-next", "created")
    key = "--http-restricted-api=trace:key=s3cr3t"
    server = subprocess.Popen([sys.executable, "-c", "input()", key], stdin=subprocess.PIPE)
    # The kernel lets us go on before it has given the process its arguments
    until(lambda: Path(f"/proc/{server.pid}/cmdline").read_bytes().endswith(b"s3cr3t\0"))
    (tmp_path / "replacement.json.new").write_text("of a run that was killed")
    try:
        with pytest.raises(container.ContainerError, match="no tritonserver"):
            container.replace(engine, str(tmp_path), ME, "triton", SETTINGS, {"pid": server.pid, "options": ["--user", "0"]})
    finally:
        server.communicate(b"\n")
    kept = container.replacement.read(str(tmp_path))
    assert kept is not None and kept["inside"]["command"] == [sys.executable, "-c", "input()", key]
    assert (tmp_path / "replacement.json").stat().st_mode & 0o777 == 0o600


def test_a_server_inside_that_is_another_process_by_now_is_left_alone(engine: PlayedEngine, tmp_path: Path) -> None:
    old = engine.add("triton")
    engine.add("triton-next", "created")
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        inside = {"pid": stranger.pid, "options": [], "command": ["tritonserver"]}
        with pytest.raises(container.ContainerError, match="no tritonserver"):
            container.replace(engine, str(tmp_path), ME, "triton", SETTINGS, inside)
        assert stranger.poll() is None
        assert engine.serving() == old
    finally:
        stranger.communicate(b"\n")


@pytest.mark.parametrize("begins", ["start", "restart", "replace", "put back"])
def test_nothing_is_started_on_mounts_that_are_not_there(engine: PlayedEngine, tmp_path: Path, begins: str) -> None:
    """The engine would make directories of them; and what serves has not been stopped for it."""
    old = engine.add("triton", "exited" if begins == "start" else "running")
    new = engine.add("triton-next", "created")
    if begins == "put back":
        replace(engine, tmp_path)
    binds = ["cache:/cache:rw", f"{tmp_path}:/here:ro", f"{tmp_path}/gone:/there:ro"]
    for identity in (old, new):
        engine.containers[identity]["HostConfig"]["Binds"] = binds
    orders = list(engine.orders)
    begin: dict[str, Callable[[], Any]] = {
        "start": lambda: container.start(engine, "triton", SETTINGS),
        "restart": lambda: container.restart(engine, "triton", SETTINGS),
        "replace": lambda: replace(engine, tmp_path),
        "put back": lambda: put_back(engine, tmp_path),
    }
    with pytest.raises(container.ContainerError, match=f"nothing is at {tmp_path}/gone, which the container mounts"):
        begin[begins]()
    if begins in ("restart", "replace"):
        assert (engine.serving(), engine.orders) == (old, orders)
    assert not any(order == f"POST /containers/{old}/start" for order in engine.orders)


def test_the_engines_own_words_are_told(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with unix_server(path, {"POST /containers/a/start": (500, {"message": "port is already allocated"})}) as served:
        docker = container.Docker(str(path))
        with pytest.raises(container.ContainerError, match="refused POST /containers/a/start: port is already allocated"):
            docker.start("a")
        assert docker.inspect("b") is None
        assert served.asked == ["GET /containers/a/json", "POST /containers/a/start", "GET /containers/b/json"]
    with pytest.raises(container.ContainerError, match="systemctl status docker"):
        docker.inspect("a")
