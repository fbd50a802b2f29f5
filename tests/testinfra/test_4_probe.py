"""The probe of a running host: it runs, says what it finds, and keeps still while somebody works there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import LEASE, NPU_HOSTS, ROOT, connect, events, hold, now, page, playbook
from test_3_reboot import ready, shown, wait_for

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
SERVICE, TIMER = "npufleet-probe.service", "npufleet-probe.timer"
PAGE = "/var/lib/prometheus/node-exporter/npufleet.prom"
STATE = "/var/lib/npufleet/probe.json"
METRICS_TIMER = "npufleet-metrics.timer"
METRICS_PAGES = {name: f"/var/lib/prometheus/node-exporter/npufleet_{name}.prom" for name in ("cards", "host")}
WATCHDOG, WATCHDOG_STATE = "npufleet-watchdog.service", "/var/lib/npufleet/watchdog.json"
MAINTENANCE = "/var/lib/npufleet/maintenance.json"


@pytest.fixture(scope="module")
def first() -> Iterator[Any]:
    """The first host, as the inventory has it before and after."""
    host = connect(FIRST)
    yield host
    host.check_output("rm -f %s %s", LEASE, MAINTENANCE)
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert playbook("status.yml").code == 0


def probed(host: Any) -> dict[str, float]:
    """The metrics that one probe leaves. Starting a oneshot unit waits for its end, also for one that is under way."""
    host.check_output("systemctl start %s", SERVICE)
    return metrics(host)


def metrics(host: Any) -> dict[str, float]:
    return samples(host.check_output("cat %s", PAGE))


def samples(text: str) -> dict[str, float]:
    lines = text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def set_reasons(found: dict[str, float], name: str) -> list[str]:
    return [metric.split('"')[1] for metric, value in found.items() if metric.startswith(name) and value == 1]


def failed(found: dict[str, float]) -> list[str]:
    return sorted(metric for metric, value in found.items() if metric.startswith("npufleet_check_ok") and value == 0)


def changed(checks: Path, **variables: Any) -> list[str]:
    """Options of site.yml for the first host with check files of these tests before all others."""
    dirs = {
        "inference_check_checks_dir": [str(checks), str(ROOT / "lab/checks")],
        "inference_check_golden_dir": [str(ROOT / "lab/golden")],
    }
    return ["--limit", f"{FIRST},localhost", "-e", json.dumps({**dirs, **variables})]


def test_timer_is_enabled_and_a_first_result_is_there(npu: Any) -> None:
    assert shown(npu, TIMER, "ActiveState") == "active"
    assert shown(npu, TIMER, "UnitFileState") == "enabled"
    wait_for(lambda: npu.file(STATE).exists)
    # Asked anew: the one at a boot, of the tests before these, finds a server that still loads.
    found = probed(npu)
    assert failed(found) == []
    assert found["npufleet_checks"] > 0
    assert (found["npufleet_checks_failed"], set_reasons(found, "npufleet_probe_unavailable")) == (0, [])
    assert npu.file("/etc/npufleet/probe_checks.json").mode == 0o600
    assert npu.file(STATE).mode == 0o600
    assert npu.file(PAGE).mode == 0o644
    state = json.loads(npu.file(STATE).content_string)
    assert {check["model"] for check in state["checks"]} == set(npu.check_output("ls /var/lib/npufleet/served").split())
    verified = npu.run("systemd-analyze verify --man=no /etc/systemd/system/npufleet-probe.service /etc/systemd/system/%s", TIMER)
    assert (verified.rc, verified.stderr) == (0, "")
    # Its container goes with each look, also with one that the timer has begun just now.
    wait_for(lambda: "npufleet-probe" not in npu.check_output("docker ps --all --format '{{.Names}}'"))


def test_promtool_takes_the_metrics_and_the_rules(npu: Any, ops: Any) -> None:
    page = npu.check_output("cat %s", PAGE)
    done = ops.run("printf '%%s\\n' %s | promtool check metrics", page)
    assert (done.rc, done.stdout + done.stderr) == (0, "")


def test_prometheus_has_the_rules_and_they_fire_where_they_should(ops: Any) -> None:
    directory = "/etc/prometheus/npufleet/rules"
    files = [path for name in ("alerts", "rules") for path in (ROOT / "files/monitoring" / name).glob("*.yml")]
    rules = {f"{path.parent.name}_{path.name}": path.read_text() for path in files}
    assert {name: ops.file(f"{directory}/{name}").content_string for name in rules} == rules
    # The tests name the files of rules by their places in the checkout.
    for path in [*files, *(ROOT / "tests/alerts").glob("*_test.yml")]:
        target = f"/run/alerts/{path.relative_to(ROOT)}"
        ops.check_output("mkdir -p %s && printf %%s %s > %s", str(Path(target).parent), path.read_text(), target)
    done = ops.run("cd /run/alerts/tests/alerts && promtool test rules *_test.yml")
    assert done.rc == 0, done.stdout + done.stderr
    groups = json.loads(page(ops, 9090, "/api/v1/rules"))["data"]["groups"]
    loaded = [rule for group in groups if group["file"].startswith(directory) for rule in group["rules"]]
    names = [
        rule.get("alert", rule.get("record"))
        for text in rules.values()
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]
    assert sorted(rule["name"] for rule in loaded) == sorted(names)
    assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}


def test_wrong_golden_shows_as_a_metric_and_a_warning_and_is_no_difference_of_the_host(first: Any) -> None:
    """What is kept is changed as a renewal would: a label that no server answers."""
    script = """
