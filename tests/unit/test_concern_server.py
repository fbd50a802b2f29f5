"""The Triton container against `docker inspect`, its command line, and what the server says that it serves."""

from __future__ import annotations

import copy
import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import server
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import (
    connection,
    container,
    credentials,
    log_reader,
    reader,
)
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, as_diff, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api, log
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container as desired_container
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server as desired_server
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import URL_UNSAFE_NAMES, UTF8, FakeEngine, fixture, fleet, http_server, unix_server

INSPECT, IMAGE = fixture("inspect_triton.json"), fixture("inspect_image.json")
# A lock of before, which does not have the content of its image
LOCKED = {"id": IMAGE["Id"], "reference": "npufleet/triton:24.01-0123456789ab", "content": None}
KEY = "of this look"
KEY_FILE = "/etc/npufleet/server/key"
KEY_MOUNT = "/etc/npufleet/server:/etc/npufleet/server:ro"
RELEASE, OTHER = "e" * 64, "0" * 64
FACTS = {"source": "f" * 64, "steps": [], "memory": [0, 0], "switch": "beside", "cached": False}
BROUGHT = {"binds": ["/usr/local/bin/rbln-stat:/usr/local/bin/rbln-stat:ro"], "missing": []}
ALL = {"devices": [], "groups": [], "missing": [], "mismatches": []}
MANIFESTS = {"digits": {"versions": ["1"], "release": RELEASE, **FACTS}}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has its key, and the files of a driver below 3.0."""
    monkeypatch.setattr(reader.keys, "flaw", lambda *_asked, **_reader: {"flaw": None, "rewrite": False})
    monkeypatch.setattr(reader.driver_files, "find", lambda _wanted: dict(BROUGHT))


# What asks the server of this host
HTTP_JSON = "ansible_collections.npufleet.triton.plugins.module_utils.triton.served.http_json"


def wanted(mode: str = "explicit", manifests: dict[str, Any] | None = None, **inventory: Any) -> dict[str, Any]:
    inventory = {"triton_server_environment": {"RBLN_DEVICES": "0,1"}, "triton_server_model_control_mode": mode, **inventory}
    part = desired_server.desired(fleet(**inventory), Context(MANIFESTS if manifests is None else manifests, image=lambda: LOCKED))
    # As the host finds them
    binds = BROUGHT["binds"] if part["driver_files"] else []
    part["container"]["volumes"] = sorted([*part["container"]["volumes"], *binds])
    return part


def sealed(mode: str = "explicit", **inventory: Any) -> dict[str, Any]:
    """What a host is asked for."""
    return desired_server.sealed(wanted(mode, **inventory), KEY)


def ready(release: str | None = RELEASE) -> dict[str, Any]:
    return {"state": "READY", "reason": "", "release": release}


def unavailable(reason: str) -> dict[str, Any]:
    return {"state": "UNAVAILABLE", "reason": reason, "release": None}


def actual(inspect: dict[str, Any] = INSPECT, served: Any = None, **changes: Any) -> dict[str, Any]:
    """What is read of a host whose container looks like this."""
    served = {"digits": {"1": ready()}} if served is None else served
    return {
        "engine": True,
        "container": container.container_facts(inspect, IMAGE),
        "state": "running",
        "served": served,
        "absent": [],
        "driver_files": BROUGHT,
        "access": ALL,
        **changes,
    }


def found(name: str, current: Any, desired: Any, action: str) -> dict[str, Any]:
    return {"concern": "server", "name": name, "current": current, "desired": desired, "action": action}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The container with one value of its inspect answer replaced; `path` is dotted."""
    inspect = copy.deepcopy(INSPECT)
    *parents, last = path.split(".")
    at = inspect
    for key in parents:
        at = at[key]
    assert last in at, f"the fixture has no {path}"
    at[last] = value
    return inspect


# The container


def test_container_of_the_defaults_is_equal() -> None:
    assert container.container_facts(INSPECT, IMAGE) == wanted()["container"]
    assert server.diff(wanted(), actual()) == []


def test_answers_of_other_engines_are_equal_too() -> None:
    newer = changed("HostConfig.NetworkMode", "bridge")
    newer["HostConfig"].update(CapAdd=[], CapDrop=[], Devices=[], ExtraHosts=[], Tmpfs={})
    newer["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostIp"] = ""
    newer["HostConfig"]["Binds"].reverse()
    newer["HostConfig"]["Ulimits"].reverse()
    assert server.diff(wanted(), actual(newer)) == []


BINDS = INSPECT["HostConfig"]["Binds"]
PORTS = INSPECT["HostConfig"]["PortBindings"]
MEMLOCK, STACK = INSPECT["HostConfig"]["Ulimits"]
ENVIRONMENT = INSPECT["Config"]["Env"]
COMMAND = INSPECT["Config"]["Cmd"]
ULIMITS = {"memlock": "-1:-1", "stack": "67108864:67108864"}
BOUND = {"8000/tcp": "0.0.0.0:8000", "8001/tcp": "0.0.0.0:8001", "8002/tcp": "0.0.0.0:8002"}
LOG = {"driver": "json-file", "options": {"max-size": "50m", "max-file": "5"}}
NODE = {"PathOnHost": "/dev/rbln0", "PathInContainer": "/dev/rbln0", "CgroupPermissions": "rwm"}


