"""The vendor's container toolkit: what is read of it and of its spec, and what a spec has to have."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi

THUNK, SMI = "/usr/lib/librbln-thunk.so", "/usr/bin/rbln-smi"


def entry(name: str, *nodes: str) -> dict[str, Any]:
    paths = [{"path": node, "hostPath": node, "permissions": "rw"} for node in nodes]
    return {"name": name, "containerEdits": {"deviceNodes": paths}}


class Host:
    """A host's files and what its toolkit says; a spec in the shape that the vendor's source writes (internal/cdi)."""

    def __init__(self, place: Path) -> None:
        self.files = {name: place / Path(name).name for name in (f"{THUNK}.3.2.2", SMI)}
        for path in self.files.values():
            path.write_text("of the driver")
        self.binds = [f"{self.files[SMI]}:{SMI}:ro", f"{self.files[f'{THUNK}.3.2.2']}:{THUNK}.3.2.2:ro"]
        self.spec: dict[str, Any] = {
            "cdiVersion": "0.5.0",
            "kind": "rebellions.ai/npu",
            "devices": [entry(str(number), f"/dev/rbln{number}", "/dev/rsd0") for number in range(2)],
            "containerEdits": {
                "mounts": [{"hostPath": str(path), "containerPath": name} for name, path in self.files.items()],
                "hooks": [
                    {"hookName": "createContainer", "args": ["create-symlinks", "--link", f"librbln-thunk.so.3::{THUNK}"]},
                    {"hookName": "createContainer", "args": ["update-ldcache", "--folder", "/usr/lib"]},
                ],
            },
        }
        self.version = "rbln-ctk version v0.2.0\n  Build Date: today"
        self.yaml, self.code = "the spec in YAML", 0
        self.asked: list[tuple[str, ...]] = []

    def run(self, *command: str) -> tuple[int, str]:
        self.asked.append(command)
        if command[1:] == ("version",):
            return 0, self.version
        assert command[:5] == (cdi.TOOLKIT, "cdi", "generate", "--output", "-"), command
        return (self.code, "Error: no") if self.code else (0, self.yaml if command[-1] == "yaml" else json.dumps(self.spec))

    def flaws(self, npus: int = 2, unlinked: bool = False) -> list[str]:
        return list(cdi.spec_flaws(json.dumps(self.spec), npus, unlinked))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    monkeypatch.setattr(cdi, "run", made.run)
    monkeypatch.setattr(driver_files, "find", lambda _wanted: {"binds": made.binds, "missing": []})
    for name, place in (("TOOLKIT", "rbln-ctk"), ("SPEC", "rbln.yaml"), ("SYSTEMD", "systemd")):
        monkeypatch.setattr(cdi, name, str(tmp_path / place))
    monkeypatch.setattr(cdi, "GENERATE_COMMAND", (cdi.TOOLKIT, *cdi.GENERATE_COMMAND[1:]))
    Path(cdi.TOOLKIT).touch(mode=0o755)
    yield made


def test_npus_are_asked_for_by_number() -> None:
    assert cdi.device_names(2) == ["rebellions.ai/npu=0", "rebellions.ai/npu=1"]


def test_a_host_that_is_not_to_have_it_is_asked_nothing(host: Host) -> None:
    assert cdi.read(None) == {"units": dict.fromkeys(cdi.WANTED_BY), "enabled": []}
    assert host.asked == []


def test_units_are_read_and_whether_they_are_started(host: Host) -> None:
    wants = Path(cdi.SYSTEMD) / "docker.service.wants"
    wants.mkdir(parents=True)
    (Path(cdi.SYSTEMD) / cdi.START_UNIT).write_text("[Unit]\n")
    (wants / cdi.START_UNIT).symlink_to(f"../{cdi.START_UNIT}")
    assert cdi.read(None) == {"units": {cdi.SPEC_UNIT: None, cdi.START_UNIT: "[Unit]\n"}, "enabled": [cdi.START_UNIT]}


def test_without_a_toolkit_nothing_else_is_known(host: Host) -> None:
    Path(cdi.TOOLKIT).unlink()
    found = cdi.read(2)
    assert (found["version"], found["spec"], found["error"], host.asked) == (None, None, None, [])


def test_a_spec_is_current_as_long_as_the_toolkit_would_write_the_same(host: Host) -> None:
    assert cdi.read(2)["spec"] is None
    Path(cdi.SPEC).write_text("the spec in YAML\n")
    found = cdi.read(2)
    assert (found["version"], found["spec"], found["flaws"], found["error"]) == ("0.2.0", "current", [], None)
    host.yaml = "of another driver"
    assert cdi.read(2)["spec"] == "outdated"


def test_a_toolkit_that_fails_is_told_in_its_own_words(host: Host) -> None:
    host.code = 1
    Path(cdi.SPEC).write_text("the spec in YAML\n")
    found = cdi.read(2)
    assert found["error"] == f"{cdi.TOOLKIT} cdi generate ended with 1: Error: no"
    assert (found["spec"], found["flaws"]) == ("outdated", [])


@pytest.mark.parametrize(
    ("version", "old"),
    [("0.1.2", True), ("0.2.0", False), ("0.2.3", False), ("1.0.0", False), ("0.10.0", False), ("1:0.2.1-1", False), ("", False)],
)
def test_the_first_that_names_single_npus_is_0_2(version: str, old: bool) -> None:
    assert cdi.is_too_old(version) is old


@pytest.mark.parametrize(
    ("found", "offered", "refused"),
    [
        (None, None, True),
        (None, "0.2.3", False),
        (None, "0.1.2", True),
        ("0.1.2", None, True),
        ("0.1.2", "0.2.0", False),
        ("0.2.0", None, False),
    ],
)
def test_a_toolkit_that_nothing_brings_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: str | None, offered: str | None, refused: bool
) -> None:
    monkeypatch.setattr(cdi, "candidate_version", lambda name: offered if name == "rbln-container-toolkit" else "another")
    reasons = list(cdi.refusals(found))
    assert bool(reasons) is refused
    if refused:
        assert reasons[0].startswith(
            f"rbln-container-toolkit is {found or 'missing'} and {offered or 'missing'} in the host's repositories, expected 0.2"
        )


# What a spec has to have


def test_a_spec_with_each_npu_and_the_drivers_files_has_no_flaw(host: Host) -> None:
    assert host.flaws() == []


def test_each_npu_needs_its_node_and_the_one_of_group_0(host: Host) -> None:
    """As the toolkit writes it where librbln-ml does not answer (no group), and of NPUs in another group."""
    host.spec["devices"] = [entry("0", "/dev/rbln0"), entry("1", "/dev/rbln1", "/dev/rsd2")]
    assert host.flaws(3) == ["no /dev/rsd0 for NPU 0", "no /dev/rsd0 for NPU 1", "no NPU 2"]
    host.spec["devices"] = [entry("0", "/dev/rbln0", "/dev/rsd0")]
    host.spec["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"] = "/dev/rbln4"
    assert host.flaws(1) == ["no /dev/rbln0 for NPU 0"]


def test_files_of_the_driver_that_a_spec_does_not_bring(host: Host) -> None:
    whole = copy.deepcopy(host.spec)
    del host.spec["containerEdits"]["mounts"][1]
    assert host.flaws() == [f"no {host.files[SMI]}", f"no {SMI} in the container"]
    host.spec = copy.deepcopy(whole)
    # The SDK runs it under this path alone
    host.spec["containerEdits"]["mounts"][1]["containerPath"] = "/usr/local/bin/rbln-smi"
    assert host.flaws() == [f"no {SMI} in the container"]
    host.spec = copy.deepcopy(whole)
    del host.spec["containerEdits"]["hooks"]
    assert host.flaws() == ["no librbln-thunk.so in the container"]
    # Which the role is about to give its name
    assert host.flaws(unlinked=True) == []


def test_a_mount_of_what_is_gone_would_keep_every_container_from_starting(host: Host) -> None:
    gone = str(host.files[SMI]) + ".old"
    host.spec["containerEdits"]["mounts"].append({"hostPath": gone, "containerPath": gone})
    assert host.flaws() == [f"a mount of {gone}, which does not exist"]


def test_entries_without_nodes_are_those_of_kubernetes(host: Host) -> None:
    host.spec["devices"] = [{"name": "all", "containerEdits": {}}]
    assert host.flaws(1) == ["no NPU 0"]


@pytest.mark.parametrize("told", ["", "[]", '"x"', "{}", '{"devices": [{"name": "0"}], "containerEdits": {}, "kind": ""}'])
def test_a_spec_in_another_shape_is_told(told: str) -> None:
    (why,) = cdi.spec_flaws(told, 1)
    assert why.startswith("a spec in an unknown format (")


def test_a_spec_of_another_kind(host: Host) -> None:
    host.spec["kind"] = "example.com/npu"
    assert host.flaws() == ["the kind example.com/npu"]


def test_a_library_without_its_plain_name_is_to_be_linked(host: Host, tmp_path: Path) -> None:
    assert cdi.read(2)["link"] is None
    versioned = tmp_path / "librbln-thunk.so.3"
    host.binds.append(f"{versioned}:{THUNK}:ro")
    assert cdi.read(2)["link"] == {"path": str(tmp_path / "librbln-thunk.so"), "to": "librbln-thunk.so.3"}
    host.binds[-1] = f"{tmp_path}/librbln-thunk.so:{THUNK}:ro"
    assert cdi.read(2)["link"] is None


def test_the_unit_makes_it_behind_the_cards_and_before_the_engine() -> None:
    lines = cdi.UNIT_TEXT.splitlines()
    assert {"After=npufleet-cards.service", "Before=docker.service", "Type=oneshot", "WantedBy=multi-user.target"} <= set(lines)
    assert "ExecStart=/usr/bin/rbln-ctk cdi generate --output /var/run/cdi/rbln.yaml --format yaml" in lines


def started(tmp_path: Path, error: str) -> str:
    """What the second unit's command has an engine do whose container ended with this error."""
    docker, calls = tmp_path / "docker", tmp_path / "calls"
    docker.write_text(f"#!/bin/sh\n[ $1 = inspect ] && echo '{error}' || echo \"$@\" >> {calls}\n")
    docker.chmod(0o755)
    # As systemd reads it: a line goes on behind a backslash, and single quotes keep the rest together
    line = re.search(r"ExecStart=/bin/sh -c '(.*?)'\n", cdi.unit_texts("my.triton")[cdi.START_UNIT], re.DOTALL)
    assert line and "%" not in line[1] and "$" not in line[1]
    command = line[1].replace("\\\n", " ")
    subprocess.run(["/bin/sh", "-c", command], check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    return calls.read_text().strip() if calls.exists() else ""


def test_a_server_that_the_engine_could_not_start_is_started_and_no_other(tmp_path: Path) -> None:
    assert started(tmp_path, "") == ""
    assert started(tmp_path, "driver failed programming external connectivity") == ""
    # As Docker 26.1.5 has it
    assert started(tmp_path, 'could not select device driver "cdi" with capabilities: []') == "start my.triton"
    lines = cdi.unit_texts("my.triton")[cdi.START_UNIT].splitlines()
    assert {"After=docker.service", "WantedBy=docker.service", "Type=oneshot"} <= set(lines)