import hashlib, json
path = "/etc/npufleet/probe_checks.json"
head, body = open(path, "rb").read().split(b"\\n", 1)
given = json.loads(body)
(digits,) = [one for one in given["document"]["checks"] if one["model"] == "digits"]
digits["checks"][0]["expect"]["OUTPUT__0"]["argmax"] = [11] * 40
body = json.dumps(given).encode()
head = {**json.loads(head), "document": hashlib.sha256(body).hexdigest()}
open(path, "wb").write(json.dumps(head).encode() + b"\\n" + body)
"""
    first.check_output("cp -p /etc/npufleet/probe_checks.json /root/checks.json")
    try:
        first.check_output("python3 -c %s", script)
        found = probed(first)
        name = 'npufleet_check_ok{model="digits",check="digit",protocol="%s"}'
        assert failed(found) == sorted(name % protocol for protocol in ("http", "grpc"))
        assert found["npufleet_checks_failed"] == 2
        status = playbook("status.yml")
        assert status.code == 0, status.output
        assert "checks of the probe failed" in status.output
    finally:
        first.check_output("mv /root/checks.json /etc/npufleet/probe_checks.json")
    assert failed(probed(first)) == []


def test_nothing_is_asked_during_a_deployment_or_maintenance(first: Any) -> None:
    before = probed(first)["npufleet_probe_last_run_timestamp_seconds"]
    for reason, mark in (("deployment", LEASE), ("maintenance", MAINTENANCE)):
        if mark == LEASE:
            hold(first)
        else:
            first.check_output("echo '{}' > %s", mark)
        since = now(first)
        try:
            found = probed(first)
        finally:
            first.check_output("rm -f %s", mark)
        assert "npufleet-probe" not in {name for _what, name in events(first, since)}
        assert set_reasons(found, "npufleet_probe_paused") == [reason]
        assert [entry for entry in found if entry.startswith("npufleet_check")] == []
        assert found["npufleet_probe_last_run_timestamp_seconds"] == before
    assert probed(first)["npufleet_probe_last_run_timestamp_seconds"] > before


def test_server_that_is_down_fails_every_check(first: Any) -> None:
    first.check_output("systemctl stop npufleet-watchdog && docker stop triton")
    try:
        found = probed(first)
        assert len(failed(found)) == found["npufleet_checks"] > 0
        assert set_reasons(found, "npufleet_probe_unavailable") == []
    finally:
        first.check_output("docker start triton && systemctl start npufleet-watchdog")
        wait_for(lambda: ready(first))


def test_image_that_is_gone_is_told_apart_from_a_server_that_is(first: Any, lock: dict[str, Any]) -> None:
    first.check_output("cp -p /etc/npufleet/probe.json /root/probe.json")
    try:
        assert lock["reference"] in first.file("/etc/npufleet/probe.json").content_string
        first.check_output("sed -i %s /etc/npufleet/probe.json", f"s|{lock['reference']}|gone:1|")
        found = probed(first)
        assert set_reasons(found, "npufleet_probe_unavailable") == ["image"]
        # And it is a difference, which an ordinary run repairs.
        assert playbook("status.yml").code == 2
    finally:
        first.check_output("mv /root/probe.json /etc/npufleet/probe.json")


def test_other_checks_are_a_difference_that_one_run_repairs(first: Any, tmp_path: Path) -> None:
    text = (ROOT / "files/checks/digits.yml").read_text()
    latency = """
  - name: fast enough
    protocols: [grpc]
    inputs: {INPUT__0: {npy: images.npy}}
    rows: {first: 0, count: 1}
    latency: {clients: 2, requests: 100, p99_ms: 60000}
