"""Prometheus: targets and jobs from the inventory, and the health of the targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import monitoring
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import monitoring as desired_monitoring
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import ROOT, fleet, http_server

MONITORING = ROOT / "files/monitoring"
TARGETS = "/api/v1/targets?state=active"
# The directory of the rules on the host under test
DIRECTORY = ["/etc/prometheus/npufleet/rules"]
LATELY = "/api/v1/query?query=" + quote('max_over_time(up{job=~"npufleet-(triton|node|balancer|cards)"}[2m]) == 1')
TARGETS_FILE = "/etc/prometheus/npufleet/triton.json"


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
    (found,) = json.loads(desired(groups={"npu_hosts": ["npu1"]}, hostvars={"npu1": facts})["targets"][TARGETS_FILE])
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
NAMES_OF_RULES = {"rules_triton.yml": ["npufleet:up", "Down"], "rules_probe.yml": ["Stale"]}


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
    assert json.loads(wanted["targets"][TARGETS_FILE]) == [
        {"targets": ["npu2.example.com:9102"], "labels": {"host": "npu2"}},
        {"targets": ["10.0.0.1:8002"], "labels": {"host": "npu1"}},
        {"targets": ["npu3:8002"], "labels": {"host": "npu3"}},
    ]
    assert wanted["targets"][TARGETS_FILE].endswith("]\n")
    assert wanted["hosts"] == {"npufleet-triton": ["npu1", "npu2", "npu3"]}
    assert (wanted["port"], wanted["proof"]) == (9090, False)


def test_scraped_group_and_port_are_variables() -> None:
    edge = {"groups": {"edge": ["edge1"]}, "hostvars": {"edge1": {"npufleet_metrics_port": "9999"}}}
    wanted = desired(proof=True, monitoring_scrape_group="edge", monitoring_prometheus_port="9091", **edge)
    assert json.loads(wanted["targets"][TARGETS_FILE]) == [{"targets": ["edge1:9999"], "labels": {"host": "edge1"}}]
    assert (wanted["port"], wanted["proof"]) == (9091, True)


def test_group_without_hosts_has_no_targets() -> None:
    assert desired(monitoring_scrape_group="nobody")["targets"] == {TARGETS_FILE: "[]\n"}


def test_the_roles_scrape_job_reads_the_targets_file() -> None:
    wanted = desired(monitoring_scrape_interval="5s")
    assert yaml.safe_load("scrape_configs:\n" + wanted["jobs"]) == {
        "scrape_configs": [
            {
                "job_name": "npufleet-triton",
                "scrape_interval": "5s",
                "file_sd_configs": [{"files": ["/etc/prometheus/npufleet/triton.json"]}],
            }
        ]
    }


# Reading


def marked(jobs: str) -> str:
    """The block that the role writes."""
    return f"# BEGIN npufleet\n{jobs}\n# END npufleet\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is wanted of a host whose files are below tmp_path."""
    monkeypatch.setattr(monitoring, "installed_packages", lambda names: {name: {} for name in names})
    controller, on_host = tmp_path / "rules", tmp_path / "host"
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
    (tmp_path / "triton.json").write_text(wanted["targets"][str(tmp_path / "triton.json")])
    for path, text in wanted["rules"].items():
        Path(path).write_text(text)
    listed = f"rule_files:\n{wanted['rules_list']}"
    (tmp_path / "prometheus.yml").write_text(f"global: {{}}\n{listed}scrape_configs:\n{marked(wanted['jobs'])}")
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
        found(targets, None, wanted["targets"][targets], "configure"),
        found("scrape jobs", None, "npufleet-triton", "configure"),
        found(str(tmp_path / "rules/own.yml"), None, PROBE, "configure"),
        found("rule_files", None, f"  - {tmp_path}/rules/own.yml\n", "configure"),
        found("service", None, f"a Prometheus that answers on port {gone.port}", "start"),
    ]


def test_other_targets_or_another_job_are_configured(host: dict[str, Any]) -> None:
    (targets,) = host["targets"]
    Path(targets).write_text("[]\n")
    Path(host["config"]).write_text(f"rule_files:\n{host['rules_list']}scrape_configs: []\n")
    assert plan(host, prometheus(ALL, NAMES)) == [
        found(targets, "[]\n", host["targets"][targets], "configure"),
        found("scrape jobs", None, "npufleet-triton", "configure"),
    ]


