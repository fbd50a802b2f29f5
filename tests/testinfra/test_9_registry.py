"""The image of a release by a registry and its digest: pushed once, pulled and proven, and what must not be taken for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import site_registry
from ansible_collections.npufleet.triton.plugins.module_utils.engine.images import content_digest
from conftest import LAB, NPU_HOSTS, Run, ask, connect, playbook
from site_registry import LOGIN, REGISTRY, TRUST

BUILDER, OTHER = (NPU_HOSTS[0], NPU_HOSTS[-1]) if NPU_HOSTS else ("", "")
REPOSITORY = f"{REGISTRY}/npufleet/delivered"
RELEASE = LAB["all"]["vars"]["lab_release"] if "all" in LAB else ""
# The role as site.yml runs it, on the host that builds and then on another one
BOOK = """
- hosts: npu_hosts
  gather_facts: false
  become: true
  serial: 1
  tasks:
    - ansible.builtin.include_role: {name: npufleet.triton.triton_image}
"""
# An image of one file in the place of the release's, which would be pushed for a minute
IMAGE = "tar --create --file - -C / etc/os-release | docker import --change 'LABEL io.npufleet.contents=a==1' - %s"


class Delivery:
    """An image that the build host has and a lock pins, and a registry for it."""

    def __init__(self, place: Path, lock: dict[str, Any], other: str) -> None:
        self.place, self.file = place, place / "lock.json"
        # Another image of the registry, by its digest
        self.other = other
        (place / "book.yml").write_text(BOOK)
        self.reference = "npufleet/delivered:" + lock["reference"].split(":")[-1]
        connect(BUILDER).check_output(IMAGE, self.reference)
        found = json.loads(connect(BUILDER).check_output("docker image inspect %s", self.reference))[0]
        self.entry = {**lock, "reference": self.reference, "id": found["Id"], "content": content_digest(found)}
        del self.entry["archive"]
        self.keep(self.entry)

    def keep(self, entry: dict[str, Any]) -> None:
        self.file.write_text(json.dumps({RELEASE: entry}))

    def locked(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())[RELEASE]

    def run(self, name: str = "", *options: str, **changes: Any) -> Run:
        given = {
            "npufleet_lock_file": str(self.file),
            "triton_image_name": "npufleet/delivered",
            "triton_image_delivery_repository": REPOSITORY,
            "triton_image_delivery_user": LOGIN[0],
            "triton_image_delivery_password": LOGIN[1],
            **changes,
        }
        return playbook(name or str(self.place / "book.yml"), "-e", json.dumps(given), *options)

    def there(self, host: str) -> list[str]:
        """Names of the image, and of whatever came from the registry, on a host."""
        names = connect(host).check_output("docker image ls --digests --format '{{.Repository}}:{{.Tag}} {{.Digest}}'").splitlines()
        return sorted(name for name in names if "delivered" in name)


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory, lock: dict[str, Any]) -> Iterator[Delivery]:
    """The registry, which the engines trust; afterwards the hosts as before."""
    place = tmp_path_factory.mktemp("registry")
    site_registry.start(place)
    other = site_registry.push(BUILDER, place, "npufleet/delivered:other")
    for host in {BUILDER, OTHER}:
        connect(host).check_output("mkdir -p %s; printf %%s %s > %s/ca.crt", TRUST, (place / "ca.crt").read_text(), TRUST)
    made = Delivery(place, lock, other)
    yield made
    for host in {BUILDER, OTHER}:
        connect(host).check_output("rm -r %s; docker image rm --force %s", TRUST, made.reference)


def told_once(done: Run, words: str) -> None:
    """A run that ended with this as its one error."""
    text = " ".join(done.output.split())
    assert done.code == 2, done.output
    assert words in text
    assert text.count("[ERROR]") == 1


def test_pushed_once_pulled_by_digest_and_proven(delivery: Delivery) -> None:
    done = delivery.run("", "-vvv", "--diff")
    assert done.code == 0, done.output
    locked = delivery.locked()
    assert locked == {**delivery.entry, "repo_digest": locked["repo_digest"]}
    assert locked["repo_digest"].startswith(REPOSITORY + "@sha256:")
    # Under the release's name alone, as from an archive
    assert [delivery.there(host) for host in (BUILDER, OTHER)] == [[f"{delivery.reference} <none>"]] * 2
    hidden = base64.b64encode(":".join(LOGIN).encode()).decode()
    shown = [line for line in done.output.splitlines() if "ansible-playbook" not in line]
    for secret in (LOGIN[1], hidden):
        assert not [line for line in shown if secret in line]
        for host in map(connect, {BUILDER, OTHER}):
            assert host.run("grep -rlF %s /root/.docker /run/npufleet-login /etc/docker /var/lib/npufleet", secret).stdout == ""
            assert secret not in host.check_output("journalctl --no-pager --output=cat --since=-5min")
    assert set(delivery.run().changed().values()) == {0}


def test_another_image_behind_the_digest_is_not_used(delivery: Delivery) -> None:
    locked = delivery.locked()
    host = connect(OTHER)
    host.check_output("docker image rm --force %s", delivery.reference)
    delivery.keep({**locked, "repo_digest": delivery.other})
    done = delivery.run("", "--limit", OTHER)
    delivery.keep(locked)
    told_once(done, f"expected {locked['content']} of")
    assert delivery.there(OTHER) == []
    assert {model["state"] for model in ask(host, "/v2/repository/index", "POST")} == {"READY"}


def test_a_login_that_is_not_taken_and_a_registry_that_is_gone(delivery: Delivery) -> None:
    """The host lacks the image: preflight tells it before anything changes, and the role where nobody asked preflight."""
    wrong = {"triton_image_delivery_password": "wr0ng-secret"}
    for name, words in (
        ("preflight.yml", f"image in the registry {delivery.locked()['repo_digest']}: it refuses the login of fleet"),
        ("", f"{OTHER}: {REGISTRY} gives no login to fleet (login attempt to"),
    ):
        done = delivery.run(name, "--limit", f"{OTHER},localhost", **wrong)
        assert done.code == 2, done.output
        assert words in " ".join(done.output.split())
        assert "wr0ng-secret" not in done.output
    connect("ops1").check_output("systemctl stop docker-registry")
    try:
        done = delivery.run("preflight.yml", "--limit", f"{OTHER},localhost")
    finally:
        connect("ops1").check_output("systemctl start docker-registry")
    assert "this host's engine does not reach the registry (" in " ".join(done.output.split())
    assert not connect(OTHER).file("/run/npufleet-login").exists
