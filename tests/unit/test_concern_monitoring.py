"""Prometheus: targets out of the inventory, and the health that it gives back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import monitoring
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import monitoring as desired_monitoring
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import ROOT, fleet, http_server

MONITORING = ROOT / "files/monitoring"
TARGETS = "/api/v1/targets?state=active"
# The directory of the rules on the host under test
DIRECTORY = ["/etc/prometheus/npufleet/rules"]
LATELY = "/api/v1/query?query=max_over_time%28up%7Bjob%3D%22npufleet-triton%22%7D%5B2m%5D%29%20%3D%3D%201"


def desired(proof: bool = False, **inventory: Any) -> dict[str, Any]:
    variables = {
        "groups": {"npu_hosts": ["npu2", "npu1", "npu3"], "edge": ["edge1"]},
        "hostvars": {
            "npu1": {"ansible_host": "10.0.0.1"},
            "npu2": {"ansible_host": "10.0.0.2", "npufleet_address": "npu2.example.com", "npufleet_metrics_port": 9102},
            "npu3": {},
            "edge1": {},
        },
        **inventory,
    }
    return desired_monitoring.desired(fleet(**variables), Context(proof=proof))


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({"ansible_host": "2001:db8::1"}, "[2001:db8::1]:8002"),
        ({"ansible_host": "192.0.2.1", "npufleet_address": "[2001:db8::2]"}, "[2001:db8::2]:8002"),
        ({"ansible_host": "192.0.2.1", "npufleet_address": ""}, "192.0.2.1:8002"),
    ],
)
def test_an_ipv6_address_is_a_target_in_brackets(facts: dict[str, Any], where: str) -> None:
    (found,) = json.loads(desired(groups={"npu_hosts": ["npu1"]}, hostvars={"npu1": facts})["targets"])
    assert found == {"targets": [where], "labels": {"host": "npu1"}}


def target(host: str, health: str = "up", error: str = "", job: str = "npufleet-triton") -> dict[str, Any]:
    """One active target as Prometheus 2 describes it."""
    return {
        "discoveredLabels": {"__address__": f"{host}:8002"},
        "labels": {"host": host, "instance": f"{host}:8002", "job": job},
        "scrapePool": job,
        "scrapeUrl": f"http://{host}:8002/metrics",
        "lastError": error,
        "health": health,
    }


RULES = "/api/v1/rules"
TRITON = """groups:
  - name: triton
    rules:
      - record: 'npufleet:up'
        expr: up
      - alert: "Down"
        expr: up == 0
"""
PROBE = """groups:
  - name: probe
    rules:
      - alert: Stale
        expr: up == 0
