"""The effect of a change on the requests of clients, its record on the host, and the steps that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import traffic as concern
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, item
from ansible_collections.npufleet.triton.plugins.modules import triton_requests
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import traffic as subject

EXPLICIT = {"mode": "explicit", "models": {"digits": {"switch": "beside"}, "large": {"switch": "unload_first"}}}
SETTINGS = {
    "npufleet_drain_hook": "haproxy",
    "npufleet_drain_commands": {},
    "groups": {"load_balancer_hosts": ["lb-1"]},
    "npufleet_drain_timeout": 120,
    "npufleet_judge_seconds": 60,
    "npufleet_judge_wait": 600,
    "npufleet_judge_unjudged": "continue",
    "npufleet_lease_timeout": 3600,
}


def result(*plan: tuple[str, str, str], server: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A result of host_state with these differences: (concern, name, action)."""
    entries = [item(name, about, "old", "new", action) for name, about, action in plan]
    return {"plan": entries, "actual": {}, "desired": {"server": server or EXPLICIT}, **more}


@pytest.mark.parametrize(
    ("plan", "effect"),
    [
        ([], "none"),
        ([("watchdog", "npufleet-watchdog.service", "watch")], "none"),
        ([("image", "sha256:0", "deliver")], "none"),
        ([("probe", "npufleet-probe.timer", "probe")], "none"),
        ([("metrics", "npufleet-metrics.timer", "install")], "none"),
        ([("models", "digits", "release")], "reload"),
        ([("models", "digits", "release"), ("server", "digits", "load")], "reload"),
        ([("models", "large", "release")], "stop"),
        ([("models", "digits", "withdraw"), ("server", "digits", "unload")], "reload"),
        ([("server", "container.shm", "replace")], "stop"),
        ([("server", "container", "start")], "stop"),
        ([("driver", "module", "reload")], "stop"),
        ([("engine", "service", "restart")], "stop"),
        ([("traffic", "share of the traffic", "undrain")], "stop"),
        ([("models", "digits", "release"), ("server", "container", "restart")], "stop"),
    ],
)
def test_effect_of_a_plan(plan: list[tuple[str, str, str]], effect: str) -> None:
    assert subject.effect(result(*plan)) == effect


@pytest.mark.parametrize("mode", ["poll", "none"])
def test_models_of_other_modes_are_changed_without_traffic(mode: str) -> None:
    assert subject.effect(result(("models", "digits", "release"), server={**EXPLICIT, "mode": mode})) == "stop"


def test_rollback_has_the_effect_of_its_moves() -> None:
    assert subject.effect(result(moves={"digits": {}})) == "reload"
    assert subject.effect(result(moves={"large": {}})) == "stop"
    assert subject.effect(result(moves={})) == "none"
    ended = ("traffic", "share of the traffic", "undrain")
    assert subject.effect(result(ended, moves={})) == subject.effect(result(ended, moves={"digits": {}})) == "stop"


def test_lack_of_memory_for_two_releases_needs_a_drain() -> None:
    server = {"mode": "explicit", "models": {"digits": {"switch": "beside", "memory": [6]}}}
    devices = [{"npu": 0, "device": "rbln0", "name": "RBLN-CA22", "memory_total": 10, "bus_id": "0000:00:01.0", "status": "normal"}]
    actual = {"driver": {"tool": {"devices": devices}}}
    assert subject.effect(result(("models", "digits", "release"), server=server) | {"actual": actual}) == "stop"
    devices[0]["memory_total"] = 20
    assert subject.effect(result(("models", "digits", "release"), server=server) | {"actual": actual}) == "reload"


def test_settings_of_a_rollout() -> None:
    change = result(("server", "container.shm", "replace"))
    assert subject.settings(SETTINGS, change) == {"hook": "haproxy", "effect": "stop", "limited": False, "accept_within": 360}
    waits = {**SETTINGS, "npufleet_judge_unjudged": "wait"}
    assert subject.settings(waits, change)["accept_within"] == 960
    assert subject.settings({**SETTINGS, "npufleet_judge_seconds": 0}, change)["accept_within"] == 0
    none = {**SETTINGS, "npufleet_drain_hook": "none"}
    assert subject.settings(none, change) == {"hook": "none", "effect": "none", "limited": False, "accept_within": 0}
    ended = result(("traffic", "share of the traffic", "undrain"))
    assert subject.settings(none, ended)["limited"] and subject.settings(SETTINGS, ended)["limited"]


def test_unknown_hooks_are_refused() -> None:
    with pytest.raises(Refusal, match="npufleet_drain_hook is f5, expected haproxy, command or none"):
        subject.settings({**SETTINGS, "npufleet_drain_hook": "f5"}, result())


