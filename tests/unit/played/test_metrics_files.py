"""The files and programs for metrics that playbooks write to load balancers and monitoring hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage import Run, differs, run

GOOD: dict[str, Any] = {"plan": []}
DRIFT: dict[str, Any] = {"plan": [differs("server", "replace", name="container.ulimits", until="never")]}
DIRECTORY = "/var/lib/prometheus/node-exporter"
STATUS = f"host_files {DIRECTORY} {DIRECTORY}/npufleet_status.prom"
INSTALL = "host_files /etc/npufleet .*/npufleet-metrics.timer"
BALANCER: dict[str, Any] = {"balancer": True, "plan": [differs("metrics", "install", until=INSTALL)]}


def written(ran: Run, host: str) -> list[str]:
    return [call for call in ran.calls_on(host) if call.startswith("host_files")]


def test_status_writes_the_drift_only_on_monitoring_hosts(tmp_path: Path) -> None:
    scenario = {"npu-1": DRIFT, "ops-1": GOOD}
    ran = run(tmp_path, "status.yml", scenario, monitoring=("ops-1",), monitoring_status_metrics=True)
    assert (ran.code, written(ran, "ops-1"), written(ran, "npu-1")) == (2, [STATUS], []), ran.output
    assert (ran.recap("ops-1")["changed"], ran.recap("ops-1")["failed"], ran.recap("npu-1")["failed"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("ops", "options", "on", "code"),
    [
        (GOOD, (), False, 2),
        (GOOD, ("--limit", "npu-1"), True, 2),
        ({"lost": "host_state"}, (), True, 4),
    ],
)
def test_status_writes_no_drift(tmp_path: Path, ops: dict[str, Any], options: tuple[str, ...], on: bool, code: int) -> None:
    scenario = {"npu-1": DRIFT, "ops-1": ops}
    ran = run(tmp_path, "status.yml", scenario, *options, monitoring=("ops-1",), monitoring_status_metrics=on)
    assert (ran.code, written(ran, "ops-1")) == (code, []), ran.output


def test_site_installs_the_metrics_of_a_load_balancer(tmp_path: Path) -> None:
    ran = run(tmp_path, "site.yml", {"npu-1": GOOD, "lb-1": BALANCER}, balancers=("lb-1",))
    assert ran.code == 0, ran.output
    (call,) = written(ran, "lb-1")
    assert call.endswith("/etc/systemd/system/npufleet-metrics.timer")
    assert (written(ran, "npu-1"), ran.recap("lb-1")["failed"]) == ([], 0)


def test_other_tags_leave_the_metrics_of_a_load_balancer_alone(tmp_path: Path) -> None:
    ran = run(tmp_path, "site.yml", {"npu-1": GOOD, "lb-1": BALANCER}, "--tags", "balancer", balancers=("lb-1",))
    assert (ran.code, written(ran, "lb-1")) == (0, []), ran.output


def test_teardown_removes_the_metrics_before_the_library(tmp_path: Path) -> None:
    ran = run(tmp_path, "teardown.yml", {"npu-1": GOOD, "lb-1": {"balancer": True}}, "--limit", "lb-1", balancers=("lb-1",))
    assert ran.code == 0, ran.output
    balancer, metrics, library = written(ran, "lb-1")
    assert "/etc/haproxy/haproxy.cfg" in balancer
    assert f"{DIRECTORY}/npufleet_host.prom" in metrics
    assert library == "host_files absent /usr/local/lib/npufleet"
