"""The rules of files/monitoring: their labels and annotations, their metrics, their runbook, and their tests by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import textfile
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import DRAINED, UP, Server
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import cards, certificates, drained, host
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import drift
from helpers import ROOT
from prometheus_server import program

MONITORING = ROOT / "files/monitoring"
ALERTS = sorted((MONITORING / "alerts").glob("*.yml"))
RULES = sorted((MONITORING / "rules").glob("*.yml"))
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
TESTS = sorted((ROOT / "tests/alerts").glob("*_test.yml"))
SCRAPES = [*(ROOT / "tests/unit/fixtures/metrics").glob("*.txt"), *(ROOT / "tests/unit/fixtures/scrapes").glob("*.txt")]
# The topics in the order of the runbook
TOPICS = ["triton", "probe", "cards", "hosts", "balancer", "slo"]
RUNBOOK = "/blob/main/docs/runbooks/alerts.md#"
# Labels that Prometheus adds to each scraped sample
TARGET_LABELS = {"job", "instance", "host"}
# Our own metrics and their labels. The programs of hosts, balancers and monitoring hosts write them for node exporter.
OWN = {
    "npufleet_card_temperature_celsius": "npu device",
    "npufleet_card_power_watts": "npu device",
    "npufleet_card_memory_used_bytes": "npu device",
    "npufleet_card_memory_size_bytes": "npu device",
    "npufleet_card_utilization_ratio": "npu device",
    "npufleet_card_healthy": "npu device",
    "npufleet_card_pcie_link_speed_gts": "npu device",
    "npufleet_card_pcie_link_width": "npu device",
    "npufleet_card_info": "npu device bus_id name uuid firmware group",
    "npufleet_cards_expected": "",
    "npufleet_cards_found": "",
    "npufleet_cards_read_ok": "",
    "npufleet_cards_last_read_timestamp_seconds": "",
    "npufleet_driver_info": "loaded expected",
    "npufleet_model_desired": "model version digest",
    "npufleet_model_loaded": "model version digest",
    "npufleet_model_load_failed": "model",
    "npufleet_stubs": "model state",
    "npufleet_shm_size_bytes": "",
    "npufleet_shm_used_bytes": "",
    "npufleet_change_running": "",
    "npufleet_maintenance_since_timestamp_seconds": "",
    "npufleet_hold_since_timestamp_seconds": "model",
    "npufleet_drained_since_timestamp_seconds": "by",
    "npufleet_certificate_expiry_timestamp_seconds": "file",
    "npufleet_host_last_read_timestamp_seconds": "",
    "npufleet_balancer_drained_since_timestamp_seconds": "server kind",
    "npufleet_balancer_server_drained": "server kind",
    "npufleet_drift_items": "inventory_host concern",
    "npufleet_status_timestamp_seconds": "",
    # The pages of all programs have this metric.
    "npufleet_dropped_series": "metric",
    "npufleet_check_ok": "model check protocol",
    "npufleet_check_duration_seconds": "model check protocol",
    "npufleet_driver_stale": "",
    "npufleet_probe_interval_seconds": "",
    "npufleet_probe_last_attempt_timestamp_seconds": "",
    "npufleet_probe_unavailable": "reason",
    "npufleet_proof_last_success_timestamp_seconds": "model",
    "up": "",
    # An option of Triton. The recorded scrapes were made without it.
    "nv_inference_request_summary_us": "model version quantile",
    # A site may record this metric itself.
    "npufleet:latency_objective_override:seconds": "model",
}
METRIC = re.compile(r"\b(?:nv_|npufleet_|npufleet:|node_|haproxy_|rbln_|slo:)[\w:]+|\bup\b")
SELECTOR = re.compile(rf"({METRIC.pattern})\{{([^}}]*)\}}")
GROUPING = re.compile(r"\b(?:by|on|group_left|without) \(([^)]*)\)")


def rules(paths: list[Path]) -> list[dict[str, Any]]:
    groups = [group for path in paths for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alert_tests() -> list[dict[str, Any]]:
    """Return all alert tests of promtool."""
    documents = [yaml.safe_load(path.read_text()) for path in TESTS]
    return [entry for document in documents for test in document["tests"] for entry in test.get("alert_rule_test", [])]


def known() -> dict[str, set[str]]:
    """Return {metric: labels} of the recorded scrapes, our own metrics and the recording rules."""
    found = {name: {*labels.split(), *TARGET_LABELS} for name, labels in OWN.items()}
    for path in SCRAPES:
        for name, labels in re.findall(r"^([a-z]\w*)(?:\{(.*)\})? ", path.read_text(), re.MULTILINE):
            found.setdefault(name, set(TARGET_LABELS)).update(re.findall(r'(\w+)="', labels))
    for rule in rules(RULES):
        # The labels of a recording rule are those of its sources. Its tests show if it selects too much.
        grouped = {label.strip() for group in GROUPING.findall(rule["expr"]) for label in group.split(",") if label.strip()}
        found.setdefault(rule["record"], set()).update(grouped, rule.get("labels", {}), TARGET_LABELS)
    found["slo:error_budget:ratio"] = found["slo:objective:ratio"]
    return found


def flaws(expression: str) -> list[str]:
    """Return the metrics and labels of a query that no server reports."""
    metrics = known()
    plain = re.sub(r'"[^"]*"', '""', expression)
    missing = [name for name in METRIC.findall(plain) if name not in metrics]
    for name, matchers in SELECTOR.findall(plain):
        missing += [f"{name}{{{label}}}" for label in re.findall(r"(\w+) ?[=!]", matchers) if label not in metrics.get(name, set())]
    used = {name for name in METRIC.findall(plain) if name in metrics}
    # label_replace creates a label.
    created = set(re.findall(r'"(\w+)", "\$1"', expression))
    available = created.union(*(metrics[name] for name in used))
    grouped = {label.strip() for group in GROUPING.findall(plain) for label in group.split(",") if label.strip()}
    return missing + sorted(grouped - available)


# The rules of the vendor's exporter read no other metrics. Their test has its series.
CHECKED = rules([*ALERTS, *(path for path in RULES if path.stem != "exporter")])


@pytest.mark.parametrize("rule", CHECKED, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_use_metrics_and_labels_that_servers_report(rule: dict[str, Any]) -> None:
    assert flaws(rule["expr"]) == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_use_metrics_and_labels_that_servers_report(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [mark["expr"] for mark in dashboard["annotations"]["list"]]
    # The second argument of label_values is a label.
    queries += [entry["definition"].rpartition(",")[0] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    assert {query: flaws(query) for query in queries if flaws(query)} == {}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("nv_inference_requests == 0", ["nv_inference_requests"]),
        ('nv_inference_count{name="a"}', ["nv_inference_count{name}"]),
        ("sum by (server) (nv_inference_count)", ["server"]),
        ('haproxy_server_status{state="DOWN", proxy=~"a|b"} == 1', []),
    ],
)
def test_unknown_metrics_and_labels_are_found(query: str, expected: list[str]) -> None:
    assert flaws(query) == expected


@pytest.mark.parametrize("rule", rules(ALERTS), ids=lambda rule: rule["alert"])
def test_alerts_have_a_severity_and_all_annotations(rule: dict[str, Any]) -> None:
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text())["repository"]
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == repository + RUNBOOK + rule["alert"].lower()


@pytest.mark.parametrize("path", ALERTS, ids=lambda path: path.name)
def test_each_alert_has_the_reason_of_its_threshold(path: Path) -> None:
    lines = path.read_text().splitlines()
    bare = [line for before, line in zip(lines, lines[1:]) if "- alert:" in line and not before.strip().startswith("# ")]
    assert bare == []


def test_each_alert_fires_in_a_test_and_does_not_fire_in_another() -> None:
    names = {rule["alert"] for rule in rules(ALERTS)}
    assert len(names) == len(rules(ALERTS))
    assert {entry["alertname"] for entry in alert_tests() if entry["exp_alerts"]} == names
    assert {entry["alertname"] for entry in alert_tests() if not entry["exp_alerts"]} == names


@pytest.mark.parametrize("page", ["alerts.md", "alerts.ko.md"])
def test_runbook_has_a_section_for_each_alert(page: str) -> None:
    sections = re.findall(r"^### (\w+)$", (ROOT / "docs/runbooks" / page).read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for name in TOPICS for rule in rules([MONITORING / f"alerts/{name}.yml"])]


def test_each_topic_is_in_the_runbook() -> None:
    assert sorted(path.stem for path in ALERTS) == sorted(TOPICS)


def test_table_of_own_metrics_has_all_metrics_of_hosts() -> None:
    assert {*cards.HELP, *host.HELP, *drained.HELP, *certificates.HELP, *drift.HELP} - set(OWN) == set()


def test_labels_of_own_metrics_are_those_of_their_pages() -> None:
    servers = {"npu1": Server("npu1", DRAINED, (1, 1), 1, UP, 0, [], True)}
    records = {"npu1": {"kind": "rollout", "since": "2026-01-02T03:04:05Z"}}
    pages = [
        textfile.page(drained.families(servers, records), drained.HELP),
        textfile.page(certificates.families({"/c.pem": 1.0}), certificates.HELP),
        drift.metrics(1.0, [{"host": "npu1", "state": "drift", "plan": [{"concern": "models"}]}]),
    ]
    series = re.findall(r"^(\w+)(?:\{(.*)\})? ", "".join(pages), re.MULTILINE)
    assert {name: re.findall(r'(\w+)="', labels) for name, labels in series} == {
        name: OWN[name].split() for name in (*drained.HELP, *certificates.HELP, *drift.HELP)
    }


def test_quantiles_and_bounds_match_prometheus_2_and_3() -> None:
    # Prometheus 3 writes the label le="1" as le="1.0".
    written = [rule["expr"] for rule in [*rules(ALERTS), *rules(RULES)]]
    assert [expression for expression in written if re.search(r'\b(?:le|quantile)="\d+"', expression)] == []


def promtool(*arguments: str) -> str:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_all_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, (*ALERTS, *RULES)))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_promtool_runs_the_tests_of_alerts(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(path))


@pytest.mark.parametrize(("field", "paths"), [("prometheusAlerts", ALERTS), ("prometheusRules", RULES)])
def test_mixin_imports_all_files(field: str, paths: list[Path]) -> None:
    if not shutil.which("jsonnet"):
        pytest.skip("the package jsonnet is missing, see `make unit-packages`")
    command = ["jsonnet", "--exec", f"(import 'mixin.libsonnet').{field}"]
    done = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [rule for group in json.loads(done.stdout)["groups"] for rule in group["rules"]] == rules(paths)
