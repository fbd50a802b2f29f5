"""A container without privileges: what it may be and do, and what of the host it is given."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import server
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import container, device_access
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container as desired_container
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access as desired_device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server as desired_server
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import ROW, fleet

ROOT = "/var/lib/npufleet"
ASKED: dict[str, Any] = {"npus": 2, "user": 61100, "binds": [], "cdi_names": []}
NODES = ["/dev/rbln0:/dev/rbln0:rw", "/dev/rbln1:/dev/rbln1:rw", "/dev/rsd0:/dev/rsd0:rw"]


def desired(**inventory: Any) -> dict[str, Any]:
    return desired_server.desired(
        fleet(**inventory), Context(image=lambda: {"id": "sha256:1", "reference": "npufleet/triton:1", "content": None})
    )


def least(**inventory: Any) -> dict[str, Any]:
    return desired(npufleet_device_access="devices", **inventory)


class Nodes(dict[str, tuple[int, int]]):
    """The host's device nodes, {path: (mode, group)}, and what its vendor's tool says of groups."""

    tool: Mapping[str, Any] = {"error": "was asked"}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """A host with two NPUs whose nodes are open to all."""
    there = Nodes(dict.fromkeys(("/dev/rbln0", "/dev/rbln1", "/dev/rsd0"), (0o666, 0)))
    real = os.stat

    def played(path: Any, **more: Any) -> os.stat_result:
        if not str(path).startswith("/dev/r"):
            return real(path, **more)
        if path not in there:
            raise FileNotFoundError(path)
        mode, group = there[path]
        return os.stat_result((stat.S_IFCHR | mode, 0, 0, 1, 0, group, 0, 0, 0, 0))

    monkeypatch.setattr(device_access.os, "stat", played)
    monkeypatch.setattr(device_access.glob, "glob", lambda _pattern: [path for path in there if "rsd" in path])
    monkeypatch.setattr(device_access.vendor_tool, "query_groups", lambda: there.tool)
    monkeypatch.setattr(device_access, "_account_conflicts", lambda _user: [])
    return there


# What it may be and do


def test_the_guides_container_is_privileged_and_given_nothing_by_name() -> None:
    asked = desired()
    assert asked["container"]["privileged"] is True
    assert {key: asked["container"][key] for key in desired_container.ENGINE_DEFAULTS} == desired_container.ENGINE_DEFAULTS
    assert (asked["access"], asked["key_readers"]["group_must_read"]) == (None, False)
    assert device_access.find(None) == {"devices": [], "groups": [], "missing": [], "mismatches": []}
    assert "HOME" not in asked["container"]["environment"]


def test_without_privileges_it_has_the_least() -> None:
    asked = least()
    made = asked["container"]
    assert {key: made[key] for key in ("privileged", "user", "read_only", "cap_drop", "cap_add", "security", "tmpfs")} == {
        "privileged": False,
        "user": "61100:61100",
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": ["IPC_LOCK"],
        "security": ["no-new-privileges"],
        "tmpfs": ["/tmp:exec,mode=1777,size=1g"],
    }
    assert made["environment"]["HOME"] == "/tmp"
    # Not the whole of the project's directory, in which the lease, transfers and records of hands lie
    key = "/etc/npufleet/server:/etc/npufleet/server:ro"
    assert made["volumes"] == [key, *(f"{ROOT}/{name}:{ROOT}/{name}:ro" for name in ("blobs", "releases", "served"))]
    assert asked["access"] == {"npus": 2, "user": 61100, "binds": made["volumes"][1:], "cdi_names": []}
    assert asked["key_readers"] == {"group": 61100, "group_must_read": True}


def test_what_a_site_mounts_beside_the_store_stays() -> None:
    mounts = ["/var/lib/npufleet:/var/lib/npufleet:ro", "/srv/tokenizers:/tokenizers"]
    made = least(triton_server_volumes=mounts, triton_server_user=2000, triton_server_environment={"HOME": "/srv"})["container"]
    assert "/srv/tokenizers:/tokenizers:rw" in made["volumes"] and f"{ROOT}:{ROOT}:ro" not in made["volumes"]
    assert (made["user"], made["environment"]["HOME"]) == ("2000:2000", "/srv")
    assert least(triton_server_volumes=["/srv:/srv"])["access"]["binds"] == ["/srv:/srv:rw"]


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        ({"npufleet_device_access": "device"}, "npufleet_device_access is device, expected privileged or devices or cdi"),
        ({"npufleet_device_access": "devices", "triton_server_user": 0}, "triton_server_user is 0, expected the number of a user"),
        ({"triton_server_user": 2**31}, "triton_server_user is 2147483648"),
    ],
)
def test_what_cannot_be_is_refused(inventory: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        desired(**inventory)


# What of the host it is given


def test_nodes_that_are_open_to_all_need_no_group(nodes: Nodes) -> None:
    assert device_access.find(ASKED) == {"devices": NODES, "groups": [], "missing": [], "mismatches": []}
    assert all(desired_device_access.GRANTED_DEVICE.fullmatch(device) for device in NODES)
    # Of a host with more of them it gets what it is to have
    nodes["/dev/rbln2"] = (0o666, 0)
    assert device_access.find(ASKED)["devices"] == NODES


def test_the_group_that_may_open_a_node_is_the_servers_too(nodes: Nodes) -> None:
    nodes.update({"/dev/rbln0": (0o660, 105), "/dev/rbln1": (0o660, 105), "/dev/rsd0": (0o660, 44)})
    assert device_access.find(ASKED) == {"devices": NODES, "groups": ["105", "44"], "missing": [], "mismatches": []}
    assert all(desired_device_access.GROUP_ID.fullmatch(group) for group in ("105", "44"))


@pytest.mark.parametrize(("mode", "group"), [(0o600, 105), (0o660, 0), (0o640, 105), (0o664, 0)])
def test_a_node_that_only_root_may_open_is_told(nodes: Nodes, mode: int, group: int) -> None:
    nodes["/dev/rbln1"] = (mode, group)
    found = device_access.find(ASKED)
    (why,) = found["missing"]
    assert why.startswith(f"/dev/rbln1 has mode {mode:04o} of user 0 and group {group}, expected read and write access for a group")
    assert 'KERNEL=="rbln*|rsd*"' in why and found["groups"] == []


def test_nodes_that_are_not_there_are_told_all_at_once(nodes: Nodes) -> None:
    del nodes["/dev/rbln1"], nodes["/dev/rsd0"]
    first, second = device_access.find(ASKED)["missing"]
    assert first.startswith("device /dev/rbln1 is missing, ") and second.startswith("device /dev/rsd0 is missing, ")


def test_a_file_in_the_place_of_a_node_is_none(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_access.stat, "S_ISCHR", lambda _mode: False)
    assert len(device_access.find(ASKED)["missing"]) == 3


def test_the_node_of_the_group_of_these_npus_is_rsd0_inside(nodes: Nodes) -> None:
    nodes["/dev/rsd3"] = (0o660, 107)
    nodes.tool = {"groups": {"rbln0": 3, "rbln1": 3, "rbln2": 0}}
    found = device_access.find(ASKED)
    assert found == {"devices": [*NODES[:2], "/dev/rsd3:/dev/rsd0:rw"], "groups": ["107"], "missing": [], "mismatches": []}
    assert desired_device_access.GRANTED_DEVICE.fullmatch(found["devices"][2])
    nodes.tool = {"groups": {"rbln0": 3, "rbln1": 0}}
    assert device_access.find(ASKED)["missing"] == [
        "the NPUs are in groups 0, 3, expected one group: a container has the node of one group"
    ]
    nodes.tool = {"error": "it ended with 1"}
    (why,) = device_access.find(ASKED)["missing"]
    assert why.startswith("the groups of the NPUs are unknown (it ended with 1)")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            (0, '{"devices": [{"device": "rbln0", "group_id": "0"}, {"device": "rbln1", "group_id": 12}]}'),
            {"rbln0": 0, "rbln1": 12},
        ),
        ((0, '{"devices": [{"device": "rbln0"}]}'), "-g -j printed an unknown format"),
        ((0, "no JSON"), "-g -j printed an unknown format"),
        ((3, "no driver"), "/usr/bin/rbln-smi ended with 3: no driver"),
    ],
)
def test_groups_are_the_tools(monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str], found: Any) -> None:
    monkeypatch.setattr(vendor_tool, "find_tool", lambda: "/usr/bin/rbln-smi")
    monkeypatch.setattr(vendor_tool, "run", lambda *command, **_limit: answer if command[1:] == ("-g", "-j") else (9, ""))
    said = vendor_tool.query_groups()
    assert said == {"groups": found} if isinstance(found, dict) else found in said["error"]
    monkeypatch.setattr(vendor_tool, "find_tool", lambda: None)
    assert vendor_tool.query_groups() == {"error": "the vendor's tool is in none of /usr/bin, /usr/local/bin"}


@pytest.mark.parametrize(
    ("mode", "rights", "words"),
    [
        (0o755, "ro", None),
        (0o700, "ro", "expected it readable for user 61100"),
        (0o744, "ro", "expected it readable for user 61100"),
        (0o755, "rw", "expected it writable for user 61100"),
        (0o777, "rw", None),
    ],
)
def test_what_the_servers_user_cannot_read_is_told(nodes: Nodes, tmp_path: Path, mode: int, rights: str, words: str | None) -> None:
    tmp_path.chmod(mode)
    barred = device_access.find({**ASKED, "binds": [f"{tmp_path}:/data:{rights}", "cache:/cache:rw", "/nowhere:/there:ro"]})[
        "mismatches"
    ]
    assert len(barred) == (words is not None)
    assert words is None or (barred[0].startswith(f"{tmp_path} has mode {mode:04o} of user ") and words in barred[0])


def test_what_is_its_own_is_judged_by_the_owners_rights(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (tmp_path / "data").chmod(0o600)
    bind = {**ASKED, "binds": [f"{tmp_path}/data:/data:rw"]}
    assert device_access.find({**bind, "user": os.getuid()})["mismatches"] == []
    assert len(device_access.find({**bind, "user": os.getuid() + 1})["mismatches"]) == 1


def test_a_number_that_somebody_on_the_host_has_is_told() -> None:
    reasons = list(device_access._account_conflicts(0))
    assert [reason.split(" has ")[0] for reason in reasons] == ["user root", "group root"]
    assert all("Set triton_server_user" in reason for reason in reasons)
    assert list(device_access._account_conflicts(61100)) == []


# The difference


def test_devices_and_groups_are_part_of_the_container() -> None:
    asked = least()
    facts = {**asked["container"], "devices": NODES, "groups": ["105"]}
    seen: dict[str, Any] = {
        "engine": True,
        "container": facts,
        "state": "running",
        "served": {},
        "absent": [],
        "driver_files": {"binds": [], "missing": []},
        "access": {"devices": NODES, "groups": ["105"], "missing": [], "mismatches": []},
    }
    assert server.diff(asked, seen) == []
    newer = {"devices": [*NODES, "/dev/rbln2:/dev/rbln2:rw"], "groups": [], "missing": [], "mismatches": []}
    plan = server.diff(asked, {**seen, "access": newer})
    assert [(item["name"], item["desired"], item["action"]) for item in plan] == [
        ("container.devices", newer["devices"], "replace"),
        ("container.groups", [], "replace"),
    ]
    (closed,) = server.diff(asked, {**seen, "access": {**seen["access"], "missing": ["found no device /dev/rbln0"]}})
    assert (closed["name"], closed["current"], closed["action"]) == ("device access", "found no device /dev/rbln0", "inspect")


def test_each_way_is_another_container() -> None:
    privileged, alone = desired()["container"], least()["container"]
    inspect = {key for key in alone if alone[key] != privileged[key]}
    assert inspect == {
        *("privileged", "user", "read_only", "cap_drop", "cap_add", "security", "tmpfs"),
        *("environment", "volumes"),
    }


# Where the engine finds them by name


NAMED = {**ASKED, "cdi_names": ["rebellions.ai/npu=0", "rebellions.ai/npu=1"]}
NEWER = {"npufleet_release_row": {**ROW, "driver": {**ROW["driver"], "version": "3.2.2"}}, "npufleet_device_access": "cdi"}


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The vendor's spec, which is there."""
    path = tmp_path / "rbln.yaml"
    path.touch()
    monkeypatch.setattr(device_access.cdi, "SPEC", str(path))
    return path


