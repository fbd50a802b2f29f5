"""Where the server listens: whoever asks it asks there, and an IPv6 address is written as each of them wants it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.inference import load, packing, runner
from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import netloc
from ansible_collections.npufleet.triton.plugins.module_utils.support.collect import _http_answer
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Limits
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api
from ansible_collections.npufleet.triton.plugins.module_utils.triton.repository import Server
from ansible_collections.npufleet.triton.plugins.module_utils.watch import evidence, settings
from ansible_collections.npufleet.triton.plugins.modules import inference_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server as desired_server
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import watchdog as desired_watchdog
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import fleet, http_server
from small_triton import small_triton

IMAGE = {"id": "sha256:" + "a" * 64, "reference": "npufleet/triton:1", "content": None}


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "::1"),
        ("192.0.2.11", "192.0.2.11"),
        ("[2001:DB8::5]", "2001:db8::5"),
    ],
)
def test_everybody_asks_one_address(listens: str, asked: str) -> None:
    variables = fleet(triton_server_listen_address=listens, npufleet_http_port=9000)
    wanted = desired_server.desired(variables, Context(image=lambda: IMAGE))
    assert wanted["address"] == asked
    assert json.loads(desired_watchdog.desired(variables)["files"]["config"])["address"] == asked
    assert inputs.server_of(variables)["address"] == asked
    own = fleet(triton_server_listen_address=listens, inference_check_address="proxy.example.com")
    assert inputs.server_of(own)["address"] == "proxy.example.com", "a proxy before the server"


def test_metrics_with_an_address_of_their_own_are_read_there() -> None:
    variables = fleet(triton_server_metrics_listen_address="127.0.0.2", npufleet_metrics_port=9002)
    assert inputs.server_of(variables)["metrics_url"] == "http://127.0.0.2:9002/metrics"
    # The module inference_check has to accept this option
    assert inference_check.OPTIONS["server"]["options"]["metrics_url"] == {"type": "str"}
    assert inputs.server_of(fleet())["metrics_url"] is None
    assert "metrics_url" not in inputs.with_pem(inputs.server_of(fleet()))
    assert "metrics_address" not in json.loads(desired_watchdog.desired(fleet())["files"]["config"])


def test_watchdog_reads_the_metrics_at_their_own_address(tmp_path: Path) -> None:
    page = b'nv_inference_count{model="digits"} 3\n'
    with http_server({"GET /metrics": (200, page)}, "127.0.0.2") as triton:
        variables = fleet(triton_server_metrics_listen_address="127.0.0.2", npufleet_metrics_port=triton.port)
        (tmp_path / "watchdog.json").write_text(desired_watchdog.desired(variables)["files"]["config"])
        config = settings.load(str(tmp_path / "watchdog.json"), settings.Watchdog)
        assert evidence.Observer(config).metrics() == {"nv_inference_count": [({"model": "digits"}, 3.0)]}


@pytest.mark.parametrize("protocol", ["http", "grpc", "raw"])
def test_checks_reach_an_ipv6_address(protocol: str) -> None:
    check = {"name": "row", "protocols": [protocol], "inputs": {"IN": packing.pack(np.ones((1, 4), np.float32))}}
    check["expect"] = {"OUT": {"shape": [1, 4]}}
    with small_triton(address="::1") as triton:
        where = {"address": "::1", "http_port": triton.http_port, "grpc_port": triton.grpc_port}
        document = {"host": "a", "host_index": 0, "server": where, "timeout": 5, "checks": [{"model": "double", "checks": [check]}]}
        assert [(result["ok"], result["why"]) for result in runner.run(document)["checks"]] == [(True, "")]


def test_checks_of_instances_read_metrics_at_an_ipv6_address() -> None:
    page = b'rbln_requests_total{model="m",instance="m_0",npu="0"} 3\n'
    with http_server({"GET /metrics": (200, page)}, "::1") as metrics:
        url = "http://{}/metrics".format(netloc("::1", metrics.port))
        assert load.answered_requests(url, "m") == {"m_0 on NPU 0": 3.0}


def test_the_hosts_own_clients_reach_an_ipv6_address(tmp_path: Path) -> None:
    index = [{"name": "digits", "version": "1", "state": "READY"}]
    answers = {"GET /v2": (200, {"version": "2.42.0"}), "POST /v2/repository/index": (200, index)}
    with http_server(answers, "::1") as triton:
        assert http_api.http_json("::1", triton.port, "GET", "/v2") == (200, {"version": "2.42.0"})
        assert list(Server("::1", triton.port, 5.0).served()) == ["digits"]
        assert _http_answer("::1", triton.port, Limits(seconds=5, size=1000, lines=1), "/v2") == {"version": "2.42.0"}
        variables = fleet(triton_server_listen_address="::", npufleet_http_port=triton.port)
        (tmp_path / "watchdog.json").write_text(desired_watchdog.desired(variables)["files"]["config"])
        config = settings.load(str(tmp_path / "watchdog.json"), settings.Watchdog)
        assert evidence.Observer(config).index() == {"digits": {"1": "READY"}}
