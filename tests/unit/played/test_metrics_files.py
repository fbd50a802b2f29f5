"""The metrics that playbooks bring to load balancers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stage import Run, differs, run

GOOD: dict[str, Any] = {"plan": []}
DIRECTORY = "/var/lib/prometheus/node-exporter"
INSTALL = "host_files /etc/npufleet .*/npufleet-metrics.timer"
BALANCER: dict[str, Any] = {"balancer": True, "plan": [differs("metrics", "install", until=INSTALL)]}


def written(ran: Run, host: str) -> list[str]:
    return [call for call in ran.of(host) if call.startswith("host_files")]


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