def test_the_engine_is_asked_for_names_and_the_rest_is_as_without_privileges() -> None:
    asked, by_node = desired(**NEWER), desired(**{**NEWER, "npufleet_device_access": "devices"})
    assert asked["container"]["device_requests"] == ["cdi rebellions.ai/npu=0,rebellions.ai/npu=1"]
    assert {**asked["container"], "device_requests": []} == by_node["container"]
    assert (asked["access"]["cdi_names"], by_node["access"]["cdi_names"]) == (NAMED["cdi_names"], [])
    # The vendor's spec mounts what the driver brings
    assert (asked["driver_files"], by_node["driver_files"]["libraries"]) == (None, True)
    assert asked["key_readers"] == by_node["key_readers"]


def test_no_node_is_given_beside_a_name(nodes: Nodes, spec: Path) -> None:
    nodes["/dev/rbln1"] = (0o660, 105)
    assert device_access.find(NAMED) == {"devices": [], "groups": ["105"], "missing": [], "mismatches": []}


def test_a_spec_that_is_not_there_is_told(nodes: Nodes, spec: Path) -> None:
    spec.unlink()
    assert device_access.find(NAMED)["missing"] == [device_access.NO_SPEC]
    assert device_access.find(ASKED)["missing"] == []


def test_npus_of_another_group_cannot_be_seen_inside(nodes: Nodes, spec: Path) -> None:
    nodes["/dev/rsd2"] = (0o666, 0)
    nodes.tool = {"groups": {"rbln0": 2, "rbln1": 2}}
    assert device_access.find(ASKED)["mismatches"] == []
    (why,) = device_access.find(NAMED)["mismatches"]
    assert why.startswith("the NPUs are in the group of /dev/rsd2, expected the group of /dev/rsd0: the toolkit keeps the name")
    nodes.tool = {"groups": {"rbln0": 0, "rbln1": 0}}
    assert device_access.find(NAMED)["mismatches"] == []


def test_capabilities_of_a_request_by_name_mean_nothing() -> None:
    request = {"Driver": "cdi", "Count": 0, "DeviceIDs": ["rebellions.ai/npu=0"]}
    texts = {container._device_request({**request, "Capabilities": kinds}) for kinds in (None, [], [["npu"]])}
    assert texts == {"cdi rebellions.ai/npu=0"} == set(desired_device_access.requests(1))
    assert container._device_request({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}) == "any gpu all"
