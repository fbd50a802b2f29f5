"""The files of the container engine, and the units that are restarted with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter import engine_configuration as subject
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.engine import ORDER_FILE
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.engine import DROP_IN

DOCKER, CONTAINERD = (DROP_IN.format(unit) for unit in ("docker.service", "containerd.service"))
DROP_INS = {CONTAINERD: "c", DOCKER: "d", ORDER_FILE: "o"}
configuration = subject.FilterModule().filters()["engine_configuration"]


def item(name: str, action: str = "configure") -> dict[str, Any]:
    return {"concern": "engine", "name": name, "current": None, "desired": None, "action": action}


def state(*plan: dict[str, Any], program: str | None = "/usr/bin/dockerd", private: bool = False) -> dict[str, Any]:
    return {"plan": list(plan), "actual": {"engine": {"program": program, "private": private}}}


def desired(private: bool = False, **daemon: Any) -> dict[str, Any]:
    return {"drop_ins": DROP_INS, "daemon": daemon or {"debug": True}, "private": private}


def daemon_json(*plan: dict[str, Any], wanted: dict[str, Any] | None = None, current: str = "", **more: Any) -> dict[str, Any]:
    """The file daemon.json among the files, which also have every drop-in."""
    found = configuration(state(item("daemon.json"), *plan, **more), wanted or desired(), current, "--validate  Validate it")
    *drop_ins, file = found["files"]
    assert {entry["path"]: entry["content"] for entry in drop_ins} == DROP_INS
    return dict(file)


def test_options_are_merged_into_the_text_of_the_file() -> None:
    file = daemon_json(current='{"a": 1, "debug": false}')
    assert (file["path"], json.loads(file["content"])) == ("/etc/docker/daemon.json", {"a": 1, "debug": True})
    assert file["content"].startswith('{\n    "a": 1') and file["content"].endswith("}\n")


def test_options_of_another_log_driver_are_removed() -> None:
    file = daemon_json(
        wanted=desired(**{"log-driver": "local"}), current='{"log-driver": "gelf", "log-opts": {"gelf-address": "x"}}'
    )
    assert "gelf-address" not in file["content"]


@pytest.mark.parametrize("broken", ["[]", "{", "[" * 100000])
def test_a_text_that_is_no_map_is_refused(broken: str) -> None:
    with pytest.raises(ValueError):
        daemon_json(current=broken)


def test_a_file_with_secrets_is_private_and_stays_private() -> None:
    assert daemon_json()["mode"] == "0644"
    assert daemon_json(wanted=desired(private=True))["mode"] == "0600"
    assert daemon_json(private=True)["mode"] == "0600"


def test_only_an_engine_that_can_validate_its_file_does() -> None:
    assert daemon_json()["validate"] == ["/usr/bin/dockerd", "--validate", "--config-file", "%s"]
    assert daemon_json(program=None)["validate"] == []
    assert configuration(state(item("daemon.json")), desired())["files"][-1]["validate"] == []


@pytest.mark.parametrize(
    ("plan", "program", "restart"),
    [
        ([item("daemon.json")], "/usr/bin/dockerd", ["docker.service"]),
        ([item("daemon.json")], None, []),
        ([item(CONTAINERD)], "/usr/bin/dockerd", ["containerd.service", "docker.service"]),
        ([item(DOCKER)], "/usr/bin/dockerd", ["docker.service"]),
        ([item(ORDER_FILE, "order")], "/usr/bin/dockerd", []),
        ([item(ORDER_FILE, "order"), item("daemon.json")], "/usr/bin/dockerd", ["docker.service"]),
        ([item("service", "start"), item("packages", "install")], "/usr/bin/dockerd", []),
    ],
)
def test_units_restart_only_for_changes_that_they_read_at_a_start(plan: list[Any], program: str | None, restart: list[str]) -> None:
    assert configuration(state(*plan, program=program), desired())["restart"] == restart


def test_without_a_difference_daemon_json_is_left_alone() -> None:
    assert [file["path"] for file in configuration(state(item(DOCKER)), desired())["files"]] == list(DROP_INS)
