"""The load balancer: its desired state, the inventories that it refuses, its differences, and the order of a run."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter.rollout_groups import rollout_groups
from ansible_collections.npufleet.triton.plugins.module_utils import balancer_preflight
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import balancer
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import balancer_tls
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables as subject
from helpers import ROOT, fleet
from small_triton import certificates

MODELS = [{"name": "digits"}, {"name": "digits_guide"}]


def site(**inventory: Any) -> dict[str, Any]:
    """Return the variables of a balancer and of a fleet of two hosts."""
    hosts = {
        "npu1": {"ansible_host": "192.0.2.1", "triton_models": MODELS, "group_names": ["npu_hosts"]},
        "npu2": {
            "npufleet_address": "[2001:db8::2]",
            "npufleet_grpc_port": "9001",
            "triton_models": MODELS,
            "group_names": ["npu_hosts"],
        },
    }
    return {
        "groups": {"npu_hosts": ["npu1", "npu2"], "load_balancer_hosts": ["lb1"]},
        "hostvars": hosts,
        "inventory_hostname": "lb1",
        "group_names": ["load_balancer_hosts"],
        **inventory,
    }


def desired(seal: bool = False, **inventory: Any) -> dict[str, Any]:
    found: dict[str, Any] = subject.desired(fleet(**site(**inventory)), ["balancer"], seal=seal)[0]["balancer"]
    return found


def reasons(**inventory: Any) -> list[str]:
    with pytest.raises(Refusal) as refusal:
        desired(**inventory)
    return list(refusal.value.reasons)


def hosts_with(**models: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: {"triton_models": placed, "group_names": ["npu_hosts"]} for name, placed in models.items()}


# The desired state


def test_servers_have_the_addresses_and_ports_of_their_hosts() -> None:
    found = desired()
    assert found["servers"] == ["npu1", "npu2"]
    assert "server npu1 192.0.2.1:8000 check" in found["config"]
    assert "server npu2 [2001:db8::2]:9001 proto h2" in found["config"]
    assert found["model"] == "digits"


def test_ports_of_the_balancer_itself_are_not_those_of_the_pool() -> None:
    # lb1 also serves models, at other ports.
    config = desired(npufleet_http_port=9000, npufleet_grpc_port=9005)["config"]
    assert "server npu1 192.0.2.1:8000 check" in config
    assert "server npu1 192.0.2.1:8001 proto h2" in config


@pytest.mark.parametrize(
    ("inventory", "removed"),
    [({}, 2), ({"load_balancer_trace_context": True}, 0), ({"load_balancer_trace_context": "false"}, 2)],
)
def test_trace_context_of_clients_is_removed_by_default(inventory: dict[str, Any], removed: int) -> None:
    assert desired(**inventory)["config"].count("http-request del-header traceparent") == removed


def test_the_health_check_is_the_first_request_of_the_check_file() -> None:
    (line,) = [line for line in desired()["config"].splitlines() if "http-check send" in line]
    body = json.loads(line.partition(" body '")[2].removesuffix("'"))
    (sent,) = body["inputs"]
    assert (sent["name"], sent["shape"], sent["datatype"], len(sent["data"])) == ("INPUT__0", [1, 64], "FP32", 64)


def test_the_check_file_may_be_in_a_directory_that_only_the_hosts_of_the_pool_have() -> None:
    hosts = hosts_with(npu1=[{"name": "alpha"}], npu2=[{"name": "alpha"}])
    for facts in hosts.values():
        facts["inference_check_checks_dir"] = [str(ROOT / "molecule/models/checks")]
    assert desired(hostvars=hosts)["model"] == "alpha"


def test_the_inventory_may_have_its_own_request() -> None:
    found = desired(load_balancer_check_model="digits_guide", load_balancer_check_body='{"inputs": [{"name": "ä"}]}')
    assert "uri '/v2/models/digits_guide/infer'" in found["config"]
    assert """body '{"inputs":[{"name":"\\u00e4"}]}'""" in found["config"]


def test_a_sealed_state_has_no_secrets(tmp_path: Path) -> None:
    paths = certificates(tmp_path)
    tls = {"load_balancer_tls_certificate": paths["server"], "load_balancer_tls_key": paths["server_key"]}
    secrets = {
        "load_balancer_users": [{"name": "kim", "password": "s3cret-word"}],
        "inference_check_headers": {"triton-key": "api-s3cret"},
    }
    clear, sealed = desired(**tls, **secrets), desired(seal=True, **tls, **secrets)
    assert "api-s3cret" in clear["config"] and "PRIVATE KEY" in clear["certificates"][0]["content"]
    (login,) = {line.split()[-1] for line in clear["config"].splitlines() if "npufleet_known var" in line}
    shown = json.dumps({name: value for name, value in sealed.items() if name != "digest_key"})
    for secret in ("s3cret", "PRIVATE KEY", login):
        assert secret not in shown
    assert "a login is needed" in shown and '"outputs' in shown, "the rest of the text is shown"
    assert desired(seal=True)["expires_in"] is None and sealed["expires_in"] == 0


# Refusals


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        ({"load_balancer_pool": "edge"}, "load_balancer_pool is edge, a group without hosts, expected the hosts with NPUs."),
        ({"load_balancer_bind": []}, "load_balancer_bind is empty"),
        ({"load_balancer_bind": ["[::1]"]}, "load_balancer_bind has [::1], expected addresses of IPv4 or IPv6 without brackets"),
        ({"load_balancer_bind": ["lb.example.com"]}, "load_balancer_bind has lb.example.com"),
        ({"load_balancer_grpc_port": 8000}, "load_balancer_http_port and load_balancer_grpc_port are both 8000."),
        ({"load_balancer_http_port": 70000}, "load_balancer_http_port is 70000, expected a whole number from 1 to 65535."),
        ({"load_balancer_metrics_address": "8405"}, "load_balancer_metrics_address is 8405, expected an address and a port"),
        (
            {"load_balancer_metrics_address": "192.0.2.5:8405"},
            "load_balancer_metrics_address is 192.0.2.5:8405, but load_balancer_metr",
        ),
        ({"load_balancer_metrics_allow": ["prometheus"]}, "load_balancer_metrics_allow has prometheus, expected networks"),
        (
            {"load_balancer_tls_certificate": "/none.pem"},
            "load_balancer_tls_certificate is /none.pem, but the controller has no such",
        ),
        ({"load_balancer_users": [{"name": "a:b", "password": "c"}]}, "load_balancer_users has a name with a colon"),
        ({"load_balancer_users": 2 * [{"name": "a", "password": "c"}]}, "load_balancer_users has a several times"),
        (
            {"load_balancer_check_model": "words"},
            "load_balancer_check_model is words, expected a model of the pool: digits, digits_guide",
        ),
        ({"load_balancer_check_body": "{"}, "load_balancer_check_body is not JSON"),
        ({"load_balancer_check_body": "[1]"}, "load_balancer_check_body has no list `inputs`"),
        ({"load_balancer_check_interval": 0}, "load_balancer_check_interval is 0, expected a whole number from 1 to 3600."),
        (
            {"hostvars": hosts_with(npu1=MODELS, npu2=MODELS[:1])},
            "the models of npu2 and npu1 differ (only npu1 has digits_guide), ",
        ),
        ({"hostvars": hosts_with(npu1=[], npu2=[])}, "the check files of the pool's models (none) have no request"),
        (
            {"hostvars": hosts_with(npu1=[{"name": "own"}], npu2=[{"name": "own"}])},
            "the check files of the pool's models (own) have no",
        ),
    ],
)
def test_a_wrong_inventory_is_refused_with_one_reason(inventory: dict[str, Any], expected: str) -> None:
    (reason,) = reasons(**inventory)
    assert reason.startswith(expected), reason


def test_hosts_that_no_server_line_can_name_are_refused() -> None:
    given = {"npu 1": {"triton_models": MODELS, "group_names": []}}
    (reason,) = reasons(groups={"npu_hosts": ["npu 1"]}, hostvars=given)
    assert reason.startswith("npu 1 is in load_balancer_pool, expected host names of letters")


def test_models_placed_on_a_part_of_the_pool_are_refused() -> None:
    placed = [{"name": "digits"}, {"name": "words", "hosts": ["npu1"]}]
    (reason,) = reasons(hostvars=hosts_with(npu1=placed, npu2=placed))
    assert "(only npu1 has words)" in reason


def test_certificates_are_judged_before_anything_changes(tmp_path: Path) -> None:
    paths = certificates(tmp_path)
    certificate, key, other = (Path(paths[name]).read_text() for name in ("server", "server_key", "client_key"))
    now = datetime.now(timezone.utc)
    assert list(balancer_tls.reasons(certificate, key, now)) == []
    (mismatch,) = balancer_tls.reasons(certificate, other, now)
    assert mismatch.startswith("load_balancer_tls_key does not belong to the first certificate of load_balancer_tls_certificate")
    (expired,) = balancer_tls.reasons(certificate, key, now + timedelta(hours=2))
    assert expired.startswith("load_balancer_tls_certificate expired at ")
    (early,) = balancer_tls.reasons(certificate, key, now - timedelta(hours=2))
    assert early.startswith("load_balancer_tls_certificate is valid from ")
    (none,) = balancer_tls.reasons("text", key, now)
    assert none.startswith("load_balancer_tls_certificate has no certificate in PEM")
    (damaged,) = balancer_tls.reasons(certificate, certificate, now)
    assert damaged.startswith("load_balancer_tls_key is not a private key that HAProxy can read")
    (authority,) = balancer_tls.authority_reasons(Path(paths["ca"]).read_text(), now + timedelta(hours=2))
    assert authority.startswith("load_balancer_client_ca expired at ")


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    paths = certificates(tmp_path)
    (reason,) = reasons(load_balancer_tls_certificate=paths["server"])
    assert (
        reason == "load_balancer_tls_certificate is set without load_balancer_tls_key. Set both, or neither for clients without TLS"
    )
    (reason,) = reasons(load_balancer_client_ca=paths["ca"])
    assert reason.startswith("load_balancer_client_ca is set without load_balancer_tls_certificate.")


def test_balancers_with_different_settings_are_refused() -> None:
    def found(**second: Any) -> list[str]:
        group = {"load_balancer_users": [{"name": "kim", "password": "s3cret-word"}]}
        given = site(groups={"npu_hosts": ["npu1", "npu2"], "load_balancer_hosts": ["lb1", "lb2"]}, **group)
        given["hostvars"].update(lb1={**group}, lb2={**group, **second})
        return list(findings.balancer_differences(fleet(**given)))

    assert found() == []
    # Each balancer may have its own addresses, its own certificate and its own limits.
    assert found(load_balancer_bind=["192.0.2.5"], load_balancer_maxconn=500, load_balancer_http_port="8000") == []
    (reason,) = found(load_balancer_trace_context=True)
    assert reason.startswith("load_balancer_trace_context is False on lb1 and True on lb2, expected equal values")
    (reason,) = found(load_balancer_http_port=9000, load_balancer_users=[], load_balancer_tls_certificate="/x.pem")
    assert reason == (
        "load_balancer_http_port is 8000 on lb1 and 9000 on lb2; load_balancer_users is one value on lb1 and one value on lb2; "
        "load_balancer_tls_certificate is False on lb1 and True on lb2, expected equal values on all load balancers. "
        "Set them for the group load_balancer_hosts."
    )
    assert "s3cret" not in reason
    alone = site(load_balancer_http_port=9000)
    assert list(findings.balancer_differences(fleet(**alone))) == []


# Differences


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without HAProxy, whose files are below tmp_path."""
    for name in ("CONFIG", "CERTIFICATE", "CLIENT_CA", "DROP_IN", "HOME"):
        monkeypatch.setattr(files, name, f"{tmp_path}/{name}")
    monkeypatch.setattr(balancer, "SOCKET", f"{tmp_path}/admin.sock")
    monkeypatch.setattr(balancer, "installed_packages", lambda names: {})
    return tmp_path


