"""haproxy.cfg as the role writes it: its text, and what a real HAProxy with it passes, refuses and checks."""

from __future__ import annotations

import base64
import http.client
import importlib
import os
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.balancer_config import (
    PROBE_IDLE_SECONDS,
    QUEUE_FULL,
    Check,
    Server,
    Settings,
    login_digest,
    quoted,
    render,
)
from balancer_clients import Call, GrpcClient, HttpClient
from helpers import until
from rendered_haproxy import BODY, RenderedHaproxy, rendered_haproxy
from small_triton import SmallTriton, certificates, small_triton

SETTINGS = Settings(
    servers=[Server("npu1", "192.0.2.1", 8000, 8001), Server("npu2", "2001:db8::2", 9000, 9001)],
    bind=["0.0.0.0", "::"],
    http_port=8000,
    grpc_port=8001,
    check=Check("a model", BODY, '"it\'s"', (("triton-key", "50%'s"),)),
    check_interval=5,
    check_timeout=10,
    stream_timeout=3600,
    maxconn=1000,
    metrics_address="127.0.0.1:8405",
)
GRPC = "/inference.GRPCInferenceService/"


def lines(settings: Settings) -> list[str]:
    return [line.strip() for line in render(settings, {}).splitlines()]


def test_the_digest_changes_with_the_text_and_with_each_file() -> None:
    found = {
        files.digest_in(render(*given))
        for given in (
            (SETTINGS, {}),
            (SETTINGS._replace(maxconn=1001), {}),
            (SETTINGS, {files.CERTIFICATE: "one"}),
            (SETTINGS, {files.CERTIFICATE: "two"}),
        )
    }
    assert len(found) == 4 and None not in found
    assert render(SETTINGS, {}) == render(SETTINGS, {})


def test_grpc_servers_follow_the_http_servers() -> None:
    text = lines(SETTINGS)
    assert "server npu1 192.0.2.1:8000 check inter 5s fastinter 1s downinter 1s fall 2 rise 2 weight 100 tcp-ut 30s" in text
    assert "server npu2 [2001:db8::2]:9001 proto h2 track npufleet_http/npu2 weight 100 tcp-ut 30s" in text
    assert "bind [::]:8001 v4v6 proto h2" in text


def test_texts_of_the_inventory_are_single_words() -> None:
    assert quoted('it\'s $HOME "x" \\') == "'it'\\''s $HOME \"x\" \\'"
    (sent,) = [line for line in lines(SETTINGS) if line.startswith("http-check send")]
    assert "uri '/v2/models/a%20model/infer'" in sent
    # A percent sign begins a variable of a log format there.
    assert "hdr triton-key '50%%'\\''s'" in sent


def test_a_password_is_not_in_the_text() -> None:
    text = render(SETTINGS._replace(logins=[login_digest("kim", "s3cret-word")]), {})
    assert "s3cret-word" not in text
    assert base64.b64encode(b"kim:s3cret-word").decode() not in text


def test_both_frontends_remove_the_trace_context_of_clients() -> None:
    rules = ["http-request del-header traceparent", "http-request del-header tracestate"]
    assert [line for line in lines(SETTINGS) if line in rules] == 2 * rules
    # The option changes nothing else.
    description = "description npufleet"
    passing = [line for line in lines(SETTINGS._replace(trace_context=True)) if not line.startswith(description)]
    assert passing == [line for line in lines(SETTINGS) if line not in rules and not line.startswith(description)]


def test_only_a_connection_that_failed_is_tried_again() -> None:
    text = lines(SETTINGS)
    assert [line for line in text if line.startswith("retry-on")] == ["retry-on conn-failure"]
    assert {"option abortonclose", "timeout server 3600s", "timeout client 3600s"} <= set(text)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RenderedHaproxy, SmallTriton]]:
    """A balancer with one server."""
    home = tmp_path_factory.mktemp("haproxy")
    with small_triton() as triton, rendered_haproxy(home, {"npu1": (triton.http_port, triton.grpc_port)}) as balancer:
        yield balancer, triton


