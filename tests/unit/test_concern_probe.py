"""The probe of the server: what its files are, what counts as a difference, and what it says of the last result."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe as subject
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.inference import packing
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe as program
from ansible_collections.npufleet.triton.plugins.module_utils.watch import settings
from ansible_collections.npufleet.triton.plugins.modules import inference_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import probe as desired_probe
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import checks_digest
from helpers import ROOT, assert_timer, fleet, run_module
from small_triton import certificates

PROGRAM = base64.b64encode(archive.program(check_client.ENTRY)).decode()


def wanted(**inventory: Any) -> dict[str, Any]:
    return desired_probe.desired(fleet(npufleet_lock={"24.01": {"id": "sha256:abc"}}, **inventory), Context(checks=lambda: "d1"))


def actual(desired: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A host that is as wanted, with changes."""
    return {**desired["files"], "checks": desired["checks"], "enabled": True, "active": "active", "state": {}, **changes}


# What is wanted


def test_configuration_is_what_the_program_takes_and_the_image_the_locked_one(tmp_path: Path) -> None:
    files = wanted(monitoring_probe_interval=90, npufleet_root="/srv/npu")["files"]
    (tmp_path / "probe.json").write_text(files["config"])
    config = settings.load(str(tmp_path / "probe.json"), settings.Probe)
    assert (config.image, config.interval, config.root, config.host) == ("sha256:abc", 90, "/srv/npu", "npu1")
    assert config.textfile == "/var/lib/prometheus/node-exporter/npufleet.prom"
    assert files["program"] == archive.digest("watch.probe")
    assert "OnUnitActiveSec=90\n" in files["timer"]


def test_times_that_no_timer_takes_are_refused_at_once() -> None:
    with pytest.raises(Refusal) as refused:
        wanted(monitoring_probe_interval=0, monitoring_probe_jitter=-1)
    assert refused.value.reasons == ["monitoring_probe_interval is 0, expected a whole number from 5 to 86400. Correct it."]
    assert fleet(monitoring_probe_interval=0, monitoring_probe_jitter=-1).type_errors == [
        "monitoring_probe_interval is 0, expected a whole number from 5 to 86400. Correct it.",
        "monitoring_probe_jitter is -1, expected a whole number from 0 to 86400. Correct it.",
    ]


def test_systemd_is_more_patient_than_the_probe() -> None:
    files = wanted(monitoring_probe_limit=1000)["files"]
    (line,) = [line for line in files["service"].splitlines() if line.startswith("TimeoutStartSec=")]
    # Taking a container away may take a minute.
    assert int(line.split("=")[1]) >= 1000 + 60
    assert f"ExecStart=/usr/bin/python3 -IS {library.path()} probe {subject.CONFIG}" in files["service"]


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    assert_timer(tmp_path, "npufleet-probe", wanted()["files"])


def test_files_of_the_tasks_are_those_of_the_concern() -> None:
    install, remove = ((ROOT / f"roles/monitoring/tasks/{name}.yml").read_text() for name in ("install_probe", "remove_probe"))
    for path in (subject.SERVICE_FILE, subject.TIMER_FILE, subject.CONFIG, subject.CHECKS_FILE):
        assert path in install
        assert f"- {path}\n" in remove


def test_what_is_kept_is_asked_as_the_proof_asks_it() -> None:
    """Neither task says anything of the server or the checks, and the digest is over all that there is to say of a server."""
    ask, keep = (
        next(
            entry["npufleet.triton.inference_check"] for entry in yaml.safe_load(text) if "npufleet.triton.inference_check" in entry
        )
        for text in (
            (ROOT / f"roles/{path}.yml").read_text() for path in ("inference_check/tasks/main", "monitoring/tasks/install_probe")
        )
    )
    assert (set(ask), set(keep)) == ({"results_dir", "accepted"}, {"latency", "keep"})
    options = inference_check.OPTIONS["server"]["options"]
    assert inputs.server_of(fleet()).keys() == options.keys()