def test_a_bare_host_is_read(host: Path) -> None:
    wanted = desired(seal=True)
    actual = {**balancer.read(wanted), "enabled": False, "active": "inactive"}
    assert (actual["owner"], actual["running"], actual["servers"]) == ("nobody", None, {})
    plan = [(entry["name"], entry["current"], entry["action"]) for entry in balancer.diff(wanted, actual)]
    assert plan[:2] == [("packages", "without haproxy", "install"), (files.CONFIG, None, "configure")]
    assert {name for name, _current, _action in plan} >= {files.DROP_IN, "service"}


def in_sync(wanted: dict[str, Any]) -> dict[str, Any]:
    servers = {name: {"state": "ready", "health": "up", "weight": 100, "in_flight": 0} for name in wanted["servers"]}
    return {
        "packages": ["haproxy"], "owner": "npufleet", "lines": wanted["lines"], "files": dict(wanted["files"]),
        "drop_in": wanted["drop_in"], "library": True, "running": wanted["digest"], "servers": servers, "records": {},
        "enabled": True, "active": "active", "expires_in": None, "pool": wanted["servers"],
    }  # fmt: skip


def test_each_difference_is_planned() -> None:
    wanted = desired(seal=True)
    actual = in_sync(wanted)
    assert balancer.diff(wanted, actual) == []
    changes: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"packages": []}, ("packages", "install")),
        ({"files": {files.CONFIG: "digest:0, mode 0600"}, "lines": []}, (files.CONFIG, "configure")),
        ({"files": {**actual["files"], files.CERTIFICATE: "digest:1, mode 0600"}}, (files.CERTIFICATE, "configure")),
        ({"drop_in": None}, (files.DROP_IN, "configure")),
        ({"library": False}, ("/usr/local/lib/npufleet/library/current", "configure")),
        ({"running": None}, ("service", "start")),
        ({"running": "another configuration"}, ("loaded configuration", "reload")),
        ({"servers": {"npu1": {}}}, ("servers", "reload")),
        ({"enabled": False}, (files.UNIT, "start")),
    ]
    for change, expected in changes:
        assert [(entry["name"], entry["action"]) for entry in balancer.diff(wanted, {**actual, **change})] == [expected], change