@pytest.mark.parametrize(
    ("path", "value", "key", "current"),
    [
        ("Image", "sha256:" + "0" * 64, "image", "sha256:" + "0" * 64),
        ("HostConfig.ShmSize", 67108864, "shm_size", 67108864),
        ("HostConfig.Ulimits", [STACK], "ulimits", {"stack": "67108864:67108864"}),
        ("HostConfig.Ulimits", [MEMLOCK], "ulimits", {"memlock": "-1:-1"}),
        ("HostConfig.Ulimits", None, "ulimits", {}),
        ("HostConfig.Ulimits", [{**MEMLOCK, "Soft": 65536}, STACK], "ulimits", {**ULIMITS, "memlock": "65536:-1"}),
        ("HostConfig.Ulimits", [{**MEMLOCK, "Hard": 65536}, STACK], "ulimits", {**ULIMITS, "memlock": "-1:65536"}),
        ("HostConfig.Privileged", False, "privileged", False),
        ("HostConfig.PortBindings", {**PORTS, "8002/tcp": None}, "ports", {k: BOUND[k] for k in ("8000/tcp", "8001/tcp")}),
        (
            "HostConfig.PortBindings",
            {**PORTS, "8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "9000"}]},
            "ports",
            {**BOUND, "8000/tcp": "0.0.0.0:9000"},
        ),
        (
            "HostConfig.PortBindings",
            {**PORTS, "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]},
            "ports",
            {**BOUND, "8000/tcp": "127.0.0.1:8000"},
        ),
        (
            "HostConfig.PortBindings",
            {**PORTS, "8000/tcp": [*PORTS["8000/tcp"], {"HostIp": "", "HostPort": "80"}]},
            "ports",
            {**BOUND, "8000/tcp": "0.0.0.0:8000, :80"},
        ),
        ("HostConfig.PortBindings", {}, "ports", {}),
        ("HostConfig.Binds", BINDS[:1], "volumes", BINDS[:1]),
        ("HostConfig.Binds", [*BINDS, "/srv:/srv:rw"], "volumes", sorted([*BINDS, "/srv:/srv:rw"])),
        (
            "HostConfig.Binds",
            [BINDS[0].replace(":ro", ":rw"), BINDS[1]],
            "volumes",
            sorted([BINDS[0].replace(":ro", ":rw"), BINDS[1]]),
        ),
        ("Config.Env", ENVIRONMENT[1:], "environment", {}),
        ("Config.Env", ["RBLN_DEVICES=0", *ENVIRONMENT[1:]], "environment", {"RBLN_DEVICES": "0"}),
        ("Config.Env", [*ENVIRONMENT, "DEBUG=a=b"], "environment", {"RBLN_DEVICES": "0,1", "DEBUG": "a=b"}),
        (
            "Config.Env",
            [entry.replace("TCMALLOC_RELEASE_RATE=200", "TCMALLOC_RELEASE_RATE=1") for entry in ENVIRONMENT],
            "environment",
            {"RBLN_DEVICES": "0,1", "TCMALLOC_RELEASE_RATE": "1"},
        ),
        ("Config.Cmd", COMMAND[:-1], "command", COMMAND[:-1]),
        ("Config.Cmd", [*COMMAND, "--strict-readiness=false"], "command", [*COMMAND, "--strict-readiness=false"]),
        ("HostConfig.RestartPolicy", {"Name": "no", "MaximumRetryCount": 0}, "restart", "no"),
        ("HostConfig.LogConfig", {"Type": "journald", "Config": {}}, "log", {"driver": "journald", "options": {}}),
        (
            "HostConfig.LogConfig",
            {"Type": "json-file", "Config": {"max-size": "50m"}},
            "log",
            {"driver": "json-file", "options": {"max-size": "50m"}},
        ),
        ("Config.StopTimeout", None, "stop_timeout", 10),
        ("HostConfig.CpusetCpus", "0-3", "cpuset", "0-3"),
        ("HostConfig.Memory", 8 << 30, "memory", 8 << 30),
        ("HostConfig.CapAdd", ["CAP_SYS_ADMIN", "IPC_LOCK"], "cap_add", ["IPC_LOCK", "SYS_ADMIN"]),
        ("HostConfig.CapDrop", ["SETUID", "CHOWN"], "cap_drop", ["CHOWN", "SETUID"]),
        (
            "HostConfig.Devices",
            [{**NODE, "PathInContainer": "/dev/rbln1"}, NODE],
            "devices",
            ["/dev/rbln0:/dev/rbln0:rwm", "/dev/rbln0:/dev/rbln1:rwm"],
        ),
        (
            "HostConfig.DeviceRequests",
            [{"Driver": "cdi", "Count": 0, "DeviceIDs": ["rebellions.ai/npu=0", "rebellions.ai/npu=1"], "Capabilities": None}],
            "device_requests",
            ["cdi rebellions.ai/npu=0,rebellions.ai/npu=1"],
        ),
        ("HostConfig.ExtraHosts", ["logs:10.0.0.8", "db:10.0.0.9"], "extra_hosts", ["db:10.0.0.9", "logs:10.0.0.8"]),
        ("HostConfig.NetworkMode", "host", "network", "host"),
        ("HostConfig.PidMode", "host", "pid", "host"),
        ("HostConfig.ReadonlyRootfs", True, "read_only", True),
        ("HostConfig.IpcMode", "host", "ipc", "host"),
        ("HostConfig.SecurityOpt", ["label=disable", "seccomp=unconfined"], "security", ["seccomp=unconfined"]),
        ("HostConfig.SecurityOpt", ["no-new-privileges:true"], "security", ["no-new-privileges"]),
        ("HostConfig.PidsLimit", 100, "pids_limit", 100),
        ("HostConfig.NanoCpus", 2500000000, "cpus", 2.5),
        ("Config.User", "1000", "user", "1000"),
        ("Config.Entrypoint", ["/bin/sh", "-c"], "entrypoint", ["/bin/sh", "-c"]),
        ("Config.WorkingDir", "/tmp", "working_dir", "/tmp"),
    ],
)
def test_each_option_that_differs_is_one_item(path: str, value: Any, key: str, current: Any) -> None:
    plan = server.diff(wanted(), actual(changed(path, value)))
    assert plan == [found("container." + key, current, wanted()["container"][key], "replace")]


@pytest.mark.parametrize(
    ("inventory", "key", "value"),
    [
        ({"triton_server_shm_size": "2g"}, "shm_size", 2 << 30),
        ({"triton_server_ulimits": ["memlock:-1:-1"]}, "ulimits", {"memlock": "-1:-1"}),
        ({"triton_server_ulimits": ["nofile:1024:4096"]}, "ulimits", {"nofile": "1024:4096"}),
        ({"npufleet_grpc_port": 9001}, "ports", {**BOUND, "8001/tcp": "0.0.0.0:9001"}),
        (
            {"triton_server_listen_address": "10.0.0.5"},
            "ports",
            {port: where.replace("0.0.0.0", "10.0.0.5") for port, where in BOUND.items()},
        ),
        ({"npufleet_root": "/srv/npufleet"}, "volumes", None),
        ({"triton_server_environment": {"RBLN_DEVICES": 0}}, "environment", {"RBLN_DEVICES": "0"}),
        ({"triton_server_restart_policy": "always"}, "restart", "always"),
        ({"triton_server_log_options": {"max-size": "1g"}}, "log", {**LOG, "options": {"max-size": "1g"}}),
        ({"triton_server_log_driver": "local"}, "log", {**LOG, "driver": "local"}),
        ({"triton_server_stop_timeout": "60"}, "stop_timeout", 60),
        ({"triton_server_cpuset": "0-7"}, "cpuset", "0-7"),
        ({"triton_server_memory": "16g"}, "memory", 16 << 30),
        ({"triton_server_extra_args": ["--log-info=false"]}, "command", [*COMMAND, "--log-info=false"]),
    ],
)
def test_each_variable_reaches_the_container(inventory: dict[str, Any], key: str, value: Any) -> None:
    plan = {item["name"]: item for item in server.diff(wanted(**inventory), actual())}
    item = plan.pop("container." + key)
    if value is not None:
        assert item["desired"] == value
    assert item["action"] == "replace"
    # The root is also named on the command line.
    assert set(plan) <= ({"container.command"} if "npufleet_root" in inventory else set())


def test_tmpfs_and_missing_stop_timeout_of_another_hand() -> None:
    inspect = changed("Config.StopTimeout", None)
    inspect["HostConfig"]["Tmpfs"] = {"/tmp": "exec", "/run": ""}
    assert server.diff(wanted(), actual(inspect)) == [
        found("container.stop_timeout", 10, 45, "replace"),
        found("container.tmpfs", ["/run", "/tmp:exec"], [], "replace"),
    ]


def test_what_an_engine_leaves_out_is_what_was_not_asked_for() -> None:
    sparse = copy.deepcopy(INSPECT)
    empty: dict[str, Any] = {name: [] for name in ("ulimits", "volumes", "restricted_apis")}
    asked = wanted(
        triton_server_environment={},
        triton_server_driver_files=False,
        triton_server_log_options={},
        triton_server_allow_open_control=True,
        **{f"triton_server_{name}": value for name, value in empty.items()},
    )
    sparse["Config"]["Cmd"] = sparse["Config"]["Cmd"][4:]
    for key in ("Ulimits", "Binds", "CpusetCpus", "Memory", "PidMode", "NanoCpus", "PidsLimit", "SecurityOpt", "IpcMode"):
        sparse["HostConfig"][key] = None
    sparse["HostConfig"]["LogConfig"]["Config"] = None
    sparse["Config"]["Env"] = None
    facts = container.container_facts(sparse, {"Config": {**IMAGE["Config"], "Env": None}})
    assert facts == asked["container"]
    sparse["HostConfig"]["PortBindings"] = sparse["Config"]["Cmd"] = None
    facts = container.container_facts(sparse, {"Config": None})
    assert (facts["ports"], facts["command"]) == ({}, [])


def test_user_of_the_image_is_no_difference() -> None:
    image = {"Config": {**IMAGE["Config"], "User": "triton-server"}}
    facts = container.container_facts(changed("Config.User", "triton-server"), image)
    assert facts == wanted()["container"]


def test_image_that_is_gone_does_not_break_the_reading() -> None:
    facts = container.container_facts(INSPECT, {})
    assert facts["environment"] == dict(entry.split("=", 1) for entry in ENVIRONMENT)
    assert facts["entrypoint"] == ["/opt/nvidia/nvidia_entrypoint.sh"]


def test_variable_that_the_image_has_too_is_no_difference() -> None:
    environment = {"RBLN_DEVICES": "0,1", "TCMALLOC_RELEASE_RATE": "200"}
    asked = wanted(triton_server_environment=environment)
    inherited = container.environment(IMAGE["Config"])
    assert server.diff(asked, actual(inherited=inherited)) == []
    other = wanted(triton_server_environment={**environment, "TCMALLOC_RELEASE_RATE": "1"})
    assert server.diff(other, actual(inherited=inherited)) == [
        found("container.environment", {"RBLN_DEVICES": "0,1"}, {**environment, "TCMALLOC_RELEASE_RATE": "1"}, "replace")
    ]
    set_apart = changed("Config.Env", [entry.replace("RATE=200", "RATE=7") for entry in ENVIRONMENT])
    assert [item["name"] for item in server.diff(asked, actual(set_apart, inherited=inherited))] == ["container.environment"]


@pytest.mark.parametrize(
    ("inventory", "path", "value"),
    [
        ({"triton_server_ulimits": ["memlock:-1", "stack:67108864"]}, "HostConfig.Ulimits", [MEMLOCK, STACK]),
        ({"triton_server_volumes": ["/srv:/srv"]}, "HostConfig.Binds", ["/srv:/srv:rw", KEY_MOUNT, *BROUGHT["binds"]]),
    ],
)
def test_short_forms_are_equal_to_what_the_engine_says(inventory: dict[str, Any], path: str, value: Any) -> None:
    assert server.diff(wanted(**inventory), actual(changed(path, value))) == []


def test_no_container() -> None:
    bare = {"engine": True, "container": None, "served": None, "absent": [], "driver_files": BROUGHT, "access": ALL}
    assert server.diff(wanted(), bare) == [found("container", None, "running triton", "create")]
    assert server.diff(wanted(triton_server_name="npu"), bare) == [found("container", None, "running npu", "create")]


def test_what_the_driver_has_brought_is_part_of_the_container() -> None:
    newer = {"binds": [*BROUGHT["binds"], "/usr/lib/librbln-thunk.so.3:/usr/lib/librbln-thunk.so:ro"], "missing": []}
    (item,) = server.diff(wanted(), actual(driver_files=newer))
    assert (item["name"], item["action"]) == ("container.volumes", "replace")
    assert item["desired"] == sorted([*newer["binds"], "/var/lib/npufleet:/var/lib/npufleet:ro", KEY_MOUNT])


def test_files_that_the_driver_has_not_brought_are_for_hands() -> None:
    lacking = {**BROUGHT, "missing": ["librbln-thunk.so* of driver 3.2.2"]}
    assert server.diff(wanted(), actual(driver_files=lacking)) == [
        found("driver files", None, "librbln-thunk.so* of driver 3.2.2", "inspect")
    ]


def test_a_mount_from_nowhere_is_for_hands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine would make an empty directory of it."""
    gone = str(tmp_path / "gone")
    volumes = ["/var/lib/npufleet:/var/lib/npufleet:ro", "cache:/cache", f"{tmp_path}:/here:ro", f"{gone}:/there:ro"]
    asked = wanted(triton_server_volumes=volumes)
    assert asked["sources"] == [str(tmp_path), gone]
    monkeypatch.setattr(reader, "Engine", FakeEngine({}))
    bare = server.read(desired_server.sealed(asked, KEY))
    assert bare["absent"] == [gone]
    assert [(item["name"], item["current"], item["action"]) for item in server.diff(asked, bare)] == [
        ("volumes", f"nothing at {gone}", "inspect"),
        ("container", None, "create"),
    ]


@pytest.mark.parametrize(
    ("version", "files", "brought"),
    [
        ("2.1.0", True, {"libraries": False, "driver": "2.1.0"}),
        ("3.0.0", True, {"libraries": True, "driver": "3.0.0"}),
        ("10.1.0", True, {"libraries": True, "driver": "10.1.0"}),
        ("3.0.0", False, None),
    ],
)
def test_libraries_come_with_the_driver_from_3_on(version: str, files: bool, brought: Any) -> None:
    row = {**fleet()["npufleet_release_row"], "driver": {"version": version}}
    assert desired_container.driver_files(fleet(npufleet_release_row=row, triton_server_driver_files=files)) == brought


@pytest.mark.parametrize(
    ("environment", "npus"), [({}, 2), ({"RBLN_DEVICES": "1"}, 1), ({"RBLN_VISIBLE_DEVICES": "0, 1,", "RBLN_DEVICES": 0}, 2)]
)
def test_the_sdk_has_to_see_the_npus_that_it_is_shown(environment: dict[str, Any], npus: int) -> None:
    assert desired_container.cards(fleet(triton_server_environment=environment)) == {"npus": npus, "card": "RBLN-CA12"}


def test_ended_container() -> None:
    ended = actual(served={}, state="exited (1)", log="creating server: Internal - failed to load all models")
    ended["served"] = None
    words = "exited (1): creating server: Internal - failed to load all models"
    assert server.diff(wanted(), ended) == [found("container", words, "running", "start")]
    ended["log"] = ""
    assert server.diff(wanted(), ended) == [found("container", "exited (1)", "running", "start")]


def test_server_that_does_not_answer_yet() -> None:
    silent = actual()
    silent["served"] = None
    assert server.diff(wanted(npufleet_http_port=8000), silent) == [
        found("http", "no answer on port 8000", "the model index", "wait")
    ]


# Command, ports, sizes


def command(mode: str, models: list[str], **inventory: Any) -> list[str]:
    return desired_container.command(fleet(triton_server_model_control_mode=mode, **inventory), models)


REST = [
    "--exit-on-error=true",
    "--exit-timeout-secs=30",
    "--allow-http=true",
    "--allow-grpc=true",
    "--allow-metrics=true",
    "--allow-gpu-metrics=false",
    "--http-port=8000",
    "--grpc-port=8001",
    "--metrics-port=8002",
    "--log-verbose=0",
]
START = ["tritonserver", "--model-repository=/var/lib/npufleet/served"]


def test_command_by_mode() -> None:
    models = ["digits", "faces"]
    assert command("none", models) == [*START, "--model-control-mode=none", *REST]
    assert command("poll", models, triton_server_poll_seconds=5) == [
        *START,
        "--model-control-mode=poll",
        "--repository-poll-secs=5",
        *REST,
    ]
    assert command("explicit", models) == [*START, "--model-control-mode=explicit", "--load-model=*", *REST]


def test_another_model_is_no_other_container() -> None:
    manifests = dict.fromkeys(("words", "digits"), MANIFESTS["digits"])
    assert wanted(manifests=manifests)["container"] == wanted()["container"]


@pytest.mark.parametrize("repositories", [["/var/lib/npufleet/served", "/models"], ["/models"]])
def test_beside_another_repository_the_models_are_named_in_order(repositories: list[str]) -> None:
    manifests = dict.fromkeys(("words", "digits"), MANIFESTS["digits"])
    line = wanted(manifests=manifests, triton_server_model_repositories=repositories)["container"]["command"]
    assert [word for word in line if word.startswith("--load-model")] == ["--load-model=digits", "--load-model=words"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ([], None),
        (["--response-cache-byte-size=0"], None),
        (["--response-cache-byte-size=1048576"], "local"),
        (["--cache-config=local,size=1048576"], "local"),
        (["--cache-config", "redis,host=cache1"], "redis"),
    ],
)
def test_cache_of_the_server(arguments: list[str], kind: str | None) -> None:
    assert wanted(triton_server_extra_args=arguments)["cache"] == kind


LOGGED = """\
I1121 21:00:00.000001 1 model_lifecycle.cc:461] loading: digits:1
E1121 21:00:01.123456 1 model_lifecycle.cc:638] failed to load 'digits' version 1: Internal: RBLNRuntimeError: no NPU 3