def test_rules_that_differ_are_not_listed_or_not_loaded(host: dict[str, Any]) -> None:
    path, config = Path(DIRECTORY[0], "rules_probe.yml"), Path(host["config"])
    before = config.read_text()
    assert plan(host, prometheus(ALL, NAMES, {"rules_triton.yml": ["Down"], "rules_probe.yml": ["Stale", "Old"]})) == [
        found("loaded rules", "Old", "npufleet:up", "configure")
    ]
    assert plan(host, prometheus(ALL, NAMES, {})) == [found("loaded rules", None, "Down, Stale, npufleet:up", "configure")]
    config.write_text(before.replace(f"  - {path}\n", f"  # - {path}\n  - {path}.d\n"))
    assert plan(host, prometheus(ALL, NAMES)) == [found("rule_files", None, host["rules_list"], "configure")]
    config.write_text(before)
    path.write_text("groups: []\n")
    assert plan(host, prometheus(ALL, NAMES)) == [found(str(path), "groups: []\n", PROBE, "configure")]


def listed_block(*paths: str) -> str:
    """The block of rule files that the role writes."""
    return "# BEGIN npufleet rules\n" + "".join(f"  - {path}\n" for path in paths) + "# END npufleet rules\n"


def test_rules_that_left_the_inventory_are_removed(host: dict[str, Any]) -> None:
    config, left = Path(host["config"]), f"{DIRECTORY[0]}/gone.yml"
    before = config.read_text().replace(host["rules_list"], "  - /etc/others.yml\n" + listed_block(*host["rules"]))
    config.write_text(before)
    assert plan(host, prometheus(ALL, NAMES)) == []
    config.write_text(before.replace("# END npufleet rules", f"  - {left}\n# END npufleet rules"))
    assert plan(host, prometheus(ALL, NAMES)) == [found(left, "rules that are not in the inventory", None, "configure")]


def test_rules_of_a_file_that_is_not_listed_any_more_are_still_loaded(host: dict[str, Any]) -> None:
    loaded = prometheus(ALL, NAMES, {**NAMES_OF_RULES, "gone.yml": ["Gone"]})
    assert plan(host, loaded) == [found("loaded rules", "Gone", None, "configure")]
    # The site lists this file, or the whole directory, itself.
    config = Path(host["config"])
    before = config.read_text()
    for path in ("gone.yml", "*.yml"):
        config.write_text(before.replace("rule_files:\n", f"rule_files:\n  - {DIRECTORY[0]}/{path}\n"))
        assert plan(host, loaded) == []


def test_rules_of_the_site_are_installed_beside_those_of_the_collection(tmp_path: Path) -> None:
    own = tmp_path / "site.yml"
    own.write_text(PROBE)
    rules = desired(monitoring_rules_extra=[str(own)])["rules"]
    assert rules.pop("/etc/prometheus/npufleet/rules/site.yml") == PROBE
    assert rules == desired()["rules"]
    names = [f"{name}_{path.name}" for name in ("alerts", "rules") for path in (MONITORING / name).iterdir()]
    assert sorted(rules) == sorted(f"/etc/prometheus/npufleet/rules/{name}" for name in names)


def test_files_of_rules_with_the_same_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "triton.yml").write_text(PROBE)
    with pytest.raises(Refusal, match=r"two files triton\.yml"):
        desired(monitoring_rules_extra=[str(tmp_path / "triton.yml"), str(tmp_path / "triton.yml")])
    with pytest.raises(Refusal, match="no file of rules"):
        desired(monitoring_rules=[str(tmp_path / "none")])


# Jobs besides that of Triton


FLEET: dict[str, Any] = {
    "inventory_hostname": "ops1",
    "groups": {"npu_hosts": ["npu1", "npu2"], "load_balancer_hosts": ["lb1", "lb2", "ops1"]},
    "hostvars": {
        "npu1": {"ansible_host": "10.0.0.1"},
        "npu2": {"ansible_host": "10.0.0.2"},
        "lb1": {"ansible_host": "10.0.0.8", "load_balancer_metrics_address": "0.0.0.0:8405"},
        "lb2": {"ansible_host": "10.0.0.9"},
        "ops1": {"ansible_host": "10.0.0.5"},
    },
}


def targets(**inventory: Any) -> dict[str, Any]:
    """{job: {host: target}} of the fleet."""
    wanted = desired(**{**FLEET, **inventory})
    files = {Path(path).stem: json.loads(content) for path, content in wanted["targets"].items()}
    return {job: {entry["labels"]["host"]: entry["targets"][0] for entry in entries} for job, entries in files.items()}


def with_facts(**facts: dict[str, Any]) -> dict[str, Any]:
    return {host: {**own, **facts.get(host, {})} for host, own in FLEET["hostvars"].items()}


def test_fleet_without_exporters_has_only_the_job_of_triton() -> None:
    groups = {"npu_hosts": ["npu1", "npu2"]}
    assert targets(groups=groups) == {"triton": {"npu1": "10.0.0.1:8002", "npu2": "10.0.0.2:8002"}}


