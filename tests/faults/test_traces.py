"""Traces of real servers with the documented settings: the spans that reach a receiver of OTLP."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible.template import trust_as_template
from bare_server import HERE, TIMEOUT, WHEELS
from host import free_port
from otlp_receiver import Receiver, Span, receiver
from rendered_server import RenderedServer, rendered_server

PAGES = ("docs/monitoring.md", "docs/monitoring.ko.md")
NAME = "triton_server_trace_config"
COLLECTOR = "http://otel.example.com:4318/v1/traces"
INPUTS = {"X": [[3.0]]}
# Number of attempts until a request has all of its spans
ATTEMPTS = 10


def example(page: str) -> list[str]:
    """Return the settings of traces on a page."""
    blocks = re.findall(r"```yaml\n(.*?)```", (HERE.parents[1] / page).read_text(), re.DOTALL)
    (found,) = [variables[NAME] for variables in map(yaml.safe_load, blocks) if NAME in variables]
    return [str(setting) for setting in found]


EXAMPLE = example(PAGES[0])
(RATE,) = [int(setting.partition("=")[2]) for setting in EXAMPLE if setting.startswith("rate=")]


class Scene:
    """A server that sends its traces to a receiver."""

    def __init__(self, release: str, server: RenderedServer, received: Receiver) -> None:
        self.release, self.server, self.received = release, server, received

    def send(self, protocol: str, identity: str, sampled: bool = True) -> tuple[str, str]:
        """Send a request that belongs to a trace of its client. Return the IDs of this trace and of the client's span."""
        trace, parent = secrets.token_hex(16), secrets.token_hex(8)
        header = f"00-{trace}-{parent}-{int(sampled):02d}"
        assert getattr(self.server, protocol)("alpha", identity, INPUTS, traceparent=header) == ""
        return trace, parent

    def spans(self, trace: str) -> dict[str, Span]:
        """Return {name: span} of a trace when all of its spans have arrived."""
        self.server.wait(lambda: self._complete(trace), f"the spans of {trace}")
        return self.received.spans(trace)

    def traced(self, protocol: str, identity: str, sampled: bool = True) -> tuple[dict[str, Span], str]:
        """Return {name: span} of a request, and the ID of the client's span.

        On a busy machine, Triton 24.10 may lose a batch of spans, and its exporter sends no batch twice. So the request is
        repeated.
        """
        for _attempt in range(ATTEMPTS):
            trace, parent = self.send(protocol, identity, sampled)
            with contextlib.suppress(AssertionError):
                self.server.wait(functools.partial(self._complete, trace), f"the spans of {trace}", TIMEOUT / ATTEMPTS)
                return self.received.spans(trace), parent
        arrived = [(span.name, span.attributes.get("triton.request_id")) for span in self.received.all_spans()]
        raise AssertionError(f"{ATTEMPTS} requests {identity!r} have no spans. The receiver has {arrived}")

    def _complete(self, trace: str) -> bool:
        return len(self.received.spans(trace)) == 3


@pytest.fixture(scope="module", params=sorted(WHEELS))
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("traces")
    (directory / "models").mkdir()
    (directory / "models/alpha").symlink_to(HERE / "models/alpha")
    with receiver() as received:
        settings = [trust_as_template(setting.replace(COLLECTOR, received.url)) for setting in EXAMPLE]
        assert settings != EXAMPLE
        if request.param != "24.01":
            # With a delay of 200 ms, the tests do not wait 5 s for each batch of spans.
            settings.append("opentelemetry,bsp_schedule_delay=200")
        with rendered_server(directory, request.param, directory / "models", triton_server_trace_config=settings) as server:
            yield Scene(request.param, server, received)


def test_both_pages_have_the_same_example() -> None:
    assert example(PAGES[1]) == EXAMPLE


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_spans_belong_to_the_trace_of_the_client(scene: Scene, protocol: str) -> None:
    spans, parent = scene.traced(protocol, f"order-7-{protocol}")
    request, model, compute = spans["InferRequest"], spans["alpha"], spans["compute"]
    assert [request.parent, model.parent, compute.parent] == [parent, request.identity, model.identity]
    assert model.attributes["triton.model_name"] == "alpha"
    assert model.attributes["triton.request_id"] == f"order-7-{protocol}"
    assert {"REQUEST_START", "QUEUE_START", "REQUEST_END"} <= set(model.events)
    assert {"COMPUTE_START", "COMPUTE_END"} <= set(compute.events)


def test_spans_have_the_attributes_of_the_host(scene: Scene) -> None:
    spans, _parent = scene.traced("http", "attributes")
    for span in spans.values():
        assert (span.resource["service.name"], span.resource["host.name"]) == ("triton", "npu-01")


def test_one_request_of_the_rate_is_traced(scene: Scene) -> None:
    for number in range(RATE):
        assert scene.server.http("alpha", f"sample-{number}", INPUTS) == ""
    # Spans arrive in the order of the requests, so the spans of this request arrive last.
    scene.traced("http", "last")
    identities = [str(span.attributes.get("triton.request_id")) for span in scene.received.all_spans()]
    assert len([identity for identity in identities if identity.startswith("sample-")]) == 1


def test_each_request_with_a_traceparent_is_traced_even_if_unsampled(scene: Scene) -> None:
    for number in range(5):
        spans, _parent = scene.traced("http", f"client-{number}", sampled=False)
        assert spans["alpha"].attributes["triton.request_id"] == f"client-{number}"


def test_requests_are_json_for_the_path_of_the_url(scene: Scene) -> None:
    scene.traced("http", "path")
    assert {(path, kind) for path, kind, _body in scene.received.requests} == {("/v1/traces", "application/json")}


def test_a_receiver_that_hangs_stops_the_model_only_on_24_01(scene: Scene) -> None:
    before = len(scene.received.requests)
    scene.received.open.clear()
    try:
        trace, _parent = scene.send("http", "slow")
        scene.server.wait(lambda: len(scene.received.requests) > before, "the first span")
        # 24.01 sends each span separately, in the thread of the model instance, and waits up to 10 s for the receiver.
        if scene.release == "24.01":
            with pytest.raises(TimeoutError):
                scene.server.http("alpha", "next", INPUTS, timeout=3)
        else:
            assert scene.server.http("alpha", "next", INPUTS) == ""
    finally:
        scene.received.open.set()
    scene.spans(trace)


@pytest.mark.parametrize("release", sorted(WHEELS))
def test_a_server_without_its_receiver_answers_and_logs_errors(tmp_path: Path, release: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/alpha").symlink_to(HERE / "models/alpha")
    settings = ["mode=opentelemetry", "rate=1", "level=TIMESTAMPS", f"opentelemetry,url=http://127.0.0.1:{free_port()}/v1/traces"]
    with rendered_server(tmp_path, release, tmp_path / "models", triton_server_trace_config=settings) as server:
        for number in range(3):
            assert server.http("alpha", f"lost-{number}", INPUTS) == ""
        log = server.log
    # The exporter's output is buffered until the server ends.
    assert "[Error]" in log.read_text()