At:
  /opt/tritonserver/backends/rbln/model.py(12): initialize

I1121 21:00:01.200000 1 model_lifecycle.cc:773] failed to load 'digits'
E1121 21:00:02.000000 1 model_repository_manager.cc:1335] Poll failed for model directory 'words': failed to read text proto
"""


def test_why_a_polling_server_refused_is_in_its_log() -> None:
    assert log.reasons(LOGGED.splitlines(), ["digits", "words", "faces"]) == {
        "digits": "failed to load 'digits' version 1: Internal: RBLNRuntimeError: no NPU 3",
        "words": "Poll failed for model directory 'words': failed to read text proto",
    }


NEWER = """\
I1124 20:15:43.489786 1 model_lifecycle.cc:472] "loading: digits:1"
I1124 20:15:43.490288 1 model_lifecycle.cc:472] "loading: beta:1"
I1124 20:15:43.492105 1 model_lifecycle.cc:472] "loading: alpha:1"
E1124 20:15:43.494741 1 model_lifecycle.cc:642] "failed to load 'beta' version 1: Unsupported: Incorrect value"
I1124 20:15:43.494813 1 model_lifecycle.cc:777] "failed to load 'beta'"
loading: nothing:1
I1124 20:15:45.441375 1 model_lifecycle.cc:839] "successfully loaded 'alpha'"
"""


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (NEWER, {"digits"}),
        (LOGGED, set()),
        ("I1121 21:00:00.000001 1 model_lifecycle.cc:461] loading: digits:1\n", {"digits"}),
        (NEWER + 'I1124 20:15:52.1 1 model_lifecycle.cc:472] "loading: beta:1"\n', {"beta", "digits"}),
        ("", set()),
    ],
)
def test_what_a_server_still_loads_is_in_its_log(written: str, names: set[str]) -> None:
    assert log.loading(written.splitlines()) == names


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (NEWER, "it still loads digits"),
        (LOGGED, "its log ends with \"Poll failed for model directory 'words': failed to read text proto\""),
        ("", "its log is empty"),
    ],
)
def test_how_far_a_silent_server_has_come_is_in_its_log(written: str, words: str) -> None:
    assert log.progress(written.splitlines(), ["digits", "words"]) == words


def test_every_option_is_a_variable() -> None:
    assert command(
        "none",
        [],
        triton_server_model_repositories=["/a", "/b"],
        triton_server_exit_on_error=False,
        triton_server_exit_timeout=5,
        triton_server_allow_http=False,
        triton_server_allow_grpc=False,
        triton_server_allow_metrics=False,
        triton_server_log_verbose=2,
        triton_server_auto_complete_config=False,
        triton_server_extra_args=["--cache-config=local,size=1048576", 7],
    ) == [
        "tritonserver",
        "--model-repository=/a",
        "--model-repository=/b",
        "--model-control-mode=none",
        "--exit-on-error=false",
        "--exit-timeout-secs=5",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--allow-gpu-metrics=false",
        "--http-port=8000",
        "--grpc-port=8001",
        "--metrics-port=8002",
        "--log-verbose=2",
        "--disable-auto-complete-config",
        "--cache-config=local,size=1048576",
        "7",
    ]


def test_a_service_that_is_off_publishes_no_port() -> None:
    asked = wanted(triton_server_allow_grpc=False, npufleet_metrics_port="9102", triton_server_listen_address="10.0.0.5")
    assert asked["container"]["ports"] == {"8000/tcp": "10.0.0.5:8000", "8002/tcp": "10.0.0.5:9102"}
    assert asked["published_ports"] == ["10.0.0.5:8000:8000", "10.0.0.5:9102:8002"]
    assert "--allow-grpc=false" in asked["container"]["command"]


@pytest.mark.parametrize(
    ("driver", "options"),
    [("json-file", {"max-size": "50m", "max-file": "5"}), ("local", {"max-size": "50m", "max-file": "5"}), ("journald", {})],
)
def test_options_of_the_log_fit_its_driver(driver: str, options: dict[str, str]) -> None:
    assert wanted(triton_server_log_driver=driver)["container"]["log"] == {"driver": driver, "options": options}


def test_metrics_may_be_published_on_an_address_of_their_own() -> None:
    ports = wanted(triton_server_metrics_listen_address="10.0.0.5")["container"]["ports"]
    assert ports == {"8000/tcp": "0.0.0.0:8000", "8001/tcp": "0.0.0.0:8001", "8002/tcp": "10.0.0.5:8002"}
    with pytest.raises(Refusal, match=r"^triton_server_metrics_listen_address is eth0, expected an IP address"):
        wanted(triton_server_metrics_listen_address="eth0")


def test_only_changed_options_of_metrics_logs_and_traces_are_on_the_command_line() -> None:
    before = wanted()["container"]["command"]
    trace = ["mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:4318/v1/traces"]
    after = wanted(
        triton_server_allow_cpu_metrics=False,
        triton_server_metrics_interval="5000",
        triton_server_metrics_config=["summary_latencies=true", "summary_quantiles=0.5:0.05,0.99:0.001"],
        triton_server_log_format="ISO8601",
        triton_server_trace_config=trace,
    )["container"]["command"]
    assert [word for word in after if word not in before] == [
        "--allow-cpu-metrics=false",
        "--metrics-interval-ms=5000",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001",
        "--log-format=ISO8601",
        *("--trace-config=" + setting for setting in trace),
    ]
    assert [word for word in before if word not in after] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("1g", 2**30),
        ("1G", 2**30),
        ("512m", 2**29),
        ("64k", 2**16),
        ("1gb", 2**30),
        ("100b", 100),
        (67108864, 67108864),
        (" 2m ", 2**21),
    ],
)
def test_size(words: Any, expected: int) -> None:
    assert desired_container.size_of({"triton_server_memory": words}, "triton_server_memory") == expected


@pytest.mark.parametrize("words", ["plenty", "1.5g", "-1g", "1t", "1gib", "g"])
def test_size_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(Refusal) as refusal:
        desired_container.size_of({"triton_server_memory": words}, "triton_server_memory")
    assert refusal.value.reasons == [f"triton_server_memory: {words} is not a size, expected bytes, or a size such as 512m or 1g"]


@pytest.mark.parametrize("words", ["memlock", "memlock:", "memlock:unlimited", "memlock:1:2:3", ""])
def test_ulimit_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(Refusal) as refusal:
        desired_container.ulimits({"triton_server_ulimits": ["stack:1:2", words]})
    assert refusal.value.reasons == [f"triton_server_ulimits has {words}, expected limit:soft:hard such as memlock:-1:-1"]


# A load that hangs


@pytest.mark.parametrize(("started", "plans"), [("2026-11-21T22:00:00.1Z", True), ("2026-11-21T23:00:00.1Z", False)])
def test_a_load_that_hangs_is_a_difference_until_the_container_starts_again(tmp_path: Any, started: str, plans: bool) -> None:
    (tmp_path / "hung.json").write_text('{"models": ["digits"], "at": 1795300000}')
    names = log_reader.hanging_loads(str(tmp_path), started)
    assert names == (["digits"] if plans else [])
    plan = server.diff(wanted(), actual(hung=names))
    assert plan == ([found("loads", "a load that hangs: digits", "a server that can load", "restart")] if plans else [])


@pytest.mark.parametrize(("age", "boot", "hangs"), [(5.0, None, True), (-5.0, None, False), (5.0, "another", False)])
def test_the_start_of_the_process_tells_whether_a_load_still_hangs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, age: float, boot: str | None, hangs: bool
) -> None:
    """The engine tells its start by the time of day, which may have been set since, to either side."""
    mark = {"at": 1795300000, "boot": boot or clock.boot(), "uptime": 1000.0 + age, "models": ["digits"]}
    (tmp_path / "hung.json").write_text(json.dumps(mark))
    monkeypatch.setattr(clock, "process_started", lambda pid: 1000.0 if pid == 7 else None)
    for started in ("2026-11-21T22:00:00.1Z", "2026-11-21T23:00:00.1Z"):
        assert log_reader.hanging_loads(str(tmp_path), started, 7) == (["digits"] if hangs else [])


@pytest.mark.parametrize("mark", ["", "{", "[]", "{}"])
def test_a_mark_of_a_hung_load_that_cannot_be_read(tmp_path: Any, mark: str) -> None:
    (tmp_path / "hung.json").write_text(mark)
    assert log_reader.hanging_loads(str(tmp_path), "2026-11-21T22:00:00Z") == []


# The served models


def models_plan(served: dict[str, Any], mode: str = "explicit", manifests: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    asked = wanted(mode, manifests)
    host = actual(served=served)
    host["container"] = asked["container"]
    return server.diff(asked, host)


GOOD = f"version 1 READY {'e' * 12}"


@pytest.mark.parametrize(("mode", "action"), [("none", "restart"), ("poll", "wait"), ("explicit", "load")])
@pytest.mark.parametrize(
    ("versions", "current"),
    [
        (None, None),
        ({"1": ready(OTHER)}, f"version 1 READY {'0' * 12}"),
        ({"1": ready(None)}, "version 1 READY no release"),
        ({"2": ready()}, f"version 2 READY {'e' * 12}"),
        ({"1": ready(), "2": ready(OTHER)}, f"{GOOD}, version 2 READY {'0' * 12}"),
        ({"1": ready(), "2": {"state": "LOADING", "reason": "", "release": None}}, f"{GOOD}, version 2 LOADING"),
        ({"1": unavailable("unloaded")}, "version 1 UNAVAILABLE unloaded"),
        ({"1": unavailable("Internal: no NPU 3")}, "version 1 UNAVAILABLE Internal: no NPU 3"),
        ({"-": unavailable("it could not be read")}, "version - UNAVAILABLE it could not be read"),
    ],
)
def test_model_that_is_not_served_as_wanted(versions: Any, current: Any, mode: str, action: str) -> None:
    assert models_plan({"digits": versions} if versions else {}, mode) == [found("digits", current, GOOD, action)]


@pytest.mark.parametrize(("mode", "action"), [("none", "restart"), ("poll", "wait"), ("explicit", "unload")])
def test_model_that_nobody_asked_for_goes(mode: str, action: str) -> None:
    served = {"digits": {"1": ready()}, "faces": {"3": ready(OTHER)}}
    assert models_plan(served, mode) == [found("faces", f"version 3 READY {'0' * 12}", None, action)]


def test_model_that_is_only_known_may_stay() -> None:
    served = {
        "digits": {"1": ready(), "2": unavailable("unloaded")},
        "faces": {"3": unavailable("unloaded")},
        "words": {"-": unavailable("")},
    }
    assert models_plan(served) == []


def test_every_version_of_the_policy_has_to_be_served() -> None:
    manifests = {"digits": {"versions": ["1", "2"], "release": RELEASE, **FACTS}}
    assert models_plan({"digits": {"1": ready(), "2": ready()}}, manifests=manifests) == []
    both = f"version 1 READY {'e' * 12}, version 2 READY {'e' * 12}"
    assert models_plan({"digits": {"1": ready()}}, manifests=manifests) == [found("digits", GOOD, both, "load")]


def test_all_models_that_differ_are_named_in_order() -> None:
    manifests = dict.fromkeys(("words", "digits", "faces"), MANIFESTS["digits"])
    plan = models_plan({"faces": {"1": ready()}, "b": {"1": ready()}, "a": {"1": ready()}}, manifests=manifests)
    assert [(item["name"], item["action"]) for item in plan] == [
        ("digits", "load"),
        ("words", "load"),
        ("a", "unload"),
        ("b", "unload"),
    ]


@pytest.mark.parametrize("name", ["with space", "new\nline"])
def test_model_that_no_request_can_name_is_told_with_the_reason(name: str) -> None:
    served = {"digits": {"1": ready()}, name: {"3": {**ready(None), "reason": http_api.URL_UNSAFE}}}
    assert models_plan(served) == [found(name, f"version 3 READY no release ({http_api.URL_UNSAFE})", None, "unload")]


# Reading


def config(release: str | None) -> dict[str, Any]:
    parameters = {"npufleet_source": {"string_value": "f" * 64}, "npufleet_release": {"string_value": release}} if release else {}
    return {"name": "digits", "backend": "rbln", "parameters": parameters}


@pytest.mark.parametrize("name", UTF8)
def test_release_of_a_name_is_asked_for_by_its_very_bytes(name: str) -> None:
    index = [{"name": name, "version": "1", "state": "READY"}]
    answers = {"POST /v2/repository/index": (200, index), f"GET /v2/models/{name}/versions/1/config": (200, config(RELEASE))}
    with http_server(answers) as triton:
        assert read_served({"address": "127.0.0.1", "http_port": triton.port}) == {name: {"1": ready()}}


@pytest.mark.parametrize("name", URL_UNSAFE_NAMES)
def test_name_that_no_request_can_hold_ends_no_look(name: str) -> None:
    index = [{"name": entry, "version": "1", "state": "READY"} for entry in (name, "ok")]
    answers = {"POST /v2/repository/index": (200, index), "GET /v2/models/ok/versions/1/config": (200, config(RELEASE))}
    with http_server(answers) as triton:
        served = read_served({"address": "127.0.0.1", "http_port": triton.port})
    assert served == {"ok": {"1": ready()}, name: {"1": {**ready(None), "reason": http_api.URL_UNSAFE}}}
    assert [request for request in triton.asked if "/models/" in request] == ["GET /v2/models/ok/versions/1/config"]


@pytest.mark.parametrize(
    "entry",
    [
        b"3",
        b"null",
        b"{}",
        b'{"name": 3}',
        b'{"name": "\xff", "version": "1", "state": "READY"}',
        b'{"name": "\\ud800"}',
        b'{"name": "x", "version": "../1", "state": "READY"}',
        b'{"name": "x", "version": "1", "state": 3}',
    ],
)
def test_index_that_is_none_of_tritons_ends_no_look(entry: bytes) -> None:
    index = b"[" + entry + b', {"name": "ok", "version": "1", "state": "READY"}]'
    answers: dict[str, tuple[int, Any]] = {
        "POST /v2/repository/index": (200, index),
        "GET /v2/models/ok/versions/1/config": (200, config(RELEASE)),
    }
    with http_server(answers) as triton:
        served = read_served({"address": "127.0.0.1", "http_port": triton.port}) or {}
    assert served.pop("ok") == {"1": ready()}
    # What is not to be written down would end the module at its very end.
    assert [item.encode().decode() for item in served] == list(served)
    assert [version["state"] for versions in served.values() for version in versions.values()] in ([], ["UNAVAILABLE"], ["READY"])


@pytest.mark.parametrize("parameters", [3, [], {"npufleet_release": "text"}, {"npufleet_release": {"string_value": 3}}])
def test_config_that_is_none_of_tritons_has_no_release(parameters: Any) -> None:
    index = [{"name": "ok", "version": "1", "state": "READY"}]
    answers = {"POST /v2/repository/index": (200, index), "GET /v2/models/ok/versions/1/config": (200, {"parameters": parameters})}
    with http_server(answers) as triton:
        assert read_served({"address": "127.0.0.1", "http_port": triton.port}) == {"ok": {"1": ready(None)}}


def test_read_served() -> None:
    index = [
        {"name": "digits", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "digits", "version": "2", "state": "READY"},
        {"name": "faces", "version": "1", "state": "READY"},
        {"name": "words", "version": "1", "state": "LOADING"},
        {"name": "known"},
        {"name": "unversioned", "state": "READY"},
        {"name": "stateless", "version": "1"},
        {"name": "broken", "reason": "model appears in two or more repositories"},
    ]
    answers = {
        "POST /v2/repository/index": (200, index),
        "GET /v2/models/digits/versions/2/config": (200, config(RELEASE)),
        "GET /v2/models/faces/versions/1/config": (200, config(None)),
    }
    with http_server(answers) as triton:
        served = read_served({"address": "127.0.0.1", "http_port": triton.port})
    assert served == {
        "digits": {"1": unavailable("unloaded"), "2": ready()},
        "faces": {"1": ready(None)},
        "words": {"1": {"state": "LOADING", "reason": "", "release": None}},
        "known": {"-": unavailable("it could not be read")},
        "unversioned": {"-": unavailable("it could not be read")},
        "stateless": {"-": unavailable("it could not be read")},
        "broken": {"-": unavailable("model appears in two or more repositories")},
    }
    assert triton.asked == [f"{how} {where}" for how, where in (entry.split(" ", 1) for entry in answers)]


def test_release_that_cannot_be_asked_for_is_none() -> None:
    index = [{"name": "digits", "version": "1", "state": "READY"}]
    asked = "GET /v2/models/digits/versions/1/config"
    for answer in ((404, {"error": "unknown"}), (500, config(RELEASE)), (200, b"<html>"), (200, {"parameters": None})):
        with http_server({"POST /v2/repository/index": (200, index), asked: answer}) as triton:
            assert read_served({"address": "127.0.0.1", "http_port": triton.port}) == {"digits": {"1": ready(None)}}


@pytest.mark.parametrize("answer", [(503, {"error": "not ready"}), (503, []), (200, {"error": "no list"}), (200, b"<html>")])
def test_other_answers_are_no_answer(answer: tuple[int, Any]) -> None:
    with http_server({"POST /v2/repository/index": answer}) as other:
        assert read_served({"address": "127.0.0.1", "http_port": other.port}) is None


def test_nobody_at_the_port() -> None:
    with http_server({}) as gone:
        pass
    assert read_served({"address": "127.0.0.1", "http_port": gone.port}) is None


# As 2.51 writes it, in one line with the frames of Python
SERVER_LOG = """\
E1122 01:25:16.407753 1 backend_model.cc:692] "ERROR: Failed to create instance: 'digits' slow\\n\\nAt:\\n  x.py(1): f\\n"
E1122 01:25:25.755904 1 model_lifecycle.cc:642] "failed to load 'digits' version 1: OSError: no NPU 1\\n\\nAt:\\n  x.py(9): f\\n"
E1122 01:25:26.000000 1 model.cc:1] "model 'words' is none of ours"
"""


# Of the lives before, with the engine's stamps; the one that goes on has begun with the same load
STARTED = "2026-11-22T01:25:16.5Z"
CUT_OFF = """2026-11-22T01:25:10Z I1122 01:25:10.0 1 model_lifecycle.cc:472] "loading: digits:1"
2026-11-22T01:25:10Z I1122 01:25:10.1 1 model_lifecycle.cc:472] "loading: words:1"
2026-11-22T01:25:11Z E1122 01:25:11.0 1 model_lifecycle.cc:642] "failed to load 'digits' version 1: no"
2026-11-22T01:25:17Z I1122 01:25:17.0 1 model_lifecycle.cc:472] "loading: digits:1"
"""


def read(
    monkeypatch: pytest.MonkeyPatch,
    inspect: dict[str, Any] | None,
    served: Any = "not asked",
    since: list[float] | None = None,
    **inventory: Any,
) -> dict[str, Any]:
    def lines(_engine: Any, _name: str, begin: float = 0, until: float | None = None) -> list[str]:
        if until is None:
            asked.append(begin)
            return SERVER_LOG.splitlines()
        stamped = [line.split(" ", 1) for line in CUT_OFF.splitlines()]
        return [line for stamp, line in stamped if not until or log_reader.epoch(stamp) < until]

    asked: list[float] = [] if since is None else since
    resources = {"/containers/triton/json": inspect, f"/images/{IMAGE['Id']}/json": IMAGE}
    monkeypatch.setattr(reader, "Engine", FakeEngine(resources))
    monkeypatch.setattr(reader, "read_served", lambda _wanted: served)
    monkeypatch.setattr(log_reader.log, "ending_reason", lambda _engine, name: f"the last words of {name}")
    monkeypatch.setattr(log_reader.log, "log_lines", lines)
    monkeypatch.setattr(
        HTTP_JSON,
        lambda *asked, **_more: (200, {"name": "triton", "version": "2.42.0"}) if asked[3] == "/v2" else (404, None),
    )
    return server.read(sealed(**inventory))


def test_the_locked_image_under_the_id_of_another_store_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    ident, other = "sha256:" + "7" * 64, "sha256:" + "8" * 64
    held = {**IMAGE, "RootFS": {"Layers": ["sha256:1"]}}
    strange = {**held, "RootFS": {"Layers": ["sha256:2"]}}
    content = images.content_digest(held)
    monkeypatch.setitem(LOCKED, "content", content)
    monkeypatch.setattr(reader, "read_served", lambda _wanted: {"digits": {"1": ready()}})
    monkeypatch.setattr(HTTP_JSON, lambda *_asked, **_more: (404, None))

    def plan(running: str) -> list[str]:
        resources = {"/containers/triton/json": {**INSPECT, "Image": running}}
        resources.update({f"/images/{ident}/json": {**held, "Id": ident}, f"/images/{other}/json": {**strange, "Id": other}})
        resources[f"/images/{LOCKED['reference']}/json"] = resources[f"/images/{ident}/json"]
        monkeypatch.setattr(reader, "Engine", FakeEngine(resources))
        actual = server.read(sealed())
        assert actual["image"] == ident, "what a new container is made of here"
        return [entry["name"] for entry in server.diff(sealed(), actual)]

    assert plan(ident) == []
    assert plan(other) == ["container.image"]


def test_read_of_a_running_container(monkeypatch: pytest.MonkeyPatch) -> None:
    served = {"digits": {"1": ready()}}
    assert read(monkeypatch, INSPECT, served) == {
        "engine": True,
        "image": None,
        "inherited": secret.seal_values(container.environment(IMAGE["Config"]), KEY),
        "container": sealed()["container"],
        "state": "running",
        "restarts": 0,
        "previous": False,
        "hung": [],
        "served": served,
        "release": "24.01",
        "version": "2.42.0",
        "absent": [],
        "driver_files": BROUGHT,
        "access": ALL,
    }


def test_a_server_without_an_answer_is_asked_for_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = read(monkeypatch, INSPECT, None)
    words = "failed to load 'digits' version 1: OSError: no NPU 1"
    assert silent["log"] == words
    (item,) = server.diff({**wanted(), "container": silent["container"]}, silent)
    assert (item["name"], item["current"], item["action"]) == ("http", f"no answer on port 8000: {words}", "wait")


def test_a_server_without_an_answer_is_told_with_what_it_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SERVER_LOG", 'I1124 20:15:43.489786 1 model_lifecycle.cc:472] "loading: digits:1"')
    silent = read(monkeypatch, INSPECT, None)
    assert server.diff(wanted(), silent)[-1]["current"] == "no answer on port 8000: it still loads digits"


@pytest.mark.parametrize(("restarts", "renewed", "since"), [(1, 5.0, 5.0), (0, 5.0, None), (1, 0, None), (1, None, None)])
def test_one_that_the_engine_started_again_tells_all_that_it_said_in_the_switch(
    monkeypatch: pytest.MonkeyPatch, restarts: int, renewed: float | None, since: float | None
) -> None:
    """It ends when it has tried every model, and its next life has come to fewer of them."""
    asked: list[float] = []
    silent = changed("RestartCount", restarts)
    monkeypatch.setattr(log_reader.store, "read_transaction", lambda _root: None if renewed is None else {"renewed": renewed})
    read(monkeypatch, silent, None, since=asked)
    assert asked == [since or log_reader.epoch(silent["State"]["StartedAt"])]


def test_a_server_that_ended_before_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SERVER_LOG", "")
    silent = read(monkeypatch, changed("RestartCount", 2), None)
    (item,) = server.diff({**wanted(), "container": silent["container"]}, silent)
    assert item["current"] == "no answer on port 8000, restart count 2: the last words of triton"


@pytest.mark.parametrize(
    ("models", "state", "cut_off"),
    [
        # Only what was said before it was started again
        (("digits", "words"), {"Status": "running", "Running": True, "StartedAt": STARTED}, ["words"]),
        (("digits",), {"Status": "running", "Running": True, "StartedAt": STARTED}, []),
        (("digits",), {"Status": "restarting", "Running": True, "ExitCode": 139, "StartedAt": STARTED}, ["digits"]),
    ],
)
def test_what_a_server_that_ended_was_still_loading(
    monkeypatch: pytest.MonkeyPatch, models: tuple[str, ...], state: dict[str, Any], cut_off: list[str]
) -> None:
    asked = {**sealed(), "models": dict.fromkeys(models)}
    monkeypatch.setitem(globals(), "sealed", lambda **_inventory: asked)
    inspect = changed("State", state)
    inspect["RestartCount"] = 1
    assert read(monkeypatch, inspect, None)["cut_off"] == cut_off


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [("2026-11-22T01:25:16.5Z", 1795310716.5), ("2026-11-22T01:25:16Z", 1795310716.0), ("0001-01-01", 0), ("", 0)],
)
def test_time_of_the_engine(stamp: str, seconds: float) -> None:
    assert log_reader.epoch(stamp) == seconds


@pytest.mark.parametrize("answer", [(0, "connection refused"), (200, "not JSON"), (503, {"version": "2.42.0"})])
def test_version_is_only_known_from_an_answer(monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]) -> None:
    running = read(monkeypatch, INSPECT, None)
    assert running["version"] == "2.42.0"
    monkeypatch.setattr(HTTP_JSON, lambda *_asked, **_more: answer)
    assert server.read(sealed())["version"] is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"Status": "exited", "Running": False, "Restarting": False, "ExitCode": 1}, "exited (1)"),
        ({"Status": "created", "Running": False, "ExitCode": 0}, "created (0)"),
        ({"Status": "restarting", "Running": True, "Restarting": True, "ExitCode": 139}, "restarting (139)"),
    ],
)
def test_read_of_a_container_that_does_not_run(monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], words: str) -> None:
    ended = read(monkeypatch, changed("State", state))
    assert (ended["state"], ended["served"], ended["log"]) == (words, None, "the last words of triton")


def test_read_without_container_or_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"absent": [], "driver_files": BROUGHT, "access": ALL}
    assert read(monkeypatch, None) == {"engine": True, "container": None, "served": None, "previous": False, "image": None, **files}
    monkeypatch.setattr(reader, "Engine", FakeEngine(None))
    assert server.read(sealed()) == {"engine": False, "container": None, "served": None, **files}


def frame(stream: int, words: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(words)) + words


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (frame(2, b"E0308 no such model\n") + frame(1, b"exiting\n"), "E0308 no such model"),
        (b"a terminal's plain output\n", "a terminal's plain output"),
        (
            frame(2, SERVER_LOG.encode() + b"error: creating server: Internal\n"),
            "failed to load 'digits' version 1: OSError: no NPU 1",
        ),
        (b"", ""),
        (frame(1, b"x" * 2000), "x" * 1500),
    ],
)
def test_last_words(tmp_path: Path, raw: bytes, words: str) -> None:
    asked = "/containers/triton/logs?stdout=1&stderr=1&tail=1000"
    place = tmp_path / "s"
    with unix_server(place, {"GET " + asked: (200, raw)}):
        assert log.ending_reason(Engine(str(place)), "triton") == words
    assert log.ending_reason(Engine(str(place)), "triton") == ""


# Where the server listens


@pytest.mark.parametrize(
    ("listens", "asked"),
    [("10.0.0.5", "10.0.0.5"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("", "127.0.0.1"), ("2001:DB8:0::5", "2001:db8::5")],
)
def test_the_address_that_the_server_listens_on_is_asked(monkeypatch: pytest.MonkeyPatch, listens: str, asked: str) -> None:
    addresses: list[tuple[str, int, str]] = []

    def answer(address: str, port: int, _method: str, resource: str, **_more: Any) -> tuple[int, Any]:
        addresses.append((address, port, resource))
        return 200, [{"name": "digits", "version": "1", "state": "READY"}] if resource.endswith("index") else {}

    monkeypatch.setattr(HTTP_JSON, answer)
    host_address = desired_container.listen_address(fleet(triton_server_listen_address=listens))
    inspect = changed("HostConfig.PortBindings", {"8000/tcp": [{"HostIp": host_address, "HostPort": "9000"}]})
    resources = {"/containers/triton/json": inspect, f"/images/{IMAGE['Id']}/json": IMAGE}
    monkeypatch.setattr(reader, "Engine", FakeEngine(resources))
    server.read(sealed(triton_server_listen_address=listens, npufleet_http_port="9000"))
    assert addresses == [
        (asked, 9000, "/v2/repository/index"),
        (asked, 9000, "/v2/models/digits/versions/1/config"),
        (asked, 9000, "/v2"),
    ]


def test_server_that_was_started_manually_is_read_at_the_port_of_the_inventory() -> None:
    """Only the inventory knows the options of a server that a script or `docker exec` has started."""
    inspect = changed("HostConfig.NetworkMode", "host")
    settings = {"address": "127.0.0.1", "http_port": 9000, "key": None}
    for command in (["sleep", "infinity"], ["bash", "-c", "tritonserver --http-port=$PORT"]):
        inspect["Config"]["Cmd"] = command
        assert connection.of_container(settings, inspect) == settings
    inspect["Config"]["Cmd"] = ["/opt/tritonserver/bin/tritonserver", "--http-port=9500"]
    assert connection.of_container(settings, inspect) == {**settings, "http_port": 9500}


def test_a_server_is_read_where_its_container_publishes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory may already describe the next container, or still that of a change which was rolled back."""
    asked: list[tuple[str, int, Any]] = []

    def answer(address: str, port: int, *_asked: Any, headers: Any) -> tuple[int, Any]:
        asked.append((address, port, headers))
        return 404, None

    monkeypatch.setattr(HTTP_JSON, answer)
    monkeypatch.setattr(reader.keys, "content", lambda path: f"the key in {path}")
    monkeypatch.setattr(log_reader.log, "ending_reason", lambda *_asked: "")
    monkeypatch.setattr(log_reader.log, "log_lines", lambda *_asked: [])
    inspect = changed("HostConfig.PortBindings", {"8000/tcp": [{"HostIp": "127.0.0.2", "HostPort": "9000"}]})
    inspect["Config"]["Cmd"] = desired_server.desired(
        fleet(triton_server_api_key_name="old-key"), Context(MANIFESTS, image=lambda: LOCKED)
    )["container"]["command"]
    monkeypatch.setattr(reader, "Engine", FakeEngine({"/containers/triton/json": inspect, f"/images/{IMAGE['Id']}/json": IMAGE}))
    actual = server.read(sealed(npufleet_http_port=9500, triton_server_api_key_name="new-key"))
    assert asked == [("127.0.0.2", 9000, {"old-key": f"the key in {KEY_FILE}"})] * 3
    (item,) = [entry for entry in server.diff(sealed(npufleet_http_port=9500), actual) if entry["name"] == "http"]
    assert item["current"] == "no answer on port 9000: its log is empty"