def test_node_exporters_of_npu_hosts_and_balancers_are_targets() -> None:
    assert targets(monitoring_node_exporter=True, monitoring_node_port=9111)["node"] == {
        "npu1": "10.0.0.1:9111",
        "npu2": "10.0.0.2:9111",
        "lb1": "10.0.0.8:9111",
        "lb2": "10.0.0.9:9111",
        "ops1": "10.0.0.5:9111",
    }
    own = with_facts(npu2={"monitoring_node_exporter": "yes", "monitoring_node_port": "9112"})
    assert targets(hostvars=own)["node"] == {"npu2": "10.0.0.2:9112"}


def test_node_exporter_of_a_monitoring_host_is_a_target_if_it_has_the_drift() -> None:
    groups = {"npu_hosts": ["npu1"], "monitoring_hosts": ["ops1", "ops2"]}
    given: dict[str, Any] = {"groups": groups, "hostvars": with_facts(ops1={"monitoring_status_metrics": True}) | {"ops2": {}}}
    assert targets(**given, monitoring_node_exporter=True)["node"] == {"npu1": "10.0.0.1:9100", "ops1": "10.0.0.5:9100"}
    assert "node" not in targets(**given)
    # The monitoring host that computes the targets does not speak for the others.
    own = {"monitoring_node_exporter": True, "monitoring_status_metrics": True}
    assert "ops2" not in targets(**given, **own)["node"]


def test_node_exporter_is_installed_for_the_drift() -> None:
    both = {"monitoring_node_exporter": True, "monitoring_status_metrics": True}
    assert desired(**both)["packages"] == ["prometheus", "prometheus-node-exporter"]
    assert desired(**both, monitoring_node_packages=[])["packages"] == ["prometheus"]
    for name in both:
        assert desired(**{name: True})["packages"] == ["prometheus"]


def test_drift_of_an_old_status_is_removed_when_it_is_off(
    host: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/var/lib/prometheus/node-exporter/npufleet_status.prom"
    assert path in desired()["absent"]
    assert path not in desired(monitoring_status_metrics=True)["absent"]
    left = str(tmp_path / monitoring.STATUS_FILE)
    Path(left).write_text("")
    assert plan({**host, "absent": [left]}, prometheus(ALL, NAMES)) == [found(left, "metrics of status.yml", None, "configure")]


def test_tasks_write_the_file_that_the_concern_removes() -> None:
    text = (ROOT / "roles/monitoring/tasks/status.yml").read_text()
    assert f"/{monitoring.STATUS_FILE}" in text


def test_balancer_on_the_loopback_is_scraped_only_by_itself() -> None:
    assert targets()["balancer"] == {"lb1": "10.0.0.8:8405", "ops1": "127.0.0.1:8405"}
    own = with_facts(lb2={"load_balancer_metrics_address": "[2001:db8::9]:8406"})
    assert targets(hostvars=own)["balancer"]["lb2"] == "[2001:db8::9]:8406"


def test_exporter_of_cards_is_local_or_a_gateway() -> None:
    assert targets(monitoring_cards="exporter")["cards"] == {"npu1": "10.0.0.1:9090", "npu2": "10.0.0.2:9090"}
    wanted = desired(**FLEET, monitoring_cards="exporter", monitoring_cards_gateway="10.0.0.5:9200")
    assert json.loads(wanted["targets"]["/etc/prometheus/npufleet/cards.json"])[0] == {
        "targets": ["10.0.0.5:9200"],
        "labels": {"host": "npu1", "instance": "10.0.0.1:50051", "__param_target": "10.0.0.1:50051"},
    }


def test_metrics_of_triton_are_scraped_at_their_own_address() -> None:
    own = with_facts(npu1={"triton_server_metrics_listen_address": "10.9.0.1"})
    assert targets(hostvars=own)["triton"] == {"npu1": "10.9.0.1:8002", "npu2": "10.0.0.2:8002"}


def test_addresses_of_the_monitoring_host_are_not_those_of_other_hosts() -> None:
    # ops1 is also a load balancer and an NPU host, with an address and ports of its own.
    own = {
        "npufleet_metrics_port": 9002,
        "triton_server_metrics_listen_address": "10.9.0.5",
        "load_balancer_metrics_address": "10.9.0.5:9405",
    }
    groups = {"npu_hosts": ["npu1", "ops1"], "load_balancer_hosts": ["lb2", "ops1"]}
    found = targets(**own, groups=groups, hostvars=with_facts(ops1=own))
    assert found["triton"] == {"npu1": "10.0.0.1:8002", "ops1": "10.9.0.5:9002"}
    # By default, the metrics of a load balancer are on its loopback.
    assert found["balancer"] == {"ops1": "10.9.0.5:9405"}


def test_proxy_in_front_of_the_metrics_has_its_own_port() -> None:
    assert targets(monitoring_triton_port=8443)["triton"]["npu1"] == "10.0.0.1:8443"


OPTIONS = {
    "triton": {
        "scheme": "https",
        "tls_config": {"ca_file": "/etc/prometheus/ca.pem", "min_version": "TLS13"},
        "basic_auth": {"username": "prom: 'x", "password_file": "/etc/prometheus/password"},
    },
    "node": {"scrape_interval": "30s", "authorization": {"credentials_file": "/etc/prometheus/token"}},
}


def test_tls_and_logins_are_options_of_a_job() -> None:
    wanted = desired(**FLEET, monitoring_node_exporter=True, monitoring_scrape_options=OPTIONS, monitoring_scrape_indent=0)
    jobs = {job["job_name"]: job for job in yaml.safe_load(wanted["jobs"])}
    assert list(jobs) == ["npufleet-triton", "npufleet-node", "npufleet-balancer"]
    assert jobs["npufleet-triton"] == {
        "job_name": "npufleet-triton",
        "scrape_interval": "15s",
        "file_sd_configs": [{"files": [TARGETS_FILE]}],
        **OPTIONS["triton"],
    }
    assert jobs["npufleet-node"]["scrape_interval"] == "30s"
    assert jobs["npufleet-node"]["authorization"] == OPTIONS["node"]["authorization"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gpu": {}}, "monitoring_scrape_options has the job gpu, expected triton, node, balancer, cards. Correct the name"),
        ({"node": []}, "monitoring_scrape_options.node is no map"),
        ({"node": {"basic_auth": {"password": "Plain-Word-1"}}}, "set password_file to its path"),
        ({"node": {"authorization": {"credentials": "Plain-Word-1"}}}, "set credentials_file to its path"),
        ({"node": {"bearer_token": "Plain-Word-1"}}, "set authorization.credentials_file to its path"),
        ({"node": {"proxy_url": "http://a:Plain-Word-1@b"}}, "monitoring_scrape_options.node has the option proxy_url, expected"),
        ({"node": {"tls_config": "Plain-Word-1"}}, "monitoring_scrape_options.node.tls_config is no map"),
    ],
)
def test_secrets_and_unknown_options_are_refused_without_their_value(options: Any, reason: str) -> None:
    with pytest.raises(Refusal) as refusal:
        desired(monitoring_scrape_options=options)
    assert reason in "\n".join(refusal.value.reasons)
    assert "Plain-Word-1" not in "\n".join(refusal.value.reasons)


