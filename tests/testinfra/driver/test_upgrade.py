"""From one release row to another and back, below a server that serves before and after: another driver, SDK, Triton and image."""

from __future__ import annotations

import pytest
from conftest import Run, containers, inspect, playbook
from rows import BY_INSTALLER, NEXT, OWN, PACKAGES, ROWS, is_of, module, ready, take_built

# The fixture `first`
pytest_plugins = ["rows"]
FAILS = "/etc/npufleet-lab/installer-fails"


def upgrade(to: str, *arguments: str) -> Run:
    return playbook("upgrade.yml", "-e", f"upgrade_to={to}", *arguments)


def goes_proven(host, to: str) -> None:
    run = upgrade(to, "-e", "upgrade_confirm=true")
    assert run.code == 0, run.output
    is_of(host, to)
    assert containers(host) == ["triton"]
    status = playbook("status.yml", "-e", f"rbln_release={to}")
    assert status.code == 0, status.output


def test_what_another_row_brings_is_said_and_nothing_is_changed(first):
    is_of(first, OWN)
    before = inspect(first)["Id"]
    run = upgrade(NEXT)
    assert run.code == 0, run.output
    words = " ".join(run.output.split())
    assert f"to release {NEXT}, on 1 of 1 hosts" in words
    for row in (OWN, NEXT):
        assert ROWS[row]["driver"]["version"] in words
    assert "run again with -e upgrade_confirm=true" in words
    assert set(run.changed().values()) == {0}
    assert inspect(first)["Id"] == before


def test_a_host_goes_there_proven(first):
    take_built(NEXT)
    goes_proven(first, NEXT)


@pytest.mark.skipif(not BY_INSTALLER, reason="the way back is by a package")
def test_an_installer_that_fails_gives_way_to_the_driver_before_it(first):
    before = inspect(first)["Id"]
    first.check_output("touch %s", FAILS)
    run = upgrade(OWN, "-e", "upgrade_confirm=true")
    first.check_output("rm %s", FAILS)
    assert run.code == 2, run.output
    assert "rebellions-installer: the firmware could not be written" in run.output
    kept, wanted = (ROWS[row]["driver"]["version"] for row in (NEXT, OWN))
    assert f"The previous driver was restored: module {kept} is loaded." in run.output
    assert module(first) == kept
    assert {name for names in PACKAGES.values() for name in names if first.package(name).is_installed} == PACKAGES["deb"]
    assert (inspect(first)["Id"], ready(first)) == (before, True)
    log = first.file(f"/var/lib/npufleet/packages/rebellions-x86_64-{wanted}.run.log")
    assert (log.mode, f"Install driver {wanted}? [Y/n]" in log.content_string) == (0o600, True)


def test_a_host_comes_back_proven(first):
    goes_proven(first, OWN)