@pytest.mark.parametrize(
    ("listens", "where", "published", "recorded"),
    [
        ("10.0.0.5", "10.0.0.5:8000", "10.0.0.5:8000:8000", "10.0.0.5"),
        ("0.0.0.0", "0.0.0.0:8000", "0.0.0.0:8000:8000", "0.0.0.0"),
        ("::", "[::]:8000", "[::]:8000:8000", "::"),
        ("2001:DB8:0::5", "[2001:db8::5]:8000", "[2001:db8::5]:8000:8000", "2001:db8::5"),
        (" [::1] ", "[::1]:8000", "[::1]:8000:8000", "::1"),
        ("", ":8000", "8000:8000", ""),
    ],
)
def test_ports_are_published_where_it_is_asked_for(listens: str, where: str, published: str, recorded: str) -> None:
    asked = wanted(triton_server_listen_address=listens)
    assert asked["container"]["ports"]["8000/tcp"] == where
    assert asked["published_ports"][0] == published
    inspect = changed("HostConfig.PortBindings", {port: [{"HostIp": recorded, "HostPort": port[:4]}] for port in BOUND})
    assert server.diff(asked, actual(inspect)) == []
    for other in {"10.0.0.6", "0.0.0.0", "::", ""} - {recorded}:
        inspect = changed("HostConfig.PortBindings", {port: [{"HostIp": other, "HostPort": port[:4]}] for port in BOUND})
        names = [item["name"] for item in server.diff(asked, actual(inspect))]
        # No address recorded is more than every IPv4 address, and not to be told from it on some engines
        assert names == ([] if (recorded, other) == ("0.0.0.0", "") else ["container.ports"]), other


