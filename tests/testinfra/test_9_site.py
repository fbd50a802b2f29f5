"""A site as sites are: a way out only through a proxy, a certificate authority of its own, a registry with a login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import site_registry
from conftest import NPU_HOSTS, ROOT, Run, ask, connect, inspect, playbook
from site_registry import LOGIN, OPS, REGISTRY

FIRST, LAST = (NPU_HOSTS[0], NPU_HOSTS[-1]) if NPU_HOSTS else ("", "")
# It takes anybody, and is told this by everybody
PROXY_LOGIN = "site:pr0xy-secret"
PROXY_LOG = "/var/log/tinyproxy/tinyproxy.log"
PROXY = r"""
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends tinyproxy >/dev/null
cat > /etc/tinyproxy/tinyproxy.conf <<END
Port 8888
Listen 0.0.0.0
Timeout 600
LogFile "/var/log/tinyproxy/tinyproxy.log"
LogLevel Connect
END
systemctl restart tinyproxy
"""


@dataclass
class Site:
    """The variables of the site, and where its authority lies on the controller."""

    given: dict[str, Any]
    authority: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Proxy and registry on the operations host, an image in the registry; the first host as before afterwards."""
    place = tmp_path_factory.mktemp("site")
    site_registry.start(place)
    ops, first = connect("ops1"), connect(FIRST)
    ops.check_output("sh -c %s", PROXY)
    site_registry.push(LAST, place, "site/base:1")
    before = first.file("/etc/docker/daemon.json").content_string
    yield Site(
        {
            "npufleet_http_proxy": f"http://{PROXY_LOGIN}@{OPS}:8888",
            "npufleet_https_proxy": f"http://{PROXY_LOGIN}@{OPS}:8888",
            "npufleet_no_proxy": ["localhost", "127.0.0.1"],
            "npufleet_ca_file": str(place / "ca.crt"),
            "docker_engine_registry_mirrors": [f"https://{REGISTRY}"],
        },
        place / "ca.crt",
    )
    # daemon.json keeps what is no longer asked for: a site may have put it there itself.
    first.check_output("printf %%s %s > /etc/docker/daemon.json", before)
    first.check_output("rm /usr/local/share/ca-certificates/npufleet.crt; update-ca-certificates")
    assert playbook("site.yml").code == 0


def run(name: str, *options: str, **given: Any) -> Run:
    return playbook(name, "--limit", f"{FIRST},localhost", "-e", json.dumps(given), *options)


def test_proxy_authority_and_mirror_reach_apt_and_the_engine(site: Site) -> None:
    first = connect(FIRST)
    first.check_output("apt-get remove -y -qq rsync; rm -f /var/cache/apt/archives/rsync_*")
    done = run("site.yml", "-vvv", "--diff", **site.given)
    assert done.code == 0, done.output
    secret = PROXY_LOGIN.split(":")[1]
    assert not [line for line in done.output.splitlines() if secret in line and "ansible-playbook" not in line]
    told = json.loads(first.check_output("docker info --format '{{json .}}'"))
    # The engine itself hides the login
    assert told["HttpsProxy"].endswith(f"@{OPS}:8888")
    assert told["NoProxy"] == "localhost,127.0.0.1"
    assert told["RegistryConfig"]["Mirrors"] == [f"https://{REGISTRY}/"]
    assert first.package("rsync").is_installed
    mirror = first.check_output("apt-get indextargets --format '$(SITE)' | head -n 1").split("//")[-1].split("/")[0].split(":")[0]
    assert mirror in connect("ops1").file(PROXY_LOG).content_string, "apt did not go through the proxy"
    script = f"import urllib.request as u; u.urlopen('https://{REGISTRY}/v2/')"
    assert "401" in first.run("python3 -c %s", script).stderr, "the authority is not trusted, or nobody answers"
    assert {model["state"] for model in ask(first, "/v2/repository/index", "POST")} == {"READY"}
    assert inspect(first)["State"]["Running"] is True
    assert set(run("site.yml", **site.given).changed().values()) == {0}


def test_login_of_the_proxy_is_where_root_alone_reads_it(site: Site) -> None:
    first = connect(FIRST)
    secret = PROXY_LOGIN.split(":")[1]
    assert secret in first.file("/etc/npufleet/proxy.env").content_string
    assert first.file("/etc/npufleet/proxy.env").mode == 0o600
    assert first.check_output("grep -rl %s /etc", secret) == "/etc/npufleet/proxy.env"
    assert secret not in first.check_output("systemctl show docker") + first.check_output("docker info")
    # Where sudo writes down what it runs
    assert secret not in first.check_output("journalctl --no-pager --output=cat")
    for name, options in (("site.yml", ["--check"]), ("status.yml", [])):
        done = run(name, "-vvv", "--diff", *options, **{**site.given, "npufleet_no_proxy": ["localhost"]})
        assert "/etc/npufleet/proxy.env" in done.output, "another list is no difference"
        assert not [line for line in done.output.splitlines() if secret in line and "ansible-playbook" not in line]


def test_preflight_asks_the_registry_through_the_proxy(site: Site, tmp_path: Path) -> None:
    given = {
        **site.given,
        "npufleet_lock_file": str(tmp_path / "lock.json"),
        "triton_image_base_archive": "",
        "triton_image_base_archive_sha256": "",
        "triton_image_base": f"{REGISTRY}/site/none:1",
        "triton_image_registry_user": LOGIN[0],
        "triton_image_registry_password": LOGIN[1],
    }
    done = run("preflight.yml", **given)
    assert done.code == 2, done.output
    assert f"base image {REGISTRY}/site/none:1: the registry has no site/none:1" in " ".join(done.output.split())
    done = run("preflight.yml", **{**given, "triton_image_registry_password": "wr0ng-secret"})
    assert "refuses the login of fleet" in " ".join(done.output.split())
    assert "wr0ng-secret" not in done.output
    assert f"CONNECT {REGISTRY}" in connect("ops1").file(PROXY_LOG).content_string


def test_a_base_image_behind_a_login_is_pulled_and_the_login_is_gone(site: Site, tmp_path: Path) -> None:
    first = connect(FIRST)
    book = ROOT / "build" / "pull.yml"
    book.write_text(
        "- hosts: npu_hosts\n  gather_facts: false\n  become: true\n  tasks:\n"
        "    - ansible.builtin.include_role: {name: npufleet.triton.triton_image, tasks_from: registry_login}\n"
        "      vars:\n"
        "        triton_image_with_login: base_pull.yml\n"
        "        triton_image_login: triton_image_registry\n"
        '        triton_image_login_registry: "{{ triton_image_registry }}"\n'
    )
    try:
        given = {
            "triton_image_base": f"{REGISTRY}/site/base:1",
            "triton_image_registry_user": LOGIN[0],
            "triton_image_registry_password": LOGIN[1],
        }
        done = run("../build/pull.yml", "-vvv", **given)
    finally:
        book.unlink()
    assert done.code == 0, done.output
    assert not [line for line in done.output.splitlines() if LOGIN[1] in line and "ansible-playbook" not in line]
    assert first.run("docker image inspect %s", f"{REGISTRY}/site/base:1").rc == 0
    assert not first.file("/run/npufleet-login").exists
    assert LOGIN[1] not in first.run("cat /root/.docker/config.json").stdout
    first.check_output("docker image rm %s", f"{REGISTRY}/site/base:1")
