"""What the lab refuses before it makes anything, and what it finds out by itself."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "lab"))

import engine  # noqa: E402
import hosts  # noqa: E402
import images  # noqa: E402
import standins  # noqa: E402
from settings import Lab, LabError, current_lab  # noqa: E402

import lab  # noqa: E402

LAB = Lab("lab", "172.31.240.0/24")


def test_addresses_and_names_follow_the_lab() -> None:
    assert (LAB.address(0), LAB.address(3)) == ("172.31.240.10", "172.31.240.13")
    assert LAB.container("npu1") == "npufleet-lab-npu1"
    assert len(Lab("a-long-name-of-a-lab", LAB.subnet).bridge) == 15


def test_labs_of_other_names_have_other_subnets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_SUBNET", raising=False)
    subnets = set()
    names = ("lab", "molecule", "bench", "production", "serving", "models", "runfile")
    for name in names:
        monkeypatch.setenv("LAB", name)
        subnets.add(current_lab().subnet)
    assert len(subnets) == len(names)
    monkeypatch.setenv("LAB_SUBNET", "10.0.0.0/16")
    with pytest.raises(LabError, match=r"is 10\.0\.0\.0/16, expected an IPv4 /24"):
        current_lab()


@pytest.mark.parametrize(("given", "shares"), [("", 1024), ("512", 512)])
def test_a_lab_may_give_way_to_others(monkeypatch: pytest.MonkeyPatch, given: str, shares: int) -> None:
    monkeypatch.setenv("LAB_CPU_SHARES", given)
    assert current_lab().shares == shares


@pytest.mark.parametrize("given", ["1", "half", "-5"])
def test_shares_that_are_none(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("LAB_CPU_SHARES", given)
    with pytest.raises(LabError, match=f"LAB_CPU_SHARES is {given}, expected a number of 2 or more"):
        current_lab()


def test_a_machine_without_root_and_disk_is_refused_with_both_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "HOME", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * 2**30))
    monkeypatch.setattr(engine.shutil, "which", lambda tool: "/usr/bin/" + tool)
    with pytest.raises(LabError) as refusal:
        engine.require_machine()
    assert "user ID is 1000, expected root" in str(refusal.value)
    assert "is 3.0 GiB, expected" in str(refusal.value)


def test_an_engine_of_another_checkout_is_named_and_left_alone(tmp_path: Path) -> None:
    """Whatever is called dockerd and was started with a lab's configuration elsewhere; the answer has its process."""
    config = tmp_path / "build/lab/engine/daemon.json"
    other = subprocess.Popen(
        ["dockerd", "-c", "import time; time.sleep(60)", "--config-file", str(config)], executable=sys.executable
    )
    try:
        # The kernel shows a command line a moment after the program was started.
        deadline = time.monotonic() + 300
        while not Path(f"/proc/{other.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert f"process {other.pid} ({config})" in engine.other_engines()
    finally:
        other.kill()
        other.wait()
    assert not any(str(config) in entry for entry in engine.other_engines())


def test_missing_tools_are_installed_by_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(engine, "HOME", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda path: SimpleNamespace(free=99 * 2**30))
    monkeypatch.setattr(engine.shutil, "which", lambda tool: None if tool in ("dockerd", "docker", "rsync") else "/usr/bin/x")
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(engine.subprocess, "run", lambda command, **options: calls.append(command) or done)
    engine.require_machine()
    assert [call[1] for call in calls] == ["update", "install"]
    assert calls[1][-2:] == ["docker.io", "rsync"]


def machine(monkeypatch: pytest.MonkeyPatch, containers: str = "", networks: str = "", routes: str = "[]", ours: str = "") -> None:
    """A machine whose engine and routes say this."""

    def docker(*arguments: str, **options: object) -> str:
        if arguments[0] == "network":
            return networks
        return ours if "--filter" in arguments else containers

    monkeypatch.setattr(hosts, "docker", docker)
    monkeypatch.setattr(hosts, "run", lambda *command: routes)


def test_a_free_machine_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, routes=json.dumps([{"dst": "default"}, {"dst": "192.0.2.0/24", "dev": "eth0"}]))
    hosts.refuse_conflicts(LAB, ["ops1", "npu1"])


def test_taken_name_and_subnet_are_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = json.dumps([{"dst": "172.31.0.0/16", "dev": "br-site"}])
    machine(monkeypatch, containers="npufleet-lab-npu1\nother", routes=routes)
    with pytest.raises(LabError) as refusal:
        hosts.refuse_conflicts(LAB, ["ops1", "npu1"])
    assert "container name npufleet-lab-npu1 is taken" in str(refusal.value)
    assert "subnet 172.31.240.0/24 is taken: 172.31.0.0/16 is on br-site" in str(refusal.value)


