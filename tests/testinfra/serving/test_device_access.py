"""A serving host gives up its container's privileges and takes them back: the same models, the same checks, nothing else open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ask, connect, containers, inspect, playbook
from test_models import EXTRA, HOST, MODELS, RELEASE, RESULTS, converged, site  # noqa: F401  the models are served first

pytestmark = pytest.mark.skipif(RELEASE != "lab-24.01", reason="another Triton changes nothing of this")

DEVICES = ("-e", "npufleet_device_access=devices")
NODES = "/dev/rbln0 /dev/rbln1 /dev/rsd0"
KEY = "/etc/npufleet/server/key"
USER, VIDEO = 61100, 44


@pytest.fixture(scope="module")
def host(converged: None) -> Iterator[Any]:  # noqa: F811
    """Its cards are for root and a group, as a udev rule of a site may have it."""
    host = connect(HOST)
    host.check_output(f"chgrp video {NODES} && chmod 0660 {NODES}")
    yield host
    host.check_output(f"chgrp root {NODES} && chmod 0666 {NODES}")


def releases(host: Any) -> dict[str, str]:
    """What is served, by the server's own word."""
    return {model: ask(host, f"/v2/models/{model}/config")["parameters"]["npufleet_release"]["string_value"] for model in MODELS}


def proven() -> set[tuple[str, str]]:
    """Every check that was asked and was right, by name and protocol."""
    checks = json.loads((RESULTS / f"check/{HOST}.json").read_text())["checks"]
    assert [check for check in checks if not check["ok"]] == []
    return {(check["name"], check["protocol"]) for check in checks}


def inside(host: Any, command: str) -> str:
    return host.check_output("docker exec triton sh -c %s", command)


def test_a_node_that_nobody_but_root_may_open_is_refused_beforehand(host):
    before = inspect(host)["Id"]
    host.check_output("chmod 0600 /dev/rbln1")
    run = site(*DEVICES)
    host.check_output("chmod 0660 /dev/rbln1")
    assert run.code == 2, run.output
    assert (
        f"/dev/rbln1 has mode 0600 of user 0 and group {VIDEO}, expected read and write access for a group other than root's"
        in run.output
    )
    assert (inspect(host)["Id"], run.changed().get(HOST, 0)) == (before, 0)


def test_the_same_is_served_with_the_cards_alone(host):
    before, checks, key = releases(host), proven(), host.file(KEY).content_string
    run = site(*DEVICES)
    assert run.code == 0, run.output
    assert (releases(host), proven()) == (before, checks)
    assert (host.file(KEY).content_string, host.file(KEY).mode, host.file(KEY).gid) == (key, 0o640, USER)
    facts = inspect(host)
    limits = facts["HostConfig"]
    assert (facts["Config"]["User"], limits["Privileged"], limits["ReadonlyRootfs"]) == (f"{USER}:{USER}", False, True)
    assert ([name.removeprefix("CAP_") for name in limits["CapAdd"]], limits["CapDrop"]) == (["IPC_LOCK"], ["ALL"])
    assert (limits["SecurityOpt"], limits["GroupAdd"]) == (["no-new-privileges"], [str(VIDEO)])
    assert {(device["PathOnHost"], device["PathInContainer"], device["CgroupPermissions"]) for device in limits["Devices"]} == {
        (node, node, "rw") for node in NODES.split()
    }
    status = dict(line.split(":\t", 1) for line in inside(host, "cat /proc/1/status").splitlines() if ":\t" in line)
    assert (status["Uid"].split()[0], status["Groups"].split(), status["NoNewPrivs"]) == (str(USER), [str(VIDEO), str(USER)], "1")
    # IPC_LOCK is the one that could be had, and a user that is not root has not even that
    assert (int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (0, 1 << 14)
    assert inside(host, "ls /var/lib/npufleet").split() == ["blobs", "releases", "served"]
    assert sorted(inside(host, "ls -d /dev/rbln* /dev/rsd*").split()) == NODES.split()
    assert host.run("docker exec triton touch /opt/here").stderr.strip().endswith("Read-only file system")
    assert inside(host, "touch $HOME/here && echo $HOME") == "/tmp"


def test_nothing_differs_afterwards(host):
    before = inspect(host)["Id"]
    run = site(*DEVICES)
    assert (run.code, run.changed().get(HOST)) == (0, 0), run.output
    assert (inspect(host)["Id"], containers(host)) == (before, ["triton"])
    status = playbook("status.yml", *EXTRA, *DEVICES)
    assert status.code == 0, status.output


def test_back_to_the_guides_container(host):
    before, checks, key = releases(host), proven(), host.file(KEY).content_string
    run = site()
    assert run.code == 0, run.output
    assert (releases(host), proven(), host.file(KEY).content_string) == (before, checks, key)
    facts = inspect(host)
    assert (facts["Config"]["User"], facts["HostConfig"]["Privileged"], facts["HostConfig"]["ReadonlyRootfs"]) == ("", True, False)
    assert not facts["HostConfig"]["Devices"]
