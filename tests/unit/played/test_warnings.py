"""A normal run prints no warning, from the checkout and from the collection in a project elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from stage import HOSTS, PLAYBOOKS, Run, run

sys.path.insert(0, str(ROOT / "tests"))
import installed as collection


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install this collection. Return the directory of collections."""
    return collection.install(tmp_path_factory.mktemp("installed")).parents[2]


def assert_no_warning(ran: Run) -> None:
    """Assert that the run prints no warning, except remarks about the release row that the inventory names."""
    assert "PLAY RECAP" in ran.output, ran.output
    lines = [line for line in ran.output.splitlines() if "WARNING" in line and not line.startswith("[WARNING]: release ")]
    assert lines == [], ran.output


def fleet(plan: list[dict[str, Any]]) -> dict[str, Any]:
    return {host: {"plan": plan} for host in HOSTS[:2]}


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_run_from_the_checkout_prints_no_warning(tmp_path: Path, playbook: str) -> None:
    options, plan = PLAYBOOKS[playbook]
    assert_no_warning(run(tmp_path, playbook, fleet(plan), *options))


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_run_of_the_installed_collection_prints_no_warning(tmp_path: Path, installed: Path, playbook: str) -> None:
    options, plan = PLAYBOOKS[playbook]
    by_name = f"npufleet.triton.{playbook.removesuffix('.yml')}"
    assert_no_warning(run(tmp_path, playbook, fleet(plan), *options, by_name=by_name, installed=installed))


def test_a_run_of_a_fleet_in_sync_prints_no_warning(tmp_path: Path, installed: Path) -> None:
    assert_no_warning(run(tmp_path, "site.yml", fleet([]), by_name="npufleet.triton.site", installed=installed))
