"""A support bundle of the running lab: what has to be in it, and that no planted secret is, also with the engine down."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import KEY, LAB, NPU_HOSTS, connect, playbook, well
from test_3_reboot import wait_for

FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
EXPECTED = {
    "README.txt",
    "errors.txt",
    "redaction.txt",
    "host/packages.txt",
    "host/disk.txt",
    "kernel/journal.txt",
    "driver/tool.json",
    "driver/tool-groups.json",
    "driver/tool.txt",
    "driver/nodes.txt",
    "driver/holders.json",
    "driver/cards.json",
    "driver/pci.txt",
    "engine/daemon.json",
    "engine/units.json",
    "engine/info.json",
    "engine/version.json",
    "journal/docker.txt",
    "journal/containerd.txt",
    "journal/npufleet.txt",
    "container/triton.json",
    "container/triton-log.txt",
    "server/index.json",
    "server/configs.json",
    "server/statistics.json",
    "server/metrics.txt",
    "models/store.txt",
    "models/records.json",
    "sdk/rebel.json",
    "state/driver.json",
    "state/engine.json",
    "state/image.json",
    "state/models.json",
    "state/server.json",
}
LOGIN = "registry-l0gin"
# Without a name of the inventory: known by their form alone
FORMS = {
    "LICENSE_KEY=l1cense-planted": "l1cense-planted",
    "OPENAI_KEY=0penai-planted": "0penai-planted",
    "SIGNING_KEY=s1gning-planted": "s1gning-planted",
    "AZURE_STORAGE_KEY=st0rage-planted": "st0rage-planted",
    "https://a.blob.core.windows.net/c?sp=r&sig=s4s-planted": "s4s-planted",
    "https://hooks.slack.com/services/T0/B0/h00k-planted": "h00k-planted",
    "http://me:sl4sh/h4sh#planted@proxy:3128": "h4sh#planted",
    "--http-restricted-api health:admin=k3y-planted": "k3y-planted",
}


def inventory_secrets() -> list[str]:
    """The lab's passwords, as its inventory hands them out."""
    given = [*LAB["all"]["vars"].items(), *LAB["_meta"]["hostvars"][FIRST].items()]
    values = sorted({value for name, value in given if name.endswith("_password") and "{{" not in value})
    assert len(values) >= 2, values
    return values


def collect(into: Path, *options: str) -> dict[str, dict[str, str]]:
    """{host: {name: text}} of one run of collect.yml."""
    run = playbook("collect.yml", "-e", f"npufleet_support_dir={into}", *options)
    assert run.code == 0, run.output
    assert set(run.changed().values()) == {0}, run.output
    for secret in inventory_secrets():
        assert secret not in run.output
    found = {}
    for path in into.glob("*.tar.gz"):
        assert path.stat().st_mode & 0o777 == 0o600
        with tarfile.open(path) as archive:
            texts = {member.name.split("/", 1)[1]: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]
        found[path.name.rsplit("-", 1)[0]] = texts
    return found


def on(host, program: str) -> str:
    return host.check_output("python3 -c %s", program)


@pytest.fixture
def planted() -> Iterator[list[str]]:
    """Every secret of the inventory and a registry's login, where they are met in the field."""
    host = connect(FIRST)
    secrets = inventory_secrets()
    login = base64.b64encode(f"someone:{LOGIN}".encode()).decode()
    config = json.dumps({"auths": {"repo.example": {"auth": login}}})
    proxy = f"[Service]\nEnvironment=HTTPS_PROXY=http://me:{LOGIN}@proxy:3128\n" + "".join(
        f"Environment=X={secret}\n" for secret in secrets
    )
    proxy += "".join(f'Environment="{form if "://" not in form else "X=" + form}"\n' for form in FORMS if not form.startswith("-"))
    drop_in = "/etc/systemd/system/docker.service.d/99-planted.conf"
    on(host, f"import os; os.makedirs('/root/.docker', exist_ok=True); open('/root/.docker/config.json', 'w').write({config!r})")
    on(host, f"open({drop_in!r}, 'w').write({proxy!r})")
    for entry in (*secrets, base64.b64encode(f"u:{secrets[0]}".encode()).decode(), f"PASSWORD={LOGIN}", *FORMS):
        host.check_output("docker exec triton sh -c %s", f"echo planted '{entry}' > /proc/1/fd/1")
    yield [*secrets, LOGIN, login, *FORMS.values(), host.file(KEY).content_string.strip()]
    host.check_output("rm -rf /root/.docker %s", drop_in)


