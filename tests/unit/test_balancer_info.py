"""Module balancer_info against the HAProxy of the distribution: servers, and the traffic of a window."""

from __future__ import annotations

import hashlib
import importlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, files, report, traffic
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import collect
from ansible_collections.npufleet.triton.plugins.modules import balancer_info, balancer_server
from balancer_clients import GrpcClient, HttpClient
from helpers import run_module, until
from small_haproxy import SmallHaproxy, small_haproxy
from small_triton import SmallTriton, small_triton

grpc = importlib.import_module("grpc")


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    with small_triton() as small:
        yield small


@pytest.fixture
def haproxy(tmp_path: Path, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHaproxy]:
    """A balancer with one server that works, and one that is drained."""
    monkeypatch.setattr(drains, "LOCK", str(tmp_path / "lock"))
    ports = (triton.http_port, triton.grpc_port)
    with small_haproxy(tmp_path, {"npu1": ports, "npu2": ports}) as running:
        drained = {"name": "npu2", "state": "drained", "by": "alice", "kind": "maintenance"}
        assert not run_module(balancer_server, {**paths(running), **drained})["failed"]
        yield running


def paths(haproxy: SmallHaproxy) -> dict[str, Any]:
    return {"host": "lb1", "socket": haproxy.socket, "master_socket": haproxy.master, "directory": str(haproxy.home)}


def read(haproxy: SmallHaproxy, **more: Any) -> dict[str, Any]:
    # The end of the window comes after all earlier requests.
    time.sleep(2 * report.MARGIN)
    return run_module(balancer_info, {**paths(haproxy), "config": str(haproxy.config), **more})


def window(haproxy: SmallHaproxy, since: float, protocol: str = "http") -> Any:
    return read(haproxy, since=since)["servers"]["npu1"]["traffic"][protocol]


def test_servers_process_and_configuration_are_read(haproxy: SmallHaproxy) -> None:
    before = time.time()
    result = read(haproxy)
    assert before <= result["now"] <= time.time() - report.MARGIN
    assert result["version"].startswith(("2.6.", "3.0."))
    assert f"Pid: {result['process']['pid']}" == haproxy.pid()
    assert before - 60 < result["process"]["started"] <= before + 1
    assert result["config"] == hashlib.sha256(haproxy.config.read_bytes()).hexdigest()
    one, two = result["servers"]["npu1"], result["servers"]["npu2"]
    assert {name: one[name] for name in ("state", "weight", "health", "in_flight", "drained")} == {
        "state": "ready",
        "weight": 100,
        "health": "up",
        "in_flight": 0,
        "drained": None,
    }
    assert (two["state"], two["drained"]["kind"], two["drained"]["by"]) == ("drained", "maintenance", "alice")
    assert (result["changed"], result["records_flaw"], "complete" in result) == (False, None, False)
    assert read(haproxy, config="/none")["config"] is None


def test_metrics_of_a_balancer_have_its_drained_servers(haproxy: SmallHaproxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "SOCKET", haproxy.socket)
    monkeypatch.setattr(collect, "MASTER", haproxy.master)
    monkeypatch.setattr(files, "HOME", str(haproxy.home))
    labels = {"server": "npu2", "kind": "maintenance"}
    assert collect.drained_servers() == {
        "npufleet_balancer_drained_since_timestamp_seconds": [(labels, pytest.approx(time.time(), abs=60))],
        "npufleet_balancer_server_drained": [(labels, 1)],
    }