# The digest over what the checks follow from


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "checks").mkdir()
    (tmp_path / "golden/data").mkdir(parents=True)
    (tmp_path / "checks/m.yml").write_text("model: m\ngolden: data\nchecks: []\n")
    (tmp_path / "golden/data/rows.npy").write_text("1")
    return tmp_path


def digest(site: Path, **inventory: Any) -> str:
    dirs = {"inference_check_checks_dir": [str(site / "checks")], "inference_check_golden_dir": [str(site / "golden")]}
    variables = fleet(**{"triton_models": [{"name": "m"}], **dirs, **inventory})
    return inputs.digest(variables, checks_digest(variables))


def test_digest_follows_from_everything_that_is_asked(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(site)
    assert digest(site) == before
    assert digest(site, triton_models=[{"name": "m"}, {"name": "n", "hosts": ["elsewhere"]}]) == before
    (site / "golden/others").mkdir()
    (site / "golden/others/rows.npy").write_text("2")
    assert digest(site) == before
    hosts = {"npu_hosts": ["npu0", "npu1"]}
    changed = [
        digest(site, triton_models=[{"name": "m"}, {"name": "n"}]),
        digest(site, npufleet_http_port=9),
        digest(site, inference_check_headers={"key": "1"}),
        digest(site, inference_check_timeout=3),
        digest(site, monitoring_probe_latency=True),
        digest(site, groups=hosts),
    ]
    (site / "golden/data/rows.npy").write_text("2")
    changed.append(digest(site))
    (site / "golden/data/more.npy").write_text("")
    changed.append(digest(site))
    (site / "checks/m.yml").write_text("model: m\nchecks: []\n")
    changed.append(digest(site))
    monkeypatch.setattr(inputs, "CODE_FILES", ("check_files.py",))
    changed.append(digest(site))
    assert len({before, *changed}) == 1 + len(changed)


def test_files_of_tls_are_part_of_it_and_missing_ones_are_refused(site: Path, tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    first = digest(site, inference_check_grpc_tls={"ca": tls["ca"]})
    assert first != digest(site)
    assert first != digest(site, inference_check_grpc_tls={"ca": tls["server"]})
    with pytest.raises(Refusal) as refused:
        entry = {"ca": "/none", "cert": tls["client"]}
        digest(site, inference_check_http_tls=entry, inference_check_grpc_tls={"ca": "/etc/passwd"})
    assert [reason.split(",")[0] for reason in refused.value.reasons] == [
        "http_tls has only one of cert and key",
        "http_tls.ca is /none (No such file or directory)",
        "grpc_tls.ca is /etc/passwd without -----BEGIN",
    ]


def test_no_probe_needs_no_checks(site: Path) -> None:
    found, _manifests = variables.desired(fleet(monitoring_probe=False, inference_check_checks_dir=["/none"]), ["probe"])
    assert found["probe"]["files"] is None


# Keeping


def keep(path: Path, check: bool = False, **document: Any) -> dict[str, Any]:
    whole = {"host": "npu1", "host_index": 0, "checks": [], "no_check_file": [], **document}
    arguments = {"image": "i", "program": PROGRAM, "document": whole, "keep": {"path": str(path), "digest": "d1"}}
    return run_module(inference_check, arguments, check=check)


def test_checks_are_kept_for_root_alone_and_only_written_when_they_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checks.json"
    monkeypatch.setattr(subject, "CHECKS_FILE", str(path))
    assert (keep(path, check=True)["changed"], path.exists()) == (True, False)
    assert keep(path)["changed"] is True
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keep(path)["changed"] is False
    assert subject._checks(str(path)) == "d1"
    assert keep(path, host_index=1)["changed"] is True
    # What others could have read, or changed, is written anew.
    path.chmod(0o644)
    assert subject._checks(str(path)) == ""
    assert keep(path, host_index=1)["changed"] is True
    assert subject._checks(str(path)) == "d1"
    path.write_text(path.read_text().replace('"host": "npu1"', '"host": "npu2"'))
    assert subject._checks(str(path)) == ""
    assert os.listdir(tmp_path) == ["checks.json"]
    path.write_text("no json")
    assert subject._checks(str(path)) == ""
    path.unlink()
    assert subject._checks(str(path)) is None


def test_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = keep(tmp_path / "none/checks.json")
    assert (found["failed"], found["msg"].startswith("npu1: the checks of the probe cannot be kept in ")) == (True, True)


# Differences


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        (
            dict.fromkeys(("service", "timer", "config", "program", "checks")),
            "no unit file, no timer file, no configuration, no program, no set of checks",
        ),
        ({"config": "{}"}, "another configuration"),
        ({"checks": "d0"}, "another set of checks"),
        ({"checks": ""}, "another set of checks"),
        ({"program": "x"}, "another program"),
        ({"enabled": False, "active": "inactive"}, "disabled, inactive"),
        ({"active": "failed"}, "failed"),
    ],
)
def test_differences(changes: dict[str, Any], words: str | None) -> None:
    plan = subject.diff(wanted(), actual(wanted(), **changes))
    text = "enabled and active, as in the inventory"
    item = {"concern": "probe", "name": "npufleet-probe.timer", "current": words, "desired": text, "action": "probe"}
    assert plan == ([item] if words else [])


