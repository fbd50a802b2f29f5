"""The watchdog in the plan: unit, configuration and program, enabled, active, and running with what is on disk."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import watchdog as subject
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.module_utils.watch import settings
from ansible_collections.npufleet.triton.plugins.plugin_utils import library as libraries
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import probe as desired_probe
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import watchdog as desired_watchdog
from helpers import ROOT, fleet

WANTED_TEXT = "enabled and active, as in the inventory"


def wanted(**inventory: Any) -> dict[str, Any]:
    return desired_watchdog.desired(fleet(**inventory))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def actual(asked: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What is read of a host that has this watchdog."""
    files = asked["files"]
    running = {"program": files["program"], "config": digest(files["config"])}
    return {**files, "enabled": True, "active": "active", "state": {"running": running}, **changes}


def found(words: str) -> list[dict[str, Any]]:
    item = {"concern": "watchdog", "name": "npufleet-watchdog.service", "current": words, "desired": WANTED_TEXT, "action": "watch"}
    return [item]


def test_configuration_is_what_the_program_takes_with_the_servers_own_variables(tmp_path: Path) -> None:
    files = wanted(triton_server_name="npu", npufleet_http_port=9000, triton_server_stop_timeout=100)["files"]
    (tmp_path / "watchdog.json").write_text(files["config"])
    config = settings.load(str(tmp_path / "watchdog.json"), settings.Watchdog)
    assert (config.container, config.address, config.http_port, config.metrics_port) == ("npu", "127.0.0.1", 9000, 8002)
    assert config.stop_timeout == 100
    assert (config.mode, config.root) == ("explicit", "/var/lib/npufleet")
    assert files["program"] == archive.digest("watch.watchdog")


def test_every_variable_of_the_role_reaches_the_program() -> None:
    before = json.loads(wanted()["files"]["config"])
    for ending in desired_watchdog.COPIED_SETTINGS:
        name = settings.FILE_NAMES.get(ending, ending)
        value = before[name] + 7
        assert json.loads(wanted(**{"triton_server_watchdog_" + ending: value})["files"]["config"])[name] == value
    text = (ROOT / "roles/triton_server/defaults/main.yml").read_text()
    named = {line.split(":")[0] for line in text.splitlines() if line.startswith("triton_server_watchdog_")}
    assert named == {"triton_server_watchdog_" + ending for ending in desired_watchdog.COPIED_SETTINGS}


def test_server_without_metrics() -> None:
    assert json.loads(wanted(triton_server_allow_metrics=False)["files"]["config"])["metrics_port"] is None


def test_systemd_is_more_patient_than_the_longest_round() -> None:
    files = wanted(triton_server_ready_timeout=1000, triton_server_stop_timeout=200)["files"]
    (line,) = [line for line in files["unit"].splitlines() if line.startswith("WatchdogSec=")]
    assert int(line.split("=")[1]) > 1000 + 2 * 200 + 60
    assert f"ExecStart=/usr/bin/python3 -IS {library.path()} watchdog {subject.CONFIG}" in files["unit"]


def test_watchdog_as_wanted_is_no_difference() -> None:
    assert subject.diff(wanted(), actual(wanted())) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": None, "config": None, "program": None}, "no unit file, no configuration, no program"),
        ({"unit": "[Unit]\n"}, "another unit file"),
        ({"config": "{}"}, "another configuration"),
        ({"program": "0" * 64}, "another program"),
        ({"enabled": False}, "disabled"),
        ({"enabled": False, "active": "failed"}, "disabled, failed"),
        ({"active": "activating"}, "activating"),
        ({"active": "inactive"}, "inactive"),
        ({"state": {}}, "running with older files"),
        ({"state": {"running": {"program": "0" * 64, "config": "0" * 64}}}, "running with older files"),
    ],
)
def test_differences(changes: dict[str, Any], words: str) -> None:
    assert subject.diff(wanted(), actual(wanted(), **changes)) == found(words)


def test_watchdog_that_is_not_wanted_is_taken_away() -> None:
    off = wanted(triton_server_watchdog=False)
    there = actual(wanted())
    assert [(item["current"], item["desired"], item["action"]) for item in subject.diff(off, there)] == [
        ("installed: unit file, configuration", None, "unwatch")
    ]
    bare = {**there, "unit": None, "config": None, "program": None, "enabled": False, "active": "inactive", "state": {}}
    assert subject.diff(off, bare) == []


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The places of the watchdog below a directory."""
    for name in ("UNIT_FILE", "CONFIG"):
        monkeypatch.setattr(subject, name, f"{tmp_path}/{name}")
    monkeypatch.setattr(library, "HOME", str(tmp_path))
    return tmp_path


def test_read_and_compare(host: Path) -> None:
    asked = {**wanted(), "root": str(host)}
    (host / "UNIT_FILE").write_text(asked["files"]["unit"])
    (host / "CONFIG").write_text(asked["files"]["config"])
    assert library.install(libraries.version(), libraries.packed(str(host)))
    # A version that no run has made the current one does not count.
    assert subject.read(asked)["program"] is None
    assert library.activate(libraries.version())
    running = {"program": asked["files"]["program"], "config": digest(asked["files"]["config"])}
    (host / "watchdog.json").write_text(json.dumps({"running": running, "gave_up": None}))
    there = subject.read(asked)
    assert subject.diff(asked, {**there, "enabled": True, "active": "active"}) == []
    assert there["state"]["running"] == running


@pytest.mark.parametrize("content", [None, "{", "[]", '{"running": [1]}', '{"gave_up": {"a": 1}}'])
def test_bare_host_and_a_state_that_cannot_be_read(host: Path, content: str | None) -> None:
    if content:
        (host / "watchdog.json").write_text(content)
    there = subject.read({**wanted(), "root": str(host)})
    assert there == {"unit": None, "config": None, "program": None, "state": {}}
    assert subject.diff(wanted(), {**there, "enabled": False, "active": "unknown"}) == found(
        "no unit file, no configuration, no program"
    )


def test_server_that_was_given_up_is_a_warning_while_the_watchdog_runs() -> None:
    state = {"gave_up": "model ok: found nothing"}
    assert subject.warning({"active": "active", "state": state}) == "the watchdog gave up: model ok: found nothing"
    assert subject.warning({"active": "inactive", "state": state}) is None
    assert subject.warning({"active": "active", "state": {"gave_up": None}}) is None
    assert subject.warning({}) is None


def test_units_have_a_limit_of_memory_and_tasks() -> None:
    for text in (desired_watchdog.UNIT_TEXT, desired_probe.SERVICE_TEXT):
        assert re.search(r"^MemoryMax=\d+G$", text, re.MULTILINE) and re.search(r"^TasksMax=\d+$", text, re.MULTILINE)
