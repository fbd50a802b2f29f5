"""Upgrades to another release row: upgrade.yml on simulated hosts. test_gates.py tests the rollout, which is that of site.yml."""

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
TO_ROW = ("-e", f"upgrade_to={TO}")
CONFIRMED = (*TO_ROW, "-e", "upgrade_confirm=true")


def fleet(size: int, **more: dict[str, Any]) -> dict[str, Any]:
    return {host: {"plan": PLAN, **more.get(host.replace("-", "_"), {})} for host in HOSTS[:size]}


def upgrade(directory: Path, hosts: dict[str, Any], *options: str, **variables: Any) -> Run:
    return run(directory, "upgrade.yml", hosts, *options, **variables)


def test_upgrade_changes_hosts_only_through_site() -> None:
    announcement, rollout, end = yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text())
    assert "site.yml" in rollout["ansible.builtin.import_playbook"]
    modules = {name for play in (announcement, end) for task in play["tasks"] for name in task if "." in name}
    assert modules == {
        "ansible.builtin.set_fact",
        "ansible.builtin.fail",
        "ansible.builtin.debug",
        "ansible.builtin.import_role",
    }


@pytest.mark.parametrize("options", [TO_ROW, (*CONFIRMED, "--check")])
def test_an_unconfirmed_upgrade_only_reports_its_effects(tmp_path: Path, options: tuple[str, ...]) -> None:
    ran = upgrade(tmp_path, fleet(2, npu_2={"release": "24.12"}), *options)
    assert ran.code == 0, ran.output
    assert ran.touched() == []
    assert f"to release {TO}, on 2 of 2 hosts:" in ran.words
    assert f"- npu-1: release {FROM} to {TO}: SDK 0.9.4 as before, Triton 2.60.0 to 2.71.0" in ran.words
    # The row of the image that the server runs counts more than the row in the inventory
    assert f"- npu-2: release 24.12 to {TO}: SDK 0.7.4 to 0.9.4, Triton 2.53.0 to 2.71.0" in ran.words
    assert f"- npu-2: release {TO} no longer supports RBLN-CA02" in ran.words
    assert "- every host: Triton 2.68.0 and newer refuse clients that share memory with the server" in ran.words
    assert "- every host: image: delivered as recorded in the lock file" in ran.words
    assert "nothing was changed: to upgrade, run again with -e upgrade_confirm=true and without --check" in ran.words


@pytest.mark.parametrize("tags", [(), ("--tags", "models")])
def test_a_confirmed_upgrade_makes_the_calls_of_site(tmp_path: Path, tags: tuple[str, ...]) -> None:
    ran = upgrade(tmp_path / "upgrade", fleet(2), *CONFIRMED, *tags)
    assert ran.code == 0, ran.output
    other = run(tmp_path / "site", "site.yml", fleet(2), *tags, rbln_release=TO)
    # upgrade.yml reads each host once more, to report the effects before the rollout
    assert sorted(ran.calls) == sorted([*(f"{host} host_state preflight" for host in HOSTS[:2]), *other.calls])
    assert [ran.calls_on(host) for host in HOSTS] == [other.calls_on(host) for host in HOSTS]
    assert ran.touched() == HOSTS[:2]
    assert f'npu-1, npu-2: write rbln_release: "{TO}" into the inventory now' in ran.words
    assert f"takes them back to {FROM}" in ran.words


def test_a_failed_host_stops_the_next_batches(tmp_path: Path) -> None:
    ran = upgrade(tmp_path, fleet(4, npu_3={"fails": "host_state models probe server"}), *CONFIRMED)
    assert ran.code == 2, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"]
    assert "npu-3 failed the gate, no further batch starts" in ran.words
    assert "into the inventory now" not in ran.words


def test_an_upgrade_names_unreached_hosts_and_maintenance(tmp_path: Path) -> None:
    hosts = fleet(4, npu_2={"maintenance_after": ""}, npu_3={"lost": "host_state preflight"})
    ran = upgrade(tmp_path, hosts, *CONFIRMED, "--limit", "npu-1,npu-2,npu-3", rbln_release=TO)
    assert ran.code == 4, ran.output
    assert [ran.calls_on(host) for host in HOSTS[1:]] == [[], ["LOST"], []]
    assert "server_change with_checks" in ran.calls_on("npu-1")
    assert f"to release {TO}, on 2 of 3 hosts; not reached: npu-3:" in ran.words
    assert "- npu-2: in maintenance: nothing is changed" in ran.words
    assert "npu-2 is in maintenance and was skipped: swap card 2" in ran.words
    # The inventory already has the new row
    assert "into the inventory" not in ran.words


