"""What a server, a tool, an engine or a file of the host says, of whatever shape: data within limits, or a reason in words."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import (
    cards,
    container,
    detached,
    drivers,
    host_change,
    lease,
    proof,
    releases,
    replacement,
    resume,
)
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import contexts
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from ansible_collections.npufleet.triton.plugins.module_utils.store import damage
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, repository, served
from helpers import http_server, unix_server
from played_engine import PlayedEngine
from test_process import release_of

DEEP = b"[" * 100_000
# Of another shape, or of none
BODIES = [
    b"",
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"{}",
    b"[null, 1, [], {}]",
    b"\xff\xfe\x00",
    b'{"a": Infinity}',
    b"[NaN]",
    b"1e999",
    b"9" * 100_000,
    DEEP,
    b'{"a":' * 2000 + b"1" + b"}" * 2000,
    b'[{"name": "x"}',
    b'{"name": "x", "name": "y"}',
    b"<html>" * 1000,
]


def shown(value: object) -> str:
    return repr(value)[:40]


# Triton

INDEX = [
    [{"name": "x", "version": "1", "state": "READY"}],
    [{"name": ["x"], "version": "1", "state": "READY"}, {"name": "x", "version": {"a": 1}, "state": 5, "reason": ["no"]}],
    [{"name": "x", "version": "\u00b2", "state": "READY"}, {"name": "", "version": "1", "state": "READY"}],
    [{"name": "x", "version": 10**18, "state": "READY" * 1000, "reason": "long" * 100_000}],
    [{"name": "\ud800/\u0000", "version": "1", "state": "READY"}],
]
CONFIGS: list[Any] = [
    {"ensemble_scheduling": "no object"},
    {"ensemble_scheduling": {"step": {"model_name": "y"}}},
    {"ensemble_scheduling": {"step": [{"model_name": ["y"]}, {}]}},
    {"ensemble_scheduling": {"step": [1]}},
    {"ensemble_scheduling": ["step"]},
    {"parameters": []},
    {"parameters": {"npufleet_release": "a"}},
    {"parameters": {"npufleet_release": {"string_value": ["a"]}}},
    [],
    "config",
]


def asked(port: int) -> dict[str, Any]:
    return {"address": "127.0.0.1", "http_port": port, "key": None}


def typed(found: dict[str, Any] | None) -> None:
    for name, versions in (found or {}).items():
        assert isinstance(name, str)
        for version, entry in versions.items():
            assert isinstance(version, str) and isinstance(entry["state"], str) and isinstance(entry["reason"], str)
            assert entry["release"] is None or isinstance(entry["release"], str)
            assert len(entry["state"]) <= served.MAX_STATE and len(entry["reason"]) <= served.MAX_REASON
    json.dumps(found, ensure_ascii=False).encode()


@pytest.mark.parametrize("body", [*BODIES, *(json.dumps(index).encode() for index in INDEX)], ids=shown)
def test_any_index_is_data_or_no_answer(body: bytes) -> None:
    with http_server({"POST /v2/repository/index": (200, body), "GET /v2/models/x/versions/1/config": (200, {})}) as triton:
        typed(served.read_served(asked(triton.port)))


@pytest.mark.parametrize("body", [*BODIES, *(json.dumps(config).encode() for config in CONFIGS)], ids=shown)
def test_any_config_is_data_or_none(body: bytes) -> None:
    answers = {
        "POST /v2/repository/index": (200, INDEX[0]),
        "GET /v2/models/x/versions/1/config": (200, body),
        "GET /v2/models/x/config": (200, body),
        "GET /v2": (200, body),
    }
    with http_server(answers) as triton:
        found = served.read_served(asked(triton.port))
        typed(found)
        assert found is not None and found["x"]["1"]["release"] is None
        change = repository.Change(repository.Server("127.0.0.1", triton.port, 1.0), {})
        assert change.surplus == ["x"] and all(isinstance(step, str) for step in change.steps["x"])
        version = served.version_of(served.query(asked(triton.port), "GET", "/v2")[1])
        assert version is None


@pytest.mark.parametrize(
    "said", [*BODIES, b'{"code": ["OK"], "message": ""}', b'{"code": "OK", "message": {}}'], ids=lambda said: repr(said[:40])
)
def test_any_words_of_the_client_in_the_container_are_a_reason(said: bytes) -> None:
    with pytest.raises(control.ControlError):
        control.send(lambda _command, _seconds: (0, said.decode("utf-8", "replace")), "load", "x", 1.0, None)


def test_steps_of_any_depth_and_in_circles_are_put_in_order() -> None:
    chain = {f"m{number:05}": [f"m{number + 1:05}"] for number in range(20_000)}
    order = repository.in_order(chain, chain)
    assert order == sorted(chain, reverse=True)
    circle = {"a": ["b"], "b": ["c"], "c": ["a"]}
    assert sorted(repository.in_order(circle, circle)) == ["a", "b", "c"]
    # Two of each level call both of the next: there are 2 ** 40 ways
    lattice = {f"{side}{level:02}": [f"a{level + 1:02}", f"b{level + 1:02}"] for level in range(40) for side in "ab"}
    order = repository.in_order(lattice, lattice)
    assert all(order.index(name) > order.index(step) for name in lattice for step in lattice[name] if step in lattice)


# The vendor's tool

DEVICE = {
    "npu": 0,
    "device": "rbln0",
    "name": "RBLN-CA12",
    "status": "normal",
    "fw_ver": "1",
    "pci": {"bus_id": "0000:ab:00.0"},
    "memory": {"total": "16", "used": 0},
}
CONTEXT = {"npu": "0", "pid": 7, "process": "python3"}
TOOL = {"KMD_version": "3.2.2", "devices": [DEVICE], "contexts": [CONTEXT]}


def test_what_the_tool_really_says_is_read() -> None:
    found = vendor_tool.parse_tool(json.dumps(TOOL))
    assert found["devices"][0]["memory_total"] == 16
    assert found["holders"][0]["pid"] == 7


@pytest.mark.parametrize(
    "said",
    [
        *(body.decode("latin-1") for body in BODIES),
        *(
            json.dumps({**TOOL, **change})
            for change in (
                {"KMD_version": 3.2},
                {"KMD_version": ["3"]},
                {"KMD_version": "3" * 1000},
                {"KMD_version": "3\n2"},
                {"devices": {"npu": 0}},
                {"devices": [DEVICE, 5]},
                *(
                    {"devices": [{**DEVICE, name: value}]}
                    for name in DEVICE
                    for value in ([], {}, None, True, 1.5, -1, "", "a/b\n")
                ),
                {"devices": [{**DEVICE, "memory": {"total": "16", "used": float("inf")}}]},
                {"devices": [{**DEVICE, "memory": {"total": "\u0661", "used": 0}}]},
                {"devices": [{**DEVICE, "device": "../../etc/passwd"}]},
                *({"contexts": [{**CONTEXT, name: value}]} for name in CONTEXT for value in ([], {}, None, True, "a\nb")),
                {"contexts": {"npu": 0}},
            )
        ),
    ],
    ids=shown,
)
def test_any_words_of_the_vendors_tool_are_data_or_a_reason(said: str) -> None:
    found = vendor_tool.parse_tool(said)
    if "error" in found:
        assert "an unknown format" in found["error"]
        return
    for device in found["devices"]:
        for name in ("device", "name", "status", "bus_id"):
            assert isinstance(device[name], str) and device[name].isprintable()
        assert device["firmware"] is None or isinstance(device["firmware"], str)
        assert all(isinstance(device[name], int) for name in ("npu", "memory_total", "memory_used"))
    assert isinstance(found["version"], str)


@pytest.mark.parametrize(
    "said", [body.decode("latin-1") for body in BODIES] + ['{"npus": true}', '{"names": 1}'], ids=lambda said: repr(said[:40])
)
def test_any_words_of_the_sdk_are_a_reason(said: str) -> None:
    with pytest.raises(container.ContainerError, match="does not report which cards it sees"):
        cards.judge(0, said, {"npus": 1, "card": "x"}, "here")


# The engine

INSPECTED: dict[str, Any] = {"Id": "a" * 64, "State": {"Status": "running", "Running": True}}
ENGINE = [
    *BODIES[2:],
    *(
        json.dumps(found).encode()
        for found in (
            {**INSPECTED, "Id": 5},
            {**INSPECTED, "Id": "../../containers/other"},
            {**INSPECTED, "State": None},
            {**INSPECTED, "State": {"Status": "running"}},
            {**INSPECTED, "State": {"Status": "running", "Running": "yes"}},
            {**INSPECTED, "State": {"Status": "running", "Running": True, "Pid": "1"}},
            {**INSPECTED, "Config": []},
            {**INSPECTED, "Config": {"Cmd": "tritonserver"}},
            {**INSPECTED, "Config": {"Env": [1]}},
            {**INSPECTED, "HostConfig": {"Binds": "x"}},
            {**INSPECTED, "HostConfig": {"PortBindings": {"8000/tcp": [{"HostPort": 8000}]}}},
            {**INSPECTED, "HostConfig": {"PortBindings": ["8000/tcp"]}},
        )
    ),
]


@pytest.mark.parametrize("body", ENGINE, ids=shown)
def test_any_words_of_the_engine_are_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    path = tmp_path / "e"
    with unix_server(path, {"GET /containers/triton/json": (200, body), "POST /containers/triton/exec": (201, body)}):
        with pytest.raises(OSError, match="the engine"):
            Engine(str(path)).container("triton")
        with pytest.raises(container.ContainerError, match="the engine does not answer"):
            container.Docker(str(path)).inspect("triton")
        with pytest.raises(OSError):
            Engine(str(path)).execute("triton", ["true"])
        monkeypatch.setattr(contexts, "Engine", lambda: Engine(str(path)))
        monkeypatch.setattr(contexts, "query_tool", lambda: {"error": "none"})
        assert contexts.read_use("triton")["running"] is False


# Files of the host

FILES = {
    lease.LEASE: {
        "run": "a",
        "by": "b",
        "since": "c",
        "boot": "d",
        "renewed": 1,
        "patience": 1,
        "maintenance": False,
        "container": {},
    },
    replacement.REPLACEMENT: replacement.UNKNOWN,
    store.TRANSACTION: {"run": "a", "by": "b", "since": "c", "renewed": 1, "models": {}, "holds": {}},
    store.HOLDS: {},
    store.HUNG: {"models": [], "at": 1},
    lease.LAST: {"run": "a"},
    lease.MAINTENANCE_FILE: {"reason": "a", "by": "b", "since": "c"},
    detached.RESULT: {},
    detached.STEPS: {},
    detached.DECISION: {},
}


def broken(content: dict[str, Any]) -> Iterator[bytes]:
    yield from BODIES
    for name in content:
        for value in (None, [], {}, 1.5, -1, "x" * 10, True, {"a": {"b": [1]}}):
            yield json.dumps({**content, name: value}).encode()


@pytest.fixture
def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that serves a release of digits, proven."""
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "watchdog.lock"))
    root, who = tmp_path / "root", store.Run("r0", "anna", "h")
    apply(root, who, "released", {"digits": release_of("digits", 1)})
    apply(root, who, "proven", {})
    return root