def test_a_plan_shows_the_changed_lines_alone() -> None:
    before, after = desired(seal=True), desired(seal=True, load_balancer_maxconn=500)
    actual = {**in_sync(after), "lines": before["lines"], "files": dict(before["files"])}
    (entry,) = balancer.diff(after, actual)
    assert (entry["current"], entry["desired"]) == ("maxconn 10000", "maxconn 500")


def test_warnings_name_servers_without_requests_and_a_certificate_that_ends() -> None:
    actual = in_sync(desired(seal=True))
    assert balancer.warning(actual) is None
    actual["servers"]["npu1"]["state"] = "drained"
    actual["servers"]["npu2"]["health"] = "down"
    actual["expires_in"] = 20
    assert balancer.warning(actual) == (
        "server npu1 is drained by an operator on the socket of HAProxy; the health check of server npu2 fails; "
        "the certificate of the balancer expires in 20 days"
    )
    record = {"by": "kim", "since": "2026-11-28T04:00:00Z", "reason": "loud fan"}
    actual.update(records={"npu1": record, "npu9": record}, expires_in=21)
    assert balancer.warning(actual) == (
        "server npu1 is drained by kim since 2026-11-28T04:00:00Z (loud fan); the health check of server npu2 fails; "
        "/var/lib/npufleet-balancer/drains.json has a drain of npu9, which is not in the pool"
    )