def test_drain_longer_than_the_lease_is_refused() -> None:
    with pytest.raises(
        Refusal, match=r"can take 4360 s, including 300 s for other steps, expected at most npufleet_lease_timeout \(3600 s\)"
    ):
        subject.settings({**SETTINGS, "npufleet_drain_timeout": 4000}, result())


def balancer(**servers: tuple[str, str]) -> dict[str, Any]:
    return {"servers": {name: {"state": state, "health": health} for name, (state, health) in servers.items()}}


STOP = {"hook": "haproxy", "effect": "stop", "limited": False, "accept_within": 360}


def test_steps_of_a_change() -> None:
    known = {"lb1": balancer(npu1=("ready", "up"))}
    assert subject.steps(STOP, known, "npu1") == {"drain": True, "judge": True, "accept_within": 360}
    assert subject.steps({**STOP, "effect": "reload"}, known, "npu1") == {"drain": False, "judge": True, "accept_within": 360}
    assert subject.steps({**STOP, "effect": "none"}, known, "npu1") == {"drain": False, "judge": False, "accept_within": 0}
    assert subject.steps({**STOP, "hook": "command"}, {}, "npu1") == {"drain": True, "judge": True, "accept_within": 360}


def test_repair_is_made_without_traffic_and_is_not_rolled_back() -> None:
    known = {"lb1": balancer(npu1=("ready", "down"))}
    assert subject.steps({**STOP, "effect": "none"}, known, "npu1", True) == {"drain": True, "judge": False, "accept_within": 0}
    assert subject.steps(STOP, known, "npu1", True) == {"drain": True, "judge": True, "accept_within": 0}


def test_new_host_gets_no_requests_yet() -> None:
    assert subject.steps(STOP, {"lb1": balancer(npu2=("ready", "up"))}, "npu1") == {
        "drain": False,
        "judge": False,
        "accept_within": 0,
    }


@pytest.mark.parametrize("hook", ["none", "haproxy"])
def test_record_of_a_host_without_a_balancer_is_removed(hook: str) -> None:
    """The site may have removed its balancers after the rollout that was interrupted."""
    limited = {"hook": hook, "effect": "none", "limited": True, "accept_within": 0}
    assert subject.steps(limited, {}, "npu1") == {"drain": True, "judge": False, "accept_within": 0}


def test_drain_of_the_last_ready_hosts_is_an_outage() -> None:
    two = {"lb1": balancer(npu1=("ready", "up"), npu2=("ready", "up"), npu3=("drained", "up"), npu4=("ready", "down"))}
    assert subject.outages(two, ["npu1"]) == []
    (reason,) = subject.outages(two, ["npu1", "npu2"])
    assert reason.startswith("lb1: npu1, npu2 would be drained together and no ready server would be left, expected at least one")


def test_drain_is_no_outage_if_no_server_is_ready() -> None:
    assert subject.outages({"lb1": balancer(npu1=("ready", "down"))}, ["npu1"]) == []


# The record on the host


def test_host_without_a_record_is_in_sync(tmp_path: Path) -> None:
    actual = concern.read({"record": str(tmp_path / "traffic.json")})
    assert concern.diff({}, actual) == []


def test_record_of_an_ended_rollout_is_a_difference(tmp_path: Path) -> None:
    record = tmp_path / "traffic.json"
    record.write_text(json.dumps({"by": "kim@ops1", "since": "2026-11-28T01:02:03Z"}))
    (entry,) = concern.diff({}, concern.read({"record": str(record)}))
    assert entry["current"] == "limited by a rollout of kim@ops1 since 2026-11-28T01:02:03Z"
    assert entry["action"] == "undrain"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"by": 1, "since": "x"}'])
def test_damaged_record_is_a_difference(tmp_path: Path, content: str) -> None:
    record = tmp_path / "traffic.json"
    record.write_text(content)
    (entry,) = concern.diff({}, concern.read({"record": str(record)}))
    assert entry["current"] == "limited by a rollout of an unreadable record since ?"


# The counters of the server


def test_requests_of_all_versions_are_added() -> None:
    page = """nv_inference_request_success{model="digits",version="1"} 10
nv_inference_request_success{model="digits",version="2"} 5
nv_inference_request_failure{model="digits",reason="BACKEND",version="1"} 2
nv_inference_request_failure{model="digits",reason="bad reason!",version="1"} 1
nv_inference_pending_request_count{model="digits",version="1"} 3
nv_inference_request_success{model="digits",version="3"} NaN
nv_inference_count{model="digits",version="1"} 99
"""
    expected = {"digits": {"success": 15, "failed": {"BACKEND": 2, "badreason": 1}, "pending": 3}}
    assert triton_requests.requests(page) == expected


def test_server_with_too_many_models_is_refused() -> None:
    page = "".join(f'nv_inference_request_success{{model="m{number}"}} 1\n' for number in range(1001))
    with pytest.raises(ValueError, match="1001 models, expected at most 1000"):
        triton_requests.requests(page)