def test_a_window_has_the_requests_that_finished_in_it(haproxy: SmallHaproxy, triton: SmallTriton) -> None:
    client = HttpClient(haproxy.http_port)
    assert client.infer() == 200
    since = read(haproxy)["now"]
    assert [client.infer(), client.infer("other")] == [200, 200]
    triton.answer = lambda _array: (_ for _ in ()).throw(ValueError("broken"))
    assert client.infer() == 500
    result = read(haproxy, since=since)
    assert result["complete"] is True
    found = result["servers"]["npu1"]["traffic"]["http"]
    assert (found["requests"], found["failed"], found["streams"]) == (3, {"5xx": 1}, 0)
    assert {name: entry["requests"] for name, entry in found["by_model"].items()} == {"double": 2, "other": 1}
    assert sum(found["latency"].values()) == 2
    assert result["servers"]["npu2"]["traffic"] == {"http": traffic.empty(), "grpc": traffic.empty()}
    assert result["servers"]["npu1"]["counters"]["http"]["responses_5xx"] == 1
    assert "hidden" not in haproxy.command("show events npufleet")


def test_windows_that_follow_each_other_have_each_request_once(haproxy: SmallHaproxy) -> None:
    ended = threading.Event()
    sent = []

    def send() -> None:
        client = HttpClient(haproxy.http_port)
        while not ended.is_set():
            sent.append(client.infer())

    first = read(haproxy)
    thread = threading.Thread(target=send)
    thread.start()
    windows, since = [], first["now"]
    for _number in range(10):
        windows.append(run_module(balancer_info, {**paths(haproxy), "since": since}))
        since = windows[-1]["now"]
    ended.set()
    thread.join()
    windows.append(read(haproxy, since=since))
    assert all(entry["complete"] for entry in windows)
    assert sum(entry["servers"]["npu1"]["traffic"]["http"]["requests"] for entry in windows) == len(sent)


def test_grpc_calls_count_with_their_status(haproxy: SmallHaproxy, triton: SmallTriton) -> None:
    client = GrpcClient(haproxy.grpc_port)
    assert (client.infer(), client.stream()) == (2.0, 2.0)
    triton.answer = lambda _array: (_ for _ in ()).throw(ValueError("broken"))
    with pytest.raises(grpc.RpcError):
        client.infer()
    client.close()
    until(lambda: window(haproxy, 0, "grpc")["requests"] == 3)
    found = window(haproxy, 0, "grpc")
    assert found["streams"] == 1
    assert found["failed"]["grpc"] == 1
    assert sum(found["latency"].values()) == 1


def test_requests_that_no_server_receives_are_listed_apart(haproxy: SmallHaproxy) -> None:
    haproxy.command("set server npufleet_http/npu1 state maint")
    assert HttpClient(haproxy.http_port).infer() == 503
    result = read(haproxy, since=0)
    assert result["unserved"]["http"]["failed"] == {"connect": 1}
    assert result["servers"]["npu1"]["traffic"]["http"]["requests"] == 0
    assert result["servers"]["npu1"]["state"] == "maintenance"
    assert result["servers"]["npu1"]["health"] == "unknown"


def test_clients_that_give_up_and_servers_that_hang_up_differ(haproxy: SmallHaproxy, triton: SmallTriton) -> None:
    def hang_up(_array: Any) -> Any:
        raise ConnectionAbortedError

    triton.answer = hang_up
    assert HttpClient(haproxy.http_port).infer() == 502
    triton.answer, triton.pause = (lambda array: array), 1.0
    client = HttpClient(haproxy.http_port)
    client.connection.timeout = 0.2
    with pytest.raises(TimeoutError):
        client.infer()
    client.connection.close()
    until(lambda: window(haproxy, 0)["requests"] == 2)
    assert window(haproxy, 0)["failed"] == {"aborted": 1, "client": 1}


def test_a_closed_request_is_no_failure_of_the_server(haproxy: SmallHaproxy) -> None:
    client = GrpcClient(haproxy.grpc_port)
    client.stream()
    close = {"name": "npu1", "state": "drained", "close": True, "allow_outage": True}
    assert run_module(balancer_server, {**paths(haproxy), **close})["closed"] == 1
    client.close()
    found = window(haproxy, 0, "grpc")
    assert found["failed"] == {"closed": 1}
    assert traffic.failures(found) == 0


