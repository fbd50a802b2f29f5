"""Scrape jobs on a real Prometheus, and the snippets of the documentation."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import monitoring
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import monitoring as desired_monitoring
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import ROOT, fleet, until
from prometheus_server import program, prometheus

LOGIN = "Basic " + base64.b64encode(b"prometheus:Plain-Word-1").decode()
PAGES = ("docs/runbooks/prometheus.md", "docs/runbooks/prometheus.ko.md")


class Exporter(BaseHTTPRequestHandler):
    """An exporter that requires a login, and reports the target of a gateway as a label."""

    def do_GET(self) -> None:
        if self.headers["Authorization"] != LOGIN:
            self.send_error(401)
            return
        target = unquote(self.path.partition("?target=")[2])
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f'exporter_target{{target="{target}"}} 1\n'.encode())

    def log_message(self, *_words: Any) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_prometheus_scrapes_every_job_with_a_login(tmp_path: Path, port: int) -> None:
    (tmp_path / "password").write_text("Plain-Word-1\n")
    login = {"basic_auth": {"username": "prometheus", "password_file": str(tmp_path / "password")}}
    inventory: dict[str, Any] = {
        "inventory_hostname": "lb1",
        "groups": {"npu_hosts": ["npu1"], "load_balancer_hosts": ["lb1"]},
        "hostvars": {
            "npu1": {"ansible_host": "127.0.0.1", "npufleet_metrics_port": port, "monitoring_cards": "exporter"},
            "lb1": {"ansible_host": "127.0.0.1", "load_balancer_metrics_address": f"127.0.0.1:{port}"},
        },
        "monitoring_node_exporter": True,
        "monitoring_node_port": port,
        "monitoring_cards_gateway": f"127.0.0.1:{port}",
        "monitoring_scrape_interval": "1s",
        "monitoring_scrape_options": dict.fromkeys(("triton", "node", "balancer", "cards"), login),
        "monitoring_targets_file": str(tmp_path / "targets/triton.json"),
        "monitoring_prometheus_config": str(tmp_path / "prometheus.yml"),
    }

    def plan() -> list[str]:
        return [item["name"] for item in monitoring.diff(wanted, monitoring.read(wanted)) if item["name"].startswith("up of")]

    wanted = desired_monitoring.desired(fleet(**inventory), Context(proof=True))
    for path, content in {**wanted["targets"], **wanted["checked"]}.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
    checked = tmp_path / "targets/check/prometheus.yml"
    subprocess.run([program("promtool"), "check", "config", str(checked)], check=True, capture_output=True)
    block = f"# BEGIN npufleet\n{wanted['jobs']}\n# END npufleet\n"
    with prometheus(tmp_path, config=f"scrape_configs:\n{block}") as server:
        wanted["port"] = server.port
        until(lambda: plan() == [])
        ups = server.get("query", query="up")["result"]
        assert sorted((entry["metric"]["job"], entry["metric"]["host"], entry["value"][1]) for entry in ups) == [
            ("npufleet-balancer", "lb1", "1"),
            ("npufleet-cards", "npu1", "1"),
            ("npufleet-node", "lb1", "1"),
            ("npufleet-node", "npu1", "1"),
            ("npufleet-triton", "npu1", "1"),
        ]
        (series,) = server.get("query", query='exporter_target{job="npufleet-cards"}')["result"]
        assert (series["metric"]["target"], series["metric"]["instance"]) == ("127.0.0.1:50051", "127.0.0.1:50051")
        assert "Plain-Word-1" not in json.dumps([wanted, server.get("status/config")])


def blocks(page: str) -> list[dict[str, Any]]:
    """The YAML blocks of a page."""
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)]


def check(tmp_path: Path, config: dict[str, Any]) -> None:
    """Check a configuration with promtool. Files below /etc/prometheus are those below tmp_path."""
    text = yaml.safe_dump(config).replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(
        [program("promtool"), "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_snippet_for_an_existing_prometheus_is_valid(tmp_path: Path, page: str) -> None:
    (config,) = [block for block in blocks(page) if "scrape_configs" in block]
    assert [job["job_name"] for job in config["scrape_configs"]] == [
        "npufleet-triton",
        "npufleet-node",
        "npufleet-balancer",
    ]
    for name in ("npufleet-ca.pem", "npufleet-password"):
        (tmp_path / name).write_text("")
    check(tmp_path, config)
    for job in config["scrape_configs"]:
        assert all(list(entry["labels"]) == ["host"] for entry in job["static_configs"])


@pytest.mark.parametrize("page", PAGES)
def test_snippet_for_the_prometheus_collection_is_valid(tmp_path: Path, page: str) -> None:
    (variables,) = [block for block in blocks(page) if "prometheus_targets" in block]
    (tmp_path / "file_sd").mkdir()
    for name, targets in variables["prometheus_targets"].items():
        (tmp_path / f"file_sd/{name}.yml").write_text(yaml.safe_dump(targets))
    check(tmp_path, {"scrape_configs": variables["prometheus_scrape_configs"]})
    files = {file for job in variables["prometheus_scrape_configs"] for entry in job["file_sd_configs"] for file in entry["files"]}
    assert files == {f"/etc/prometheus/file_sd/{name}.yml" for name in variables["prometheus_targets"]}
    (rules,) = variables["prometheus_alert_rules_files"]
    assert list(ROOT.glob(rules.partition("/npufleet/triton/")[2]))