def ask(port: int, method: str, path: str, headers: dict[str, str] | None = None, body: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body or None, headers or {})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2"),
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/double"),
        ("GET", "/v2/models/double/versions/1"),
        ("GET", "/v2/models/double/config"),
        ("GET", "/v2/models/double/versions/12/ready?x=1"),
        ("POST", "/v2/models/double/versions/1/infer"),
        ("POST", "/v2/models/double/generate"),
        ("POST", "/v2/models/double/generate_stream?x=/v2/repository"),
    ],
)
def test_inference_health_and_metadata_pass(two: tuple[RenderedHaproxy, SmallTriton], method: str, path: str) -> None:
    assert ask(two[0].http_port, method, path, body=BODY if method == "POST" else "") == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/double/load"),
        ("POST", "/v2/repository/models/double/unload"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/models/double/trace/setting"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/a/register"),
        ("POST", "/v2/cudasharedmemory/unregister"),
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/double/stats"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("GET", "/v2/"),
        ("POST", "//v2/repository/index"),
        ("POST", "/v2//repository/index"),
        ("POST", "/v2/models/../repository/index"),
        ("POST", "/v2/models/x/../../repository/index"),
        ("POST", "/v2/%72epository/index"),
        ("POST", "/V2/repository/index"),
        ("POST", "http://127.0.0.1/v2/repository/index"),
        ("POST", "/v2/repository/index?/v2/models/double/infer"),
        ("POST", "/v2/health/ready"),
        ("GET", "/v2/models/double/infer"),
        ("DELETE", "/v2/models/double/infer"),
    ],
)
def test_other_http_calls_are_refused(two: tuple[RenderedHaproxy, SmallTriton], method: str, path: str) -> None:
    balancer, triton = two
    before = len(triton.asked)
    assert ask(balancer.http_port, method, path) == 403
    assert triton.asked[before:] in ([], ["http"] * len(triton.asked[before:])), "only health checks have reached the server"


# Every call of Triton's protocol buffers that must not pass
REFUSED = (
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "LogSettings", "TraceSetting", "ModelStatistics",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
)  # fmt: skip
PASSED = (
    "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelInfer", "ModelStreamInfer",
)  # fmt: skip