@pytest.mark.parametrize("no", [False, "false", "no"])
def test_probe_that_is_not_wanted(no: Any) -> None:
    off = wanted(monitoring_probe=no)
    there = actual(wanted())
    (item,) = subject.diff(off, there)
    assert (item["current"], item["desired"], item["action"]) == (
        "installed: unit file, timer file, configuration, set of checks",
        None,
        "unprobe",
    )
    bare = {**there, **dict.fromkeys(("service", "timer", "config", "program", "checks"))}
    assert subject.diff(off, bare) == []


def test_read_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_FILE", "TIMER_FILE", "CONFIG", "CHECKS_FILE"):
        monkeypatch.setattr(subject, name, f"{tmp_path}/{name}")
    monkeypatch.setattr(library, "HOME", str(tmp_path / "library"))
    asked = {**wanted(), "root": str(tmp_path)}
    bare = subject.read(asked)
    assert (bare["service"], bare["state"], bare["checks"]) == (None, {}, None)
    for name, key in (("SERVICE_FILE", "service"), ("TIMER_FILE", "timer"), ("CONFIG", "config")):
        (tmp_path / name).write_text(asked["files"][key])
    Path(library.path()).mkdir(parents=True)
    Path(library.programs_file()).write_text(json.dumps({"probe": archive.digest("watch.probe"), "watchdog": ""}))
    keep(tmp_path / "CHECKS_FILE")
    checks = [{"name": "m/http/a", "ok": True, "why": ""}, {"name": "m/http/b", "ok": False, "why": "wrong"}]
    state = {"when": "w", "at": 5, "interval": 60, "paused": None, "unavailable": None, "checks": checks, "seconds": 1}
    (tmp_path / "probe.json").write_text(json.dumps(state))
    there = subject.read(asked)
    assert subject.diff(asked, {**there, "enabled": True, "active": "active"}) == []
    # What passed is not carried to the controller.
    assert (there["state"]["count"], there["state"]["failed"]) == (2, ["m/http/b: wrong"])
    assert there["state"]["age"] == pytest.approx(time.time() - 5, abs=60)
    (tmp_path / "probe.json").write_text(json.dumps({**state, **clock.mark()}))
    assert 0 <= subject.read(asked)["state"]["age"] < 60, "the time of day says nothing"
    for content in ("{", "[]", '{"checks": [1]}', '{"at": "x"}', '{"at": 1, "interval": null}'):
        (tmp_path / "probe.json").write_text(content)
        assert subject.read(asked)["state"] == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"failed": ["a: x"]}, "1 of 9 checks of the probe failed, W: a: x"),
        (
            {"failed": list("abcdefg")},
            "7 of 9 checks of the probe failed, W: a; b; c; and 4 more, see journalctl --unit npufleet-probe",
        ),
        ({"failed": ["a: x\n" * 99]}, "1 of 9 checks of the probe failed, W: " + ("a: x " * 24)[:117] + "..."),
        # It speaks of checks that are no longer those of the host.
        ({"failed": ["a: x"], "document": "d0"}, None),
        ({"unavailable": {"reason": "image", "why": "no such image"}}, "the probe cannot run its checks, W: no such image"),
        ({"age": 301, "failed": ["a: x"]}, "the probe has not run since W: see journalctl --unit npufleet-probe"),
        ({"failed": ["a: x"], "paused": "maintenance"}, None),
    ],
)
def test_what_it_found_is_a_warning(changes: dict[str, Any], words: str | None) -> None:
    state = {
        "when": "W",
        "age": 50,
        "interval": 60,
        "paused": None,
        "unavailable": None,
        "count": 9,
        "failed": [],
        "document": "d1",
        **changes,
    }
    assert subject.warning({"active": "active", "checks": "d1", "state": state}) == words
    assert subject.warning({"active": "inactive", "checks": "d1", "state": state}) is None
    assert subject.warning({"active": "active", "checks": "d1", "state": {}}) is None


