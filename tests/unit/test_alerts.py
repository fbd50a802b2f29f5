"""The alerts of files/monitoring: their labels and annotations, their metrics, and their tests by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe_page
from helpers import ROOT

MONITORING = ROOT / "files/monitoring"
FILES = sorted((MONITORING / "alerts").glob("*.yml"))
TRITONS = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_pending_request_count",
    "nv_inference_exec_count",
}


def alerts() -> list[dict[str, Any]]:
    groups = [group for path in FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_query_known_metrics() -> None:
    named = set()
    for rule in alerts():
        named |= set(re.findall(r"\b(?:npufleet_\w+|nv_\w+)", rule["expr"]))
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
    assert named - TRITONS <= set(probe_page.HELP)
    assert named >= TRITONS


def test_each_alert_fires_in_a_test() -> None:
    tested = yaml.safe_load((ROOT / "tests/alerts/npufleet_test.yml").read_text())["tests"]
    fires = {entry["alertname"] for test in tested for entry in test["alert_rule_test"] if entry["exp_alerts"]}
    assert fires == {rule["alert"] for rule in alerts()}


def test_mixin_imports_all_files() -> None:
    if not shutil.which("jsonnet"):
        pytest.skip("the package jsonnet is missing, see `make unit-packages`")
    command = ["jsonnet", "--exec", "(import 'mixin.libsonnet').prometheusAlerts"]
    done = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [rule for group in json.loads(done.stdout)["groups"] for rule in group["rules"]] == alerts()