def test_file_of_triton_with_the_name_of_another_job_is_refused() -> None:
    with pytest.raises(Refusal, match=r"monitoring_targets_file is /etc/prometheus/npufleet/node\.json"):
        desired(monitoring_targets_file="/etc/prometheus/npufleet/node.json")


def test_copies_for_promtool_are_in_a_directory_of_their_own() -> None:
    wanted = desired(**FLEET)
    place = "/etc/prometheus/npufleet/check/"
    assert wanted["checked"][place + "triton.json"] == wanted["targets"][TARGETS_FILE]
    job = yaml.safe_load(wanted["checked"][place + "prometheus.yml"])["scrape_configs"][0]
    assert job["file_sd_configs"] == [{"files": ["triton.json", "balancer.json"]}]
    assert len(wanted["checked"]) == 3


def test_job_that_lost_its_hosts_is_removed(host: dict[str, Any]) -> None:
    (targets,) = host["targets"]
    left = Path(targets).with_name("node.json")
    left.write_text("[]\n")
    config = Path(host["config"])
    node = "  - job_name: npufleet-node\n    file_sd_configs: []\n"
    config.write_text(config.read_text().replace("# END npufleet\n", node + "# END npufleet\n"))
    assert plan(host, prometheus([*ALL, target("npu1", job="npufleet-node")], NAMES)) == [
        found(str(left), "targets of a job without hosts", None, "configure"),
        found("scrape jobs", None, "npufleet-triton", "configure"),
        found("up of npu1 in npufleet-node", "scraped", None, "wait"),
    ]


def test_health_is_that_of_the_same_job(host: dict[str, Any]) -> None:
    wanted = {**host, "hosts": {**host["hosts"], "npufleet-node": ["npu1"]}}
    answers = prometheus([*ALL, target("npu1", "down", "connection refused", job="npufleet-node")], NAMES)
    assert plan(wanted, answers) == [found("up of npu1 in npufleet-node", "connection refused", "up", "wait")]


def test_jobs_of_the_site_without_markers_are_accepted(host: dict[str, Any]) -> None:
    config = Path(host["config"])
    config.write_text(config.read_text().replace("# BEGIN npufleet\n", "").replace("# END npufleet\n", ""))
    assert plan(host, prometheus(ALL, NAMES)) == []