@pytest.mark.parametrize("listens", ["npu-01.example.com", "10.0.0", "10.0.0.5:8000", "*"])
def test_ports_are_published_on_addresses_alone(listens: str) -> None:
    with pytest.raises(Refusal, match=f"^triton_server_listen_address is {re.escape(listens)}, expected an IP address of the host"):
        wanted(triton_server_listen_address=listens)


def test_errors_are_preferred_to_the_last_lines_and_said_once(tmp_path: Path) -> None:
    usage = b"".join(b"  --option%d\n" % number for number in range(300))
    written = (b"tritonserver: unrecognized option '--x'\n" + usage) * 3
    asked = "/containers/triton/logs?stdout=1&stderr=1&tail=1000"
    with unix_server(tmp_path / "s", {"GET " + asked: (200, written)}):
        assert log.ending_reason(Engine(str(tmp_path / "s")), "triton") == "tritonserver: unrecognized option '--x'"


# Repositories that Triton reads itself

KEYS = {"s3": {"": {"key_id": "access-of-ours", "secret_key": "secret-of-ours", "region": "lab-1"}}}


def test_models_of_an_object_store_have_to_be_ready_and_nothing_more() -> None:
    repositories = ["/var/lib/npufleet/served", "s3://models"]
    given = fleet(triton_server_model_control_mode="explicit", triton_server_model_repositories=repositories)
    asked = desired_server.desired(given, Context(MANIFESTS, ["far"], lambda: LOCKED))
    assert [word for word in asked["container"]["command"] if word.startswith("--load-model")] == [
        "--load-model=digits",
        "--load-model=far",
    ]

    def plan(far: Any) -> list[dict[str, Any]]:
        served = {"digits": {"1": ready()}, **far}
        return [item for item in server.diff(asked, actual(served=served)) if not item["name"].startswith("container.")]

    assert plan({"far": {"3": ready(None), "4": unavailable("unloaded")}}) == []
    wanted_of = "READY out of its object store"
    assert plan({}) == [found("far", None, wanted_of, "load")]
    assert plan({"far": {"1": unavailable("no key")}}) == [found("far", "version 1 UNAVAILABLE no key", wanted_of, "load")]