def test_warning_is_short_whatever_a_server_says() -> None:
    state = {
        "when": "W",
        "age": 50,
        "interval": 60,
        "count": 500,
        "failed": ["m/http/row 0: " + "x\n" * 5000] * 500,
        "document": "d1",
    }
    assert len(str(subject.warning({"active": "active", "checks": "d1", "state": state}))) < 500
    state.update(unavailable={"reason": "client", "why": "x\n" * 5000})
    assert len(str(subject.warning({"active": "active", "checks": "d1", "state": state}))) < 300


# The kept checks, the program and the library together


def test_what_was_kept_is_what_the_program_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a docker that runs the command's python here: a server that is not there fails its check, over the real library."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text(f'#!/bin/sh\nwhile [ "$1" != sha256:abc ]; do shift; done\nshift\nexec {sys.executable} "$@"\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    entry = {
        "name": "row",
        "protocols": ["http"],
        "inputs": {"IN": packing.pack(np.ones((1, 2), np.float32))},
        "expect": {"OUT": {"shape": [1]}},
    }
    server = {"address": "127.0.0.1", "http_port": 1, "grpc_port": 1, "metrics_port": 1}
    no_check_file = [
        {"name": "n/check file", "model": "n", "check": "check file", "protocol": None, "ok": False, "why": "none", "ms": None}
    ]
    keep(tmp_path / "checks.json", checks=[{"model": "m", "checks": [entry]}], no_check_file=no_check_file, server=server)
    config = {**json.loads(wanted()["files"]["config"]), "document": str(tmp_path / "checks.json")}
    config.update(root=str(tmp_path), textfile=str(tmp_path / "npufleet.prom"))
    monkeypatch.setattr(program, "LOCK", str(tmp_path / "lock"))
    (tmp_path / "probe_config.json").write_text(json.dumps(config))
    assert program.run(str(tmp_path / "probe_config.json")) == 0
    state = json.loads((tmp_path / "probe.json").read_text())
    assert state["unavailable"] is None, state
    assert [(check["name"], check["ok"]) for check in state["checks"]] == [("n/check file", False), ("m/http/row", False)]
    assert state["checks"][1]["why"].startswith("no Triton answers http at 127.0.0.1:1: ")
    page = (tmp_path / "npufleet.prom").read_text()
    assert 'npufleet_check_ok{model="m",check="row",protocol="http"} 0\n' in page
    assert 'npufleet_check_ok{model="n",check="check file",protocol=""} 0\n' in page