def grpc_status(port: int, path: str, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    grpc = importlib.import_module("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_each_grpc_call_passes_or_is_refused(two: tuple[RenderedHaproxy, SmallTriton]) -> None:
    protocol = importlib.import_module("tritonclient.grpc.service_pb2")
    service = protocol.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert sorted(service.methods_by_name) == sorted([*REFUSED, *PASSED])
    found = {name: grpc_status(two[0].grpc_port, GRPC + name) for name in [*REFUSED, *PASSED]}
    assert {name for name, status in found.items() if status == "PERMISSION_DENIED"} == set(REFUSED)
    assert grpc_status(two[0].grpc_port, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo") == "PERMISSION_DENIED"
    assert grpc_status(two[0].grpc_port, "/grpc.health.v1.Health/Check") != "PERMISSION_DENIED"
    assert grpc_status(two[0].http_port, GRPC + "RepositoryIndex") == "PERMISSION_DENIED", "gRPC to the port of HTTP"


def test_inference_passes_over_both_protocols(two: tuple[RenderedHaproxy, SmallTriton]) -> None:
    balancer, _triton = two
    assert HttpClient(balancer.http_port).infer() == 200
    client = GrpcClient(balancer.grpc_port)
    assert client.infer(2.0) == 4.0
    client.close()
    until(lambda: balancer.ask("show events npufleet").count(" npu1 200 ") >= 2)
    logged = balancer.ask("show events npufleet")
    assert "/v2/models/double/infer" in logged and "key=hidden" not in logged


def test_metrics_and_readiness_are_on_their_own_address(two: tuple[RenderedHaproxy, SmallTriton]) -> None:
    balancer, _triton = two
    assert [ask(balancer.metrics_port, "GET", path) for path in ("/metrics", "/ready", "/v2", "/")] == [200, 200, 404, 404]


def test_a_login_is_needed_and_ends_at_the_balancer(tmp_path: Path) -> None:
    logins = [login_digest("kim", "s3cret"), login_digest("lee", "0ther")]
    headers = {
        name: "Basic " + base64.b64encode(text.encode()).decode() for name, text in (("kim", "kim:s3cret"), ("bad", "kim:x"))
    }
    with (
        small_triton() as triton,
        rendered_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}, logins=logins) as balancer,
    ):
        paths = [(None, 401), (headers["bad"], 401), (headers["kim"], 200)]
        for header, expected in paths:
            given = {"Authorization": header} if header else {}
            assert ask(balancer.http_port, "GET", "/v2/health/ready", given) == expected
        call = GRPC + "ServerLive"
        assert grpc_status(balancer.grpc_port, call) == "UNAUTHENTICATED"
        assert grpc_status(balancer.grpc_port, call, (("authorization", headers["bad"]),)) == "UNAUTHENTICATED"
        assert grpc_status(balancer.grpc_port, call, (("authorization", headers["kim"]),)) == "OK"
        assert ask(balancer.http_port, "POST", "/v2/repository/index", {"Authorization": headers["kim"]}) == 403
        assert not any("authorization" in given for given in triton.headers)


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=value"}


@pytest.mark.parametrize("passes", [False, True])
def test_trace_context_of_clients_passes_only_if_enabled(tmp_path: Path, passes: bool) -> None:
    with (
        small_triton() as triton,
        rendered_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}, trace_context=passes) as balancer,
    ):
        http_headers = {name.title(): value for name, value in TRACE.items()}
        assert ask(balancer.http_port, "GET", "/v2/health/ready", {**http_headers, "client": "http"}) == 200
        assert grpc_status(balancer.grpc_port, GRPC + "ServerLive", (*TRACE.items(), ("client", "grpc"))) == "OK"
        arrived = {headers["client"]: headers for headers in triton.headers if "client" in headers}
    expected = TRACE if passes else {}
    assert {client: {name: headers[name] for name in TRACE if name in headers} for client, headers in arrived.items()} == {
        "http": expected,
        "grpc": expected,
    }


def test_tls_with_certificates_of_clients(tmp_path: Path) -> None:
    paths = certificates(tmp_path)
    (tmp_path / "balancer.pem").write_text(Path(paths["server"]).read_text() + Path(paths["server_key"]).read_text())
    (tmp_path / "clients.pem").write_text(Path(paths["ca"]).read_text())
    tls = {"tls": True, "client_certificates": True}
    with small_triton() as triton, rendered_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}, **tls) as balancer:
        context = ssl.create_default_context(cafile=paths["ca"])
        assert _https(balancer.http_port, context) == 0
        context.load_cert_chain(paths["client"], paths["client_key"])
        assert _https(balancer.http_port, context) == 200
        grpc = importlib.import_module("grpc")
        services = importlib.import_module("tritonclient.grpc.service_pb2_grpc")
        messages = importlib.import_module("tritonclient.grpc.service_pb2")
        pem = [Path(paths[name]).read_bytes() for name in ("ca", "client_key", "client")]
        with grpc.secure_channel(f"localhost:{balancer.grpc_port}", grpc.ssl_channel_credentials(*pem)) as channel:
            assert services.GRPCInferenceServiceStub(channel).ServerLive(messages.ServerLiveRequest(), timeout=10).live
        assert _https(balancer.http_port, None) == 0