def test_keys_are_mounted_and_in_no_setting_of_the_container() -> None:
    asked = wanted(triton_server_cloud_credentials=KEYS)
    path = asked["credentials"]["path"]
    assert re.fullmatch("/etc/npufleet/credentials/cloud-[0-9a-f]{12}.json", path)
    assert asked["container"]["environment"]["TRITON_CLOUD_CREDENTIAL_PATH"] == path
    assert f"{path}:{path}:ro" in asked["container"]["volumes"]
    assert not any(word in json.dumps(asked) for word in ("access-of-ours", "secret-of-ours"))
    other = wanted(triton_server_cloud_credentials={"s3": {"": {"key_id": "another"}}})
    assert other["credentials"]["path"] != path
    plain = wanted()
    assert plain["credentials"] is None
    assert "TRITON_CLOUD_CREDENTIAL_PATH" not in plain["container"]["environment"]


def test_keys_on_the_host_are_read_back(tmp_path: Path) -> None:
    keys = {**desired_server.credentials(KEYS), "path": str(tmp_path / "keys.json")}
    alone, shared = {"group": 61100, "group_must_read": False}, {"group": 61100, "group_must_read": True}
    assert credentials.credentials_flaw(keys, **alone) == "missing"
    (tmp_path / "keys.json").write_text(json.dumps(KEYS, sort_keys=True))
    (tmp_path / "keys.json").chmod(0o600)
    owner, group = (tmp_path / "keys.json").stat().st_uid, (tmp_path / "keys.json").stat().st_gid
    assert credentials.credentials_flaw(keys, **alone) == (None if owner == 0 else f"mode 0600 of user {owner} and group {group}")
    assert credentials.credentials_flaw(keys, **shared) == f"mode 0600 of user {owner} and group {group}"
    (tmp_path / "keys.json").chmod(0o644)
    assert credentials.credentials_flaw(keys, **alone) == f"mode 0644 of user {owner} and group {group}"
    if owner == 0:
        (tmp_path / "keys.json").chmod(0o640)
        assert credentials.credentials_flaw(keys, **shared) == f"mode 0640 of user 0 and group {group}"
        os.chown(tmp_path / "keys.json", 0, 61100)
        assert (credentials.credentials_flaw(keys, **shared), credentials.credentials_flaw(keys, **alone)) == (None, None)
    (tmp_path / "keys.json").write_text("{}")
    assert str(credentials.credentials_flaw(keys, **alone)).startswith("SHA-256 44136fa355b3")
    asked = wanted(triton_server_cloud_credentials=KEYS)
    (first, *_rest) = server.diff(asked, {**actual(), "credentials": "nothing"})
    digest = asked["credentials"]["sha256"][:12]
    assert first == found("credentials", "nothing", f"SHA-256 {digest}, for root alone", "write")


