"""The engine finds the cards by their names in the spec of the vendor's toolkit: from the guide's container to that and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from conftest import LAB, NPU_HOSTS, OUTPUT, Run, ask, connect, containers, inspect, playbook
from test_3_reboot import power, shown, wait_for, wait_until_booted

HOST = NPU_HOSTS[0] if NPU_HOSTS else ""
NPUS = range(LAB["all"]["vars"]["lab_npus"] if HOST else 0)
RESULTS = OUTPUT / f"check/{HOST}.json"
CDI = ("-e", "npufleet_device_access=cdi")
SPEC, UNIT = "/var/run/cdi/rbln.yaml", "npufleet-cdi.service"
FAILS = "/etc/npufleet-lab/toolkit-fails"
NODES = [*(f"/dev/rbln{number}" for number in NPUS), "/dev/rsd0"]
LIBRARY = "/usr/lib/librbln-thunk.so"
USER = 61100


def site(*arguments: str) -> Run:
    return playbook("site.yml", *arguments)


def status(*arguments: str) -> Run:
    return playbook("status.yml", *arguments)


@pytest.fixture(scope="module")
def first() -> Iterator[Any]:
    """A host that serves the guide's way, whatever was there before, and does so again afterwards."""
    host = connect(HOST)
    version = host.run("docker version --format '{{.Server.Version}}'").stdout.strip()
    if not re.match(r"\d+\.", version) or int(version.split(".")[0]) < 25:
        pytest.skip(f"found Docker {version or 'nowhere'}, wanted 25 or newer, which finds devices by name")
    driver = host.file("/sys/module/rebellions/version")
    if not driver.exists or int(driver.content_string.split(".")[0]) < 3:
        pytest.skip("found no driver 3.0 or newer, wanted one with the library that the toolkit needs")
    run = site()
    assert run.code == 0, run.output
    yield host
    # The name that the role gives a library stays, as the driver has it without its own
    host.run("rm --force %s %s", FAILS, LIBRARY)
    run = site()
    assert run.code == 0, run.output


def releases(host: Any) -> dict[str, str]:
    """What is served, by the server's own word."""
    names = [model["name"] for model in ask(host, "/v2/repository/index", "POST")]
    return {name: ask(host, f"/v2/models/{name}/config")["parameters"]["npufleet_release"]["string_value"] for name in names}


def proven() -> set[tuple[str, str]]:
    """Every check that was asked and was right, by name and protocol."""
    checks = json.loads(RESULTS.read_text())["checks"]
    assert [check for check in checks if not check["ok"]] == []
    return {(check["name"], check["protocol"]) for check in checks}


def ready(host: Any, models: Iterable[str]) -> bool:
    """Whether the server answers, with each of these models READY."""
    try:
        index = ask(host, "/v2/repository/index", "POST")
    except AssertionError:
        return False
    return {model["name"] for model in index if model.get("state") == "READY"} == set(models)


def inside(host: Any, command: str) -> str:
    return host.check_output("docker exec triton sh -c %s", command)


def test_a_toolkit_that_makes_no_spec_changes_nothing_that_serves(first):
    before, models = inspect(first)["Id"], releases(first)
    first.check_output("touch %s", FAILS)
    run = site(*CDI)
    first.check_output("rm %s", FAILS)
    assert run.code == 2, run.output
    # The toolkit's own words, of a run that has brought it, or of one that has found it there and changes nothing
    assert "discover RBLN libraries: permission denied" in " ".join(run.output.split()), run.output
    assert (inspect(first)["Id"], containers(first)) == (before, ["triton"])
    assert ready(first, models)


def test_the_same_is_served_by_cards_that_the_engine_finds(first):
    before, checks = releases(first), proven()
    run = site(*CDI)
    assert run.code == 0, run.output
    assert (releases(first), proven()) == (before, checks)
    # Of the vendor's repository, by its key
    assert first.package("rbln-container-toolkit").is_installed
    facts = inspect(first)
    limits = facts["HostConfig"]
    assert (facts["Config"]["User"], limits["Privileged"], limits["ReadonlyRootfs"]) == (f"{USER}:{USER}", False, True)
    assert ([name.removeprefix("CAP_") for name in limits["CapAdd"]], limits["CapDrop"]) == (["IPC_LOCK"], ["ALL"])
    (request,) = limits["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", [f"rebellions.ai/npu={number}" for number in NPUS])
    assert not limits["Devices"]
    assert [bind for bind in limits["Binds"] if "rbln" in bind] == []
    assert sorted(inside(first, "ls -d /dev/rbln* /dev/rsd*").split()) == sorted(NODES)
    assert first.run("docker exec triton test -e /dev/kmsg").rc == 1
    assert inside(first, "ls /var/lib/npufleet").split() == ["blobs", "releases", "served"]
    # What the SDK opens and runs, by the names that it knows
    for path in (LIBRARY, LIBRARY + ".3", "/usr/lib/librbln-ml.so", "/usr/bin/rbln-smi"):
        first.check_output("docker exec triton test -f %s", path)
    assert first.run("docker exec triton touch /opt/here").stderr.strip().endswith("Read-only file system")


def test_nothing_differs_afterwards(first):
    before = inspect(first)["Id"]
    run = site(*CDI)
    assert (run.code, run.changed().get(HOST)) == (0, 0), run.output
    assert inspect(first)["Id"] == before
    run = status(*CDI)
    assert run.code == 0, run.output


@pytest.mark.parametrize(("spoil", "found"), [("rm %s", "missing"), ("sed --in-place s/rbln0/rbln9/ %s", "outdated")])
def test_a_spec_that_is_gone_or_of_another_driver_is_seen_and_made_anew(first, spoil, found):
    before, spec = inspect(first)["Id"], first.file(SPEC).content_string
    first.check_output(spoil, SPEC)
    run = status(*CDI)
    assert run.code == 2, run.output
    told = f"driver {SPEC} is {found}, expected the toolkit's spec of this host (generate)"
    assert told in " ".join(run.output.split()), run.output
    run = site(*CDI)
    assert run.code == 0, run.output
    assert (inspect(first)["Id"], first.file(SPEC).content_string) == (before, spec)


def test_the_spec_is_made_at_boot_before_the_engine_and_the_server_comes_back(first):
    """Older engines do not start such a container by themselves, neither at boot nor at a restart of their own."""
    before, models, spec = inspect(first)["Id"], releases(first), first.file(SPEC).content_string
    power("restart")
    wait_until_booted(first)
    wait_for(lambda: ready(first, models))
    made, engine = (int(shown(first, unit, "ActiveEnterTimestampMonotonic")) for unit in (UNIT, "docker"))
    assert 0 < made < engine
    assert (inspect(first)["Id"], first.file(SPEC).content_string) == (before, spec)
    run = status(*CDI)
    assert (run.code, releases(first)) == (0, models), run.output


def test_back_to_the_guides_container(first):
    before, checks = releases(first), proven()
    run = site()
    assert run.code == 0, run.output
    assert (releases(first), proven()) == (before, checks)
    facts = inspect(first)
    assert (facts["Config"]["User"], facts["HostConfig"]["Privileged"]) == ("", True)
    assert not facts["HostConfig"]["DeviceRequests"]
    assert first.run("ls /etc/systemd/system | grep npufleet-cdi").rc == 1
    run = status()
    assert run.code == 0, run.output
