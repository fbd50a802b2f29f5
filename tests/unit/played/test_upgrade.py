"""From one release row to another: upgrade.yml on played hosts. What its rollout does is site.yml's (test_gates.py)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT
from stage import HOSTS, Run, differs, run

FROM, TO = "25.08", "26.07-sdk0.9"
PLAN = [differs("image", "deliver"), differs("models", "release", name="add", until="server_change")]
THERE = ("-e", f"upgrade_to={TO}")
YES = (*THERE, "-e", "upgrade_confirm=true")


def fleet(size: int, **more: dict[str, Any]) -> dict[str, Any]:
    return {host: {"plan": PLAN, **more.get(host.replace("-", "_"), {})} for host in HOSTS[:size]}


def upgrade(place: Path, hosts: dict[str, Any], *options: str, **variables: Any) -> Run:
    return run(place, "upgrade.yml", hosts, *options, **variables)


def test_there_is_no_second_way_to_change_a_server() -> None:
    foretell, way, end = yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text())
    assert "site.yml" in way["ansible.builtin.import_playbook"]
    modules = {name for play in (foretell, end) for task in play["tasks"] for name in task if "." in name}
    assert modules == {
        "ansible.builtin.set_fact",
        "ansible.builtin.fail",
        "ansible.builtin.debug",
        "ansible.builtin.import_role",
    }


@pytest.mark.parametrize("options", [THERE, (*YES, "--check")])
def test_it_says_what_will_happen_and_changes_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    ran = upgrade(tmp_path, fleet(2, npu_2={"release": "24.12"}), *options)
    assert ran.code == 0, ran.output
    assert ran.touched() == []
    assert f"to release {TO}, on 2 of 2 hosts:" in ran.words
    assert f"- npu-1: release {FROM} to {TO}: SDK 0.9.4 as before, Triton 2.60.0 to 2.71.0" in ran.words
    # What its server's image was built for outranks the inventory
    assert f"- npu-2: release 24.12 to {TO}: SDK 0.7.4 to 0.9.4, Triton 2.53.0 to 2.71.0" in ran.words
    assert f"- npu-2: release {TO} no longer supports RBLN-CA02" in ran.words
    assert "- every host: Triton 2.68.0 and newer refuse clients that share memory with the server" in ran.words
    assert "- every host: image: delivered as recorded in the lock file" in ran.words
    assert "nothing was changed: to upgrade, run again with -e upgrade_confirm=true and without --check" in ran.words


@pytest.mark.parametrize("tags", [(), ("--tags", "models")])
def test_with_a_yes_it_goes_the_way_of_site(tmp_path: Path, tags: tuple[str, ...]) -> None:
    ran = upgrade(tmp_path / "upgrade", fleet(2), *YES, *tags)
    assert ran.code == 0, ran.output
    other = run(tmp_path / "site", "site.yml", fleet(2), *tags, rbln_release=TO)
    # One look more, for what it says beforehand
    assert sorted(ran.calls) == sorted([*(f"{host} host_state preflight" for host in HOSTS[:2]), *other.calls])
    assert [ran.of(host) for host in HOSTS] == [other.of(host) for host in HOSTS]
    assert ran.touched() == HOSTS[:2]
    assert f'npu-1, npu-2: write rbln_release: "{TO}" into the inventory now' in ran.words
    assert f"takes them back to {FROM}" in ran.words


def test_a_host_that_fails_stops_what_comes_after_its_batch(tmp_path: Path) -> None:
    ran = upgrade(tmp_path, fleet(4, npu_3={"fails": "host_state models probe server"}), *YES)
    assert ran.code == 2, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"]
    assert "npu-3 failed the gate, no further batch starts" in ran.words
    assert "into the inventory now" not in ran.words


def test_limit_maintenance_and_hosts_that_are_not_reached(tmp_path: Path) -> None:
    hosts = fleet(4, npu_2={"out": ""}, npu_3={"lost": "host_state preflight"})
    ran = upgrade(tmp_path, hosts, *YES, "--limit", "npu-1,npu-2,npu-3", rbln_release=TO)
    assert ran.code == 4, ran.output
    assert [ran.of(host) for host in HOSTS[1:]] == [[], ["LOST"], []]
    assert "server_change asking" in ran.of("npu-1")
    assert f"to release {TO}, on 2 of 3 hosts; not reached: npu-3:" in ran.words
    assert "- npu-2: in maintenance: nothing is changed" in ran.words
    assert "npu-2 is in maintenance and was skipped: swap card 2" in ran.words
    # The inventory has that row already
    assert "into the inventory" not in ran.words


ONE = {"triton_models": [{"name": "add", "artefacts": {"CA22/0.9": {"url": "https://a.example.com/x", "sha256": "a" * 64}}}]}
FILE = {"rbln_driver_package_file": "/srv/rebellions_2.0.1_amd64.deb", "rbln_driver_package_sha256": "b" * 64}


def test_what_cannot_work_is_refused_with_all_reasons_after_it_was_foretold(tmp_path: Path) -> None:
    install = differs("driver", "install", name="package", current="2.0.1")
    hosts = {"npu-1": {"plan": [install], "refusals": ["the kernel is 5.15.0-1, expected ==6.8.0"]}, "npu-2": {"plan": [install]}}
    ran = upgrade(tmp_path, hosts, "-e", "upgrade_to=26.05", "-e", "upgrade_confirm=true", **ONE, **FILE)
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "- every host: no compiled file for CA22/0.11, compile first: add" in ran.words
    assert "- every host: driver 2.0.1 to 3.2.2 (.run) from /srv/rebellions_2.0.1_amd64.deb" in ran.words
    assert "- every host: from sdk 0.11.0 on: compiled files have another form" in ran.words
    assert "2 of 2 hosts refused, 3 reasons, nothing was changed:" in ran.words
    assert "model add has compiled files for CA22/0.9, expected one for CA22/0.11" in ran.words
    assert "the driver package is rebellions_2.0.1_amd64.deb, named after another driver, expected rebellions 3.2.2" in ran.words
    assert "- npu-1: the kernel is 5.15.0-1, expected ==6.8.0" in ran.words


@pytest.mark.parametrize(
    ("options", "variables", "words"),
    [
        ((), {}, "upgrade_to is missing, expected the release row to move to: add -e upgrade_to=<row>; nothing was changed"),
        (
            (*YES, "-e", "rbln_release=25.08"),
            {},
            f"rbln_release is 25.08 on the command line, expected only upgrade_to {TO}: leave rbln_release out",
        ),
        (
            ("-e", "upgrade_to=26.10", "-e", "upgrade_confirm=true"),
            {},
            "rbln_release is 26.10, expected one of 24.01, 24.12, 25.08",
        ),
        (
            ("-e", "upgrade_to=26.05", "-e", "upgrade_confirm=true"),
            {"npufleet_card": "RBLN-CA12"},
            "npufleet_card is RBLN-CA12, expected one of RBLN-CA22, RBLN-CA25 for release 26.05. Choose a release for this card.",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, options: tuple[str, ...], variables: dict[str, Any], words: str) -> None:
    ran = upgrade(tmp_path, fleet(2), *options, **variables)
    assert ran.code == 2, ran.output
    assert words in ran.words
    assert ran.touched() == []


@pytest.mark.parametrize("label", ["{{ 6 * 7 }}", "a\n  - npu-1: all is well", ["x"]])
def test_what_a_host_says_that_it_runs_is_told_and_nothing_more(tmp_path: Path, label: Any) -> None:
    ran = upgrade(tmp_path, fleet(1, npu_1={"release": label}), *THERE)
    assert "42" not in ran.words
    assert "\n  - npu-1: all is well" not in ran.output
    assert f"to {TO}" in ran.words, ran.output
    assert ran.touched() == []


def test_the_image_of_a_release_is_built_before_its_models_are_there(tmp_path: Path) -> None:
    """docs/runbooks/upgrade.md: what compiles models for a row is its image, and nothing that is served changes for that."""
    options = ("--limit", "npu-1", "--tags", "image", "-e", f"rbln_release={TO}", "-e", '{"triton_models": []}')
    plan = [differs("image", "build"), differs("models", "remove"), differs("server", "replace")]
    ran = run(tmp_path, "site.yml", {"npu-1": {"plan": plan}}, *options, npufleet_build_host="npu-1", **ONE)
    assert [call for call in ran.of("npu-1") if "docker_image" in call], ran.output
    assert [call for call in ran.of("npu-1") if call.startswith(("server_change", "triton_container", "model_"))] == []


@pytest.mark.parametrize("fails", ["host_state image", "model_blobs"])
def test_what_takes_long_is_brought_before_the_driver_stops_the_server(tmp_path: Path, fails: str) -> None:
    compiled = tmp_path / "model.rbln"
    compiled.write_bytes(b"compiled")
    digest = hashlib.sha256(b"compiled").hexdigest()
    models = [{"name": "add", "artefacts": {"CA22/0.9": {"file": str(compiled), "sha256": digest}}}]
    plan = [differs("driver", "load", name="module", until="command modprobe rebellions"), *PLAN]
    ran = upgrade(tmp_path, {"npu-1": {"plan": plan, "missing": [digest], "fails": fails}}, *YES, triton_models=models)
    assert ran.code == 2, ran.output
    assert "npu-1 failed the gate" in ran.words
    assert [call for call in ran.of("npu-1") if call.startswith(fails)]
    assert [call for call in ran.of("npu-1") if call.startswith(("triton_container", "command", "server_change"))] == []


def test_an_engine_that_changes_is_no_place_for_the_image_yet(tmp_path: Path) -> None:
    plan = [differs("driver", "load", name="module", until="command modprobe rebellions"), differs("engine"), *PLAN]
    ran = upgrade(tmp_path, {"npu-1": {"plan": plan, "fails": "host_state engine"}}, *YES)
    assert ran.code == 2, ran.output
    # The driver's turn has come, and the server serves again
    assert [call for call in ran.of("npu-1") if call.startswith("host_state image")] == []
    assert "triton_container stopped" in " ".join(ran.of("npu-1"))


def test_a_driver_package_may_follow_the_row(tmp_path: Path) -> None:
    """docs/runbooks/upgrade.md: one line of the inventory that is right for both rows."""
    packages = {version: tmp_path / f"rebellions-{version}.deb" for version in ("2.0.1", "1.2.92")}
    for version, path in packages.items():
        path.write_text(version)
    digests = {version: hashlib.sha256(version.encode()).hexdigest() for version in packages}
    given = {
        "rbln_driver_package_file": str(tmp_path / "rebellions-{{ npufleet_release_row.driver.version }}.deb"),
        "rbln_driver_package_sha256": f"{{{{ {digests}[npufleet_release_row.driver.version] }}}}",
        "npufleet_card": "RBLN-CA12",
    }
    plan = [differs("driver", "install", name="package", current="2.0.1")]
    ran = upgrade(tmp_path, {"npu-1": {"plan": plan}}, "-e", "upgrade_to=24.12", **given)
    assert ran.code == 0, ran.output
    assert f"driver 2.0.1 to 1.2.92 (.deb) from {packages['1.2.92']}:" in ran.output.replace("\n", " ").replace("  ", "")