def _https(port: int, context: ssl.SSLContext | None) -> int:
    """Return the status of a request, 0 if the connection fails. Without a context, the request is sent in clear text."""
    kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
    more: dict[str, Any] = {"context": context} if context else {}
    connection = kind("localhost", port, timeout=10, **more)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def test_a_server_that_answers_wrong_is_down_for_both_protocols(tmp_path: Path) -> None:
    with small_triton() as good, small_triton() as bad:
        servers = {"npu1": (good.http_port, good.grpc_port), "npu2": (bad.http_port, bad.grpc_port)}
        with rendered_haproxy(tmp_path, servers) as balancer:

            def fails(_array: Any) -> Any:
                raise ValueError("the engine is dead")

            bad.answer = fails
            until(lambda: balancer.up("npu1"))
            assert balancer.status("npufleet_grpc")["npu2"].startswith("DOWN")
            client = GrpcClient(balancer.grpc_port)
            assert [client.infer(3.0) for _ in range(6)] == [6.0] * 6
            client.close()
            good.answer = fails
            until(lambda: balancer.up())
            assert ask(balancer.metrics_port, "GET", "/ready") == 503
            bad.answer = lambda array: array * 2
            until(lambda: balancer.up("npu2"))
            assert ask(balancer.metrics_port, "GET", "/ready") == 200


def test_requests_in_flight_outlive_slow_health_checks(tmp_path: Path) -> None:
    """A check that is slow under load must not end the requests that the server is about to answer."""
    answered = threading.Event()

    def slow(array: Any) -> Any:
        assert answered.wait(30)
        return array * 2

    with (
        small_triton() as triton,
        rendered_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}, check_timeout=1) as balancer,
        ThreadPoolExecutor() as threads,
    ):
        client = GrpcClient(balancer.grpc_port)
        assert client.stream(2.0) == 4.0
        triton.answer = slow
        results = [threads.submit(client.stream, 3.0), threads.submit(client.infer, 3.0)]
        call = Call(balancer.http_port)
        until(lambda: balancer.up() and balancer.status("npufleet_grpc")["npu1"].startswith("DOWN"))
        answered.set()
        assert [result.result() for result in results] == [6.0, 6.0]
        call.join()
        assert (call.status, call.error) == (200, None)
        client.close()


def keepalive_timers(port: int) -> list[float]:
    """Return the seconds until the next probe of each connection to a port of the loopback that waits for a probe."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    timers = [row[5].split(":") for row in rows if row[2] == f"0100007F:{port:04X}" and row[3] == "01"]
    return [int(left, 16) / os.sysconf("SC_CLK_TCK") for kind, left in timers if kind == "02"]


def test_kernel_of_a_server_is_probed_while_requests_are_in_flight(tmp_path: Path) -> None:
    """If a host loses its power, nothing else would end its requests before the time limit of a stream."""
    answered = threading.Event()
    with small_triton() as triton, rendered_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}) as balancer:
        client = GrpcClient(balancer.grpc_port)
        assert client.stream() == 2.0
        triton.answer = lambda array: (answered.wait(30), array)[1]
        call = Call(balancer.http_port)
        try:
            until(lambda: keepalive_timers(triton.http_port) and keepalive_timers(triton.grpc_port))
            assert max(keepalive_timers(triton.http_port) + keepalive_timers(triton.grpc_port)) <= PROBE_IDLE_SECONDS
        finally:
            answered.set()
        call.join()
        client.close()
    text = lines(SETTINGS)
    # This option would also end the requests of a server whose health check is only slow.
    assert "on-marked-down" not in " ".join(text)


def test_a_server_with_a_full_queue_stays_up(tmp_path: Path) -> None:
    """An overload must not take one server after the other out of the traffic."""
    with small_triton() as triton, rendered_haproxy(tmp_path, {"npu1": (triton.http_port, triton.grpc_port)}) as balancer:

        def full(_array: Any) -> Any:
            raise OverflowError(QUEUE_FULL)

        before = len(triton.asked)
        triton.answer = full
        until(lambda: len(triton.asked) >= before + 5)
        assert balancer.up("npu1")