ONE = {"triton_models": [{"name": "add", "artefacts": {"CA22/0.9": {"url": "https://a.example.com/x", "sha256": "a" * 64}}}]}
FILE = {"rbln_driver_package_file": "/srv/rebellions_2.0.1_amd64.deb", "rbln_driver_package_sha256": "b" * 64}


def test_a_refused_upgrade_reports_effects_and_all_reasons(tmp_path: Path) -> None:
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
            (*CONFIRMED, "-e", "rbln_release=25.08"),
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
def test_invalid_options_of_an_upgrade_are_refused(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, Any], words: str
) -> None:
    ran = upgrade(tmp_path, fleet(2), *options, **variables)
    assert ran.code == 2, ran.output
    assert words in ran.words
    assert ran.touched() == []


@pytest.mark.parametrize("label", ["{{ 6 * 7 }}", "a\n  - npu-1: all is well", ["x"]])
def test_a_hostile_release_label_is_not_evaluated(tmp_path: Path, label: Any) -> None:
    ran = upgrade(tmp_path, fleet(1, npu_1={"release": label}), *TO_ROW)
    assert "42" not in ran.words
    assert "\n  - npu-1: all is well" not in ran.output
    assert f"to {TO}" in ran.words, ran.output
    assert ran.touched() == []


def test_an_image_is_built_before_its_models_are_compiled(tmp_path: Path) -> None:
    """docs/runbooks/upgrade.md: the image of a row compiles the models of the row. Its build does not change the server."""
    options = ("--limit", "npu-1", "--tags", "image", "-e", f"rbln_release={TO}", "-e", '{"triton_models": []}')
    plan = [differs("image", "build"), differs("models", "remove"), differs("server", "replace")]
    ran = run(tmp_path, "site.yml", {"npu-1": {"plan": plan}}, *options, npufleet_build_host="npu-1", **ONE)
    assert [call for call in ran.calls_on("npu-1") if "docker_image" in call], ran.output
    assert [call for call in ran.calls_on("npu-1") if call.startswith(("server_change", "triton_container", "model_"))] == []


@pytest.mark.parametrize("fails", ["host_state image", "model_blobs"])
def test_image_and_models_are_copied_before_the_server_stops(tmp_path: Path, fails: str) -> None:
    compiled = tmp_path / "model.rbln"
    compiled.write_bytes(b"compiled")
    digest = hashlib.sha256(b"compiled").hexdigest()
    models = [{"name": "add", "artefacts": {"CA22/0.9": {"file": str(compiled), "sha256": digest}}}]
    plan = [differs("driver", "load", name="module", until="command modprobe rebellions"), *PLAN]
    ran = upgrade(tmp_path, {"npu-1": {"plan": plan, "missing": [digest], "fails": fails}}, *CONFIRMED, triton_models=models)
    assert ran.code == 2, ran.output
    assert "npu-1 failed the gate" in ran.words
    assert [call for call in ran.calls_on("npu-1") if call.startswith(fails)]
    assert [call for call in ran.calls_on("npu-1") if call.startswith(("triton_container", "command", "server_change"))] == []


def test_a_changing_engine_gets_the_image_later(tmp_path: Path) -> None:
    plan = [differs("driver", "load", name="module", until="command modprobe rebellions"), differs("engine"), *PLAN]
    ran = upgrade(tmp_path, {"npu-1": {"plan": plan, "fails": "host_state engine"}}, *CONFIRMED)
    assert ran.code == 2, ran.output
    # The driver was changed first, so the server was stopped
    assert [call for call in ran.calls_on("npu-1") if call.startswith("host_state image")] == []
    assert "triton_container stopped" in " ".join(ran.calls_on("npu-1"))


def test_a_driver_package_may_depend_on_the_row(tmp_path: Path) -> None:
    """docs/runbooks/upgrade.md: the same lines of the inventory are correct for both rows."""
    packages = {version: tmp_path / f"rebellions-{version}.deb" for version in ("2.0.1", "1.2.92")}
    for version, path in packages.items():
        path.write_text(version)
    digests = {version: hashlib.sha256(version.encode()).hexdigest() for version in packages}
    variables = {
        "rbln_driver_package_file": str(tmp_path / "rebellions-{{ npufleet_release_row.driver.version }}.deb"),
        "rbln_driver_package_sha256": f"{{{{ {digests}[npufleet_release_row.driver.version] }}}}",
        "npufleet_card": "RBLN-CA12",
    }
    plan = [differs("driver", "install", name="package", current="2.0.1")]
    ran = upgrade(tmp_path, {"npu-1": {"plan": plan}}, "-e", "upgrade_to=24.12", **variables)
    assert ran.code == 0, ran.output
    assert f"driver 2.0.1 to 1.2.92 (.deb) from {packages['1.2.92']}:" in ran.output.replace("\n", " ").replace("  ", "")
