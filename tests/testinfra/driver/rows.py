"""The first host of a lab, and the two release rows that it goes between: the lab's own, and the one that follows it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from conftest import CACHE, LAB, NPU_HOSTS, ROWS, ask, connect, inspect, playbook

FACTS = LAB["all"]["vars"] if NPU_HOSTS else {"lab_release": "lab-24.01", "lab_next": None}
OWN = FACTS["lab_release"]
NEXT = FACTS["lab_next"]
# The vendor's own way to install it, and what it leaves
BY_INSTALLER = ROWS[OWN]["driver"]["form"] == "run"
PACKAGES = {"deb": {"rebellions"}, "run": {"rebellions-dkms", "rebellions-fw", "librbln-ml"}}
LIBRARY = "/usr/lib/librbln-thunk.so"


@pytest.fixture(scope="session")
def first() -> Any:
    """The host, which serves what the lab's inventory has, by the lab's own row."""
    run = playbook("site.yml")
    assert run.code == 0, run.output
    return connect(NPU_HOSTS[0])


def take_built(row: str) -> None:
    """The image of a row that another lab of this checkout has built and pinned, for a fleet builds one for all of its systems."""
    own = CACHE / "npufleet.lock.json"
    locked = json.loads(own.read_text())
    for lock in sorted(CACHE.parent.glob("*/npufleet.lock.json")):
        entry = json.loads(lock.read_text()).get(row)
        archive = f"images/{entry['id'].removeprefix('sha256:')}.tar" if entry else ""
        if entry and row not in locked and (lock.parent / archive).exists():
            if not (CACHE / archive).exists():
                os.link(lock.parent / archive, CACHE / archive)
            locked[row] = entry
            own.write_text(json.dumps(locked, indent=4) + "\n")


def ready(host: Any) -> bool:
    return {model.get("state") for model in ask(host, "/v2/repository/index", "POST")} == {"READY"}


def module(host: Any) -> str:
    """Version of the module in the kernel."""
    return host.file("/sys/module/rebellions/version").content_string.strip()


def is_of(host: Any, row: str) -> None:
    """The host runs and serves what a row names, the driver's part of it in the way of its form, and nothing of the other form."""
    driver, triton = ROWS[row]["driver"], ROWS[row]["triton"]
    facts = inspect(host)
    assert (module(host), ready(host)) == (driver["version"], True)
    assert (facts["Config"]["Labels"]["io.npufleet.release"], ask(host, "/v2")["version"]) == (row, triton["version"])
    assert host.check_output("/sbin/modinfo --field version rebellions") == driver["version"]
    mine = PACKAGES[driver["form"]]
    there = {name for names in PACKAGES.values() for name in names if host.package(name).is_installed}
    assert there == mine
    assert mine <= set(host.check_output("apt-mark showhold").split())
    if driver["form"] == "run":
        assert f"rebellions-dkms/{driver['version']}" in host.check_output("/usr/sbin/dkms status")
        assert host.service("rbln-smd").is_running
        # What the SDK opens, under the plain name that the driver itself does not have
        for path in (LIBRARY, LIBRARY + ".3", "/usr/lib/librbln-ml.so", "/usr/bin/rbln-smi"):
            host.check_output("docker exec triton test -f %s", path)
        assert not host.file(LIBRARY).exists
    else:
        assert host.run("docker exec triton test -e %s", LIBRARY).rc == 1