def test_only_a_configuration_of_the_site_is_foreign(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host / "CONFIG"
    assert balancer.owner(None) == "nobody"
    assert balancer.owner(desired()["config"]) == "npufleet"
    listed = f" {path} {32 * '0'}\n /etc/default/haproxy {32 * '1'}"
    monkeypatch.setattr(balancer, "run", lambda *_command: (0, listed))
    assert balancer.owner("global\n") == "site"
    digest = "1a0c34a5c8fbd6c6f8b2b2a0a1f6c3d2"
    monkeypatch.setattr(balancer, "run", lambda *_command: (0, listed.replace(32 * "0", digest)))
    monkeypatch.setattr(balancer.hashlib, "md5", lambda *_given, **_named: type("Md5", (), {"hexdigest": lambda _self: digest})())
    assert balancer.owner("global\n") == "package"


def test_a_foreign_configuration_and_a_port_in_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = desired(seal=True, load_balancer_bind=["127.0.0.1", "192.0.2.77"])
    actual = {**in_sync(wanted), "owner": "site"}
    plan = balancer.diff(wanted, {**actual, "running": None})
    taken = {"8000": "process 12 (nginx)", "8001": "process 13 (haproxy)"}
    monkeypatch.setattr(balancer_preflight, "listeners", lambda address: taken if address == "127.0.0.1" else {})
    found = balancer_preflight.refusals(wanted, actual, plan)
    assert [reason.split(",")[0] for reason in found] == [
        f"{files.CONFIG} is a configuration of the site",
        "port 8000 is taken by process 12 (nginx)",
        "port 8001 is taken by process 13 (haproxy)",
        "load_balancer_bind has 192.0.2.77",
    ]
    assert len(balancer_preflight.refusals(wanted, {**actual, "owner": "npufleet"}, plan)) == 2
    assert balancer_preflight.refusals(wanted, actual, []) == []


# The order of a run


# A host whose plan has no state, because it is in sync
IN_SYNC = "in sync"


def run_of(*served: Any) -> dict[str, dict[str, Any]]:
    def state(**more: Any) -> dict[str, Any]:
        return {"npufleet_state": {"plan": [{"action": "x"}], "maintenance": None, "desired": {}, "actual": {}, **more}}

    in_sync = {"plan": [], "in_sync": True, "actual": None, "desired": None}
    hosts = {
        f"npu{number}": state(**in_sync) if models == IN_SYNC else state(actual={"server": {"served": models}})
        for number, models in enumerate(served, 1)
    }
    return {**hosts, "ops1": state(**in_sync), "lb1": state(desired={"balancer": {"model": "digits", "servers": list(hosts)}})}


@pytest.mark.parametrize(
    ("served", "first"),
    [
        ([], True),
        ([{"digits": {}}, {"digits": {}, "words": {}}], True),
        ([{"digits": {}}, None], True),
        ([{"digits": {}}, {}], True),
        ([IN_SYNC, IN_SYNC], True),
        ([IN_SYNC, {"words": {}}], False),
        ([IN_SYNC, None], True),
        ([{"digits": {}}, {"words": {}}], False),
        ([{"words": {}}], False),
        ([None, None], False),
        ([{}], False),
    ],
)
def test_balancers_follow_the_hosts_if_their_check_would_fail_now(served: list[Any], first: bool) -> None:
    (found,) = [entry["groups"] for entry in rollout_groups(run_of(*served), "npu1") if entry["name"] == "lb1"]
    assert found == ["npufleet_in_rollout", "npufleet_balancers_first" if first else "npufleet_balancers_last"]


def test_a_check_run_changes_no_balancer() -> None:
    assert rollout_groups(run_of({"digits": {}}), "npu1", check=True) == []
