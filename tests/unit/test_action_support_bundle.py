"""The controller's side of a support bundle, run by ansible-playbook on this machine: secrets, transfer, what stays."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible_collections.npufleet.triton.plugins.action import support_bundle
from ansible_collections.npufleet.triton.plugins.modules.support_bundle import pack
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import archives
from helpers import ansible_playbook

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Collect
      npufleet.triton.support_bundle:
        concerns: [models, server]
        timeout: 3
"""
SECRETS = {
    "npufleet_artefact_password": "artefact-p4ss",
    "triton_image_index_password": "{{ the_login }}",
    "the_login": "templated-p4ss",
    "registries": [{"name": "repo", "password": "nested-p4ss"}],
    "prompted": "become-p4ss",
}
VALUES = ["artefact-p4ss", "templated-p4ss", "nested-p4ss", "become-p4ss", "vaulted-p4ss"]


def run(site: Path, *options: str, **more: Any) -> dict[str, Any]:
    """The one result of the task on this machine."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    given = {**local, **SECRETS, "npufleet_root": str(site / "root"), "npufleet_http_port": 1, "npufleet_metrics_port": 1}
    given.update(npufleet_support_dir=str(site / "out"), **more)
    (site / "hosts.json").write_text(json.dumps({"npu_hosts": {"hosts": {"npu1": given}}}))
    (site / "play.yml").write_text(PLAY)
    (site / "become").write_text("become-p4ss\n")
    (site / "vault").write_text("open\n")
    vaulted = VaultLib([("default", VaultSecret(b"open"))]).encrypt("the_vaulted_token: vaulted-p4ss\n")
    (site / "vars.yml").write_bytes(vaulted)
    secrets = ["--become-password-file", site / "become", "--vault-password-file", site / "vault", "-e", f"@{site}/vars.yml"]
    settings = {
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_REMOTE_TEMP": str(site / "remote"),
        "ANSIBLE_KEEP_REMOTE_FILES": "1",
    }
    done = ansible_playbook(site, "-i", site / "hosts.json", site / "play.yml", *options, *secrets, **settings)
    output = done.stdout
    assert "{" in output, done.stderr
    assert not [value for value in VALUES if value in output + done.stderr], output
    result = json.loads(output[output.index("{\n") :])["plays"][0]["tasks"][0]["hosts"]["npu1"]
    return dict(result)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A store whose one model carries every secret."""
    served = tmp_path / "root/served/digits"
    served.mkdir(parents=True)
    (served / "config.pbtxt").write_text("".join(f'{{ text: "{value}" }}\n' for value in VALUES))
    return tmp_path


def test_bundle_arrives_without_any_secret_and_nothing_stays(site: Path) -> None:
    result = run(site, site_password="{{ lookup('ansible.builtin.file', '/nowhere/at/all') }}")
    assert result.get("failed") is not True and result["changed"] is False, result
    (path,) = (site / "out").iterdir()
    assert re.fullmatch(r"npu1-\d{8}T\d{6}Z\.tar\.gz", path.name)
    assert result["path"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list((site / "remote").iterdir()) == []
    with tarfile.open(path) as archive:
        found = {member.name.split("/", 1)[1]: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]
    assert found["models/configs.json"].count("<redacted>") == len(VALUES), found["models/configs.json"]
    assert not [name for name, text in found.items() for value in VALUES if value in text]
    for name in ("npufleet_artefact_password", "triton_image_index_password", "registries", "the_vaulted_token"):
        assert f"  {name}\n" in found["redaction.txt"]
    # No release row, no cards: the inventory is refused, the bundle is not
    assert "rbln_release is not set" in found["errors.txt"]
    assert "state: npu1 is refused" in found["errors.txt"]
    assert "redaction.txt: site_password has no value to search for" in found["errors.txt"]
    assert "items are missing" in result["msg"] and str(path.name) in result["msg"]


def test_check_mode_leaves_no_trace(site: Path) -> None:
    result = run(site, "--check")
    assert re.fullmatch(r"npu1: would collect \d+ items", result["msg"])
    assert result["changed"] is False
    assert not (site / "out").exists()


def test_place_on_the_controller_that_cannot_be_written(site: Path) -> None:
    (site / "out").write_text("a file")
    result = run(site)
    assert result["failed"] is True
    assert result["msg"].startswith(f"npu1: the bundle cannot be written to {site}/out/npu1-")
    assert list((site / "remote").iterdir()) == []


def test_reading_back_finds_a_known_secret() -> None:
    members = {"a": b"x artefact-p4ss", "b": b"YXJ0ZWZhY3QtcDRzcw==", "c": b"nothing"}
    assert support_bundle.leaking(members, ["artefact-p4ss"]) == ["a", "b"]
    assert support_bundle.leaking(members, []) == []


def test_options_of_the_controllers_own_cannot_be_given() -> None:
    assert set(support_bundle.OPTIONS).isdisjoint({"secrets", "names", "archive", "desired", "host", "stamp", "about", "errors"})


class Connection:
    """Hands over what it was made with."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def fetch_file(self, _source: str, path: str) -> None:
        Path(path).write_bytes(self.raw)


BOUNDS = archives.Bounds(packed=4096, unpacked=1 << 16, files=3)


def fetched(tmp_path: Path, raw: bytes, sha256: str | None = None) -> list[str]:
    """The files of a bundle that a host hands over as `raw`."""
    action = support_bundle.ActionModule.__new__(support_bundle.ActionModule)
    action._connection = Connection(raw)
    result = {"sha256": sha256 or hashlib.sha256(raw).hexdigest()}
    names = action._fetch("x", str(tmp_path / "out/r.tar.gz"), result, ["artefact-p4ss"], "npu1", BOUNDS)
    assert result["sha256"] == hashlib.sha256((tmp_path / "out/r.tar.gz").read_bytes()).hexdigest()
    return names


@pytest.mark.parametrize(
    ("sha256", "words"),
    [
        (None, "npu1: a known secret could be read in a: the bundle is deleted"),
        ("0" * 64, "npu1: the bundle arrived with digest "),
    ],
)
def test_what_arrives_wrong_is_not_kept(tmp_path: Path, sha256: str | None, words: str) -> None:
    with pytest.raises(Exception, match=words):
        fetched(tmp_path, pack("r", {"a": "artefact-p4ss"}), sha256)
    assert os.listdir(tmp_path / "out") == []


def test_a_bundle_is_kept_as_it_was_read(tmp_path: Path) -> None:
    raw = pack("r", {"a": "x\x1b[2J", "b/c": "é"})
    assert fetched(tmp_path, raw) == ["a", "b/c"]
    kept = (tmp_path / "out/r.tar.gz").read_bytes()
    assert archives.files(kept, "r", BOUNDS) == {"a": b"x\\x1b[2J", "b/c": "é".encode()}


def test_a_bundle_is_not_read_beyond_its_bound(tmp_path: Path) -> None:
    class Endless(Connection):
        def fetch_file(self, _source: str, path: str) -> None:
            with open(path, "wb", buffering=0) as target:
                while target.write(bytes(1024)):
                    assert target.tell() <= 1 << 20

    action = support_bundle.ActionModule.__new__(support_bundle.ActionModule)
    action._connection = Endless(b"")
    with pytest.raises(Exception, match="npu1: the bundle has more than 4096 bytes"):
        action._fetch("x", str(tmp_path / "out/r.tar.gz"), {"sha256": ""}, [], "npu1", BOUNDS)
    assert os.listdir(tmp_path / "out") == []
    # And nothing that is written afterwards is bound by it
    (tmp_path / "large").write_bytes(bytes(8192))
