"""The container as a Compose file: every option of it, read back as Compose and an engine make a container of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import container
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils import compose as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server as desired_server
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import fixture, fleet, http_server

IMAGE = fixture("inspect_image.json")
BINDS = ["/usr/local/bin/rbln-stat:/usr/local/bin/rbln-stat:ro"]
ALL: dict[str, Any] = {"devices": [], "groups": [], "missing": [], "mismatches": []}
NODES = {"devices": ["/dev/rbln0:/dev/rbln0:rw", "/dev/rsd0:/dev/rsd0:rw"], "groups": ["105"]}
ACTUAL: dict[str, Any] = {"image": IMAGE["Id"], "absent": [], "driver_files": {"binds": BINDS, "missing": []}, "access": ALL}
HEALTH: dict[str, Any] = {"start_period": 300, "restricted": ["model-repository"]}
SECRET = "hunter2 & $HOME"


def wanted(image: Any = None, **inventory: Any) -> dict[str, Any]:
    return desired_server.desired(
        fleet(**inventory), Context(image=lambda: {"reference": "triton:1", "content": "c" * 64, **(image or {"id": IMAGE["Id"]})})
    )


def written(part: dict[str, Any], **actual: Any) -> dict[str, str]:
    return subject.compose_file(part, desired_server.sealed(part, "key"), {**ACTUAL, **actual}, "npu1", HEALTH)


def service(texts: dict[str, str]) -> dict[str, Any]:
    """The service as Compose understands it: with the values of .env, and $$ for $."""
    values = dict(re.findall(r"^(\w+)='([^']*)'$", texts["env"], re.MULTILINE))

    def meant(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: meant(entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [meant(entry) for entry in value]
        if not isinstance(value, str):
            return value
        return re.sub(r"\$\$|\$\{(\w+):\?[^}]*\}", lambda found: values[found[1]] if found[1] else "$", value)

    made: dict[str, Any] = meant(yaml.safe_load(texts["file"])["services"]["triton"])
    return made


def created(made: dict[str, Any]) -> dict[str, Any]:
    """What `docker inspect` shows of a container of this service, as Compose asks an engine for it."""
    bound: dict[str, Any] = {}
    for port in made["ports"]:
        outside, _colon, inside = port.rpartition(":")
        address, _colon, number = outside.rpartition(":")
        bound[inside] = [{"HostIp": address.strip("[]"), "HostPort": number}]
    base = IMAGE["Config"]
    variables = {**container.environment(base), **made["environment"]}
    limits = [{"Name": name, "Soft": limit["soft"], "Hard": limit["hard"]} for name, limit in made["ulimits"].items()]
    return {
        "Image": made["image"],
        "Config": {
            "Cmd": made["command"],
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "StopTimeout": int(made["stop_grace_period"].rstrip("s")),
            "Entrypoint": made.get("entrypoint", base.get("Entrypoint")),
            "User": made.get("user", base.get("User")),
            "WorkingDir": made.get("working_dir", base.get("WorkingDir")),
        },
        "HostConfig": {
            "LogConfig": {"Type": made["logging"]["driver"], "Config": made["logging"]["options"]},
            "PortBindings": bound,
            "Privileged": made.get("privileged", False),
            "Devices": [
                dict(zip(("PathOnHost", "PathInContainer", "CgroupPermissions"), device.split(":"), strict=True))
                for device in made.get("devices", [])
            ],
            "GroupAdd": made.get("group_add"),
            "CapAdd": made.get("cap_add"),
            "CapDrop": made.get("cap_drop"),
            "SecurityOpt": made.get("security_opt"),
            "ReadonlyRootfs": made.get("read_only", False),
            "Tmpfs": dict(place.split(":", 1) for place in made.get("tmpfs", [])),
            "RestartPolicy": {"Name": made["restart"]},
            "ShmSize": made["shm_size"],
            "Ulimits": limits,
            "Binds": made["volumes"],
            "CpusetCpus": made.get("cpuset", ""),
            "Memory": made.get("mem_limit", 0),
            "NetworkMode": made["network_mode"],
        },
    }


@pytest.mark.parametrize(
    "inventory",
    [
        {},
        {"triton_server_environment": {"RBLN_DEVICES": "0,1", "API_TOKEN": SECRET, "PLAIN": "$HOME is ~"}},
        {"triton_server_cpuset": "0-3", "triton_server_memory": "4g"},
        {"npufleet_device_access": "devices"},
        {"triton_server_listen_address": "::1", "triton_server_allow_grpc": False},
        {"triton_server_listen_address": "", "triton_server_restricted_apis": [], "triton_server_allow_open_control": True},
        {"triton_server_extra_args": ["--cache-config=redis,password=hunter2-and-more", "--cache-config=redis,host=10.0.0.1"]},
        {"triton_server_log_driver": "splunk", "triton_server_log_options": {"splunk-token": "0a1b2c3d-4e5f", "tag": "triton"}},
        {"triton_server_volumes": ["/srv/data:/data"], "triton_server_ulimits": ["nofile:1024:2048"]},
    ],
)
def test_a_container_of_the_file_is_the_wanted_one(inventory: dict[str, Any]) -> None:
    part = wanted(**inventory)
    access = {**ALL, **NODES} if part["access"] else ALL
    texts = written(part, access=access)
    made = service(texts)
    expected = {**part["container"], "volumes": sorted([*part["container"]["volumes"], *BINDS])}
    expected.update({key: access[key] for key in ("devices", "groups")})
    assert container.container_facts(created(made), IMAGE) == expected
    assert (made["container_name"], made["pull_policy"]) == ("triton", "never")
    assert service(written(part, access=access)) == made, "a second run writes the same"


def test_cards_that_the_host_does_not_open_are_told() -> None:
    closed = {**ALL, "missing": ["found no device /dev/rbln0"], "mismatches": ["found user ops"]}
    with pytest.raises(Refusal) as refused:
        written(wanted(npufleet_device_access="devices"), access=closed)
    assert refused.value.reasons == ["npu1: found no device /dev/rbln0", "npu1: found user ops"]


def test_every_option_of_a_container_has_a_form() -> None:
    """Whoever adds one to the concern adds its form here."""
    part = wanted()
    assert set(subject.FACTS) == set(part["container"])
    assert set(subject.OPTION_NAMES) | set(subject.CONVERSIONS) <= set(subject.FACTS)
    assert len({subject.OPTION_NAMES.get(fact, fact) for fact in subject.FACTS}) == len(subject.FACTS)
    part["container"].update(cap_add=["IPC_LOCK"], cap_drop=["ALL"], user="1000", read_only=True, tmpfs=["/tmp"])
    part["container"].update(security=["no-new-privileges"], ipc="host", pid="host", network="host", cpus=1.5, pids_limit=100)
    part["container"].update(entrypoint=["/bin/sh"], working_dir="/srv", extra_hosts=["a:10.0.0.1"])
    made = service(written(part, access={**ALL, **NODES}))
    assert (made["devices"], made["group_add"]) == (NODES["devices"], NODES["groups"])
    assert (made["cap_add"], made["cap_drop"]) == (["IPC_LOCK"], ["ALL"])
    assert (made["user"], made["read_only"], made["tmpfs"], made["security_opt"]) == ("1000", True, ["/tmp"], ["no-new-privileges"])
    assert (made["ipc"], made["pid"], made["network_mode"], made["cpus"], made["pids_limit"]) == ("host", "host", "host", 1.5, 100)
    assert (made["entrypoint"], made["working_dir"], made["extra_hosts"]) == (["/bin/sh"], "/srv", ["a:10.0.0.1"])


def test_cards_that_the_engine_finds_by_name_are_a_reservation() -> None:
    part = wanted()
    part["container"]["device_requests"] = ["cdi rebellions.ai/npu=0,rebellions.ai/npu=1"]
    (asked,) = service(written(part))["deploy"]["resources"]["reservations"]["devices"]
    assert (asked["driver"], asked["device_ids"]) == ("cdi", ["rebellions.ai/npu=0", "rebellions.ai/npu=1"])
    # Without one no Compose takes it, and an engine takes no notice of it
    assert asked["capabilities"] == ["npu"]


def test_an_option_without_a_form_is_refused() -> None:
    part = wanted()
    part["container"]["devicerequests"] = ["x"]
    with pytest.raises(Refusal, match=r"npu1: container\.devicerequests is set, expected only options that npufleet"):
        written(part)


def test_what_may_be_secret_is_in_env_alone() -> None:
    given = {"API_TOKEN": SECRET, "RBLN_DEVICES": "0,1"}
    texts = written(wanted(triton_server_environment=given, triton_server_extra_args=["--cache-config=redis,password=hunter2-too"]))
    assert "hunter2" not in texts["file"]
    assert texts["env"] == "NPUFLEET_VALUE_1='hunter2-too'\nNPUFLEET_VALUE_2='hunter2 & $HOME'\n"
    assert "--cache-config=redis,password=${NPUFLEET_VALUE_1:?" in texts["file"]
    assert "RBLN_DEVICES: 0,1" in texts["file"]
    assert "Values that may be secret are in the file .env" in texts["file"]


def test_without_secrets_there_is_no_env() -> None:
    texts = written(wanted())
    assert texts["env"] == ""
    assert ".env" not in texts["file"]


@pytest.mark.parametrize("value", ["it's", "back\\slash", "two\nlines", "${HOME}"])
def test_a_value_that_the_two_composes_read_otherwise_is_refused(value: str) -> None:
    with pytest.raises(Refusal, match="1 possibly secret values contain a quote") as told:
        written(wanted(triton_server_environment={"API_TOKEN": value}))
    assert value not in str(told.value)


def test_every_reason_at_once() -> None:
    part = wanted(image={"id": None})
    with pytest.raises(Refusal) as told:
        written(part, absent=["/srv/data"], driver_files={"binds": [], "missing": ["/usr/lib/librbln-ml.so"]})
    assert told.value.reasons == [
        "npu1: the lock file has no image, expected the image of this release. Run playbooks/site.yml first",
        "npu1: /srv/data, /usr/lib/librbln-ml.so is missing, expected the source of a mount. Create it, "
        "install the driver for it, or correct triton_server_volumes or triton_server_driver_files",
    ]


def test_an_engine_that_has_the_image_under_another_id_is_told_that_one() -> None:
    other = "sha256:" + "d" * 64
    assert service(written(wanted(), image=other))["image"] == other


@pytest.mark.parametrize("image", [None, "somebody/else:latest"])
def test_a_host_without_the_image_is_refused(image: Any) -> None:
    with pytest.raises(Refusal, match="npu1: the host has no image, expected the locked image"):
        written(wanted(), image=image)


def asked(words: str, port: int, **environment: str) -> int:
    """The exit code of a check of health, of a server on another port."""
    return subprocess.run(
        [sys.executable, "-c", words.replace(" 8000,", f" {port},")], env=environment, stderr=subprocess.DEVNULL, check=False
    ).returncode


@pytest.mark.parametrize("said", [200, 400])
def test_the_engine_asks_whether_it_is_ready(said: int) -> None:
    health = service(written(wanted()))["healthcheck"]
    assert health["test"][:3] == ["CMD", "python3", "-c"]
    assert (health["interval"], health["timeout"], health["start_period"]) == ("30s", "10s", "300s")
    with http_server({"GET /v2/health/ready": (said, b"")}) as answers:
        # The proxy is for what the server downloads
        ready = asked(health["test"][3], answers.port, http_proxy="http://127.0.0.1:9") == 0
    assert ready == (said == 200)


def test_a_closed_question_is_asked_with_the_key_of_the_container(tmp_path: Path) -> None:
    part = wanted(triton_server_restricted_apis=["health", "model-repository"])
    closed = {**HEALTH, "restricted": ["health", "model-repository"]}
    texts = subject.compose_file(part, desired_server.sealed(part, "key"), ACTUAL, "npu1", closed)
    words = service(texts)["healthcheck"]["test"][3]
    assert "{'npufleet-key': open('/etc/npufleet/server/key').read().strip()}" in words
    (tmp_path / "key").write_text("not-for-everybody\n")
    with http_server({"GET /v2/health/ready": (200, b"")}) as answers:
        assert asked(words.replace("/etc/npufleet/server/key", str(tmp_path / "key")), answers.port) == 0
    assert answers.headers[-1]["npufleet-key"] == "not-for-everybody"