"""
NAMES_OF_RULES = {"triton.yml": ["npufleet:up", "Down"], "probe.yml": ["Stale"]}


def prometheus(
    targets: list[dict[str, Any]], lately: list[str] | None = None, rules: dict[str, list[str]] | None = None
) -> dict[str, tuple[int, Any]]:
    groups = [
        {"name": file, "file": f"{DIRECTORY[0]}/{file}", "rules": [{"name": name} for name in names]}
        for file, names in (NAMES_OF_RULES if rules is None else rules).items()
    ]
    groups.append({"name": "others", "file": "/etc/others.yml", "rules": [{"name": "X"}]})
    vector = [{"metric": {"host": host, "job": "npufleet-triton"}, "value": [1.0, "1"]} for host in lately or []]
    return {
        f"GET {TARGETS}": (200, {"status": "success", "data": {"activeTargets": targets, "droppedTargets": []}}),
        f"GET {LATELY}": (200, {"status": "success", "data": {"resultType": "vector", "result": vector}}),
        f"GET {RULES}": (200, {"status": "success", "data": {"groups": groups}}),
    }


def found(name: str, current: Any, desired: Any, action: str) -> dict[str, Any]:
    return {"concern": "monitoring", "name": name, "current": current, "desired": desired, "action": action}


# What is wanted


def test_targets_come_from_the_inventory() -> None:
    wanted = desired()
    assert json.loads(wanted["targets"]) == [
        {"targets": ["npu2.example.com:9102"], "labels": {"host": "npu2"}},
        {"targets": ["10.0.0.1:8002"], "labels": {"host": "npu1"}},
        {"targets": ["npu3:8002"], "labels": {"host": "npu3"}},
    ]
    assert wanted["targets"].endswith("]\n")
    assert wanted["hosts"] == ["npu1", "npu2", "npu3"]
    assert (wanted["port"], wanted["proof"]) == (9090, False)


def test_scraped_group_and_port_are_variables() -> None:
    wanted = desired(proof=True, monitoring_scrape_group="edge", npufleet_metrics_port=9999, monitoring_prometheus_port="9091")
    assert json.loads(wanted["targets"]) == [{"targets": ["edge1:9999"], "labels": {"host": "edge1"}}]
    assert (wanted["port"], wanted["proof"]) == (9091, True)


def test_group_without_hosts_has_no_targets() -> None:
    assert desired(monitoring_scrape_group="nobody")["targets"] == "[]\n"


def test_the_roles_scrape_job_reads_the_targets_file() -> None:
    import yaml

    wanted = desired(monitoring_scrape_interval="5s")
    assert yaml.safe_load("scrape_configs:\n" + wanted["job"]) == {
        "scrape_configs": [
            {
                "job_name": "npufleet-triton",
                "scrape_interval": "5s",
                "file_sd_configs": [{"files": ["/etc/prometheus/npufleet/triton.json"]}],
            }
        ]
    }


# Reading


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is wanted of a host whose files are below tmp_path."""
    monkeypatch.setattr(monitoring, "installed_packages", lambda names: {name: {} for name in names})
    controller, on_host = tmp_path / "controller", tmp_path / "host"
    controller.mkdir()
    on_host.mkdir()
    (controller / "triton.yml").write_text(TRITON)
    (controller / "probe.yml").write_text(PROBE)
    DIRECTORY[0] = str(on_host)
    wanted = desired(
        monitoring_targets_file=str(tmp_path / "triton.json"),
        monitoring_prometheus_config=str(tmp_path / "prometheus.yml"),
        monitoring_rules=[str(controller)],
        monitoring_rules_directory=str(on_host),
    )
    (tmp_path / "triton.json").write_text(wanted["targets"])
    for path, text in wanted["rules"].items():
        Path(path).write_text(text)
    (tmp_path / "prometheus.yml").write_text(f"global: {{}}\nrule_files:\n{wanted['rules_list']}scrape_configs:\n" + wanted["job"])
    return wanted


def plan(wanted: dict[str, Any], answers: dict[str, tuple[int, Any]]) -> list[dict[str, Any]]:
    with http_server(answers) as server:
        asked = {**wanted, "port": server.port}
        return monitoring.diff(asked, monitoring.read(asked))


ALL = [target(host) for host in ("npu1", "npu2", "npu3")]
NAMES = ["npu1", "npu2", "npu3"]


def test_host_as_wanted_has_no_plan(host: dict[str, Any]) -> None:
    assert plan(host, prometheus(ALL, NAMES)) == []
    assert plan({**host, "proof": True}, prometheus(ALL)) == []


def test_target_that_is_down_is_named_with_its_error(host: dict[str, Any]) -> None:
    refused = target("npu2", "down", "connection refused")
    answers = prometheus([ALL[0], refused, ALL[2]], ["npu1", "npu3"])
    expected = [found("up of npu2", "connection refused", "up", "wait")]
    assert plan(host, answers) == expected
    assert plan({**host, "proof": True}, answers) == expected


def test_missed_scrape_is_drift_only_for_a_proof(host: dict[str, Any]) -> None:
    answers = prometheus([target("npu1", "down", "timeout"), *ALL[1:]], NAMES)
    assert plan(host, answers) == []
    assert plan({**host, "proof": True}, answers) == [found("up of npu1", "timeout", "up", "wait")]


def test_target_that_was_not_scraped_yet(host: dict[str, Any]) -> None:
    answers = prometheus([target("npu1", "unknown"), *ALL[1:]])
    assert plan({**host, "proof": True}, answers) == [found("up of npu1", "unknown", "up", "wait")]


def test_target_of_another_job_does_not_count(host: dict[str, Any]) -> None:
    answers = prometheus([target("npu1", job="node"), *ALL[1:]], NAMES)
    assert plan(host, answers) == [found("up of npu1", "not scraped", "up", "wait")]


