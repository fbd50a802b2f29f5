"""Windows of traffic from the lines of HAProxy's ring: kinds of failures, latencies, hostile lines, merged windows."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import traffic
from helpers import FIXTURES

INFER = "/v2/models/double/infer"


def line(**more: Any) -> str:
    values = {
        "mark": traffic.MARK,
        "at": 1000_000,
        "backend": "npufleet_http",
        "server": "npu1",
        "status": 200,
        "grpc": "-",
        "response": 7,
        "active": 9,
        "end": "--",
        "path": INFER,
    }
    return " ".join(str(value) for value in {**values, **more}.values())


def one(**more: Any) -> traffic.Request:
    request = traffic.parse_line(line(**more))
    assert request is not None
    return request


def counted(*lines: str) -> dict[str, Any]:
    return traffic.window(traffic.parse_ring("\n".join(lines), 0.0).requests)


@pytest.mark.parametrize("version", ["2.6", "3.0"])
def test_recorded_lines_become_requests(version: str) -> None:
    text = (FIXTURES / "haproxy" / version / "events.txt").read_text()
    ring = traffic.parse_ring(text, 0.0)
    assert [(request.server, request.status, request.model) for request in ring.requests][-1][1:] == (400, "bad")
    assert [request.model for request in ring.requests] == ["foo", "foo", "bad"]
    assert "secret" not in text and "\nServer npufleet_http/npu1 " in text
    assert len(traffic.parse_ring(text, ring.requests[1].at).requests) == 2


def test_a_window_has_counts_failures_and_latencies_by_model() -> None:
    found = counted(
        line(),
        line(response=21),
        line(status=500),
        line(path="/v2/models/other/versions/3/infer", status=400),
        line(path="/v2/health/ready", status=404),
        line(backend="npufleet_grpc", path="/inference.GRPCInferenceService/ModelInfer", response=3),
        line(backend="npufleet_grpc", path="/inference.GRPCInferenceService/ModelStreamInfer", response=3, active=90_000),
        line(backend="npufleet_grpc", path="/inference.GRPCInferenceService/ServerLive"),
        line(server="<NOSRV>", status=503, end="SC"),
    )
    assert found == {
        "npu1": {
            "http": {
                "requests": 4,
                "streams": 0,
                "failed": {"5xx": 1, "4xx": 1},
                "latency": {"7": 1, "21": 1},
                "by_model": {
                    "double": {"requests": 3, "failed": {"5xx": 1}, "latency": {"7": 1, "21": 1}},
                    "other": {"requests": 1, "failed": {"4xx": 1}, "latency": {}},
                },
                "other": {"requests": 1, "failed": {"4xx": 1}},
            },
            "grpc": {
                "requests": 2,
                "streams": 1,
                "failed": {},
                "latency": {"3": 1},
                "by_model": {},
                "other": {"requests": 1, "failed": {}},
            },
        },
        "<NOSRV>": {
            "http": {
                "requests": 1,
                "streams": 0,
                "failed": {"connect": 1},
                "latency": {},
                "by_model": {"double": {"requests": 1, "failed": {"connect": 1}, "latency": {}}},
                "other": {"requests": 0, "failed": {}},
            }
        },
    }


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, None),
        ({"status": 304}, None),
        ({"status": 404}, "4xx"),
        ({"status": 500}, "5xx"),
        ({"status": 403, "end": "PR"}, "4xx"),
        ({"status": 503, "end": "SC"}, "connect"),
        ({"status": 503, "end": "sQ"}, "connect"),
        ({"status": 502, "end": "SH"}, "aborted"),
        ({"status": 504, "end": "sH"}, "aborted"),
        ({"status": 200, "end": "SD"}, "aborted"),
        ({"status": 200, "end": "DD"}, "aborted"),
        ({"status": 400, "end": "CH"}, "client"),
        ({"status": 200, "end": "CD"}, "client"),
        ({"status": 408, "end": "cR"}, "client"),
        ({"status": 502, "end": "KH"}, "closed"),
        ({"status": 200, "end": "KD"}, "closed"),
        ({"grpc": 0}, None),
        ({"grpc": 13}, "grpc"),
        ({"status": -1}, "aborted"),
    ],
)
def test_a_failed_request_has_one_kind(given: dict[str, Any], kind: str | None) -> None:
    assert traffic.failure(one(**given)) == kind
    assert kind is None or kind in traffic.KINDS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Server npufleet_http/npu1 is DOWN, reason: Layer4 timeout. 1 active and 0 backup servers left.",
        line(mark="npufleet2"),
        line(at="soon"),
        line(at="9" * 16),
        line(backend="other"),
        line(server="np;u1"),
        line(status="200 "),
        line(grpc="x"),
        line(response="1e9"),
        line(end="----------"),
        line(path="/a b"),
        line() + " x",
        line(path="/" + "x" * 5000),
        "\0" * 100,
    ],
)
def test_other_lines_are_skipped(text: str) -> None:
    assert traffic.parse_line(text) is None


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v2/models/double/infer", "double"),
        ("/v2/models/double/versions/12/generate", "double"),
        ("/v2/models/%EC%88%98#EC/generate_stream", "%EC%88%98#EC"),
        ("/v2/models/double", None),
        ("/v2/models//infer", None),
        ("/v2/models/a/b/infer", None),
        ("/v2/models/double/infer/x", None),
        ("/v2/models/" + "x" * 256 + "/infer", None),
        ("/inference.GRPCInferenceService/ModelInfer", None),
    ],
)
def test_the_model_is_the_one_of_the_path(path: str, model: str | None) -> None:
    request = one(path=path)
    assert (request.model, request.inference) == (model, model is not None)


def test_clients_that_invent_models_do_not_hide_the_real_ones() -> None:
    lines = [line(path=f"/v2/models/invented{number}/infer", status=404) for number in range(5000)] + 3 * [line()]
    (window,) = (found["http"] for found in counted(*lines).values())
    assert len(window["by_model"]) == traffic.MAX_MODELS + 1
    assert window["by_model"]["double"]["requests"] == 3
    assert window["by_model"][traffic.OTHER_MODELS]["requests"] == 5003 - 3 - (traffic.MAX_MODELS - 1)
    assert sum(entry["requests"] for entry in window["by_model"].values()) == window["requests"] == 5003


# Bounds of latencies


def test_bounds_are_exact_below_20_ms_and_five_percent_apart_above() -> None:
    assert traffic.BOUNDS[:20] == list(range(1, 21))
    steps = [(later - earlier, earlier) for earlier, later in zip(traffic.BOUNDS, traffic.BOUNDS[1:])]
    assert all(step <= max(1, earlier * 0.05 + 1) for step, earlier in steps)
    assert len(traffic.BOUNDS) < 320


@pytest.mark.parametrize(("milliseconds", "bound"), [(0, "1"), (1, "1"), (20, "20"), (10**9, str(traffic.BOUNDS[-1]))])
def test_a_latency_counts_at_its_upper_bound(milliseconds: int, bound: str) -> None:
    assert counted(line(response=milliseconds))["npu1"]["http"]["latency"] == {bound: 1}


def test_quantiles_are_those_of_the_requests() -> None:
    generator = random.Random(7)
    values = sorted(int(generator.lognormvariate(3, 1)) + 1 for _number in range(4000))
    latency = counted(*(line(response=value) for value in values))["npu1"]["http"]["latency"]
    for share in (0.0, 0.5, 0.9, 0.99, 1.0):
        exact = values[max(int(share * len(values) + 0.999999) - 1, 0)]
        found = traffic.quantile(latency, share)
        assert found is not None and exact <= found <= exact * 1.05 + 1
    assert traffic.quantile({}, 0.5) is None


# Several balancers


def test_merged_windows_are_the_window_of_all_requests() -> None:
    generator = random.Random(3)
    lines = [
        line(
            status=generator.choice([200, 200, 400, 503]),
            end=generator.choice(["--", "--", "CD", "SH"]),
            response=generator.randrange(300),
            path=f"/v2/models/m{generator.randrange(4)}/{generator.choice(['infer', 'generate_stream'])}",
        )
        for _number in range(500)
    ]
    parts = [counted(*lines[:100])["npu1"]["http"], counted(*lines[100:])["npu1"]["http"], traffic.empty()]
    # Windows come as JSON from the hosts.
    merged = traffic.merge(json.loads(json.dumps(parts)))
    assert merged == counted(*lines)["npu1"]["http"]
    assert traffic.failures(merged, traffic.KINDS) == sum(merged["failed"].values())
    assert traffic.failures(merged) == sum(number for kind, number in merged["failed"].items() if kind != "client")
    assert traffic.merge([]) == traffic.empty()


# The ring


def test_a_full_ring_covers_the_time_since_its_oldest_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(line(at=1_000_000 + number) for number in range(1000))
    assert traffic.parse_ring(text, 0.0).covers is True
    monkeypatch.setattr(traffic, "RING_SIZE", len(text))
    assert traffic.parse_ring(text, 999.0).covers is False
    ring = traffic.parse_ring(text, 1000.5)
    assert (ring.covers, len(ring.requests)) == (True, 500)


def test_a_ring_of_noise_is_parsed_in_bounded_time_and_memory() -> None:
    generator = random.Random(1)
    noise = "".join(chr(generator.choice([10, 32, 45, 47, 65, 0x1F600])) for _number in range(200_000)) * 20
    began = time.monotonic()
    assert traffic.parse_ring(noise, 0.0).requests == []
    assert time.monotonic() - began < 30