def apply(root: Path, who: store.Run, state: str, made: dict[str, Any]) -> None:
    given = {"models": [], "withdraw": [], "incoming": "", "why": "", "hung": [], "keep": 3, "state": state, "releases": made}
    releases.apply(str(root), who, given)


@pytest.mark.parametrize("name", FILES)
def test_any_file_of_the_host_is_data_or_a_reason(proven: Path, name: str) -> None:
    """Whatever it says, every reader goes on, and the host itself comes to an end."""
    root = str(proven)
    for content in broken(FILES[name]):
        (proven / name).write_bytes(content)
        assert isinstance(damage.find(root), dict)
        lease.read(root), lease.last_run(root), lease.maintenance(str(proven / lease.MAINTENANCE_FILE)), replacement.read(root)
        store.read_transaction(root), store.read_holds(root), store.read_history(root)
        detached.last(root), detached.waiting(root), detached.steps(root)
        resume.unfinished(root, "me", False)
        engine = PlayedEngine()
    engine.add("triton")
    for content in broken(FILES[name]):
        for left in FILES:
            (proven / left).unlink(missing_ok=True)
        if name != lease.LEASE:
            lease.acquire(root, lease.Holder("gone", "anna"), 0.0, {"name": "triton"}, dead_run=lease.last_run(root))
        (proven / name).write_bytes(content)
        outcome = resume.resume(root, engine)
        assert outcome.did or outcome.failed or outcome.busy
        assert "does not expect" not in outcome.failed


