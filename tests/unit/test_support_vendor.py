"""What a bundle has of the vendor's own files: the installer's options, packages, and the calls of the SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.support import vendor
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Limits, Missing, Partial, Unavailable
from helpers import unix_server

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(seconds=5, size=1 << 16, lines=50)
INSTALLER = (
    b'#!/bin/sh\n# knows --quiet\ncase "$1" in --help) echo "use it so"; cat; exit 0;; esac\ntouch "$(dirname "$0")/installed"\n'
)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    (tmp_path / "packages").mkdir()
    return tmp_path / "packages"


# The installer


def test_installer_is_the_newest_one(packages: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("new.run", "old.run", "other.deb")):
        (packages / name).touch()
        os.utime(packages / name, (1000 - age, 1000 - age))
    assert vendor.installer(str(tmp_path)) == str(packages / "new.run")


def test_without_an_installer_nothing_is_said(packages: Path, tmp_path: Path) -> None:
    for read in (vendor.installer_script, lambda root: vendor.installer_help(root, LIMITS)):
        with pytest.raises(Missing, match="the host has no installer of the driver"):
            read(str(tmp_path))


@pytest.mark.parametrize("carried", [b"", b"\x1f\x8b\x08\xff\xfe\n more", b"./kmd.deb\0\0\0\0", bytes(vendor.SCRIPT_BYTES)])
def test_a_script_is_told_up_to_what_it_carries(packages: Path, tmp_path: Path, carried: bytes) -> None:
    (packages / "d.run").write_bytes(INSTALLER + carried)
    told = vendor.installer_script(str(tmp_path))
    assert told.rstrip("\n") == INSTALLER.decode().rstrip("\n")


def test_what_is_no_script_is_not_run(packages: Path, tmp_path: Path) -> None:
    (packages / "d.run").write_bytes(b"\x7fELF" + bytes(100))
    for read in (vendor.installer_script, lambda root: vendor.installer_help(root, LIMITS)):
        with pytest.raises(Unavailable, match=r"d\.run is not a script"):
            read(str(tmp_path))


def test_help_ends_though_it_reads(monkeypatch: pytest.MonkeyPatch, packages: Path, tmp_path: Path) -> None:
    """It gets nothing on its standard input, and may not wait for it."""
    monkeypatch.setattr(vendor, "READ_ONLY", ())
    (packages / "d.run").write_bytes(INSTALLER)
    assert vendor.installer_help(str(tmp_path), LIMITS) == "use it so\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_an_installer_that_does_not_know_help_installs_nothing(packages: Path, tmp_path: Path) -> None:
    """It is nobody, though it can be read where nobody can."""
    (packages / "d.run").write_bytes(INSTALLER.replace(b"--help)", b"-h)"))
    (packages / "d.run").chmod(0o700)
    packages.chmod(0o700)
    with pytest.raises(Partial) as told:
        vendor.installer_help(str(tmp_path), LIMITS)
    assert "ermission denied" in told.value.content
    assert os.listdir(packages) == ["d.run"]


# Packages


@pytest.mark.parametrize("tool", ["dpkg-query", "rpm"])
def test_packages_by_the_tool_of_the_distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str) -> None:
    program = tmp_path / tool
    program.write_text('#!/bin/sh\necho "$(basename "$0") ${4:-$3}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(vendor.os.path, "exists", lambda path: tool == "dpkg-query" and path == "/var/lib/dpkg/status")
    said = vendor.packages(LIMITS, ["rebellions*", "rbln*"])
    assert said.split() == ([tool, "rbln*"] if tool == "dpkg-query" else [tool, "rebellions*"])


# The SDK


def answer(version: str, *arguments: str, path: str = str(ROOT / "lab/sdk")) -> Any:
    """What the program says of the stand-in SDK of this version."""
    environment = {**os.environ, "PYTHONPATH": path, "RBLN_LAB_VERSION": version, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", vendor.PROGRAM, *arguments]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_the_calls_of_an_sdk() -> None:
    told = answer("0.11.2+lab")
    assert told["version"] == "0.11.2+lab" and "device_count" in told["names"]
    assert "shape" in told["rebel"]["compile_from_onnx"]["signature"]
    assert "input_info" in told["rebel"]["compile_from_torch"]["signature"]
    assert told["rebel"]["Runtime"]["doc"]
    assert "non_blocking_mode" in told["RBLNCompiledModel"]["get_alloc_per_node"]["signature"]
    assert {"inspect" in answer(version)["RBLNCompiledModel"] for version in ("0.9.4+lab", "0.11.2+lab")} == {True}
    assert "input_info" in answer("0.9.4+lab")["rebel"]["compile_from_onnx"]["signature"]


def test_an_sdk_that_cannot_inspect_is_not_asked_to() -> None:
    told = answer("0.6.2+lab", "/models/a.rbln")
    assert "error" not in told and "inspect" not in told and "compile_from_onnx" in told["rebel"]


SHAPES = """
import types, numpy
class RBLNCompiledModel:
    @staticmethod
    def inspect(path):
        tensor = types.SimpleNamespace(name=None, shape=(1, numpy.int64(3)), dtype=numpy.dtype("float32"))
        return types.SimpleNamespace(npu="RBLN-CA25", inputs=[tensor], more={"of": [b"bytes"]})
