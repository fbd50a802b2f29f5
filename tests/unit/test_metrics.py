"""The metrics of a host: the page, the metrics of cards and host, and the program that writes them."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import textfile
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, files, servers
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.driver import readings, vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import cards, certificates, collect, drained, host
from ansible_collections.npufleet.triton.plugins.module_utils.system import seconds_since_1970, timestamp
from ansible_collections.npufleet.triton.plugins.module_utils.watch import evidence
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import drift
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from helpers import ROOT
from test_card_readings import CA22, tool

DRIVER = cards.Driver("1.2.92", "1.2.92", 2)


def samples(page: str) -> dict[str, float]:
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


# The page


def test_a_page_is_sorted_escaped_and_without_repeated_series() -> None:
    families: textfile.Families = {
        "b": [({"x": "2"}, 1), ({"x": "1"}, 2.5), ({"x": "1"}, 9)],
        "a": [({"x": 'q"\\\n\ud800'}, True)],
        "none": [],
        "odd": [({}, float("nan")), ({"x": "1"}, float("inf"))],
    }
    assert textfile.page(families, {"a": "A.", "b": "B."}) == (
        '# HELP a A.\n# TYPE a gauge\na{x="q\\"\\\\\\n?"} 1\n# HELP b B.\n# TYPE b gauge\nb{x="1"} 2.5\nb{x="2"} 1\n'
    )


def test_series_and_labels_are_limited() -> None:
    page = textfile.page({"a": [({"x": f"{number:05}"}, 1) for number in range(textfile.MAX_SERIES + 9)]}, {"a": "A."})
    # The page reports how many series it does not have.
    assert samples(page).pop('npufleet_dropped_series{metric="a"}') == 9
    assert len(samples(page)) == textfile.MAX_SERIES + 1
    assert len(textfile.escaped("x" * 999)) == textfile.MAX_VALUE


# Cards


def test_metrics_of_the_cards() -> None:
    found = samples(textfile.page(cards.families(DRIVER, readings.parse(tool({**CA22, "group_id": "0"})), 5), cards.HELP))
    labels = 'npu="0",device="rbln0"'
    info = f'{labels},bus_id="0000:ab:00.0",name="RBLN-CA22",uuid="u-1",firmware="3.2.2",group="0"'
    assert found == {
        f"npufleet_card_healthy{{{labels}}}": 1,
        f"npufleet_card_info{{{info}}}": 1,
        f"npufleet_card_memory_size_bytes{{{labels}}}": 16877879296,
        f"npufleet_card_memory_used_bytes{{{labels}}}": 0,
        f"npufleet_card_pcie_link_speed_gts{{{labels}}}": 32,
        f"npufleet_card_pcie_link_width{{{labels}}}": 8,
        f"npufleet_card_power_watts{{{labels}}}": 18.810987,
        f"npufleet_card_temperature_celsius{{{labels}}}": 38,
        f"npufleet_card_utilization_ratio{{{labels}}}": 0.125,
        "npufleet_cards_expected": 2,
        "npufleet_cards_found": 1,
        "npufleet_cards_last_read_timestamp_seconds": 5,
        "npufleet_cards_read_ok": 1,
        'npufleet_driver_info{loaded="1.2.92",expected="1.2.92"}': 1,
    }
    assert {name.partition("{")[0] for name in found} == set(cards.HELP)


def test_unknown_readings_and_a_failed_tool_have_no_series() -> None:
    found = cards.families(DRIVER._replace(loaded=None), readings.parse(tool({"device": "rbln0"})), 5)
    assert {name for name in found if name.startswith("npufleet_card_") and found[name]} == {"npufleet_card_info"}
    failed = samples(textfile.page(cards.families(DRIVER._replace(loaded=None), None, 5), cards.HELP))
    assert failed == {
        "npufleet_cards_expected": 2,
        "npufleet_cards_last_read_timestamp_seconds": 5,
        "npufleet_cards_read_ok": 0,
        'npufleet_driver_info{loaded="",expected="1.2.92"}': 1,
    }


def test_the_rules_of_the_vendors_exporter_record_the_same_metrics() -> None:
    (group,) = yaml.safe_load((ROOT / "files/monitoring/rules/exporter.yml").read_text())["groups"]
    recorded = {rule["record"] for rule in group["rules"]}
    assert {*recorded, "npufleet_cards_expected", "npufleet_driver_info"} == set(cards.HELP)


# Host

DIGEST = "0123456789abcdef" * 4
FACTS = host.Facts(
    now=9,
    desired={"m": {"versions": ["1", "2"], "release": DIGEST}},
    served={
        "m": {
            "1": {"state": "READY", "reason": "", "release": DIGEST},
            "2": {"state": "UNAVAILABLE", "reason": "no such file", "release": None},
        },
        "old": {"1": {"state": "UNAVAILABLE", "reason": "unloaded", "release": None}},
        "foreign": {"1": {"state": "READY", "reason": "", "release": None}},
    },
    stubs={"m": host.Stubs(2, 1, 0)},
    shm=(100, 40),
    changing=True,
    maintenance=3.0,
    limited=4.0,
    holds={"m": 5.0},
)


def test_metrics_of_the_host() -> None:
    found = samples(textfile.page(host.families(FACTS), host.HELP))
    digest = DIGEST[:12]
    assert found == {
        "npufleet_change_running": 1,
        'npufleet_drained_since_timestamp_seconds{by="rollout"}': 4,
        'npufleet_drained_since_timestamp_seconds{by="maintenance"}': 3,
        'npufleet_hold_since_timestamp_seconds{model="m"}': 5,
        "npufleet_host_last_read_timestamp_seconds": 9,
        "npufleet_maintenance_since_timestamp_seconds": 3,
        f'npufleet_model_desired{{model="m",version="1",digest="{digest}"}}': 1,
        f'npufleet_model_desired{{model="m",version="2",digest="{digest}"}}': 1,
        'npufleet_model_load_failed{model="foreign"}': 0,
        'npufleet_model_load_failed{model="m"}': 1,
        'npufleet_model_load_failed{model="old"}': 0,
        'npufleet_model_loaded{model="foreign",version="1",digest=""}': 1,
        f'npufleet_model_loaded{{model="m",version="1",digest="{digest}"}}': 1,
        "npufleet_shm_size_bytes": 100,
        "npufleet_shm_used_bytes": 40,
        'npufleet_stubs{model="m",state="running"}': 2,
        'npufleet_stubs{model="m",state="missing"}': 1,
        'npufleet_stubs{model="m",state="hung"}': 0,
    }
    assert {name.partition("{")[0] for name in found} == set(host.HELP)


def test_conditions_that_do_not_hold_have_no_series() -> None:
    quiet = FACTS._replace(served=None, stubs={}, shm=None, changing=False, maintenance=None, limited=None, holds={})
    assert samples(textfile.page(host.families(quiet._replace(desired={})), host.HELP)) == {
        "npufleet_change_running": 0,
        "npufleet_host_last_read_timestamp_seconds": 9,
    }


def test_processes_are_counted_by_state() -> None:
    fault = {"model": "a", "version": "1", "npu": "0"}
    page = {
        "rbln_device_fault": [
            ({**fault, "instance": "a_0"}, 1.0),
            # A second NPU of the same instance
            ({**fault, "instance": "a_0", "npu": "1"}, 1.0),
            ({**fault, "instance": "a_1"}, 0.0),
            ({**fault, "model": "gone", "instance": "a_1"}, 1.0),
        ]
    }
    assert host.count_stubs({"a": 4, "b": 1}, {"a": ["a_2"], "b": ["b_0", "b_1"]}, page) == {
        "a": host.Stubs(running=2, missing=1, hung=1),
        "b": host.Stubs(running=0, missing=1, hung=0),
    }


# Load balancers


def server(name: str, state: str) -> servers.Server:
    return servers.Server(name, state, (1, 1), 1, servers.UP, 0, [], state != servers.READY)


def test_drained_servers_have_the_kind_and_the_time_of_their_drain() -> None:
    records = {name: {"kind": "rollout", "since": "2026-01-02T03:04:05Z"} for name in ("npu1", "npu3", "gone")}
    states = {"npu1": servers.DRAINED, "npu2": servers.IN_MAINTENANCE, "npu3": servers.READY}
    found = samples(textfile.page(drained.families({name: server(name, states[name]) for name in states}, records), drained.HELP))
    assert found == {
        'npufleet_balancer_drained_since_timestamp_seconds{server="npu1",kind="rollout"}': 1767323045,
        'npufleet_balancer_server_drained{server="npu1",kind="rollout"}': 1,
        # Nobody recorded this drain.
        'npufleet_balancer_server_drained{server="npu2",kind="operator"}': 1,
    }
    assert {name.partition("{")[0] for name in found} == set(drained.HELP)


# Certificates


def pem(days: int) -> str:
    """Return a certificate that ends after some days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lb1")])
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    begin, end = now - datetime.timedelta(days=90), now + datetime.timedelta(days=days)
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode() + private.decode()


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is missing")
@pytest.mark.parametrize("days", [[30], [30, 7, 60], [-1]])
def test_the_certificate_that_ends_first_counts(tmp_path: Path, days: list[int]) -> None:
    (tmp_path / "c.pem").write_text("".join(map(pem, days)))
    assert certificates.expiry(str(tmp_path / "c.pem")) == pytest.approx(time.time() + min(days) * 86400, abs=60)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("", "it has no certificate in PEM"),
        ("-----BEGIN CERTIFICATE-----\n" * 1000, "it has no certificate in PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" * 21, "it has more than 20 certificates or "),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "openssl reports "),
    ],
)
def test_other_files_have_no_end(tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / "c.pem").write_text(text)
    with pytest.raises(certificates.Unreadable, match=f"^{reason}"):
        certificates.expiry(str(tmp_path / "c.pem"))