def test_its_own_network_and_hosts_are_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = json.dumps([{"dst": "172.31.240.0/24", "dev": "nfl-lab"}])
    machine(monkeypatch, "npufleet-lab-npu1", "npufleet-lab", routes, "npu1 running")
    hosts.refuse_conflicts(LAB, ["ops1", "npu1"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("debian.sources", "Types: deb\nURIs: http://mirror.example.com/debian\nSuites: bookworm\n"),
        ("site.list", "deb [arch=amd64] http://mirror.example.com/debian bookworm main\n"),
    ],
)
def test_the_mirror_is_the_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "security.list").write_text("deb http://mirror.example.com/debian-security bookworm-security main\n")
    real = Path

    def elsewhere(*parts: str) -> Path:
        return tmp_path if parts == ("/etc/apt/sources.list.d",) else real(*parts).with_name("none") if parts else real()

    monkeypatch.setattr(images, "Path", elsewhere)
    assert images.debian_mirror() == "http://mirror.example.com/debian"


def test_wheels_are_fetched_once_and_again_when_the_list_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, ...]] = []
    monkeypatch.setattr(standins, "run", lambda *command: runs.append(command))
    listing = tmp_path / "wheels.txt"
    for words, count in (("one", 1), ("one", 1), ("two", 2)):
        listing.write_text(words)
        standins.download("--requirement", str(listing), into=tmp_path / "wheels")
        assert len(runs) == count


def test_another_source_of_the_sdk_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept index, image or compiled file of before fits no longer; the row's line stays."""
    monkeypatch.setattr(standins, "ROOT", tmp_path)
    source = tmp_path / "lab/sdk/rebel/__init__.py"
    source.parent.mkdir(parents=True)
    seen = set()
    for text in ("one", "two", "one"):
        source.write_text(text)
        seen.add(standins.sdk_version("lab-24.01"))
    assert len(seen) == 2
    assert all(re.fullmatch(r"0\.6\.2\+lab\.s[0-9a-f]{8}", version) for version in seen)


def test_models_are_compiled_once_and_again_when_what_makes_them_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, ...]] = []

    def script(*arguments: str) -> str:
        runs.append(arguments)
        path = Path(arguments[-1], "digits.rbln")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"compiled")
        return json.dumps({"path": str(path), "sha256": "0" * 64})

    monkeypatch.setattr(standins, "ROOT", tmp_path)
    monkeypatch.setattr(standins, "ARTEFACTS", tmp_path / "artefacts")
    monkeypatch.setattr(standins, "_script", script)
    monkeypatch.setattr(standins, "MODELS", ("digits",))
    source = tmp_path / "files/compile/program.py"
    source.parent.mkdir(parents=True)
    for text, count in (("one", 1), ("one", 1), ("two", 2)):
        source.write_text(text)
        found = standins.ensure_models("lab-24.01")
        assert found == {"digits": {"key": "CA12/0.6", "path": "models/digits.rbln", "sha256": "0" * 64}}
        assert len(runs) == count
    assert runs[0][:3] == ("lab/models/digits.py", "RBLN-CA12", standins.sdk_version("lab-24.01"))


@pytest.mark.parametrize(
    ("row", "wanted", "found"),
    [("lab-24.01", None, (2, 2)), ("lab-24.10", "3", (3, 3)), ("lab-26.05", None, (4, 1)), ("lab-26.05", "8", (8, 2))],
)
def test_npus_come_by_cards(row: str, wanted: str | None, found: tuple[int, int]) -> None:
    assert standins.npus_of(standins.card_of(row), wanted) == found


@pytest.mark.parametrize(
    ("row", "following", "card"),
    [
        ("lab-26.05", None, "RBLN-CA25"),
        ("lab-26.05", "lab-24.01", "RBLN-CA12"),
        ("lab-24.01", "lab-26.05", "RBLN-CA12"),
    ],
)
def test_the_cards_of_a_lab_are_of_each_row_that_it_goes_to(row: str, following: str | None, card: str) -> None:
    assert standins.card_of(row, following) == card


def test_a_row_for_other_cards_does_not_follow() -> None:
    with pytest.raises(LabError, match=r"LAB_NEXT is lab-24.10, expected a row with a card of lab-26.05: RBLN-CA25 or RBLN-CA12"):
        standins.card_of("lab-26.05", "lab-24.10")


