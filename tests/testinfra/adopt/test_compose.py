"""The Compose file of compose.yml on a lab host: Debian's docker-compose 1.29 makes a container of it that is the managed one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import testinfra
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.container import container_facts
from conftest import NPU_HOSTS, connect, engine, inspect, playbook, well
from test_3_reboot import wait_for

HOST = NPU_HOSTS[0] if NPU_HOSTS else ""
PLACE = "/tmp/npufleet-compose"
# Unpacked and not installed: the host stays as it is. Of distutils Debian's Python has a part.
BRING = f"""set -eu
rm -rf {PLACE} && mkdir -p {PLACE}/debs/partial {PLACE}/root {PLACE}/{HOST} && cd {PLACE}
apt-get install -y -qq --no-install-recommends --download-only -o Dir::Cache::archives={PLACE}/debs docker-compose
for deb in debs/*.deb; do dpkg -x "$deb" root; done
cp -n /usr/lib/python3.*/distutils/*.py root/usr/lib/python3.*/distutils/
"""
LIBRARIES = f"$(echo {PLACE}/root/usr/lib/python3/dist-packages {PLACE}/root/usr/lib/python3.* | tr ' ' :)"
COMPOSE = f"cd {PLACE}/{HOST} && env PYTHONPATH={LIBRARIES} python3 {PLACE}/root/usr/bin/docker-compose"
NAMES = ("compose.yml", ".env")


@pytest.fixture(scope="module")
def host() -> testinfra.host.Host:
    return connect(HOST)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this host, by a run that a second one has nothing to add to."""
    place = tmp_path_factory.mktemp("compose")
    extra = ("-e", f"triton_server_compose_dir={place}")
    run = playbook("compose.yml", *extra)
    assert run.code == 0, run.output
    assert f"{HOST}: {place}/{HOST}/compose.yml, with .env beside it" in " ".join(run.output.split())
    again = playbook("compose.yml", *extra)
    assert set(again.changed().values()) == {0}, again.output
    return place / HOST


@pytest.fixture(scope="module")
def composed(host: testinfra.host.Host, written: Path) -> Iterator[dict]:
    """The container that Compose makes of it, in the place of the managed one, which comes back."""
    managed = inspect(host)["Id"]
    host.check_output(BRING)
    for name in NAMES:
        content = base64.b64encode((written / name).read_bytes()).decode()
        host.check_output("echo %s | base64 -d > %s", content, f"{PLACE}/{HOST}/{name}")
    host.check_output("docker stop triton && docker rename triton triton-managed")
    try:
        host.check_output(f"{COMPOSE} up --detach 2>&1")
        yield inspect(host)
    finally:
        host.check_output("docker rm --force triton 2>&1; docker rename triton-managed triton && docker start triton")
        host.check_output("rm -rf %s", PLACE)
        assert inspect(host)["Id"] == managed
        wait_for(lambda: well(host))


def test_what_may_be_secret_is_in_neither_file_but_env(written: Path):
    assert "RBLN_LAB_NPU_NAME: ${NPUFLEET_VALUE_" in (written / "compose.yml").read_text()
    assert [(written / name).stat().st_mode & 0o777 for name in NAMES] == [0o600, 0o600]


def test_it_is_the_managed_container(host: testinfra.host.Host, composed: dict):
    """As the engine sees both, in every option that the project compares."""
    managed = inspect(host, "triton-managed")
    base = engine(host).get(f"/images/{managed['Image']}/json")
    assert container_facts(composed, base) == container_facts(managed, base)
    assert composed["Id"] != managed["Id"]
    assert "com.docker.compose.project" in composed["Config"]["Labels"]


def test_it_serves_and_nothing_differs(host: testinfra.host.Host, composed: dict):
    wait_for(lambda: inspect(host)["State"]["Health"]["Status"] == "healthy")
    run = playbook("status.yml")
    assert run.code == 0, run.output
