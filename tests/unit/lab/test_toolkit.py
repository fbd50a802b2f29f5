"""The lab's container toolkit: its spec is judged as the vendor's would be, its hook makes links, its repository is signed."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from test_driver import DRIVER, load_script

LIBRARIES = ("librbln-thunk.so.3.2.2", "librbln-ccl.so.3.2.2", "librbln-ml.so")
ctk = load_script("rbln-ctk")
hook = load_script("rbln-cdi-hook")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with two NPUs in group 0, and the files of a driver 3.2.2."""
    smi = 'echo \'{"devices": [{"device": "rbln0", "group_id": "0"}, {"device": "rbln1", "group_id": "0"}]}\''
    files = {"usr/bin/rbln-smi": f"#!/bin/sh\n{smi}\n", **{f"usr/lib/{name}": "" for name in LIBRARIES}}
    for name, text in {**files, "dev/rbln0": "", "dev/rbln1": "", "dev/rsd0": "", "dev/rsd": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "usr/bin/rbln-smi").chmod(0o755)
    (tmp_path / "usr/lib/librbln-thunk.so.3").symlink_to(LIBRARIES[0])
    return tmp_path


def told(root: Path) -> str:
    """The spec as JSON, of the files below `root`."""
    return json.dumps(ctk.spec(root)).replace('"hostPath": "/usr', f'"hostPath": "{root}/usr')


def test_its_spec_has_what_the_project_wants_once_the_library_has_its_plain_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binds = [f"{root}/usr/lib/{name}:/usr/lib/{name}:ro" for name in LIBRARIES]
    monkeypatch.setattr(driver_files, "find", lambda _wanted: {"binds": binds, "missing": []})
    assert list(cdi.spec_flaws(told(root), 2)) == ["no librbln-thunk.so in the container"]
    (root / "usr/lib/librbln-thunk.so").symlink_to("librbln-thunk.so.3")
    assert list(cdi.spec_flaws(told(root), 2)) == []
    assert list(cdi.spec_flaws(told(root), 3)) == ["no NPU 2"]
    # Where librbln-ml does not answer, no NPU has a group
    (root / "usr/bin/rbln-smi").write_text("#!/bin/sh\nexit 1\n")
    assert list(cdi.spec_flaws(told(root), 2)) == ["no /dev/rsd0 for NPU 0", "no /dev/rsd0 for NPU 1"]


def test_both_forms_say_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("yaml", "json"):
        assert ctk.main(["cdi", "generate", "--output", "-", "--format", form], root) == 0
    printed = capsys.readouterr().out
    as_yaml, brace, as_json = printed.partition("{\n")
    assert yaml.safe_load(as_yaml) == json.loads(brace + as_json) == ctk.spec(root)
    assert [device["name"] for device in ctk.spec(root)["devices"]] == ["0", "1", "rsd0", "all", "runtime"]
    target = root / "run/cdi/rbln.yaml"
    assert ctk.main(["cdi", "generate", "--output", str(target)], root) == 0
    assert (target.read_text(), target.stat().st_mode & 0o777) == (as_yaml, 0o644)


def test_its_hook_makes_links_in_the_root_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rootfs/usr/lib").mkdir(parents=True)
    (tmp_path / "rootfs/usr/lib/librbln-thunk.so").write_text("of the image")
    (tmp_path / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    words = ["create-symlinks", "--link", "librbln-thunk.so.3::/usr/lib/librbln-thunk.so"]
    for _start in range(2):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"bundle": str(tmp_path)})))
        hook.main(words)
    assert (tmp_path / "rootfs/usr/lib/librbln-thunk.so").readlink() == Path("librbln-thunk.so.3")
    (tmp_path / "config.json").write_text(json.dumps({"root": {"path": "/"}}))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"bundle": str(tmp_path)})))
    with pytest.raises(SystemExit, match="system root"):
        hook.main(words)


@pytest.fixture(scope="module")
def toolkit() -> Iterator[ModuleType]:
    """The script that builds it, which imports its neighbour."""
    sys.path.insert(0, str(DRIVER))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield importlib.import_module("toolkit")
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(DRIVER))


@pytest.mark.skipif(shutil.which("gpg") is None, reason="found no gpg, which the lab installs")
def test_its_repository_is_signed_by_the_key_beside_it(toolkit: ModuleType, tmp_path: Path) -> None:
    toolkit.build_repository(tmp_path)
    suite, key = tmp_path / "apt-public/dists/stable", tmp_path / "raw-public/rebellions.asc"
    first = (suite / "InRelease").read_bytes()
    toolkit.build_repository(tmp_path)
    assert (suite / "InRelease").read_bytes() == first
    listing = (suite / "main/binary-amd64/Packages").read_bytes()
    assert f"{hashlib.sha256(listing).hexdigest()} {len(listing)} main/binary-amd64/Packages" in (suite / "Release").read_text()
    fields = dict(line.split(": ", 1) for line in listing.decode().splitlines() if ": " in line and line[0] != " ")
    package = tmp_path / "apt-public" / fields["Filename"]
    assert (fields["Package"], fields["SHA256"]) == (cdi.PACKAGE, hashlib.sha256(package.read_bytes()).hexdigest())
    assert "librbln-ml" in fields["Depends"]
    ring = tmp_path / "ring.gpg"
    subprocess.run(["gpg", "--dearmor", "--output", str(ring), str(key)], check=True)
    subprocess.run(["gpgv", "--keyring", str(ring), str(suite / "InRelease")], check=True, capture_output=True)


def test_what_is_public_needs_no_login_and_the_rest_does(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    for name in ("public/key.asc", "secret.txt"):
        (tmp_path / name).write_text(name)
    loader = partial(load_script, "../index/server.py")
    handler = partial(loader().Handler, "lab:secret", directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert urlopen(f"{address}/public/key.asc").read() == b"public/key.asc"
        for path in ("/secret.txt", "/public/../secret.txt", "/public/%2e%2e/secret.txt", "/"):
            with pytest.raises(HTTPError, match="401"):
                urlopen(address + path)
        server.shutdown()