def test_a_window_does_not_reach_back_beyond_a_reload(haproxy: SmallHaproxy) -> None:
    assert HttpClient(haproxy.http_port).infer() == 200
    since = read(haproxy)["now"]
    assert read(haproxy, since=since)["complete"] is True
    haproxy.reload()
    assert HttpClient(haproxy.http_port).infer() == 200
    result = read(haproxy, since=since)
    assert result["complete"] is False
    assert result["servers"]["npu1"]["traffic"]["http"]["requests"] == 1
    assert result["servers"]["npu2"]["drained"]["by"] == "alice"


def test_requests_of_an_old_worker_count_while_it_lives(haproxy: SmallHaproxy) -> None:
    stream = GrpcClient(haproxy.grpc_port)
    stream.stream()
    assert HttpClient(haproxy.http_port).infer() == 200
    haproxy.reload()
    result = read(haproxy, since=0)
    assert (result["complete"], result["servers"]["npu1"]["in_flight"]) == (False, 1)
    assert result["servers"]["npu1"]["traffic"]["http"]["requests"] == 1
    stream.close()


def test_every_answer_of_an_old_worker_ends(haproxy: SmallHaproxy) -> None:
    stream = GrpcClient(haproxy.grpc_port)
    stream.stream()
    client = HttpClient(haproxy.http_port)
    for _number in range(3000):
        assert client.infer() == 200
    haproxy.reload()
    (worker,) = Balancer(haproxy.socket, haproxy.master).old_workers()
    lengths = {len(worker.command("show events npufleet")) for _number in range(1500)}
    assert len(lengths) == 1 and lengths.pop() > 200_000
    stream.close()


def test_client_text_in_a_path_is_data(haproxy: SmallHaproxy) -> None:
    lines = [
        b"GET /v2/models/{{1+1}}/infer HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2/models/\xec\x88\x98/infer HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%0anpufleet1%201%20npufleet_http%20npu1%20500 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://evil/v2/models/double/infer HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    for text in lines:
        with socket.create_connection(("127.0.0.1", haproxy.http_port), timeout=10) as client:
            client.sendall(text)
            assert client.recv(100).startswith(b"HTTP/1.1")
    found = window(haproxy, 0)
    assert set(found["by_model"]) - {"#EC#88#98"} == {"{{1+1}}", "double"}
    assert "evil" not in haproxy.command("show events npufleet")
    assert all("\n" not in name for name in found["by_model"])


def test_a_full_ring_is_reported(tmp_path: Path, triton: SmallTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "RING_SIZE", 32768)
    with small_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}, ring_size=32768) as haproxy:
        since = read(haproxy)["now"]
        client = HttpClient(haproxy.http_port)
        for _number in range(600):
            client.infer()
        result = read(haproxy, since=since)
        assert result["complete"] is False
        assert 200 < result["servers"]["npu1"]["traffic"]["http"]["requests"] < 600
        assert read(haproxy, since=result["now"])["complete"] is True


def test_a_host_without_haproxy_is_no_error(tmp_path: Path) -> None:
    result = run_module(balancer_info, {"host": "lb1", "socket": str(tmp_path / "none"), "since": 0})
    assert (result["failed"], result["running"], result["servers"]) == (False, False, {})
    assert result["reason"].endswith("/none: No such file or directory. Is it running?")


def test_another_configuration_has_no_servers(tmp_path: Path, triton: SmallTriton) -> None:
    """The one of Debian's package, for example."""
    with small_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}) as haproxy:
        haproxy.config.write_text(haproxy.config.read_text().replace("npufleet", "foreign"))
        haproxy.reload()
        result = read(haproxy, since=0)
    assert (result["failed"], result["running"], result["servers"], result["complete"]) == (False, True, {}, False)


def test_a_configuration_without_the_ring_is_an_error(haproxy: SmallHaproxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "RING", "another")
    message = "lb1: HAProxy has no ring another, expected the configuration of the role load_balancer"
    assert read(haproxy, since=0) == {"failed": True, "msg": message}