"""
    (tmp_path / "digits.yml").write_text(text + latency)
    checked = playbook("site.yml", "--check", "--diff", *changed(tmp_path))
    assert checked.code == 0, checked.output
    assert "another set of checks" in checked.output
    run = playbook("site.yml", *changed(tmp_path))
    assert run.code == 0, run.output
    again = playbook("site.yml", *changed(tmp_path))
    assert (again.code, again.changed().get(FIRST)) == (0, 0), again.output
    # The gate has run the load, the probe does not.
    found = probed(first)
    assert failed(found) == []
    assert not any("fast enough" in entry for entry in found)
    proof = playbook("check.yml", *changed(tmp_path, inference_check_results_dir=str(tmp_path / "results")))
    assert proof.code == 0, proof.output
    results = json.loads((tmp_path / f"results/{FIRST}.json").read_text())["checks"]
    (load,) = [result for result in results if result["check"] == "fast enough"]
    assert (load["ok"], load["latency"]["requests"], load["latency"]["p99_ms"] > 0) == (True, 100, True)


def test_each_host_writes_the_metrics_of_its_cards_and_of_itself(npu: Any, ops: Any) -> None:
    assert shown(npu, METRICS_TIMER, "UnitFileState") == "enabled"
    units = "/etc/systemd/system/npufleet-metrics"
    verified = npu.run("systemd-analyze verify --man=no %s.service %s.timer", units, units)
    assert (verified.rc, verified.stderr) == (0, "")
    npu.check_output("systemctl start npufleet-metrics.service")
    pages = {name: npu.check_output("cat %s", path) for name, path in METRICS_PAGES.items()}
    for name, text in pages.items():
        assert npu.file(METRICS_PAGES[name]).mode == 0o644
        done = ops.run("printf '%%s\\n' %s | promtool check metrics", text)
        assert (done.rc, done.stdout + done.stderr) == (0, "")
    cards = samples(pages["cards"])
    nodes = npu.check_output("ls /dev | grep -c '^rbln'")
    assert cards["npufleet_cards_found"] == cards["npufleet_cards_expected"] == int(nodes)
    readings = {name: value for name, value in cards.items() if 'device="rbln0"' in name}
    assert readings['npufleet_card_temperature_celsius{npu="0",device="rbln0"}'] == 38
    assert readings['npufleet_card_power_watts{npu="0",device="rbln0"}'] == 6.1
    assert {value for name, value in cards.items() if name.startswith("npufleet_card_healthy")} == {1}
    host = samples(pages["host"])
    desired = {name.partition("{")[2] for name in host if name.startswith("npufleet_model_desired{")}
    loaded = {name.partition("{")[2] for name in host if name.startswith("npufleet_model_loaded{")}
    assert desired == loaded != set()
    assert {value for name, value in host.items() if name.startswith("npufleet_stubs") and "running" not in name} == {0}
    assert 0 < host["npufleet_shm_used_bytes"] < host["npufleet_shm_size_bytes"]
    assert host["npufleet_change_running"] == 0


def test_probe_watchdog_and_metrics_can_be_switched_off_and_leave_nothing(first: Any) -> None:
    options = {"monitoring_probe": False, "monitoring_metrics": False, "triton_server_watchdog": False}
    off = ["--limit", f"{FIRST},localhost", "-e", json.dumps(options)]
    run = playbook("site.yml", *off)
    assert run.code == 0, run.output
    left = first.run("ls %s %s /etc/npufleet/probe.json /etc/npufleet/probe_checks.json /etc/systemd/system/%s", PAGE, STATE, TIMER)
    assert "npufleet" not in left.stdout
    assert "npufleet" not in first.run("ls %s %s /etc/npufleet/metrics.json", *METRICS_PAGES.values()).stdout
    assert shown(first, METRICS_TIMER, "LoadState") == "not-found"
    assert shown(first, TIMER, "LoadState") == "not-found"
    assert shown(first, WATCHDOG, "LoadState") == "not-found"
    assert not first.file(WATCHDOG_STATE).exists
    again = playbook("site.yml", *off)
    assert (again.code, again.changed().get(FIRST)) == (0, 0), again.output
