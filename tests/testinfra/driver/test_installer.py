"""From a driver's package to the vendor's installer and back, below a server that serves before and after."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import NPU_HOSTS, Run, ask, connect, containers, inspect, playbook

MODELS = ("-e", "@molecule/serving/vars/models.yml")
NEWER = ("-e", "lab_driver=3.2.2")
FAILS = "/etc/npufleet-lab/installer-fails"
LIBRARY = "/usr/lib/librbln-thunk.so"


@pytest.fixture(scope="module")
def first() -> Any:
    return connect(NPU_HOSTS[0])


def ready(host: Any) -> bool:
    return {model.get("state") for model in ask(host, "/v2/repository/index", "POST")} == {"READY"}


def site(*arguments: str) -> Run:
    return playbook("site.yml", *MODELS, *arguments)


def module(host: Any) -> str:
    return host.file("/sys/module/rebellions/version").content_string.strip()


def test_an_installer_that_fails_gives_way_to_the_driver_before_it(first):
    before = inspect(first)["Id"]
    first.check_output("touch %s", FAILS)
    run = site(*NEWER)
    first.check_output("rm %s", FAILS)
    assert run.code == 2, run.output
    assert "rebellions-installer: the firmware could not be written" in run.output
    assert "The driver before it was put back: module 1.1.67 is loaded." in run.output
    assert first.package("rebellions").version == "1.1.67"
    assert not first.package("rebellions-dkms").is_installed
    assert (inspect(first)["Id"], ready(first)) == (before, True)
    log = first.file("/var/lib/npufleet/packages/rebellions-x86_64-3.2.2.run.log")
    assert (log.mode, "Install driver 3.2.2? [Y/n]" in log.content_string) == (0o600, True)


def test_from_the_package_to_the_installer(first):
    run = site(*NEWER)
    assert run.code == 0, run.output
    assert module(first) == "3.2.2"
    assert first.check_output("/sbin/modinfo --field version rebellions") == "3.2.2"
    assert "rebellions-dkms/3.2.2" in first.check_output("/usr/sbin/dkms status")
    assert not first.package("rebellions").is_installed
    held = first.check_output("apt-mark showhold").split()
    assert {"rebellions-dkms", "rebellions-fw", "librbln-ml"} <= set(held)
    assert first.service("rbln-smd").is_running
    # What the SDK opens, under the plain name that the driver itself does not have
    for path in (LIBRARY, LIBRARY + ".3", "/usr/lib/librbln-ml.so", "/usr/bin/rbln-smi"):
        first.check_output("docker exec triton test -f %s", path)
    assert not first.file(LIBRARY).exists
    assert (containers(first), ready(first)) == (["triton"], True)
    status = playbook("status.yml", *MODELS, *NEWER)
    assert status.code == 0, status.output


def test_files_of_the_driver_that_are_gone_are_told(first):
    """And nothing is made of them: the engine would mount a directory where the SDK opens a file."""
    first.check_output("mv %s.3 %s.away", LIBRARY, LIBRARY)
    first.check_output("mv %s.3.2.2 /root", LIBRARY)
    run = site(*NEWER)
    first.check_output("mv /root/librbln-thunk.so.3.2.2 /usr/lib/")
    first.check_output("mv %s.away %s.3", LIBRARY, LIBRARY)
    assert run.code == 2, run.output
    assert "found no librbln-thunk.so* of driver 3.2.2" in run.output
    assert set(run.changed().values()) == {0}
    assert ready(first)


def test_back_to_the_package(first):
    run = site()
    assert run.code == 0, run.output
    assert module(first) == "1.1.67"
    assert first.package("rebellions").version == "1.1.67"
    for gone in ("rebellions-dkms", "rebellions-fw", "librbln-ml"):
        assert not first.package(gone).is_installed
    assert first.run("docker exec triton test -e %s", LIBRARY).rc == 1
    status = playbook("status.yml", *MODELS)
    assert status.code == 0, status.output