def test_a_host_without_openssl_has_no_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.pem").write_text(pem(1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(certificates.Unreadable, match="openssl is not installed"):
        certificates.expiry(str(tmp_path / "c.pem"))


def test_an_openssl_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openssl").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "openssl").chmod(0o755)
    (tmp_path / "c.pem").write_text(pem(1))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(certificates, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(certificates.Unreadable, match="openssl failed: "):
        certificates.expiry(str(tmp_path / "c.pem"))


@pytest.mark.parametrize(
    ("output", "end"),
    [
        ("notAfter=Jan  2 03:04:05 2026 GMT\n", 1767323045),
        ("notAfter=Dec 31 23:59:59 2099 GMT\n", 4102444799),
        ("notAfter=Jan  2 03:04:05 0000 GMT\n", None),
        ("notAfter=2026-01-02 03:04:05Z\n", None),
        ("", None),
    ],
)
def test_the_end_is_parsed(output: str, end: int | None) -> None:
    assert certificates.parse_end(output) == end


# The program


@pytest.mark.parametrize("text", ["", "?", "unknown", "2026-01-02", "2026-13-02T03:04:05Z"])
def test_other_texts_are_no_times(text: str) -> None:
    assert seconds_since_1970(text) is None


def test_a_written_time_is_read_back() -> None:
    assert seconds_since_1970(timestamp(1_700_000_000.9)) == 1_700_000_000


def free_port() -> int:
    """Return a port on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Host:
    """The paths of the program below a directory. The vendor's tool is a script; neither an engine nor a server answers."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()
        self.init: int | None = None
        monkeypatch.setattr(vendor_tool, "TOOLS", (str(directory / "rbln-stat"),))
        monkeypatch.setattr(vendor_tool, "GROUP_NODES", str(directory / "rsd[0-9]*"))
        monkeypatch.setattr(collect, "MODULE_VERSION", str(directory / "version"))
        monkeypatch.setattr(evidence.Observer, "first_process", lambda _self: self.init)
        (directory / "version").write_text("1.2.92\n")
        self.tool(f"cat {directory}/answer")
        (directory / "answer").write_text(tool(CA22))

    def tool(self, script: str) -> None:
        (self.directory / "rbln-stat").write_text(f"#!/bin/sh\n{script}\n")
        (self.directory / "rbln-stat").chmod(0o755)

    def run(self, **changes: Any) -> int:
        config = {
            "container": "triton",
            "address": "127.0.0.1",
            "http_port": free_port(),
            "metrics_port": free_port(),
            "key": None,
            "root": str(self.root),
            "directory": str(self.directory),
            "npus": 1,
            "driver": "1.2.92",
            **changes,
        }
        (self.directory / "metrics.json").write_text(json.dumps(config))
        return collect.run(str(self.directory / "metrics.json"))

    def metrics(self, name: str) -> dict[str, float]:
        return samples((self.directory / name).read_text())

    def hold(self) -> None:
        facts = {"run": "a/1/1", "by": "a@b", "since": "", "boot": clock.boot(), "maintenance": False, "container": {}}
        times = {"renewed": time.time(), "patience": 60, "uptime": clock.uptime()}
        (self.root / lease.LEASE).write_text(json.dumps({**facts, **times}))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_both_files_are_written_for_every_account(machine: Host) -> None:
    assert machine.run() == 0
    for name in (collect.CARDS_FILE, collect.HOST_FILE):
        assert stat.S_IMODE((machine.directory / name).stat().st_mode) == 0o644
    assert machine.metrics(collect.CARDS_FILE)["npufleet_cards_found"] == 1
    found = machine.metrics(collect.HOST_FILE)
    assert (found.pop("npufleet_host_last_read_timestamp_seconds"), found) == (
        pytest.approx(time.time(), abs=60),
        {"npufleet_change_running": 0},
    )


def test_a_failing_tool_is_a_metric_and_a_warning(machine: Host, capsys: pytest.CaptureFixture[str]) -> None:
    machine.tool("echo no driver >&2; exit 1")
    assert machine.run() == 0
    assert machine.metrics(collect.CARDS_FILE)["npufleet_cards_read_ok"] == 0
    assert capsys.readouterr().err.startswith("<4>the cards cannot be read: ")


def test_cards_are_not_opened_while_a_run_changes_the_host(machine: Host) -> None:
    assert machine.run() == 0
    before = (machine.directory / collect.CARDS_FILE).read_text()
    machine.hold()
    machine.tool(f"touch {machine.directory}/opened")
    assert machine.run() == 0
    assert machine.metrics(collect.HOST_FILE)["npufleet_change_running"] == 1
    assert (machine.directory / collect.CARDS_FILE).read_text() == before
    assert not (machine.directory / "opened").exists()


def test_records_of_the_store_become_times(machine: Host) -> None:
    since = "2026-01-02T03:04:05Z"
    (machine.root / lease.MAINTENANCE_FILE).write_text(json.dumps({"reason": "r", "by": "b", "since": since}))
    (machine.root / "traffic.json").write_text("{")
    machine.run()
    found = machine.metrics(collect.HOST_FILE)
    at = seconds_since_1970(since)
    assert found["npufleet_maintenance_since_timestamp_seconds"] == at
    assert found['npufleet_drained_since_timestamp_seconds{by="maintenance"}'] == at
    # The record cannot be read, so the drain counts from now on.
    assert found['npufleet_drained_since_timestamp_seconds{by="rollout"}'] == pytest.approx(time.time(), abs=60)


def test_shared_memory_is_that_of_the_container(machine: Host) -> None:
    machine.init = os.getpid()
    machine.run()
    found = machine.metrics(collect.HOST_FILE)
    expected = os.statvfs("/dev/shm")
    assert found["npufleet_shm_size_bytes"] == expected.f_blocks * expected.f_frsize
    assert 0 <= found["npufleet_shm_used_bytes"] <= found["npufleet_shm_size_bytes"]


BALANCER = {"npu_host": False, "load_balancer": True}


def test_a_load_balancer_has_no_metrics_of_cards_and_models(
    machine: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "SOCKET", str(machine.directory / "none.sock"))
    (machine.root / lease.MAINTENANCE_FILE).write_text(json.dumps({"reason": "r", "by": "b", "since": "2026-01-02T03:04:05Z"}))
    machine.tool(f"touch {machine.directory}/opened")
    machine.hold()
    assert machine.run(**BALANCER) == 0
    assert not (machine.directory / collect.CARDS_FILE).exists()
    assert not (machine.directory / "opened").exists()
    found = machine.metrics(collect.HOST_FILE)
    assert found.pop("npufleet_host_last_read_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    # The balancers send their requests to hosts, so a balancer itself is not drained.
    assert found == {"npufleet_change_running": 1, "npufleet_maintenance_since_timestamp_seconds": 1767323045}
    assert capsys.readouterr().err.startswith("<4>the servers of the load balancer cannot be read: ")


def test_a_host_can_be_a_load_balancer_as_well(machine: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"kind": "maintenance", "since": "2026-01-02T03:04:05Z", "by": "b", "run": "", "reason": ""}
    (machine.directory / drains.RECORDS).write_text(json.dumps({"npu1": record}))
    monkeypatch.setattr(files, "HOME", str(machine.directory))
    monkeypatch.setattr(servers.Balancer, "servers", lambda _self: {"npu1": server("npu1", servers.DRAINED)})
    assert machine.run(load_balancer=True) == 0
    assert machine.metrics(collect.CARDS_FILE)["npufleet_cards_found"] == 1
    found = machine.metrics(collect.HOST_FILE)
    assert found['npufleet_balancer_drained_since_timestamp_seconds{server="npu1",kind="maintenance"}'] == 1767323045


def test_certificates_that_cannot_be_read_are_left_out(machine: Host, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.directory / "c.pem").write_text(pem(3))
    paths = [str(machine.directory / name) for name in ("c.pem", "none.pem")]
    assert machine.run(certificates=paths) == 0
    found = machine.metrics(collect.HOST_FILE)
    ends = {name: value for name, value in found.items() if name.startswith("npufleet_certificate_expiry")}
    label = f'npufleet_certificate_expiry_timestamp_seconds{{file="{paths[0]}"}}'
    assert ends == {label: pytest.approx(time.time() + 3 * 86400, abs=60)}
    assert f"<4>the expiry time of the certificate {paths[1]} cannot be read: No such file" in capsys.readouterr().err


def test_a_missing_directory_is_an_error(machine: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.run(directory=str(machine.directory / "none")) == 1
    assert not (machine.directory / "none").exists()
    assert "<3>the metrics cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["monitoring.md", "monitoring.ko.md"])
def test_the_docs_name_every_metric(page: str) -> None:
    named = set(re.findall(r"\bnpufleet_[a-z_]+", (ROOT / "docs" / page).read_text()))
    assert {*cards.HELP, *host.HELP, *drained.HELP, *certificates.HELP, *drift.HELP, textfile.DROPPED} <= named


def test_the_program_imports_no_slow_module() -> None:
    """The program starts four times a minute."""
    code = "import sys\nfrom ansible_collections.npufleet.triton.plugins.module_utils.metrics import collect\nprint(*sys.modules)"
    path = {"PYTHONPATH": str(ROOT / "collections")}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=path, capture_output=True, text=True, check=True)
    assert not {"asyncio", "urllib.request", "ssl", "yaml", "shutil", "http.client", "email"} & set(done.stdout.split())
