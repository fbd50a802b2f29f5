"""The saved state of a balancer's servers, and reloads of a real HAProxy with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, files, state_file
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BalancerError
from balancer_clients import GrpcClient, HttpClient
from helpers import until
from rendered_haproxy import RenderedHaproxy, rendered_haproxy
from small_triton import SmallTriton, small_triton

CONFIG = """# Written by npufleet. A manual change is overwritten.
backend npufleet_http
    server npu1 192.0.2.1:8000 check inter 5s weight 100
    server npu2 [2001:db8::2]:9000 check inter 5s weight 100
    server npu3 name.example.com:8000 check inter 5s weight 100
backend npufleet_grpc
    server npu1 192.0.2.1:8001 proto h2 track npufleet_http/npu1 weight 100
backend other
    server x 192.0.2.9:1 check
"""


def row(backend: str, name: str, address: str, port: int, operational: int = 2, admin: int = 0, weight: int = 100) -> str:
    return f"4 {backend} 1 {name} {address} {operational} {admin} {weight} 100 9 15 3 3 6 0 0 0 - {port} - 0 0 - - 0"


def saved(*rows: str) -> str:
    return "\n".join(["1", "# " + " ".join(state_file.COLUMNS), *rows]) + "\n"


def read_back(state: str) -> dict[tuple[str, str], tuple[str, str, str, str]]:
    """Return {(backend, server): (port, operational state, admin state, weight)}."""
    assert state.startswith("1\n# be_id be_name ") and state.endswith("\n")
    rows = [dict(zip(state_file.COLUMNS, line.split(), strict=True)) for line in state.splitlines()[2:]]
    fields = ("srv_port", "srv_op_state", "srv_admin_state", "srv_uweight")
    return {(entry["be_name"], entry["srv_name"]): tuple(entry[field] for field in fields) for entry in rows}


def test_drains_and_weights_are_kept() -> None:
    state = saved(
        row("npufleet_http", "npu1", "192.0.2.1", 8000, admin=8), row("npufleet_grpc", "npu1", "192.0.2.1", 8001, weight=10)
    )
    found = read_back(state_file.complete_state(state, CONFIG))
    assert found[("npufleet_http", "npu1")] == ("8000", "2", "8", "100")
    assert found[("npufleet_grpc", "npu1")] == ("8001", "2", "0", "10")


def test_new_servers_are_down_and_removed_ones_left_out() -> None:
    found = read_back(state_file.complete_state(saved(row("npufleet_http", "gone", "192.0.2.7", 8000)), CONFIG))
    assert list(found) == [
        ("npufleet_http", "npu1"),
        ("npufleet_http", "npu2"),
        ("npufleet_http", "npu3"),
        ("npufleet_grpc", "npu1"),
    ]
    assert {states[1] for states in found.values()} == {"0"}
    assert found[("npufleet_http", "npu2")] == ("9000", "0", "0", "100")


def test_a_server_that_moved_is_down_at_its_new_port() -> None:
    """HAProxy takes the port of a server from the saved state, and not from its configuration."""
    state = saved(
        row("npufleet_http", "npu1", "192.0.2.1", 7000, admin=8),
        row("npufleet_http", "npu2", "2001:db8::9", 9000),
        row("npufleet_http", "npu3", "192.0.2.3", 8000),
        row("npufleet_grpc", "npu1", "192.0.2.1", 8001),
    )
    found = read_back(state_file.complete_state(state, CONFIG))
    assert found[("npufleet_http", "npu1")] == ("8000", "0", "8", "100")
    assert found[("npufleet_http", "npu2")][1] == "0"
    assert found[("npufleet_http", "npu3")][1] == "2", "HAProxy itself resolves the name"
    assert found[("npufleet_grpc", "npu1")] == ("8001", "2", "0", "100")


@pytest.mark.parametrize(
    "state", ["", "1", "2\n# x\n", "1\n# be_id\n4 a b", "garbage\n\x00", saved("4 npufleet_http 1 npu1 192.0.2.1")]
)
def test_a_damaged_state_counts_as_none(state: str) -> None:
    assert {states[1] for states in read_back(state_file.complete_state(state, CONFIG)).values()} == {"0"}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RenderedHaproxy, list[SmallTriton]]]:
    """A balancer with two servers, whose paths the program uses."""
    monkeypatch.setattr(drains, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(files, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(files, "CONFIG", str(tmp_path / "haproxy.cfg"))
    monkeypatch.setattr(state_file, "SOCKET", str(tmp_path / "admin.sock"))
    monkeypatch.setattr(state_file, "MASTER", str(tmp_path / "master.sock"))
    with small_triton() as one, small_triton() as two:
        servers = {f"npu{number}": (triton.http_port, triton.grpc_port) for number, triton in enumerate((one, two), 1)}
        with rendered_haproxy(tmp_path, servers) as balancer:
            yield balancer, [one, two]


def ports(*tritons: SmallTriton) -> dict[str, tuple[int, int]]:
    return {f"npu{number}": (triton.http_port, triton.grpc_port) for number, triton in enumerate(tritons, 1)}


def reload(balancer: RenderedHaproxy, monkeypatch: pytest.MonkeyPatch) -> int:
    """Reload HAProxy as its unit does."""
    assert balancer.process
    monkeypatch.setenv("MAINPID", str(balancer.process.pid))
    return state_file.main("reload")


def test_a_reload_keeps_drains_and_brings_new_servers_in_when_they_are_healthy(
    pair: tuple[RenderedHaproxy, list[SmallTriton]], monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer, tritons = pair
    balancer.ask("set server npufleet_http/npu1 state drain")
    balancer.ask("set server npufleet_http/npu2 weight 10")
    with small_triton() as third:
        third.pause = 0.3
        balancer.write(ports(*tritons, third))
        assert reload(balancer, monkeypatch) == 0
        # The program ends only when the new process answers. The new server has not passed a check yet.
        found = read_back(balancer.ask("show servers state").rstrip("\n") + "\n")
        assert found[("npufleet_http", "npu1")][2] == "8"
        assert found[("npufleet_http", "npu2")][3] == "10"
        assert {found[(backend, "npu3")][1] for backend in ("npufleet_http", "npufleet_grpc")} == {"0"}
        assert balancer.status("npufleet_grpc")["npu1"] == "DRAIN"
        until(lambda: balancer.up("npu2", "npu3"))


def test_a_reload_takes_a_server_to_its_new_port(
    pair: tuple[RenderedHaproxy, list[SmallTriton]], monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer, (first, _second) = pair
    with small_triton() as moved:
        balancer.write(ports(first, moved))
        assert reload(balancer, monkeypatch) == 0
        until(lambda: balancer.up("npu1", "npu2"))
        client = HttpClient(balancer.http_port)
        until(lambda: client.infer() == 200 and len(moved.asked) > 5)


def test_reloads_lose_no_request(pair: tuple[RenderedHaproxy, list[SmallTriton]], monkeypatch: pytest.MonkeyPatch) -> None:
    balancer, _tritons = pair
    counts = {"http": 0, "grpc": 0, "failed": 0}
    ended = threading.Event()

    def infer(protocol: str) -> None:
        client = HttpClient(balancer.http_port) if protocol == "http" else GrpcClient(balancer.grpc_port)
        while not ended.is_set():
            try:
                assert client.infer() in (200, 2.0)
                counts[protocol] += 1
            except Exception:
                counts["failed"] += 1

    threads = [threading.Thread(target=infer, args=(protocol,)) for protocol in ("http", "grpc") for _number in range(2)]
    for thread in threads:
        thread.start()
    for _number in range(3):
        assert reload(balancer, monkeypatch) == 0
        before = dict(counts)
        until(lambda: counts["http"] > before["http"] + 50 and counts["grpc"] > before["grpc"] + 50)  # noqa: B023
    ended.set()
    for thread in threads:
        thread.join()
    assert counts["failed"] == 0


def test_a_configuration_that_cannot_be_loaded_is_reported_at_once(
    pair: tuple[RenderedHaproxy, list[SmallTriton]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    balancer, tritons = pair
    balancer.write(ports(*tritons), bind=["192.0.2.77"])
    monkeypatch.setattr(state_file, "RELOAD_TIMEOUT", 20.0)
    assert reload(balancer, monkeypatch) == 1
    assert "HAProxy refuses" in capsys.readouterr().out
    assert HttpClient(balancer.http_port).infer() == 200, "the previous process serves"


def test_a_start_completes_the_state_of_the_last_stop(
    pair: tuple[RenderedHaproxy, list[SmallTriton]], monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer, tritons = pair
    balancer.ask("set server npufleet_http/npu2 state drain")
    assert state_file.main("save") == 0
    balancer.stop()
    with small_triton() as third:
        balancer.write(ports(*tritons, third))
        assert state_file.main("save") == 0
        balancer.start()
        assert balancer.status()["npu2"].startswith("DRAIN")
        assert balancer.status()["npu3"].startswith("DOWN")


def test_a_foreign_configuration_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(files, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(files, "CONFIG", str(tmp_path / "haproxy.cfg"))
    (tmp_path / "haproxy.cfg").write_text("backend web\n    server a 192.0.2.1:80\n")
    assert state_file.main("save") == 0
    assert not (tmp_path / "state").exists()


def test_a_reload_needs_the_main_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BalancerError, match="MAINPID is not set"):
        state_file.reload(0)
    assert state_file.main("restart") == 2