def left_behind(host) -> list[str]:
    """Files that are newer than the marker, but for what the system, the watchdog, the probe and the metrics write at any time."""
    at_any_time = ("/var/lib/npufleet/watchdog.json", "/var/lib/npufleet/probe.json", "/var/lib/prometheus/node-exporter/")
    found = host.check_output(
        "find / -xdev -newer /root/.marker -type f -not -path '/var/log/*' -not -path '/var/lib/docker/*' "
        "-not -path '/var/lib/containerd/*' -not -path '/run/*'"
    )
    return [path for path in found.split() if not path.startswith(("/proc/", "/sys/", *at_any_time))]


def test_bundle_holds_what_a_ticket_needs_and_no_secret(planted: list[str], tmp_path: Path) -> None:
    host = connect(FIRST)
    host.check_output("touch /root/.marker")
    found = collect(tmp_path / "out")
    assert set(found) == {*NPU_HOSTS, "ops1"}
    first = found[FIRST]
    assert set(first) >= EXPECTED, EXPECTED - set(first)
    assert {"monitoring/files.json", "monitoring/targets.json", "journal/prometheus.txt"} <= set(found["ops1"])
    for name, text in ((f"{host}/{name}", text) for host, texts in found.items() for name, text in texts.items()):
        assert not [secret for secret in planted if secret in text], name
    # The planted places are there, without what was planted
    assert "<redacted>" in first["container/triton-log.txt"] and "planted" in first["container/triton-log.txt"]
    assert json.loads(first["engine/login.json"])["auths"]["repo.example"]["auth"] == "<redacted>"
    assert "http://<redacted>@proxy:3128" in first["engine/units.json"]
    assert {entry["name"] for entry in json.loads(first["server/index.json"])} == {"digits", "digits_guide"}
    assert {device["status"] for device in json.loads(first["driver/tool.json"])["devices"]} == {"normal"}
    sdk = json.loads(first["sdk/rebel.json"])
    assert sdk["version"] in host.check_output("docker exec triton python3 -c %s", "import rebel; print(rebel.__version__)")
    assert "input_info" in sdk["rebel"]["compile_from_onnx"]["signature"]
    assert not [name for name in host.check_output("docker ps --all --format '{{.Names}}'").split() if "support" in name]
    assert "npufleet_artefact_password" in first["redaction.txt"]
    assert left_behind(host) == []
    host.check_output("rm /root/.marker")


def test_bundle_of_a_host_whose_engine_is_down(tmp_path: Path) -> None:
    host = connect(FIRST)
    host.check_output("systemctl stop docker.socket docker.service")
    try:
        first = collect(tmp_path / "out", "--limit", FIRST)[FIRST]
    finally:
        host.check_output("systemctl start docker.service docker.socket")
        wait_for(lambda: well(host))
    assert {"host/packages.txt", "driver/tool.json", "journal/docker.txt", "models/store.txt", "engine/daemon.json"} <= set(first)
    assert "engine/info.json: the engine does not answer: " in first["errors.txt"] and "server/index.json: " in first["errors.txt"]
    assert "engine service is missing, expected an engine that answers" in first["README.txt"]


def test_check_mode_collects_nothing(tmp_path: Path) -> None:
    run = playbook("collect.yml", "--check", "-e", f"npufleet_support_dir={tmp_path}/out")
    assert run.code == 0, run.output
    assert f"{FIRST}: would collect" in run.output
    assert not (tmp_path / "out").exists()