"""


def test_inspect_is_told_in_whatever_form_it_has(tmp_path: Path) -> None:
    (tmp_path / "rebel.py").write_text(SHAPES)
    told = answer("", "/models/a.rbln", path=str(tmp_path))["inspect"]
    assert told["file"] == "/models/a.rbln" and "SimpleNamespace" in told["is a"]
    (tensor,) = told["gives"]["inputs"]
    assert (tensor["name"], tensor["shape"][0], tensor["dtype"]["repr"]) == (None, 1, "dtype('float32')")
    assert told["gives"]["more"]["of"] == [{"is a": "builtins.bytes", "repr": "b'bytes'"}]


def test_an_sdk_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "rebel.py").write_text("raise OSError('librbln.so: cannot open')")
    assert answer("", path=str(tmp_path))["error"] == "OSError: librbln.so: cannot open"


class Docker(Engine):
    """An engine with one container, which writes down what it was asked to run."""

    def __init__(self, said: str = "{}", code: int = 0, running: Any = None) -> None:
        super().__init__()
        self.said, self.code, self.running = said, code, running
        self.asked: dict[str, Any] = {}

    def get(self, resource: str) -> Any:
        assert resource == "/containers/triton/json"
        return self.running

    def run(self, name: str, config: Any, limit: float) -> tuple[int, str]:
        assert (name, limit) == (vendor.NAME, vendor.SDK_SECONDS)
        self.asked = dict(config)
        return self.code, self.said


def test_the_container_that_asks_sees_what_the_server_mounts_and_can_do_nothing(tmp_path: Path) -> None:
    for name, size in (("large", 9), ("small", 3)):
        (tmp_path / f"blobs/{name}").parent.mkdir(exist_ok=True)
        (tmp_path / f"blobs/{name}").write_bytes(bytes(size))
        (tmp_path / f"served/{name}/1").mkdir(parents=True)
        (tmp_path / f"served/{name}/1/model.rbln").symlink_to(tmp_path / f"blobs/{name}")
    running = {"Image": "sha256:1", "Config": {"Env": ["TOKEN=x"]}, "Mounts": [{"Source": str(tmp_path), "Destination": "/models"}]}
    engine = Docker('noise of a library\n{"version": "1"}\n', running=running)
    assert vendor.sdk(engine, "triton", str(tmp_path), LIMITS) == {"version": "1"}
    assert engine.asked["Image"] == "sha256:1" and "Env" not in engine.asked
    assert engine.asked["Entrypoint"] == ["python3", "-c", vendor.PROGRAM, "/models/blobs/small"]
    host = engine.asked["HostConfig"]
    assert (host["VolumesFrom"], host["NetworkMode"], host["CapDrop"]) == (["triton:ro"], "none", ["ALL"])
    assert host["ReadonlyRootfs"] and "Devices" not in host and "Privileged" not in host


def test_without_a_compiled_file_the_calls_are_asked_for_alone(tmp_path: Path) -> None:
    engine = Docker(running={"Image": "sha256:1"})
    vendor.sdk(engine, "triton", str(tmp_path), LIMITS)
    assert engine.asked["Entrypoint"] == ["python3", "-c", vendor.PROGRAM]


@pytest.mark.parametrize(
    ("said", "code", "kept", "why"),
    [
        ("Traceback\nno python3", 127, "Traceback\nno python3", "the SDK's container ended with 127: no python3"),
        ("[1]", 0, "[1]", "the SDK's container ended with 0"),
        ('{"python": "3", "error": "OSError: librbln.so"}', 0, {"python": "3", "error": "OSError: librbln.so"}, "librbln.so"),
    ],
)
def test_what_it_says_before_it_fails_is_kept(tmp_path: Path, said: str, code: int, kept: Any, why: str) -> None:
    with pytest.raises(Partial, match=why) as told:
        vendor.sdk(Docker(said, code, {"Image": "sha256:1"}), "triton", str(tmp_path), LIMITS)
    assert told.value.content == kept


def test_no_container_and_no_engine(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the container triton is missing, expected to read the SDK from its image"):
        vendor.sdk(Docker(), "triton", str(tmp_path), LIMITS)
    with pytest.raises(Unavailable, match="the SDK could not be run"):
        vendor.sdk(Engine(str(tmp_path / "none.sock")), "triton", str(tmp_path), LIMITS)


def test_a_container_that_does_not_end_is_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = f"/containers/{vendor.NAME}"
    answers = {
        "GET /containers/triton/json": (200, {"Image": "sha256:1"}),
        f"DELETE {place}?force=true": (204, {}),
        f"POST /containers/create?name={vendor.NAME}": (201, {"Id": "1"}),
        f"POST {place}/start": (500, {"message": "no room"}),
    }
    with unix_server(tmp_path / "s", answers), pytest.raises(Unavailable, match=r"could not be run: .*no room"):
        vendor.sdk(Engine(str(tmp_path / "s")), "triton", str(tmp_path), LIMITS)
