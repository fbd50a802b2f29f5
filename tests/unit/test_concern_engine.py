"""Docker engine: a daemon.json that is merged and never overwritten, drop-ins, and what the running engine says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import engine
from helpers import FakeEngine, fleet

OPTIONS = {"log-driver": "json-file", "log-opts": {"max-size": "50m", "max-file": "5"}}
DROP_IN = "/etc/systemd/system/docker.service.d/50-npufleet.conf"
LIMITS = "# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\n"
WANTED = {"packages": ["docker.io", "rsync"], "daemon": OPTIONS, "drop_ins": {DROP_IN: LIMITS}, "ca": None}


def host(**changes: Any) -> dict[str, Any]:
    """A host that is as wanted, with changes."""
    return {
        "packages": ["docker.io", "rsync"],
        "drop_ins": {DROP_IN: LIMITS},
        "daemon": {"default-runtime": "own", "runtimes": {"own": {"path": "/usr/local/bin/own"}}, **OPTIONS},
        "running": {"version": "20.10.24", "log-driver": "json-file"},
        "ca": None,
        **changes,
    }


def found(name: str, current: Any, desired: Any, action: str) -> dict[str, Any]:
    return {"concern": "engine", "name": name, "current": current, "desired": desired, "action": action}


def test_desired_is_what_the_inventory_says() -> None:
    wanted = engine.desired(
        fleet(
            docker_engine_packages=["rsync", "docker.io"],
            docker_engine_unit_limits={"docker.service": {"LimitNOFILE": "1048576", "LimitMEMLOCK": "infinity"}},
        )
    )
    assert wanted == {
        "packages": ["docker.io", "rsync"],
        "daemon": OPTIONS,
        "drop_ins": {
            DROP_IN: "# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=1048576\n",
            engine.ORDER_FILE: ("# Written by npufleet\n[Unit]\nWants=npufleet-cards.service\nAfter=npufleet-cards.service\n"),
        },
        "ca": None,
    }


def test_an_engine_of_another_repository_stays() -> None:
    wanted = {**WANTED, "packages": ["docker.io|docker-ce|moby-engine", "rsync"]}
    assert engine.diff(wanted, host(packages=["docker-ce", "rsync"])) == []
    assert engine.diff(wanted, host(packages=["rsync"])) == [found("packages", "without docker.io", ["docker.io"], "install")]


def test_proxies_reach_the_unit_and_mirrors_the_engine(tmp_path: Path) -> None:
    authority = tmp_path / "site.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    wanted = engine.desired(
        fleet(
            npufleet_https_proxy="http://proxy.example.com:3128/%7e",
            npufleet_no_proxy=["example.com", "10.0.0.0/8"],
            npufleet_ca_file=str(authority),
            docker_engine_registry_mirrors=["https://mirror.example.com"],
        )
    )
    assert wanted["daemon"]["registry-mirrors"] == ["https://mirror.example.com"]
    assert wanted["drop_ins"][DROP_IN] == (
        "# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\n"
        'Environment="HTTPS_PROXY=http://proxy.example.com:3128/%%7e"\nEnvironment="NO_PROXY=example.com,10.0.0.0/8"\n'
    )
    assert wanted["ca"] == "-----BEGIN CERTIFICATE-----\n"


def test_authority_that_the_host_does_not_trust_yet() -> None:
    wanted = {**WANTED, "ca": "ours"}
    path = "/usr/local/share/ca-certificates/npufleet.crt"
    authority = "the site's certificate authority"
    assert engine.diff(wanted, host()) == [found(path, None, authority, "configure")]
    assert engine.diff(wanted, host(ca="theirs")) == [found(path, "another certificate", authority, "configure")]
    assert engine.diff(wanted, host(ca="ours")) == []


def test_merge_keeps_what_is_not_ours() -> None:
    current = {
        "default-runtime": "own",
        "runtimes": {"own": {"path": "/usr/local/bin/own"}},
        "log-driver": "journald",
        "log-opts": {"tag": "site", "max-file": "2"},
    }
    kept = json.dumps(current)
    assert engine.merge(current, OPTIONS) == {
        "default-runtime": "own",
        "runtimes": {"own": {"path": "/usr/local/bin/own"}},
        "log-driver": "json-file",
        "log-opts": {"tag": "site", "max-size": "50m", "max-file": "5"},
    }
    assert json.dumps(current) == kept


def test_merge_replaces_lists_and_what_has_another_type() -> None:
    assert engine.merge({"hosts": ["a", "b"], "log-opts": "none"}, {"hosts": ["c"], "log-opts": {"x": "1"}}) == {
        "hosts": ["c"],
        "log-opts": {"x": "1"},
    }
    assert engine.merge(None, {"a": 1}) == {"a": 1}
    assert engine.merge({"log-opts": {"x": "1"}}, {"log-opts": "none"}) == {"log-opts": "none"}


def test_host_as_wanted_has_no_plan() -> None:
    assert engine.diff(WANTED, host()) == []


def test_bare_host() -> None:
    bare = host(packages=[], daemon={}, drop_ins={DROP_IN: None}, running=None)
    assert engine.diff(WANTED, bare) == [
        found("packages", "without docker.io, rsync", ["docker.io", "rsync"], "install"),
        found("daemon.json", {"log-driver": None, "log-opts": None}, OPTIONS, "configure"),
        found(DROP_IN, None, LIMITS, "configure"),
        found("service", None, "an engine that answers", "start"),
    ]


def test_only_our_keys_of_daemon_json_are_compared() -> None:
    changed = host(daemon={"default-runtime": "own", "log-driver": "json-file", "log-opts": {"max-size": "50m"}})
    assert engine.diff(WANTED, changed) == [
        found("daemon.json", {"log-driver": "json-file", "log-opts": {"max-size": "50m"}}, OPTIONS, "configure")
    ]


def test_daemon_json_that_is_not_json_is_left_to_a_person() -> None:
    broken = host(daemon=None, daemon_error="Expecting value: line 1 column 1 (char 0)")
    assert engine.diff(WANTED, broken) == [
        found("daemon.json", "not a JSON object (Expecting value: line 1 column 1 (char 0))", OPTIONS, "repair by hand")
    ]


def test_changed_drop_in() -> None:
    weaker = LIMITS.replace("infinity", "64M")
    assert engine.diff(WANTED, host(drop_ins={DROP_IN: weaker})) == [found(DROP_IN, weaker, LIMITS, "configure")]


def test_order_after_the_cards_needs_no_restart() -> None:
    wanted = {**WANTED, "drop_ins": {engine.ORDER_FILE: engine.ORDER}}
    assert engine.diff(wanted, host(drop_ins={engine.ORDER_FILE: None})) == [found(engine.ORDER_FILE, None, engine.ORDER, "order")]


def test_engine_that_runs_with_another_log_driver_is_restarted() -> None:
    old = host(running={"version": "20.10.24", "log-driver": "journald"})
    assert engine.diff(WANTED, old) == [found("service", "journald", "json-file", "restart")]
    assert engine.diff({**WANTED, "daemon": {}}, old) == []


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """daemon.json below tmp_path, one installed package."""
    monkeypatch.setattr(engine, "DAEMON_JSON", str(tmp_path / "daemon.json"))
    monkeypatch.setattr(engine, "CA_FILE", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(engine, "packages", lambda names: {name: {} for name in names if name == "rsync"})
    monkeypatch.setattr(engine, "Engine", FakeEngine({"/info": {"ServerVersion": "20.10.24", "LoggingDriver": "journald"}}))
    return tmp_path


def read(files: Path) -> dict[str, Any]:
    return engine.read({**WANTED, "drop_ins": {str(files / "drop-in.conf"): LIMITS}})


def test_read(files: Path) -> None:
    (files / "daemon.json").write_text('{"log-driver": "journald", "debug": true}')
    (files / "drop-in.conf").write_text("[Service]\n")
    assert read(files) == {
        "packages": ["rsync"],
        "drop_ins": {str(files / "drop-in.conf"): "[Service]\n"},
        "running": {"version": "20.10.24", "log-driver": "journald"},
        "daemon": {"log-driver": "journald", "debug": True},
        "ca": None,
    }
    (files / "ca.crt").write_text("ours")
    assert read(files)["ca"] == "ours"


@pytest.mark.parametrize("content", [None, "", " \n"], ids=["no file", "empty", "blank"])
def test_read_without_daemon_json(files: Path, content: str | None) -> None:
    if content is not None:
        (files / "daemon.json").write_text(content)
    assert read(files)["daemon"] == {}


def test_read_of_a_broken_daemon_json(files: Path) -> None:
    (files / "daemon.json").write_text('{"log-driver": }')
    actual = read(files)
    assert actual["daemon"] is None
    assert actual["daemon_error"].startswith("Expecting value: line 1 column 16")


@pytest.mark.parametrize("content", ["null", "[]", '"json-file"', "5"])
def test_daemon_json_that_is_no_map_is_left_to_a_person(files: Path, content: str) -> None:
    (files / "daemon.json").write_text(content)
    actual = {**host(), **{key: read(files)[key] for key in ("daemon", "daemon_error")}}
    assert engine.diff(WANTED, actual) == [
        found("daemon.json", f"not a JSON object (wanted an object, found {content})", OPTIONS, "repair by hand")
    ]


def test_read_without_an_engine(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Engine", FakeEngine(None))
    assert read(files)["running"] is None
    monkeypatch.setattr(engine, "Engine", FakeEngine({}))
    assert read(files)["running"] == {"version": None, "log-driver": None}