def test_target_that_is_not_wanted_any_more(host: dict[str, Any]) -> None:
    old = [target("old2"), target("old1")]
    assert plan(host, prometheus([*ALL, *old], [*NAMES, "old1", "old2"])) == [
        found("up of old1", "scraped", None, "wait"),
        found("up of old2", "scraped", None, "wait"),
    ]


def test_prometheus_that_does_not_answer(host: dict[str, Any]) -> None:
    with http_server({}) as gone:
        pass
    asked = {**host, "port": gone.port}
    expected = [found("service", None, f"a Prometheus that answers on port {gone.port}", "start")]
    assert monitoring.diff(asked, monitoring.read(asked)) == expected


def test_bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "installed_packages", lambda names: {})
    with http_server({}) as gone:
        pass
    config, targets = str(tmp_path / "prometheus.yml"), str(tmp_path / "triton.json")
    (tmp_path / "own.yml").write_text(PROBE)
    files = {
        "monitoring_targets_file": targets,
        "monitoring_prometheus_config": config,
        "monitoring_rules": [str(tmp_path / "own.yml")],
        "monitoring_rules_directory": str(tmp_path / "rules"),
    }
    wanted = {**desired(monitoring_packages=["prometheus", "curl"], **files), "port": gone.port}
    assert wanted["packages"] == ["curl", "prometheus"]
    assert monitoring.diff(wanted, monitoring.read(wanted)) == [
        found("packages", "without curl, prometheus", "installed", "install"),
        found(targets, None, wanted["targets"], "configure"),
        found("scrape job", None, "npufleet-triton", "configure"),
        found(str(tmp_path / "rules/own.yml"), None, PROBE, "configure"),
        found("rule_files", None, f"  - {tmp_path}/rules/own.yml\n", "configure"),
        found("service", None, f"a Prometheus that answers on port {gone.port}", "start"),
    ]


def test_other_targets_or_another_job_are_configured(host: dict[str, Any]) -> None:
    Path(host["targets_file"]).write_text("[]\n")
    Path(host["config"]).write_text(f"rule_files:\n{host['rules_list']}scrape_configs: []\n")
    assert plan(host, prometheus(ALL, NAMES)) == [
        found(host["targets_file"], "[]\n", host["targets"], "configure"),
        found("scrape job", None, "npufleet-triton", "configure"),
    ]


def test_rules_that_differ_are_not_listed_or_not_loaded(host: dict[str, Any]) -> None:
    path, config = Path(DIRECTORY[0], "probe.yml"), Path(host["config"])
    before = config.read_text()
    assert plan(host, prometheus(ALL, NAMES, {"triton.yml": ["Down"], "probe.yml": ["Stale", "Old"]})) == [
        found("loaded rules", "Old", "npufleet:up", "configure")
    ]
    assert plan(host, prometheus(ALL, NAMES, {})) == [found("loaded rules", None, "Down, Stale, npufleet:up", "configure")]
    config.write_text(before.replace(f"  - {path}\n", f"  # - {path}\n  - {path}.d\n"))
    assert plan(host, prometheus(ALL, NAMES)) == [found("rule_files", None, host["rules_list"], "configure")]
    config.write_text(before)
    path.write_text("groups: []\n")
    assert plan(host, prometheus(ALL, NAMES)) == [found(str(path), "groups: []\n", PROBE, "configure")]


def test_rules_of_the_site_are_installed_beside_those_of_the_collection(tmp_path: Path) -> None:
    own = tmp_path / "site.yml"
    own.write_text(PROBE)
    rules = desired(monitoring_rules_extra=[str(own)])["rules"]
    assert rules.pop("/etc/prometheus/npufleet/rules/site.yml") == PROBE
    assert rules == desired()["rules"]
    assert sorted(rules) == sorted(f"/etc/prometheus/npufleet/rules/{path.name}" for path in (MONITORING / "alerts").iterdir())


def test_files_of_rules_with_the_same_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "triton.yml").write_text(PROBE)
    with pytest.raises(Refusal, match=r"two files triton\.yml"):
        desired(monitoring_rules_extra=[str(tmp_path / "triton.yml")])
    with pytest.raises(Refusal, match="no file of rules"):
        desired(monitoring_rules=[str(tmp_path / "none")])
