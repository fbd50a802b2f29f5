"""From one release row to another and back, below a server that serves before and after: another driver, SDK, Triton and image."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import NPU_HOSTS, Run, ask, connect, containers, inspect, playbook

MODELS = ("-e", "@molecule/serving/vars/models.yml")
OLD, NEW = "lab-24.01", "lab-26.05"


@pytest.fixture(scope="module")
def first() -> Any:
    return connect(NPU_HOSTS[0])


def upgrade(to: str, *arguments: str) -> Run:
    return playbook("upgrade.yml", *MODELS, "-e", f"upgrade_to={to}", *arguments)


def serves(host: Any) -> tuple[str, str, str, bool]:
    """(driver in the kernel, release of the image, Triton's version, whether every model is ready)."""
    states = {model.get("state") for model in ask(host, "/v2/repository/index", "POST")}
    module = host.file("/sys/module/rebellions/version").content_string.strip()
    label = inspect(host)["Config"]["Labels"]["io.npufleet.release"]
    return module, label, ask(host, "/v2")["version"], states == {"READY"}


def test_what_another_row_brings_is_said_and_nothing_is_changed(first):
    before = inspect(first)["Id"]
    run = upgrade(NEW)
    assert run.code == 0, run.output
    words = " ".join(run.output.split())
    assert f"to release {NEW}, on 1 of 1 hosts" in words
    assert "1.1.67" in words and "3.2.2" in words
    assert "give -e upgrade_confirm=true" in words
    assert set(run.changed().values()) == {0}
    assert inspect(first)["Id"] == before


@pytest.mark.parametrize(("to", "serving"), [(NEW, ("3.2.2", NEW, "2.51.0", True)), (OLD, ("1.1.67", OLD, "2.42.0", True))])
def test_hosts_go_there_and_back_proven(first: Any, to: str, serving: tuple[str, str, str, bool]) -> None:
    run = upgrade(to, "-e", "upgrade_confirm=true")
    assert run.code == 0, run.output
    assert serves(first) == serving
    assert containers(first) == ["triton"]
    status = playbook("status.yml", *MODELS, "-e", f"rbln_release={to}")
    assert status.code == 0, status.output