# Secrets of its environment and its command line

SECRETS = {
    "triton_server_environment": {"RBLN_DEVICES": "0,1", "HF_TOKEN": "t0ken-secret", "NOTE": "n0te-secret"},
    "triton_server_extra_args": ["--cache-config=redis,password=k3y-secret", "--some-option=0ption-secret"],
    "triton_server_log_options": {"max-size": "50m", "splunk-token": "spl7nk-secret"},
}


def test_no_secret_of_a_container_is_read_compared_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    inspect = changed("Config.Env", [*ENVIRONMENT, "HF_TOKEN=0ld-secret", "NOTE=n0te-secret", "MINE=f0reign-secret"])
    inspect["Config"]["Cmd"] = [*COMMAND, "--cache-config", "redis,password=k3y-secret"]
    inspect["Config"]["Entrypoint"] = ["sh", "-c", "ENTRY=entry-secret"]
    inspect["HostConfig"]["LogConfig"] = {"Type": "splunk", "Config": {"splunk-token": "0ther-secret"}}
    asked = sealed(**SECRETS)
    ready_one = read(monkeypatch, inspect, {"digits": {"1": ready()}}, **SECRETS)
    plan = server.diff(sealed(**SECRETS), {**ready_one, "container": ready_one["container"]})
    told = json.dumps([asked, ready_one, plan, [sentence(item, 10**6) for item in plan], as_diff(plan)])
    assert re.findall(r"[\w-]*-secret", told) == []
    assert {"container.command", "container.entrypoint", "container.environment", "container.log"} <= {
        item["name"] for item in plan
    }
    (environment,) = [item for item in plan if item["name"] == "container.environment"]
    found, wanted_ = environment["current"], environment["desired"]
    assert set(found) == {"RBLN_DEVICES", "HF_TOKEN", "NOTE", "MINE"}
    # The names tell which one differs
    assert {name for name in found if found[name] != wanted_.get(name)} == {"HF_TOKEN", "MINE"}


