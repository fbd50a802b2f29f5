"""Tests of real servers with restricted APIs: requests without the key, the secrecy of the key, and clients during a load."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from bare_server import CONNECTIONS, INFER, TIMEOUT, WHEELS, BareServer
from host import forget_shared_memory, shared_memory
from tritonclient.grpc import service_pb2, service_pb2_grpc

OPEN = 'open("{proof}", "w").close()\n'


@pytest.fixture(scope="module", params=sorted(WHEELS))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareServer]:
    found, before = None, shared_memory()
    try:
        found = BareServer(tmp_path_factory.mktemp("server"), request.param)
        yield found
    finally:
        if found:
            found.go.touch()
            found.host.stop(drain=False)
        forget_shared_memory(before)


def payload(proof: Path) -> str:
    """Return the body of a load request that contains a model with foreign code."""
    code = base64.b64encode(OPEN.format(proof=proof).encode()).decode()
    config = json.dumps({"backend": "python", "max_batch_size": 0})
    return json.dumps({"parameters": {"config": config, "file:1/model.py": code}})


@pytest.mark.parametrize(
    ("method", "resource"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/alpha/load"),
        ("POST", "/v2/repository/models/alpha/unload"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/unregister"),
        ("GET", "/v2/trace/setting"),
        ("GET", "/v2/logging"),
    ],
)
def test_closed_over_http(place: BareServer, method: str, resource: str) -> None:
    assert place.ask(method, resource)[0] == 403
    assert place.ask(method, resource, headers={"npufleet-key": "x" * 43})[0] == 403
    assert place.ask("GET", "/v2/models/alpha/ready")[0] == 200


def test_a_strangers_code_does_not_run(place: BareServer, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    assert place.ask("POST", "/v2/repository/models/stranger/load", payload(proof))[0] == 403
    assert not proof.exists()
    # With the key, the code runs. The end of this load does not matter. 24.01 never answers it.
    arguments = ("POST", "/v2/repository/models/stranger/load", payload(proof), place.key())
    threading.Thread(target=place.ask, args=arguments, daemon=True).start()
    place.wait(proof.exists)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
        ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="alpha")),
        ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="alpha")),
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
        ("TraceSetting", service_pb2.TraceSettingRequest()),
        ("LogSettings", service_pb2.LogSettingsRequest()),
    ],
)
def test_closed_over_grpc(place: BareServer, call: str, message: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{place.host.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refusal:
            getattr(stub, call)(message, timeout=TIMEOUT)
        assert (refusal.value.code(), "restricted" in refusal.value.details()) == (grpc.StatusCode.UNAVAILABLE, True)
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name="alpha"), timeout=TIMEOUT).ready


def test_what_clients_ask_stays_open(place: BareServer) -> None:
    status, answer = place.ask("POST", "/v2/models/alpha/infer", INFER)
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [6.0])
    for resource in ("/v2", "/v2/health/live", "/v2/models/alpha/config", "/v2/models/alpha/stats"):
        assert place.ask("GET", resource)[0] == 200


def holders(secret: str) -> set[bytes]:
    """Return the command lines of the processes whose command line or environment contains a secret.

    A child process that has not executed another program yet has the command line of its parent.
    """
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if secret.encode() in command + (process / "environ").read_bytes():
                found.add(command)
    return found


def test_a_load_delays_no_other_client_and_hides_the_key(place: BareServer) -> None:
    connections = [place.connection() for _number in range(CONNECTIONS)]
    assert place.host.server is not None

    def ask(connection: http.client.HTTPConnection) -> int:
        connection.request("POST", "/v2/models/alpha/infer", INFER)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    for entry in connections:
        assert ask(entry) == 200
    sockets = [entry.sock for entry in connections]
    client = place.host.asker()._replace(timeout=TIMEOUT)
    with ThreadPoolExecutor() as pool:
        loading = pool.submit(client.request, "slow", "load")
        try:
            place.wait(lambda: place.state("slow") == "LOADING" or loading.done())
            assert not loading.done(), loading.exception()
            # Only Triton's own command line contains the key.
            (secret,) = place.key().values()
            assert holders(secret) == {Path(f"/proc/{place.host.server.pid}/cmdline").read_bytes()}
            assert secret not in place.host.log.read_text()
            asking = pool.submit(lambda: {ask(entry) for entry in connections})
            place.wait(asking.done)
            assert (asking.result(), loading.done(), place.state("slow")) == ({200}, False, "LOADING")
            assert [entry.sock for entry in connections] == sockets, "a connection was replaced"
        finally:
            place.go.touch()
        loading.result()
    assert place.state("slow") == "READY"