def test_half_a_card_is_refused() -> None:
    with pytest.raises(LabError, match="NPUS is 2, expected a multiple of 4, the NPUs of a RBLN-CA25"):
        standins.npus_of("RBLN-CA25", "2")


def test_a_lab_that_is_taken_to_another_row_has_a_file_for_each() -> None:
    files = {
        row: {"digits": {"key": f"CA12/{shape}", "path": f"models/{shape}.rbln", "sha256": shape}}
        for row, shape in (("lab-24.01", "0.6"), ("lab-26.05", "0.11"))
    }
    found = lab.artefacts_of({"models": files}, "digits", "http://127.0.0.1")
    assert {key: entry["url"] for key, entry in found.items()} == {
        "CA12/0.6": "http://127.0.0.1/models/0.6.rbln",
        "CA12/0.11": "http://127.0.0.1/models/0.11.rbln",
    }
    assert all(entry["record"].endswith(".rbln.json") for entry in found.values())


def test_a_base_image_is_as_slim_as_debians_own(tmp_path: Path) -> None:
    for name in ("usr/share/man/man1/ls.1.gz", "usr/share/doc/apt/copyright", "usr/share/zoneinfo/UTC"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "usr/share/doc/bash").symlink_to("apt")
    for name in ("dpkg/dpkg.cfg.d", "apt/apt.conf.d"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    images.slim(tmp_path)
    left = sorted(str(path.relative_to(tmp_path / "usr/share")) for path in (tmp_path / "usr/share").rglob("*"))
    # Packages count on places for their pages
    assert left == ["doc", "doc/apt", "man", "man/man1", "zoneinfo", "zoneinfo/UTC"]
    assert "path-exclude /usr/share/man/*\n" in (tmp_path / "etc/dpkg/dpkg.cfg.d/npufleet-lab-slim").read_text()
    assert 'Acquire::Languages "none";' in (tmp_path / "etc/apt/apt.conf.d/npufleet-lab-slim").read_text()


def test_the_inventory_is_what_the_lab_has_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "inventories/lab/hosts.py"
    program.parent.mkdir(parents=True)
    shutil.copy(ROOT / "inventories/lab/hosts.py", program)

    def listed(name: str) -> Any:
        done = subprocess.run([program, "--list"], env={**os.environ, "LAB": name}, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    monkeypatch.setattr(lab, "inventory", lambda mine, facts: {"npu_hosts": {"hosts": facts["names"]}, "of": mine.name})
    for name in ("lab", "another"):
        assert listed(name) == {"_meta": {"hostvars": {}}}
        mine = Lab(name, LAB.subnet)
        # Where the program looks is where the lab has its state
        place = tmp_path / mine.state.relative_to(ROOT)
        place.mkdir(parents=True)
        with monkeypatch.context() as there:
            there.setattr(Lab, "state", place)
            assert [lab.write_inventory(mine, {"names": [npu]}) for npu in ("npu1", "npu1", "npu2")] == [True, False, True]
        assert (place / "inventory.json").stat().st_mode & 0o777 == 0o600
        assert listed(name) == {"npu_hosts": {"hosts": ["npu2"]}, "of": name}
    assert listed("")["of"] == "lab"


def test_every_row_of_the_lab_is_in_its_inventory() -> None:
    """What the inventory says of a row is what its artefacts are made from."""
    rows = yaml.safe_load((ROOT / "inventories/lab/group_vars/all.yml").read_text())["npufleet_extra_releases"]
    assert set(rows) == set(standins.RELEASE_ROWS)
    for name, row in rows.items():
        made = standins.RELEASE_ROWS[name]
        assert (row["sdk"]["shape"], row["cards"]) == (made["sdk_line"], list(made["cards"]))
        assert row["triton"]["image"].endswith(f":{made['triton']}-py3")
        assert row["driver"]["version"] == made["driver"]
        assert made["driver"] in standins.DRIVERS


@pytest.mark.parametrize(
    ("asked", "known", "found"),
    [
        (None, {}, ["debian-12", "debian-12", "debian-12", "debian-12"]),
        ("debian-13", {}, ["debian-12", "debian-13", "debian-13", "debian-13"]),
        ("debian-12,debian-13", {}, ["debian-12", "debian-12", "debian-13", "debian-12"]),
        (None, {"ops1": "debian-12", "npu1": "debian-13"}, ["debian-12", "debian-13", "debian-12", "debian-12"]),
        ("debian-13", {"npu1": "debian-13"}, ["debian-12", "debian-13", "debian-13", "debian-13"]),
    ],
)
def test_each_host_has_a_system(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, known: dict[str, str], found: list[str]
) -> None:
    monkeypatch.setenv("SYSTEMS", asked or "")
    assert list(lab.systems_of(3, 0, known).values()) == found
    assert list(lab.systems_of(3, 0, known)) == ["ops1", "npu1", "npu2", "npu3"]


def test_load_balancers_have_their_own_systems_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMS", "debian-12")
    monkeypatch.setenv("LAB_BALANCER_SYSTEMS", "debian-12,debian-13")
    found = lab.systems_of(1, 2, {"lb1": "debian-12"})
    assert found == {"ops1": "debian-12", "npu1": "debian-12", "lb1": "debian-12", "lb2": "debian-13"}
    # The addresses stay the same when NPU hosts are added.
    assert [hosts.number_of(name) for name in ("ops1", "npu1", "npu200", "lb1", "lb9")] == [0, 1, 200, 221, 229]
    with pytest.raises(LabError, match=r"LAB_BALANCER_SYSTEMS is .* but the lab has lb2 \(debian-12\)"):
        lab.systems_of(1, 2, {"lb2": "debian-12"})
    monkeypatch.setenv("LAB_BALANCER_SYSTEMS", "debian-11")
    with pytest.raises(LabError, match="LAB_BALANCER_SYSTEMS has debian-11"):
        lab.systems_of(1, 1, {})


def test_systems_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMS", "debian-12,debian-11")
    with pytest.raises(LabError, match="SYSTEMS has debian-11, expected some of debian-12, debian-13"):
        lab.systems_of(2, 0, {})
    monkeypatch.setenv("SYSTEMS", "debian-13")
    with pytest.raises(LabError, match=r"SYSTEMS is debian-13, but the lab has npu1 \(debian-12\): stop the lab first"):
        lab.systems_of(2, 0, {"npu1": "debian-12"})


@pytest.mark.parametrize(("version_2", "words"), [(False, [hosts.CGROUP_V1]), (True, [])])
def test_a_host_is_told_of_old_control_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version_2: bool, words: list[str]
) -> None:
    orders: list[tuple[str, ...]] = []
    monkeypatch.setattr(hosts, "docker", lambda *order, **_options: orders.append(order) or "")
    monkeypatch.setattr(hosts, "CGROUP_V2", tmp_path if version_2 else tmp_path / "none")
    for name in ("make_key", "capability_missing", "kernel_package", "_write_file"):
        monkeypatch.setattr(hosts, name, lambda *_given: None)
    monkeypatch.setattr(hosts.Path, "read_text", lambda _path: "")
    hosts._create(dataclasses.replace(LAB, shares=512), "npu1", "debian-13", None, "")
    create = orders[0]
    assert create[0] == "create" and create[-1] == "npufleet-lab/host:trixie"
    assert [after for before, after in zip(create, create[1:], strict=False) if before == "--env"] == words
    assert [after for before, after in zip(create, create[1:], strict=False) if before == "--cpu-shares"] == ["512"]


def test_hosts_beside_one_that_is_there_are_copies_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    orders: list[tuple[str, ...]] = []

    def docker(*order: str, **_options: Any) -> str:
        orders.append(order)
        return str(tmp_path / order[-1]) if order[:2] == ("volume", "inspect") else ""

    state = tmp_path / "npufleet-test-npu1-docker"
    (state / "overlay2").mkdir(parents=True)
    (state / "overlay2/layer").write_text("of an image")
    (state / "engine-id").touch()
    (tmp_path / "npufleet-test-npu2-docker").mkdir()
    monkeypatch.setattr(hosts, "docker", docker)
    hosts._copy(Lab("test", "172.31.9.0/24"), ["npu2"])
    assert [order for order in orders if order[0] != "volume"] == [
        ("exec", "npufleet-test-npu1", "systemctl", "stop", "docker.socket", "docker.service"),
        ("commit", "npufleet-test-npu1", "npufleet-lab/copied:test"),
        ("exec", "npufleet-test-npu1", "systemctl", "start", "docker.service"),
    ]
    copied = tmp_path / "npufleet-test-npu2-docker"
    assert ((copied / "overlay2/layer").read_text(), (copied / "engine-id").exists()) == ("of an image", False)
    for name in ("make_key", "kernel_package", "_write_file"):
        monkeypatch.setattr(hosts, name, lambda *_given: None)
    monkeypatch.setattr(hosts.Path, "read_text", lambda _path: "")
    orders.clear()
    hosts._create(LAB, "npu2", "debian-12", None, "", "npufleet-lab/copied:test")
    assert orders[0][-1] == "npufleet-lab/copied:test"