def test_any_record_of_a_release_is_data_or_a_reason(proven: Path) -> None:
    root = str(proven)
    label = store.served_label(root, "digits") or ""
    path = Path(store.record_path(root, "digits", label))
    good = json.loads(path.read_text())
    for content in broken(good):
        path.write_bytes(content)
        try:
            found = store.read_record(root, "digits", label)
        except store.StoreError as error:
            assert "cannot be used" in str(error)
        else:
            assert set(found) == {"release", "source", "versions", "steps", "cached", "shape", "files"}
        assert isinstance(damage.find(root), dict)


# A change with such a peer


@pytest.mark.parametrize("config", [*CONFIGS, {"instance_group": [{"count": 10**18}]}], ids=shown)
def test_a_change_with_a_server_that_lies_is_restored(proven: Path, monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """The looks are played; the switch, the loads and the way back are the real ones."""
    root = str(proven)
    before = store.current_models(root, {})["digits"]["release"]
    played = PlayedEngine()
    played.add("triton")
    load = [item("server", "digits", "a", "b", "load")]

    def see(*_given: Any, prove: bool = False, **_more: Any) -> proof.Observation:
        command = [f"--model-repository={root}/served"]
        actual = {"models": {"transaction": None}, "server": {"container": {"command": command}, "previous": False}}
        return proof.Observation(actual, [] if prove else list(load), {})

    monkeypatch.setattr(proof, "observe", see)
    lease.acquire(root, lease.Holder("r1", "anna"), 60.0, {"name": "triton"})
    new = release_of("digits", 2)
    answers = {
        "POST /v2/repository/index": (200, [{"name": "digits", "version": "1", "state": "READY"}]),
        "GET /v2/models/digits/versions/1/config": (200, config),
        "GET /v2/models/digits/config": (200, config),
        "POST /v2/repository/models/digits/load": (400, {"error": "no"}),
    }
    with http_server(answers) as triton:
        server = {"mode": "explicit", "grpc": False, "cache": False, "cards": {}, **asked(triton.port)}
        models = {"digits": {"release": new["release"], "versions": ["1"], "steps": [], "memory": [], "store_change": "beside"}}
        order: Any = {
            "id": "1",
            "rollback_reason": "",
            "store_change": {"state": "released", "releases": {"digits": new}, "withdraw": [], "incoming": ""},
            "host": "h",
            "root": root,
            "run": "r1",
            "by": "anna",
            "desired": {"models": {}, "server": {**server, "models": models}},
            "serve_current": False,
            "container": {"name": "triton", "free_timeout": 0, "stop_timeout": 1, "ready_timeout": 2, "key": None},
            "manual_server": {},
            "poll_seconds": 1,
            "checks": None,
            "keep": 3,
            "acceptance_timeout": 0,
            "keep_unanswered": False,
            "release_host": True,
        }
        began = time.monotonic()
        outcome = host_change.HostChange(order, drivers.ContainerDriver(order, played)).run()
        assert time.monotonic() - began < 120
    assert outcome.why
    assert outcome.back == "the previous releases serve again"
    assert store.current_models(root, {})["digits"]["release"] == before
    assert store.read_transaction(root) is None
    assert hashlib.sha256(b"digits1").hexdigest() == before
    assert lease.release(root, lease.Holder("r1", "anna"))