def test_the_same_secrets_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = wanted(**SECRETS)["container"]
    inspect = changed("Config.Env", [*ENVIRONMENT, *(f"{name}={value}" for name, value in list(raw["environment"].items())[1:])])
    inspect["Config"]["Cmd"] = raw["command"]
    inspect["HostConfig"]["LogConfig"]["Config"] = raw["log"]["options"]
    actual_ = read(monkeypatch, inspect, {"digits": {"1": ready()}}, **SECRETS)
    assert server.diff(sealed(**SECRETS), actual_) == []


def test_last_words_tell_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "hanging_loads", lambda *_asked: [])
    inspect = changed("State", {"Status": "exited", "Running": False, "ExitCode": 1})
    inspect["Config"]["Env"] = ["HF_TOKEN=t0ken-secret"]
    resources = {"/containers/triton/json": inspect, f"/images/{IMAGE['Id']}/json": IMAGE}
    monkeypatch.setattr(reader, "Engine", FakeEngine(resources))
    monkeypatch.setattr(log_reader.log, "ending_reason", lambda _engine, _name: "ValueError: t0ken-secret is no token")
    monkeypatch.setattr(log_reader.log, "log_lines", lambda *_asked, **_span: [])
    assert server.read(sealed())["log"] == "ValueError: *** is no token"
