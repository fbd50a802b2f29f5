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
from prometheus_server import program, prometheus, version

LOGIN = "Basic " + base64.b64encode(b"prometheus:Plain-Word-1").decode()
PAGES = ("docs/runbooks/prometheus.md", "docs/runbooks/prometheus.ko.md")


class Exporter(BaseHTTPRequestHandler):
    """An exporter that requires a login, and reports the target of a gateway as a label."""

    content_type = "text/plain; version=0.0.4"

    def do_GET(self) -> None:
        if self.headers["Authorization"] != LOGIN:
            self.send_error(401)
            return
        target = unquote(self.path.partition("?target=")[2])
        self.send_response(200)
        if self.content_type:
            self.send_header("Content-Type", self.content_type)
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


def written(tmp_path: Path, port: int, **more: Any) -> dict[str, Any]:
    """Return the desired state of a monitoring host, all of whose targets are this exporter, and write its files."""
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
        "monitoring_targets_file": str(tmp_path / "targets/triton.json"),
        "monitoring_rules_directory": str(tmp_path / "rules"),
        "monitoring_prometheus_config": str(tmp_path / "prometheus.yml"),
        **more,
    }
    found = desired_monitoring.desired(fleet(**inventory), Context(proof=True))
    # Prometheus evaluates a group at any time within its interval, so that the tests would wait for up to 2 minutes.
    found["rules"] = {path: re.sub(r"interval: \d+[sm]", "interval: 1s", text) for path, text in found["rules"].items()}
    for path, content in {**found["targets"], **found["checked"], **found["rules"]}.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
    return found


def config(wanted: dict[str, Any]) -> str:
    """Return Prometheus' configuration with the blocks that the role writes."""
    jobs = f"# BEGIN npufleet\n{wanted['jobs']}\n# END npufleet\n"
    return f"global: {{evaluation_interval: 1s}}\nrule_files:\n{wanted['rules_list']}scrape_configs:\n{jobs}"


def plan(wanted: dict[str, Any]) -> list[str]:
    """Return the names of the differences. The packages of this machine are not those of a monitoring host."""
    return [item["name"] for item in monitoring.diff(wanted, monitoring.read(wanted)) if item["name"] != "packages"]


def logins(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Return the options of all jobs with the login of the exporter."""
    (tmp_path / "password").write_text("Plain-Word-1\n")
    own = {"basic_auth": {"username": "prometheus", "password_file": str(tmp_path / "password")}, **more}
    return {"monitoring_scrape_options": dict.fromkeys(("triton", "node", "balancer", "cards"), own)}


def test_prometheus_scrapes_every_job_with_a_login(tmp_path: Path, port: int) -> None:
    wanted = written(tmp_path, port, **logins(tmp_path))
    checked = tmp_path / "targets/check/prometheus.yml"
    subprocess.run([program("promtool"), "check", "config", str(checked)], check=True, capture_output=True)
    with prometheus(tmp_path, config=config(wanted)) as server:
        wanted["port"] = server.port
        until(lambda: plan(wanted) == [])
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


def test_prometheus_evaluates_all_rules_without_a_warning(tmp_path: Path, port: int) -> None:
    wanted = written(tmp_path, port, **logins(tmp_path))
    with prometheus(tmp_path, config=config(wanted)) as server:

        def rules() -> list[dict[str, Any]]:
            return [rule for group in server.get("rules")["groups"] for rule in group["rules"]]

        until(lambda: all(rule["health"] != "unknown" for rule in rules()))
        assert [(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"] == []
        assert len(rules()) == sum(len(monitoring.RULE.findall(text)) for text in wanted["rules"].values())
    log = (tmp_path / "prometheus.log").read_text()
    assert re.findall(r".*level=(?:warn|error).*", log, re.IGNORECASE) == []


@pytest.mark.parametrize(
    ("content_type", "options", "health"),
    [
        # As Triton sends it
        ("text/plain; charset=utf-8", {}, "up"),
        ("", {}, "down"),
        ("", {"fallback_scrape_protocol": "PrometheusText0.0.4"}, "up"),
    ],
)
def test_only_a_target_without_a_content_type_needs_an_option(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, content_type: str, options: dict[str, str], health: str
) -> None:
    if version() < (3, 0):
        pytest.skip("before Prometheus 3, a target needs no content type: see PROMETHEUS_PROGRAMS")
    monkeypatch.setattr(Exporter, "content_type", content_type)
    wanted = written(tmp_path, port, **logins(tmp_path, **options))
    with prometheus(tmp_path, config=config(wanted)) as server:

        def targets() -> list[dict[str, Any]]:
            return [entry for entry in server.get("targets")["activeTargets"] if entry["health"] != "unknown"]

        until(lambda: len(targets()) == 5)
        found = targets()
    assert {target["health"] for target in found} == {health}
    assert {"fallback_scrape_protocol" in target["lastError"] for target in found} == {health == "down"}


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
