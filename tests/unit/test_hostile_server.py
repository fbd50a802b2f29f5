"""Every client of this project against a server that lies: one deadline and one limit of size for each exchange."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import exchange as exchanges
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.inference import bounds, clients, load
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import Question
from ansible_collections.npufleet.triton.plugins.module_utils.support import readers
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api, served
from ansible_collections.npufleet.triton.plugins.module_utils.triton import metrics as page_of_metrics
from ansible_collections.npufleet.triton.plugins.module_utils.watch import evidence, settings
from hostile_server import ENDLESS, MODES, WRONG, Hostile, hostile
from small_triton import certificates
from tritonclient.grpc import service_pb2, service_pb2_grpc

# Seconds and bytes of an exchange here; seconds in which it has surely ended, however busy the machine is
SECONDS, SIZE, SURELY = 0.5, 1 << 20, 60.0
# Bytes that may be on their way to a client that reads no more
ON_THE_WAY = 16 << 20
QUESTION = Question("m", {"IN": ("FP32", np.zeros((1, 2), np.float32))}, {}, [])


def ended(call: Callable[[], Any]) -> Any:
    """What a call has returned or raised, which has to end."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SURELY)
    assert not thread.is_alive(), "it still waits"
    return found[0]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_probe, "TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr(http_probe, "MAX_RECEIVED", SIZE)
    monkeypatch.setattr(exchanges, "MAX_BODY", SIZE)
    monkeypatch.setattr(bounds, "MAX_RESPONSE_BYTES", SIZE)
    monkeypatch.setattr(load, "MAX_PAGE", SIZE)
    monkeypatch.setattr(load, "SIGN_OF_LIFE", SECONDS)
    monkeypatch.setattr(http_api, "TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr(evidence, "MAX_SIZE", SIZE)


CONFIG: dict[str, Any] = dict.fromkeys(settings.Watchdog._fields, 1)


def host_of(port: int) -> Any:
    names = {"address": "127.0.0.1", "http_port": port, "metrics_port": port, "metrics_address": None, "key": None, "grpc": False}
    return evidence.Observer(settings.Watchdog(**{**CONFIG, **names}))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificates(tmp_path_factory.mktemp("tls"))


def probe(server: Hostile) -> Any:
    return http_probe.measure(server.url, http_probe.Access(("", ""), {}, None))[1]


def registry(server: Hostile) -> Any:
    return http_probe._manifest(server.url, "a", "b", http_probe.Access(("", ""), {}, None))


def by_proxy(server: Hostile) -> Any:
    return http_probe.measure("https://elsewhere.invalid/", http_probe.Access(("", ""), {"https": server.url}, None))[1]


def behind_tls(server: Hostile) -> Any:
    return http_probe.measure(server.url.replace("http:", "https:"), http_probe.Access(("", ""), {}, None))[1]


def page(server: Hostile) -> Any:
    return http_probe._exchange(server.url, http_probe.Access(("", ""), {}, None), method="GET")


def triton(server: Hostile) -> Any:
    return http_api.http_json("127.0.0.1", server.port, "GET", "/v2", SECONDS)


def bundle(server: Hostile) -> Any:
    budget = exchanges.Budget(SECONDS)
    limits = readers.Limits(SECONDS, SIZE // 8, 10)
    return readers.response_body(exchanges.connect("127.0.0.1", server.port, budget), "GET", "/", limits, budget)


def metrics(server: Hostile) -> Any:
    return host_of(server.port).metrics()


def models(server: Hostile) -> Any:
    return host_of(server.port).index()


def of_instances(server: Hostile) -> Any:
    return load.answered_requests(server.url, "m")


def check(protocol: str, server: Hostile) -> Any:
    return clients.SERVICES[protocol](f"127.0.0.1:{server.port}", SECONDS).infer(QUESTION).error


def check_http(server: Hostile) -> Any:
    return check("http", server)


def check_http_index(server: Hostile) -> Any:
    return clients.Http(f"127.0.0.1:{server.port}", SECONDS).index()


def check_grpc(server: Hostile) -> Any:
    return check("grpc", server)


def check_grpc_index(server: Hostile) -> Any:
    return clients.Grpc(f"127.0.0.1:{server.port}", SECONDS).index()


def check_stream(server: Hostile) -> Any:
    return check("stream", server)


def check_raw(server: Hostile) -> Any:
    return check("raw", server)


CLIENTS = [
    *(probe, page, registry, by_proxy, behind_tls, triton, bundle, metrics, models, of_instances),
    *(check_http, check_http_index, check_grpc, check_grpc_index, check_stream, check_raw),
]
OF_GRPC = (check_grpc, check_grpc_index, check_stream, check_raw)


@pytest.mark.parametrize(
    ("client", "mode"),
    # gRPC ends with the first bytes that are not its own
    [(client, mode) for client in CLIENTS for mode in MODES if client not in OF_GRPC or mode in ("silence", "endless garbage")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_exchange_ends_in_time_and_size(client: Callable[[Hostile], Any], mode: str) -> None:
    with hostile(mode) as server:
        ended(lambda: client(server))
    assert server.sent < ON_THE_WAY
    assert server.requests <= 12


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("redirect loop", "a bomb")])
def test_no_lie_is_an_answer_of_triton(mode: str) -> None:
    with hostile(mode) as server:
        status, why = ended(lambda: triton(server))
    assert status in (0, 302, 401) and (why or status == 401)


def test_a_supplier_that_leads_in_circles_is_no_supplier() -> None:
    with hostile("redirect loop") as server:
        assert "no answer (status 302)" in ended(lambda: probe(server))


def test_an_index_without_end_is_not_asked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    index = [{"name": f"m{number}", "version": "1", "state": "READY"} for number in range(100_000)]

    def answer(_wanted: Any, _method: str, resource: str) -> Any:
        asked.append(resource)
        time.sleep(0.05)
        return 200, index if len(asked) == 1 else {}

    monkeypatch.setattr(served, "query", answer)
    monkeypatch.setattr(served, "TIMEOUT_SECONDS", SECONDS)
    assert ended(lambda: served.read_served({})) is None
    host = host_of(1)
    monkeypatch.setattr(host, "request", lambda _method, resource: (answer(None, "", resource)[0], b"{}"))
    monkeypatch.setattr(evidence, "CONFIG_SECONDS", SECONDS)
    models = {f"m{number}": {"1": "READY"} for number in range(100_000)}
    assert "did not return its 100000 models within 0 s" in str(ended(lambda: host.ready(models)))


@pytest.mark.parametrize("mode", MODES)
def test_every_exchange_with_the_engine_ends(mode: str, tmp_path: Path) -> None:
    with hostile(mode, tmp_path / "engine.sock") as server:
        found = ended(lambda: Engine(str(tmp_path / "engine.sock"), SECONDS).get("/info"))
    assert isinstance(found, OSError) and server.sent < ON_THE_WAY


def test_a_server_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "TIMEOUT_SECONDS", SECONDS)
    with hostile("a byte of a body without length at a time") as server:
        wanted = {"address": "127.0.0.1", "http_port": server.port, "key": None}
        assert ended(lambda: served.read_served(wanted)) is None


@pytest.mark.parametrize("mode", MODES)
def test_every_exchange_behind_tls_ends(mode: str, tls: dict[str, str]) -> None:
    with hostile(mode, tls=tls) as server:
        ended(lambda: http_probe._exchange(server.url, http_probe.Access(("", ""), {}, Path(tls["ca"]).read_text()), method="GET"))
    assert server.sent < ON_THE_WAY and server.requests <= 12


@pytest.mark.parametrize("mode", ["endless body", "endless chunks"])
def test_a_page_that_is_too_large_is_no_silence(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "TIMEOUT_SECONDS", SURELY)
    with hostile(mode) as server:
        found = ended(lambda: metrics(server))
    assert isinstance(found, evidence.TooLarge) and f"has more than {SIZE} bytes" in str(found)


def test_an_answer_that_is_compressed_is_refused() -> None:
    with hostile("a bomb") as server:
        assert "Content-Encoding 'gzip'" in str(ended(lambda: check_http(server)))


# gRPC that is gRPC


@contextlib.contextmanager
def grpc_server(compression: Any = None) -> Iterator[Any]:
    """A server whose answers are four times too large, and whose streams never end: what it has sent, and its port."""
    sent = SimpleNamespace(responses=0, port=0)
    over = threading.Event()

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ModelInfer(self, _request: Any, _context: Any) -> Any:
            return service_pb2.ModelInferResponse(model_name="m", raw_output_contents=[bytes(4 * SIZE)])

        def ModelStreamInfer(self, _requests: Any, _context: Any) -> Any:
            while not over.is_set():
                sent.responses += 1
                response = service_pb2.ModelInferResponse(model_name="m", raw_output_contents=[b"xy"])
                yield service_pb2.ModelStreamInferResponse(infer_response=response)

    server = grpc.server(ThreadPoolExecutor(4), compression=compression)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    sent.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield sent
    finally:
        over.set()
        server.stop(0).wait()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = [(name, SIZE if name == "grpc.max_receive_message_length" else value) for name, value in bounds.CHANNEL]
    monkeypatch.setattr(clients, "CHANNEL", channel)


@pytest.mark.parametrize("protocol", ["grpc", "raw"])
@pytest.mark.parametrize(
    ("compression", "words"), [(None, "larger than max"), (grpc.Compression.Gzip, "ompression")], ids=["plain", "compressed"]
)
def test_an_answer_by_grpc_has_a_limit(protocol: str, compression: Any, words: str, small: None) -> None:
    with grpc_server(compression) as server:
        service = clients.SERVICES[protocol](f"127.0.0.1:{server.port}", SURELY)
        assert words in str(ended(lambda: service.infer(QUESTION)).error)


def test_a_stream_without_end_has_a_limit() -> None:
    with grpc_server() as server:
        answer = ended(lambda: clients.Stream(f"127.0.0.1:{server.port}", SURELY).infer(QUESTION))
    assert str(answer.error) == f"the stream has more than {SIZE} bytes"
    assert answer.responses <= SIZE // bounds.RESPONSE_OVERHEAD


# Pages of metrics


@pytest.mark.parametrize("text", ["a" * 2_000_000, 'a="' * 700_000, 'a="\\"' * 400_000, "a=" * 1_000_000])
def test_labels_are_read_in_a_time_that_grows_with_their_length_alone(text: str) -> None:
    assert isinstance(ended(lambda: page_of_metrics.LABEL.findall(text)), list)


def test_lines_that_are_too_long_are_passed_over() -> None:
    long = "a" * 80_000
    text = f'n{{model="{long}"}} 1\n{long} 1\nn{{model="m"}} 2\n'
    assert ended(lambda: evidence.parse_page(text)) == {"n": [({"model": "m"}, 2.0)]}
    assert ended(lambda: list(page_of_metrics.samples(text, "n"))) == [("n", {"model": "m"}, 2.0)]


def test_a_page_of_too_many_lines_is_refused() -> None:
    assert isinstance(ended(lambda: evidence.parse_page("\n" * 200_000)), evidence.TooLarge)
    assert "more than 100000 lines" in str(ended(lambda: list(page_of_metrics.samples("\n" * 200_000, "n"))))


def test_a_group_of_countless_instances_has_none() -> None:
    group = {"name": "npu", "kind": "KIND_MODEL"}
    assert evidence.instances({"instance_group": [{**group, "count": 10**12}, {**group, "count": 2}]}) == ["npu_0", "npu_1"]


def test_modes_are_told_apart() -> None:
    assert not set(ENDLESS) & set(WRONG)
