"""Module balancer_server against the HAProxy of the distribution: drains, owners, requests in flight, health, reloads."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import change, drains
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BalancerError
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer
from ansible_collections.npufleet.triton.plugins.modules import balancer_server
from balancer_clients import Call, GrpcClient, HttpClient
from helpers import run_module, until
from small_haproxy import SmallHaproxy, small_haproxy
from small_triton import SmallTriton, small_triton

grpc = importlib.import_module("grpc")


@pytest.fixture(scope="module")
def _tritons() -> Iterator[tuple[SmallTriton, SmallTriton]]:
    with small_triton() as one, small_triton() as two:
        yield one, two


@pytest.fixture
def tritons(_tritons: tuple[SmallTriton, SmallTriton]) -> Iterator[tuple[SmallTriton, SmallTriton]]:
    yield _tritons
    for triton in _tritons:
        triton.pause = 0.0
        triton.asked.clear()


@pytest.fixture
def haproxy(tmp_path: Path, tritons: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHaproxy]:
    """A balancer with the servers npu1 and npu2."""
    monkeypatch.setattr(drains, "LOCK", str(tmp_path / "lock"))
    ports = {f"npu{number}": (triton.http_port, triton.grpc_port) for number, triton in enumerate(tritons, 1)}
    with small_haproxy(tmp_path, ports) as running:
        yield running


def options(haproxy: SmallHaproxy, **more: Any) -> dict[str, Any]:
    paths = {"socket": haproxy.socket, "master_socket": haproxy.master, "directory": str(haproxy.home)}
    return {"name": "npu1", "host": "lb1", **paths, **more}


def call(haproxy: SmallHaproxy, check: bool = False, **more: Any) -> dict[str, Any]:
    return run_module(balancer_server, options(haproxy, **more), check)


def changed_by(haproxy: SmallHaproxy, warn: Any = print, **more: Any) -> dict[str, Any]:
    """Change npu1 without the module, which only one thread can run at a time."""
    defaults = {name: option.get("default") for name, option in balancer_server.OPTIONS.items()}
    desired = change.Desired(**{field: {**defaults, "name": "npu1", **more}[field] for field in change.Desired._fields})
    return change.Change(Balancer(haproxy.socket, haproxy.master), str(haproxy.home), desired, False, warn).apply()


def record(haproxy: SmallHaproxy, name: str = "npu1") -> Any:
    return json.loads((haproxy.home / drains.RECORDS).read_text()).get(name)


def server(haproxy: SmallHaproxy, name: str = "npu1") -> Any:
    return Balancer(haproxy.socket, haproxy.master).server(name)


def states(haproxy: SmallHaproxy) -> list[tuple[str, str]]:
    return [(name, entry.state) for name, entry in Balancer(haproxy.socket, haproxy.master).servers().items()]


# Drains and their requests


def test_a_drain_ends_no_request_and_new_ones_go_elsewhere(haproxy: SmallHaproxy, tritons: Any) -> None:
    one, two = tritons
    kept = [HttpClient(haproxy.http_port) for _number in range(4)]
    assert [client.infer() for client in kept] == [200] * 4
    one.pause = two.pause = 1.0
    calls = [Call(haproxy.http_port) for _number in range(4)]
    until(lambda: len(one.asked) + len(two.asked) == 8)
    one.pause = two.pause = 0.0
    before = len(one.asked)
    result = call(haproxy, state="drained", kind="rollout", run="r1", by="alice@ops1", reason="image", wait=30, close=True)
    assert (result["changed"], result["kept"], result["in_flight"], result["closed"]) == (True, False, 2, 0)
    assert 0 < result["waited"] < 5
    drained = result["server"]["drained"]
    assert drained == record(haproxy)
    assert {**drained, "since": ""} == {"kind": "rollout", "by": "alice@ops1", "run": "r1", "reason": "image", "since": ""}
    assert (result["server"]["state"], result["server"]["in_flight"]) == ("drained", 0)
    assert [client.infer() for client in kept] == [200] * 4
    grpc_client = GrpcClient(haproxy.grpc_port)
    assert [grpc_client.infer() for _number in range(4)] == [2.0] * 4
    grpc_client.close()
    for thread in calls:
        thread.join()
    assert [thread.status for thread in calls] == [200] * 4
    assert len(one.asked) == before


def test_a_stream_that_stays_open_is_closed_after_the_wait(haproxy: SmallHaproxy, tritons: Any) -> None:
    one, two = tritons
    clients = [GrpcClient(haproxy.grpc_port) for _number in range(2)]
    assert [client.stream() for client in clients] == [2.0, 2.0]
    assert (one.asked, two.asked) == (["grpc"], ["grpc"])
    assert call(haproxy, state="drained", wait=1)["server"]["in_flight"] == 1
    # The stream goes on although its server is drained.
    assert [client.stream() for client in clients] == [2.0, 2.0]
    assert len(one.asked) == 2
    result = call(haproxy, state="drained", wait=1, close=True)
    assert (result["changed"], result["in_flight"], result["closed"], result["server"]["in_flight"]) == (True, 1, 1, 0)
    assert 1 <= result["waited"] < 5
    ends = []
    for client in clients:
        try:
            client.stream()
            ends.append(None)
        except grpc.RpcError as error:
            ends.append(error.code())
        client.close()
    assert sorted(ends, key=str) == [None, grpc.StatusCode.CANCELLED]
    assert call(haproxy, state="drained")["changed"] is False


def test_a_second_drain_of_the_same_run_changes_nothing(haproxy: SmallHaproxy) -> None:
    assert call(haproxy, state="drained", kind="rollout", run="r1")["changed"] is True
    saved = record(haproxy)
    result = call(haproxy, state="drained", kind="rollout", run="r1")
    assert (result["changed"], result["server"]["drained"]) == (False, saved)


def test_check_mode_and_diff_predict_the_change(haproxy: SmallHaproxy) -> None:
    result = run_module(balancer_server, {**options(haproxy, state="drained", weight=7, wait=9), "_ansible_diff": True}, True)
    assert (result["changed"], result["server"]["state"], result["server"]["weight"]) == (True, "drained", 7)
    assert result["diff"]["before"] == {"state": "ready", "weight": 100, "drained": None}
    assert result["diff"]["after"]["drained"]["kind"] == "operator"
    assert states(haproxy) == [("npu1", "ready"), ("npu2", "ready")]
    assert not (haproxy.home / drains.RECORDS).exists()
    assert (haproxy.home / drains.STATE).read_text() == ""


# Weights


def test_a_weight_is_set_for_both_protocols_before_requests_come(haproxy: SmallHaproxy) -> None:
    call(haproxy, state="drained", kind="rollout")
    result = call(haproxy, state="ready", kind="rollout", weight=10)
    assert (result["changed"], result["server"]["weight"], result["server"]["state"]) == (True, 10, "ready")
    assert server(haproxy).weights == (10, 10)
    assert call(haproxy, weight=10)["changed"] is False
    assert call(haproxy, weight=256)["server"]["weight"] == 256
    assert " 256 100 " in (haproxy.home / drains.STATE).read_text()


def test_a_weight_of_zero_counts_as_an_operators_drain(haproxy: SmallHaproxy) -> None:
    haproxy.command("set server npufleet_http/npu1 weight 0")
    haproxy.command("set server npufleet_grpc/npu1 weight 0")
    assert call(haproxy, state="ready", kind="rollout")["kept"] is True
    result = call(haproxy, state="ready")
    assert (result["server"]["state"], result["server"]["weight"]) == ("ready", 100)
    assert server(haproxy).weights == (100, 100)


# Owners


@pytest.mark.parametrize("owner", drains.KINDS)
@pytest.mark.parametrize("caller", drains.KINDS)
def test_a_caller_undrains_its_own_and_lower_kinds_only(haproxy: SmallHaproxy, owner: str, caller: str) -> None:
    call(haproxy, state="drained", kind=owner, run="first")
    saved = record(haproxy)
    higher = drains.KINDS.index(caller) < drains.KINDS.index(owner)
    result = call(haproxy, state="drained", kind=caller, run="second")
    assert (result["kept"], result["changed"]) == (higher, not higher)
    assert result["server"]["drained"]["run"] == ("first" if higher else "second")
    (haproxy.home / drains.RECORDS).write_text(json.dumps({"npu1": saved}))
    result = call(haproxy, state="ready", kind=caller, run="second", weight=5)
    assert (result["kept"], result["changed"]) == (higher, not higher)
    assert (result["server"]["state"], result["server"]["weight"]) == (("drained", 100) if higher else ("ready", 5))
    assert record(haproxy) == (saved if higher else None)


@pytest.mark.parametrize("state", ["drain", "maint"])
def test_a_drain_by_socat_belongs_to_an_operator(haproxy: SmallHaproxy, state: str) -> None:
    haproxy.command(f"set server npufleet_http/npu1 state {state}")
    for kind in ("rollout", "maintenance"):
        for wanted in ("ready", "drained"):
            result = call(haproxy, state=wanted, kind=kind)
            assert (result["failed"], result["changed"], result["kept"]) == (False, False, True)
            assert result["server"]["drained"] is None
    assert call(haproxy, state="ready", up_within=30)["server"]["state"] == "ready"
    assert server(haproxy).undrain == []


def test_a_drain_of_grpc_alone_is_completed_and_kept(haproxy: SmallHaproxy) -> None:
    haproxy.command("set server npufleet_grpc/npu1 state drain")
    assert states(haproxy)[0] == ("npu1", "drained")
    result = call(haproxy, state="drained", kind="rollout")
    assert (result["changed"], result["kept"], server(haproxy).idle) == (True, True, True)
    assert call(haproxy, state="ready", kind="rollout")["kept"] is True
    assert call(haproxy, state="ready")["server"]["state"] == "ready"
    assert server(haproxy).idle is False


def test_a_record_without_a_drain_does_not_count(haproxy: SmallHaproxy) -> None:
    """A process that was killed between both, or an operator who undrained with socat."""
    call(haproxy, state="drained", kind="rollout")
    haproxy.command("set server npufleet_http/npu1 state ready")
    assert call(haproxy, weight=50)["server"]["drained"] is None
    assert record(haproxy) is None
    haproxy.command("set server npufleet_http/npu1 state drain")
    assert call(haproxy, state="ready", kind="rollout")["kept"] is True


@pytest.mark.parametrize("content", ["", "{", '{"npu1": 7}', '{"npu1": {"kind": "king"}}', '{"../x": {}}', "[" * 99, "\0" * 99])
def test_a_damaged_record_file_means_drains_by_operators(haproxy: SmallHaproxy, content: str) -> None:
    call(haproxy, state="drained", kind="rollout", run="r1")
    (haproxy.home / drains.RECORDS).write_text(content)
    warnings: list[str] = []
    assert changed_by(haproxy, warnings.append, state="ready", kind="rollout")["kept"] is True
    assert "drains.json is damaged: " in warnings[0]
    assert call(haproxy, state="ready")["server"]["state"] == "ready"
    assert record(haproxy) is None
    assert (haproxy.home / (drains.RECORDS + ".damaged")).read_text() == content


# The last server


def test_the_last_ready_server_is_not_drained(haproxy: SmallHaproxy) -> None:
    call(haproxy, state="drained", name="npu2")
    result = call(haproxy, state="drained", kind="rollout")
    assert result["failed"] is True
    assert result["msg"].startswith("lb1: npu1 is the last server that takes requests, expected another server")
    assert states(haproxy) == [("npu1", "ready"), ("npu2", "drained")]
    assert record(haproxy) is None
    assert call(haproxy, state="drained", kind="rollout", check=True)["failed"] is True
    assert call(haproxy, state="drained", kind="rollout", allow_outage=True)["server"]["state"] == "drained"


def test_a_server_that_is_down_does_not_count_as_another_one(haproxy: SmallHaproxy) -> None:
    # Its checks would pass again.
    haproxy.command("disable health npufleet_http/npu2")
    haproxy.command("set server npufleet_http/npu2 health down")
    assert "the last server" in call(haproxy, state="drained")["msg"]
    # Nothing is lost by a drain of the server that is down.
    result = call(haproxy, state="drained", name="npu2")
    assert (result["failed"], result["server"]["health"]) == (False, "down")


def _drain(name: str, haproxy: Any, begin: Any, answers: Any) -> None:
    begin.wait()
    answers.put(call(haproxy, state="drained", name=name)["failed"])


def test_two_processes_never_drain_both_servers(haproxy: SmallHaproxy) -> None:
    context = multiprocessing.get_context("fork")
    for _round in range(5):
        begin, answers = context.Barrier(2), context.Queue()
        both = [context.Process(target=_drain, args=(name, haproxy, begin, answers)) for name in ("npu1", "npu2")]
        for process in both:
            process.start()
        failed = [answers.get(timeout=60) for _process in both]
        for process in both:
            process.join()
        assert sorted(failed) == [False, True]
        assert sorted(state for _name, state in states(haproxy)) == ["drained", "ready"]
        for name in ("npu1", "npu2"):
            call(haproxy, state="ready", name=name)


# Health


def test_a_server_becomes_ready_when_new_checks_pass(haproxy: SmallHaproxy) -> None:
    call(haproxy, state="drained", kind="rollout")
    assert call(haproxy, state="ready", kind="rollout", up_within=30)["server"]["health"] == "up"
    assert "npufleet_http/npu1 is DOWN, changed from CLI" in haproxy.log.read_text()


def test_a_server_that_stays_down_stays_drained(haproxy: SmallHaproxy) -> None:
    call(haproxy, state="drained", kind="rollout", run="r1")
    haproxy.command("set server npufleet_http/npu1 addr 127.0.0.1 port 1")
    result = call(haproxy, state="ready", kind="rollout", up_within=2)
    assert result["failed"] is True
    assert "npu1 has failed the health check of the balancer for 2 s, expected it to be up. It stays drained" in result["msg"]
    assert states(haproxy)[0] == ("npu1", "drained")
    assert record(haproxy)["run"] == "r1"


def test_the_health_of_a_ready_server_is_awaited_without_a_gap(haproxy: SmallHaproxy) -> None:
    result = call(haproxy, state="ready", up_within=5)
    assert (result["changed"], result["server"]["health"]) == (False, "up")
    assert "DOWN" not in haproxy.log.read_text()


# Reloads


def test_a_drain_survives_a_reload_and_a_restart(haproxy: SmallHaproxy) -> None:
    call(haproxy, state="drained", weight=30)
    haproxy.reload()
    assert states(haproxy) == [("npu1", "drained"), ("npu2", "ready")]
    assert server(haproxy).weights == (30, 30)
    assert call(haproxy, state="drained", run="")["server"]["drained"]["kind"] == "operator"


def test_streams_of_an_old_worker_are_counted_and_closed(haproxy: SmallHaproxy, tritons: Any) -> None:
    clients = [GrpcClient(haproxy.grpc_port) for _number in range(2)]
    assert [client.stream() for client in clients] == [2.0, 2.0]
    one, _two = tritons
    assert one.asked == ["grpc"]
    haproxy.reload()
    assert server(haproxy).in_flight == 0
    result = call(haproxy, state="drained", wait=1)
    assert (result["in_flight"], result["server"]["in_flight"]) == (1, 1)
    assert [client.stream() for client in clients] == [2.0, 2.0]
    result = call(haproxy, state="drained", wait=0, close=True)
    assert (result["closed"], result["server"]["in_flight"]) == (1, 0)
    assert Balancer(haproxy.socket, haproxy.master).old_in_flight() == {"npu1": 0, "npu2": 1}
    for client in clients:
        client.close()


def test_without_a_master_socket_a_warning_says_what_is_not_seen(haproxy: SmallHaproxy) -> None:
    warnings: list[str] = []
    haproxy.master = str(haproxy.home / "none.sock")
    changed_by(haproxy, warnings.append, state="drained")
    assert warnings == [f"{haproxy.master} is missing, so requests in workers of earlier configurations are not counted."]


def waiting(haproxy: SmallHaproxy, client: GrpcClient, ending: Any) -> tuple[Any, list[str]]:
    """Drain npu1, which has an open stream, and call `ending` during the wait. Return the result or the error, and the warnings."""
    warnings: list[str] = []
    results: list[Any] = []

    def drain() -> None:
        try:
            results.append(changed_by(haproxy, warnings.append, state="drained", kind="rollout", run="r1", wait=30))
        except BalancerError as error:
            results.append(error)

    thread = threading.Thread(target=drain)
    thread.start()
    until(lambda: states(haproxy)[0] == ("npu1", "drained") and record(haproxy) is not None)
    ending()
    thread.join(60)
    return results[0], warnings


@pytest.fixture
def open_stream(haproxy: SmallHaproxy, tritons: Any) -> Iterator[GrpcClient]:
    """A client with an open stream on npu1."""
    one, _two = tritons
    while True:
        client = GrpcClient(haproxy.grpc_port)
        client.stream()
        if one.asked:
            break
        client.close()
    yield client
    client.close()


def test_a_drain_that_a_reload_loses_is_repeated(haproxy: SmallHaproxy, open_stream: GrpcClient) -> None:
    def lose() -> None:
        with drains.locked():
            (haproxy.home / drains.STATE).write_text("")
            haproxy.reload()
        until(lambda: states(haproxy)[0] == ("npu1", "drained"))
        open_stream.close()

    result, warnings = waiting(haproxy, open_stream, lose)
    assert (result["in_flight"], result["server"]["state"], result["server"]["in_flight"]) == (1, "drained", 0)
    assert warnings == ["npu1 lost its drain in a reload of HAProxy and is drained again."]
    assert " 8 100 100 " in (haproxy.home / drains.STATE).read_text()


def test_a_drain_that_an_operator_ends_is_an_error(haproxy: SmallHaproxy, open_stream: GrpcClient) -> None:
    result, _warnings = waiting(haproxy, open_stream, lambda: haproxy.command("set server npufleet_http/npu1 state ready"))
    assert str(result) == "npu1 is ready again, expected it to stay drained: another caller made it ready"
    assert states(haproxy)[0] == ("npu1", "ready")


# Bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither state nor weight is set, expected one of them"),
        ({"weight": 0}, "weight is 0, expected 1 to 256. Use state=drained to send no requests"),
        ({"weight": 300}, "weight is 300, expected 1 to 256. Use state=drained to send no requests"),
        ({"state": "ready", "wait": 3}, "wait is 3, expected 0 unless state=drained"),
        ({"state": "drained", "wait": -1}, "wait is -1, expected 0 to 86400"),
        ({"state": "drained", "up_within": 3}, "up_within is 3, expected 0 unless state=ready"),
        ({"state": "ready", "close": True}, "close is true, expected false unless state=drained"),
    ],
)
def test_bad_options_are_refused_before_the_call(given: dict[str, Any], message: str) -> None:
    assert run_module(balancer_server, {"name": "npu1", "host": "lb1", "socket": "/none", **given}) == {
        "failed": True,
        "msg": f"lb1: npu1: {message}",
    }


@pytest.mark.parametrize("name", ["npu3", "npu1;shutdown sessions", "npu1 state ready", "npu1\nquit", "", "x" * 300, "npu1/x"])
def test_unknown_servers_are_refused(haproxy: SmallHaproxy, name: str) -> None:
    result = call(haproxy, name=name, state="drained")
    assert result["failed"] is True
    unknown = "lb1: the balancer has no server 'npu3'. Its servers: npu1, npu2"
    assert result["msg"].startswith(unknown if name == "npu3" else "lb1: the name of the server is ")
    assert states(haproxy) == [("npu1", "ready"), ("npu2", "ready")]


def test_without_haproxy_one_message_names_the_socket(tmp_path: Path) -> None:
    result = run_module(balancer_server, {"name": "npu1", "host": "lb1", "state": "drained", "socket": str(tmp_path / "none")})
    assert result["msg"] == f"lb1: HAProxy cannot be queried on {tmp_path}/none: No such file or directory. Is it running?"


def test_a_file_that_cannot_be_written_is_an_error(haproxy: SmallHaproxy) -> None:
    (haproxy.home / (drains.RECORDS + ".new")).mkdir()
    assert call(haproxy, state="drained")["msg"] == f"lb1: {haproxy.home}/drains.json cannot be written: Is a directory"
    assert states(haproxy)[0] == ("npu1", "ready")
