"""Docker engine: a daemon.json that is merged and never overwritten, drop-ins, and what the running engine says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import engine as desired_engine
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables
from helpers import ROW, FakeEngine, fleet

OPTIONS = {"log-driver": "json-file", "log-opts": {"max-size": "50m", "max-file": "5"}}
DROP_IN = "/etc/systemd/system/docker.service.d/50-npufleet.conf"
LIMITS = "# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\n"
WANTED = {
    "packages": ["docker.io", "rsync"],
    "daemon": OPTIONS,
    "oldest": None,
    "drop_ins": {DROP_IN: LIMITS},
    "ca": None,
    "proxies": None,
    "proxy_file": "/etc/npufleet/proxy.env",
}
KEY = "of this look"


def host(**changes: Any) -> dict[str, Any]:
    """A host that is as wanted, with changes."""
    return {
        "packages": ["docker.io", "rsync"],
        "drop_ins": {DROP_IN: LIMITS},
        "daemon": {"default-runtime": "own", "runtimes": {"own": {"path": "/usr/local/bin/own"}}, **OPTIONS},
        "client": True,
        "program": "/usr/sbin/dockerd",
        "private": False,
        "flags": {},
        "running": {"version": "20.10.24", "log-driver": "json-file"},
        "ca": None,
        "proxies": None,
        **changes,
    }


def found(name: str, current: Any, desired: Any, action: str) -> dict[str, Any]:
    return {"concern": "engine", "name": name, "current": current, "desired": desired, "action": action}


def test_desired_is_what_the_inventory_says() -> None:
    wanted = desired_engine.desired(
        fleet(
            docker_engine_packages=["rsync", "docker.io"],
            docker_engine_unit_limits={"docker.service": {"LimitNOFILE": "1048576", "LimitMEMLOCK": "infinity"}},
        )
    )
    assert wanted == {
        "packages": ["docker.io", "rsync"],
        "daemon": OPTIONS,
        "oldest": None,
        "drop_ins": {
            DROP_IN: "# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=1048576\n",
            engine.ORDER_FILE: ("# Written by npufleet\n[Unit]\nWants=npufleet-cards.service\nAfter=npufleet-cards.service\n"),
        },
        "ca": None,
        "proxy_file": "/etc/npufleet/proxy.env",
        "proxies": None,
        "private": False,
    }


def test_an_engine_of_another_repository_stays() -> None:
    wanted = {**WANTED, "packages": ["docker.io|docker-ce|moby-engine", "rsync"]}
    assert engine.diff(wanted, host(packages=["docker-ce", "rsync"])) == []
    assert engine.diff(wanted, host(packages=["rsync"])) == [found("packages", "without docker.io", ["docker.io"], "install")]


def test_a_client_that_did_not_come_with_the_engine_is_installed_beside_it() -> None:
    assert engine.diff(WANTED, host(client=False)) == [found("packages", "without docker-cli", ["docker-cli"], "install")]
    # Before an engine is there nobody knows
    assert engine.diff(WANTED, host(client=False, packages=["rsync"])) == [
        found("packages", "without docker.io", ["docker.io"], "install")
    ]


def test_proxies_reach_the_unit_and_mirrors_the_engine(tmp_path: Path) -> None:
    authority = tmp_path / "site.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    wanted = desired_engine.desired(
        fleet(
            npufleet_https_proxy="http://proxy.example.com:3128/%7e",
            npufleet_no_proxy=["example.com", "10.0.0.0/8"],
            npufleet_ca_file=str(authority),
            docker_engine_registry_mirrors=["https://mirror.example.com"],
        )
    )
    assert wanted["daemon"]["registry-mirrors"] == ["https://mirror.example.com"]
    assert wanted["drop_ins"][DROP_IN] == (
        "# Written by npufleet\n[Service]\nLimitMEMLOCK=infinity\nEnvironmentFile=/etc/npufleet/proxy.env\n"
    )
    assert wanted["proxies"] == "https_proxy='http://proxy.example.com:3128/%7e'\nno_proxy='example.com,10.0.0.0/8'\n"
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
        # The options were those of journald
        "log-opts": {"max-size": "50m", "max-file": "5"},
    }
    assert json.dumps(current) == kept
    own = {"log-opts": {"tag": "site", "max-file": "2"}, "debug": True}
    assert engine.merge(own, OPTIONS) == {
        "debug": True,
        "log-driver": "json-file",
        "log-opts": {"tag": "site", "max-size": "50m", "max-file": "5"},
    }


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
    wanted = {**WANTED, "drop_ins": {engine.ORDER_FILE: desired_engine.ORDER}}
    assert engine.diff(wanted, host(drop_ins={engine.ORDER_FILE: None})) == [
        found(engine.ORDER_FILE, None, desired_engine.ORDER, "order")
    ]


def test_engine_that_runs_with_another_log_driver_is_restarted() -> None:
    old = host(running={"version": "20.10.24", "log-driver": "journald"})
    assert engine.diff(WANTED, old) == [found("service", "journald", "json-file", "restart")]
    assert engine.diff({**WANTED, "daemon": {}}, old) == []


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """daemon.json below tmp_path, one installed package."""
    monkeypatch.setattr(engine, "DAEMON_JSON", str(tmp_path / "daemon.json"))
    monkeypatch.setattr(engine, "CA_FILE", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(engine.daemon_config, "read_flags", dict)
    monkeypatch.setattr(engine, "installed_packages", lambda names: {name: {} for name in names if name == "rsync"})
    monkeypatch.setattr(engine, "Engine", FakeEngine({"/info": {"ServerVersion": "20.10.24", "LoggingDriver": "journald"}}))
    return tmp_path


def read(files: Path) -> dict[str, Any]:
    return engine.read(
        {**WANTED, "drop_ins": {str(files / "drop-in.conf"): LIMITS}, "proxy_file": str(files / "proxy.env"), "digest_key": KEY}
    )


def test_read(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "which", lambda program, _beside: f"/usr/bin/{program}")
    (files / "daemon.json").write_text('{"log-driver": "journald", "debug": true}')
    (files / "drop-in.conf").write_text("[Service]\n")
    assert read(files) == {
        "packages": ["rsync"],
        "drop_ins": {str(files / "drop-in.conf"): "[Service]\n"},
        "client": True,
        "program": "/usr/bin/dockerd",
        "private": False,
        "flags": {},
        "running": {"version": "20.10.24", "log-driver": "journald"},
        "daemon": {"log-driver": "journald", "debug": True},
        "ca": None,
        "proxies": None,
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


@pytest.mark.parametrize(
    ("content", "kind"),
    [("null", "null"), ("[]", "a list"), ('"a-secret"', "text"), ("5", "a whole number"), ("true", "true or false")],
)
def test_daemon_json_that_is_no_map_is_left_to_a_person(files: Path, content: str, kind: str) -> None:
    (files / "daemon.json").write_text(content)
    actual = {**host(), **{key: read(files)[key] for key in ("daemon", "daemon_error")}}
    assert engine.diff(WANTED, actual) == [
        found("daemon.json", f"not a JSON object (it is {kind}, expected an object)", OPTIONS, "repair by hand")
    ]


def test_read_without_an_engine(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Engine", FakeEngine(None))
    assert read(files)["running"] is None
    monkeypatch.setattr(engine, "which", lambda _program, _beside: None)
    assert read(files)["client"] is False
    monkeypatch.setattr(engine, "Engine", FakeEngine({}))
    assert read(files)["running"] == {"version": None, "log-driver": None}


# Secrets

PROXY = "http://me:pr0xy-secret@proxy.example.com:3128"


def test_login_of_a_proxy_is_in_no_unit_and_in_no_plan() -> None:
    raw = desired_engine.desired(fleet(npufleet_https_proxy=PROXY))
    assert "pr0xy-secret" in raw["proxies"]
    assert "pr0xy-secret" not in json.dumps([raw["drop_ins"], desired_engine.sealed(raw, KEY)])


@pytest.mark.parametrize(
    ("content", "mode", "shown"),
    [(None, 0, None), ("other", 0o600, "digest:"), (PROXY, 0o644, "mode 0644")],
)
def test_file_of_proxies_is_compared_without_being_shown(files: Path, content: str | None, mode: int, shown: str | None) -> None:
    wanted = {**WANTED, "drop_ins": {}, "proxies": PROXY, "proxy_file": str(files / "proxy.env")}
    if content:
        (files / "proxy.env").write_text(content)
        (files / "proxy.env").chmod(mode)
    asked = desired_engine.sealed(wanted, KEY)
    (entry,) = [item for item in engine.diff(asked, engine.read(asked)) if item["name"] == wanted["proxy_file"]]
    assert entry["action"] == "configure" and "pr0xy" not in str(entry)
    assert (entry["current"] is None) if shown is None else (shown in entry["current"])
    gone = desired_engine.sealed({**wanted, "proxies": None}, KEY)
    left = [item for item in engine.diff(gone, engine.read(gone)) if item["name"] == wanted["proxy_file"]]
    assert [rest["desired"] for rest in left] == ([None] if content else [])


def test_what_a_host_has_of_secrets_is_not_shown(files: Path) -> None:
    options = {
        "proxies": {"http-proxy": PROXY},
        "log-opts": {"splunk-token": "t0ken-secret", "max-size": "50m"},
        "log-driver": "splunk",
    }
    (files / "daemon.json").write_text(json.dumps(options))
    (files / "drop-in.conf").write_text(f'[Service]\nLimitMEMLOCK=64M\nEnvironment="HTTPS_PROXY={PROXY}"\npr0xy-secret\n')
    wanted = desired_engine.desired(fleet(docker_engine_daemon_options={**options, "log-opts": {"splunk-token": "0ther-secret"}}))
    assert wanted["private"] is True
    # So that a site's own secrets stay unread by others when ours are laid over them
    assert read(files)["private"] is True
    asked = desired_engine.sealed({**wanted, "drop_ins": {str(files / "drop-in.conf"): LIMITS}}, KEY)
    actual = engine.read(asked)
    plan = engine.diff(asked, actual)
    assert not [entry for entry in ("pr0xy", "t0ken", "0ther") if entry in json.dumps([asked, actual, plan])]
    (daemon,) = [item for item in plan if item["name"] == "daemon.json"]
    assert daemon["current"]["log-opts"]["max-size"] == "50m"
    assert daemon["current"]["log-opts"]["splunk-token"] != daemon["desired"]["log-opts"]["splunk-token"]
    assert daemon["current"]["proxies"] == daemon["desired"]["proxies"]
    (drop_in,) = [item for item in plan if item["name"].endswith("drop-in.conf")]
    assert drop_in["current"].startswith("[Service]\nLimitMEMLOCK=64M\nEnvironment=digest:")
    same = desired_engine.sealed({**wanted, "daemon": options, "drop_ins": {}}, KEY)
    assert "daemon.json" not in [item["name"] for item in engine.diff(same, engine.read(same))]


@pytest.mark.parametrize(
    ("variable", "value", "signs"),
    [
        ("npufleet_https_proxy", 'http://me:secret"\nExecStartPre=/bin/x@proxy:3128', r"'\n'"),
        ("npufleet_http_proxy", "http://me:s'ecret@proxy:3128", '"\'"'),
        ("npufleet_http_proxy", "http://me:s`x`@proxy:3128", "'`'"),
        ("npufleet_https_proxy", "http://proxy:3128 ", "' '"),
        ("npufleet_no_proxy", ["example.com", "10.0.0.1\nA=1"], r"'\n'"),
    ],
)
def test_proxy_that_would_write_lines_of_its_own_is_refused(variable: str, value: Any, signs: str) -> None:
    (reason,) = desired_engine.proxy_reasons({variable: value})
    assert reason.startswith(f"{variable} has ") and "secret" not in reason
    assert signs in reason
    for concerns in (["engine"], ["monitoring"]):
        with pytest.raises(Refusal) as refused:
            variables.validate(fleet(**{variable: value}), concerns)
        assert reason in refused.value.reasons


def test_proxy_of_a_login_is_accepted() -> None:
    assert (
        desired_engine.proxy_reasons(
            {"npufleet_https_proxy": "http://me:p%27a$s&w(rd)@[2001:db8::1]:3128/", "npufleet_no_proxy": ["*"]}
        )
        == []
    )


@pytest.mark.parametrize("limits", [{"LimitNOFILE": "1\nExecStartPre=/bin/x"}, {"A\nB": "1"}])
def test_limit_that_would_write_lines_of_its_own_is_refused(limits: dict[str, str]) -> None:
    with pytest.raises(Refusal, match="docker_engine_unit_limits"):
        desired_engine.drop_in(limits)


def test_an_engine_that_finds_devices_by_name_has_it_switched_on_beside_what_is_there() -> None:
    row = {"npufleet_release_row": {**ROW, "driver": {**ROW["driver"], "version": "3.2.2"}}}
    wanted = desired_engine.desired(fleet(npufleet_device_access="cdi", **row))
    assert (wanted["daemon"]["features"], wanted["oldest"]) == ({"cdi": True}, 25)
    options = {**OPTIONS, "features": {"containerd-snapshotter": True, "cdi": False}}
    wanted = desired_engine.desired(fleet(npufleet_device_access="cdi", docker_engine_daemon_options=options, **row))
    assert wanted["daemon"]["features"] == {"containerd-snapshotter": True, "cdi": True}
    assert "features" not in desired_engine.desired(fleet(npufleet_device_access="devices", **row))["daemon"]


@pytest.mark.parametrize(
    ("version", "old"),
    [("20.10.24", True), ("24.0.9", True), ("25.0.0", False), ("28.3.3", False), ("5:24.0.7-1~debian.12", True), ("dev", False)],
)
def test_an_engine_that_cannot_is_told(version: str, old: bool) -> None:
    asked = {**WANTED, "oldest": 25}
    plan = engine.diff(asked, host(running={"version": version, "log-driver": "json-file"}))
    assert plan == ([found("version", version, "25 or newer", "inspect")] if old else [])
    reasons = list(engine.cdi_refusals({"running": {"version": version}}, plan))
    assert [reason.partition(",")[0] for reason in reasons] == ([f"Docker is {version}"] if old else [])


def test_an_engine_that_would_be_installed_is_judged_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(engine, "candidate_version", lambda name: asked.append(name) or "20.10.24+dfsg1-1")
    (reason,) = engine.cdi_refusals({"running": None}, [found("packages", None, ["docker.io", "rsync"], "install")])
    assert reason.startswith(
        "Docker is 20.10.24+dfsg1-1, expected 25 or newer, which finds devices by name. Install a newer one first"
    )
    assert asked == ["docker.io"]
    # What nobody can tell is proven once it runs
    assert list(engine.cdi_refusals({"running": None}, [found("service", None, "an engine that answers", "start")])) == []
