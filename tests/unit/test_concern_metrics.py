"""The concern `metrics`: its files, its differences, and the tasks that install and remove it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import metrics as subject
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import collect
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.module_utils.watch import settings
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import metrics as desired_metrics
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import REQUIRED
from helpers import ROOT, assert_timer, fleet


def desired(**inventory: Any) -> dict[str, Any]:
    return desired_metrics.desired(fleet(**inventory))


def in_sync(**changes: Any) -> dict[str, Any]:
    return {**desired()["files"], "exporter": [], "enabled": True, "active": "active", **changes}


def test_the_program_can_load_its_configuration(tmp_path: Path) -> None:
    files = desired(monitoring_metrics_interval=30, npufleet_root="/srv/npu", triton_server_name="triton2")["files"]
    (tmp_path / "metrics.json").write_text(files["config"])
    config = settings.load(str(tmp_path / "metrics.json"), settings.Metrics)
    assert (config.root, config.container, config.driver) == ("/srv/npu", "triton2", "1.2.92")
    assert config.directory == "/var/lib/prometheus/node-exporter"
    assert set(json.loads(files["config"])) == set(settings.Metrics._fields)
    assert "OnUnitActiveSec=30\n" in files["timer"]
    assert f"ExecStart=/usr/bin/python3 -IS {library.path()} metrics {subject.CONFIG}\n" in files["service"]
    assert files["program"] == archive.digest("metrics.collect")


def test_a_server_without_metrics_has_no_port_for_them() -> None:
    assert json.loads(desired(triton_server_allow_metrics=False)["files"]["config"])["metrics_port"] is None


def config_of(variables: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(desired_metrics.desired(variables)["files"]["config"])
    return found


def balancer(**inventory: Any) -> Any:
    """Return the variables of a load balancer, which has none of those of hosts with NPUs."""
    variables = fleet(group_names=["load_balancer_hosts"], **inventory)
    for name in (*REQUIRED, "npufleet_release_row"):
        del variables._raw[name]
    return variables


def test_load_balancer_needs_no_variables_of_hosts_with_npus(tmp_path: Path) -> None:
    files = desired_metrics.desired(balancer())["files"]
    (tmp_path / "metrics.json").write_text(files["config"])
    config = settings.load(str(tmp_path / "metrics.json"), settings.Metrics)
    assert (config.npu_host, config.load_balancer, config.root) == (False, True, "/var/lib/npufleet")
    assert set(json.loads(files["config"])) == set(settings.Metrics._fields)


def test_settings_of_triton_do_not_change_the_program_of_a_load_balancer() -> None:
    changed = balancer(triton_server_name="other", npufleet_http_port=9000, triton_server_listen_address="10.0.0.1")
    assert config_of(changed) == config_of(balancer())


@pytest.mark.parametrize(
    ("groups", "npu_host", "load_balancer"),
    [(["npu_hosts"], True, False), (["load_balancer_hosts", "npu_hosts"], True, True), (["edge"], True, False)],
)
def test_groups_of_a_host_decide_what_the_program_reads(groups: list[str], npu_host: bool, load_balancer: bool) -> None:
    config = config_of(fleet(group_names=groups, npufleet_group="edge" if "edge" in groups else "npu_hosts"))
    assert (config["npu_host"], config["load_balancer"], config["npus"]) == (npu_host, load_balancer, 2)


def test_certificates_of_a_load_balancer_are_read() -> None:
    assert config_of(balancer())["certificates"] == []
    both = balancer(load_balancer_tls_certificate="/c.pem", load_balancer_client_ca="/ca.pem")
    assert config_of(both)["certificates"] == ["/etc/haproxy/npufleet/balancer.pem", "/etc/haproxy/npufleet/clients.pem"]


@pytest.mark.parametrize(
    ("arguments", "volumes", "paths"),
    [
        ([], [], []),
        (["--grpc-use-ssl=true", "--grpc-server-cert=/certs/a.pem"], ["/etc/tls:/certs:ro"], ["/etc/tls/a.pem"]),
        (["--grpc-server-cert", "/certs/a.pem", "--grpc-root-cert=/ca.pem"], ["/etc/tls/:/certs/", "/x.pem:/ca.pem"], None),
        (["--grpc-server-cert=/in/the/image.pem"], ["/etc/tls:/certs"], []),
        (["--grpc-server-cert=/certs/deep/a.pem"], ["/outer:/certs", "/inner:/certs/deep"], ["/inner/a.pem"]),
        (["--grpc-server-cert=/certs/a.pem"], ["named:/certs"], []),
    ],
)
def test_certificates_of_triton_are_read_on_the_host(arguments: list[str], volumes: list[str], paths: list[str] | None) -> None:
    config = config_of(fleet(triton_server_extra_args=arguments, triton_server_volumes=volumes))
    assert config["certificates"] == (["/etc/tls/a.pem", "/x.pem"] if paths is None else paths)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    assert_timer(tmp_path, "npufleet-metrics", desired()["files"])


def test_tasks_install_and_remove_every_file() -> None:
    install, remove = ((ROOT / f"roles/monitoring/tasks/{name}_metrics.yml").read_text() for name in ("install", "remove"))
    for path in (subject.SERVICE_FILE, subject.TIMER_FILE, subject.CONFIG):
        assert path in install
        assert f"- {path}\n" in remove
    for name in (collect.CARDS_FILE, collect.HOST_FILE):
        for ending in ("", ".new"):
            assert f'/{name}{ending}"\n' in remove


@pytest.mark.parametrize(
    ("changes", "current"),
    [
        ({}, None),
        (
            dict.fromkeys(("service", "timer", "config", "program")),
            "no unit file, no timer file, no configuration, no program",
        ),
        ({"config": "{}"}, "another configuration"),
        ({"program": "x"}, "another program"),
        ({"enabled": False, "active": "inactive"}, "disabled, inactive"),
        ({"active": "failed"}, "failed"),
    ],
)
def test_differences(changes: dict[str, Any], current: str | None) -> None:
    text = "enabled and active, as in the inventory"
    entry = {"concern": "metrics", "name": "npufleet-metrics.timer", "current": current, "desired": text, "action": "install"}
    assert subject.diff(desired(), in_sync(**changes)) == ([entry] if current else [])


def test_node_exporter_is_installed_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert desired()["exporter"] == desired(monitoring_node_exporter=True, monitoring_node_packages=[])["exporter"] == []
    wanted = desired(monitoring_node_exporter=True)
    (entry,) = subject.diff(wanted, in_sync())
    assert (entry["name"], entry["current"], entry["action"]) == ("node exporter", "without prometheus-node-exporter", "packages")
    assert subject.diff(wanted, in_sync(exporter=["prometheus-node-exporter"])) == []
    off = desired(monitoring_node_exporter=True, monitoring_metrics=False)
    assert [entry["action"] for entry in subject.diff(off, in_sync())] == ["packages", "remove"]
    monkeypatch.setattr(subject, "installed_packages", lambda names: {name: {} for name in names})
    assert subject.read(wanted)["exporter"] == ["prometheus-node-exporter"]


def test_metrics_that_are_switched_off_are_removed() -> None:
    off = desired(monitoring_metrics=False)
    (entry,) = subject.diff(off, in_sync())
    assert (entry["current"], entry["desired"], entry["action"]) == (
        "installed: unit file, timer file, configuration",
        None,
        "remove",
    )
    assert subject.diff(off, in_sync(**dict.fromkeys(("service", "timer", "config")))) == []


def test_the_files_of_a_host_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_FILE", "TIMER_FILE", "CONFIG"):
        monkeypatch.setattr(subject, name, f"{tmp_path}/{name}")
    monkeypatch.setattr(library, "HOME", str(tmp_path / "library"))
    assert subject.read(desired()) == {**dict.fromkeys(("service", "timer", "config", "program")), "exporter": []}
    files = desired()["files"]
    for name, key in (("SERVICE_FILE", "service"), ("TIMER_FILE", "timer"), ("CONFIG", "config")):
        (tmp_path / name).write_text(files[key])
    Path(library.path()).mkdir(parents=True)
    Path(library.programs_file()).write_text(json.dumps({"metrics": archive.digest("metrics.collect")}))
    assert subject.diff(desired(), {**subject.read(desired()), "enabled": True, "active": "active"}) == []
