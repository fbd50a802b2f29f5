"""Tests that the ID of a client's request appears in the logs of Triton and of the backend `rbln`, on real servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_server import HERE, WHEELS
from onnx import TensorProto, helper
from pytriton_wheel import tritonserver
from rendered_server import RenderedServer, rendered_server

ROOT = HERE.parents[1]
SDK = ROOT / "lab/sdk"
VERSION = "0.9.4+lab"
COMPILE = """
import sys, rebel
info = [[("X", [rows, 3], "float32")] for rows in (1, 4)]
rebel.compile_from_onnx(sys.argv[1], info, npu="RBLN-CA22").save(sys.argv[2])
"""
CONFIG = 'backend: "rbln"\ninstance_group [ { kind: KIND_MODEL, count: 1 } ]\n'
INPUTS = {"X": [[1.0, 2.0, 3.0]]}
REFUSAL = "NPU 0 refuses to run"


class Scene:
    """A server with the model `twice` of the backend `rbln`, whose NPU fails on request."""

    def __init__(self, release: str, server: RenderedServer, faults: Path) -> None:
        self.release, self.server, self.faults = release, server, faults

    def send(self, protocol: str, identity: str, fails: bool = False, inputs: dict[str, Any] = INPUTS) -> str:
        """Send a request. Return its error."""
        self.faults.write_text('[{"npu": 0, "kind": "501", "times": 1}]' if fails else "[]")
        return str(getattr(self.server, protocol)("twice", identity, inputs))

    def lines(self, *words: str) -> list[str]:
        """Return the lines of the log that contain all of these words. Wait until there is such a line."""

        def found() -> list[str]:
            # splitlines() would also split at characters that a terminal does not treat as line breaks.
            lines = self.server.log.read_bytes().decode(errors="surrogateescape").split("\n")
            return [line for line in lines if all(word in line for word in words)]

        self.server.wait(found, f"{words} in the log")
        return found()


def repository(directory: Path) -> Path:
    """Write a repository with the model `twice`, which adds its input to itself."""
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("X", "Y")]
    graph = helper.make_graph([helper.make_node("Add", ["X", "X"], ["Y"])], "twice", sides[:1], sides[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (directory / "twice.onnx").write_bytes(model.SerializeToString())
    version = directory / "models/twice/1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    environment = {**os.environ, "PYTHONPATH": str(SDK), "RBLN_LAB_VERSION": VERSION}
    command = [sys.executable, "-c", COMPILE, str(directory / "twice.onnx"), str(version / "model.rbln")]
    subprocess.run(command, env=environment, check=True)
    return directory / "models"


def backends(directory: Path, release: str) -> Path:
    """Copy the python backend of a release and the backend of this checkout, with the stand-in SDK beside it."""
    home = tritonserver(ROOT / "build/faults", WHEELS[release])
    shutil.copytree(home / "backends/python", directory / "python")
    shutil.copytree(ROOT / "files/backends/rbln", directory / "rbln")
    shutil.copytree(SDK / "rebel", directory / "rbln/rebel")
    return directory


def scene(directory: Path, release: str, verbose: int) -> Iterator[Scene]:
    """Run a server whose log has this verbosity."""
    npus, faults = directory / "dev", directory / "faults.json"
    npus.mkdir()
    for node in ("rbln0", "rsd0"):
        (npus / node).touch()
    settings = {"RBLN_LAB_DEV_ROOT": str(npus), "RBLN_LAB_VERSION": VERSION, "RBLN_LAB_FAULTS": str(faults)}
    models, own = repository(directory), backends(directory / "backends", release)
    with rendered_server(directory, release, models, own, settings, triton_server_log_verbose=verbose) as server:
        yield Scene(release, server, faults)


@pytest.fixture(scope="module", params=sorted(WHEELS))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def quiet(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield from scene(tmp_path_factory.mktemp("quiet"), release, 0)


@pytest.fixture(scope="module")
def verbose(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield from scene(tmp_path_factory.mktemp("verbose"), release, 1)


PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "grpc"])


@PROTOCOLS
def test_the_log_names_the_id_of_a_failed_request(quiet: Scene, protocol: str) -> None:
    assert quiet.send(protocol, f"good-{protocol}") == ""
    assert REFUSAL in quiet.send(protocol, f"order-7-{protocol}", fails=True)
    (line,) = quiet.lines(f"order-7-{protocol}")
    assert f"model twice: request 'order-7-{protocol}': {REFUSAL}" in line
    # At the default verbosity, a request that is answered leaves no line.
    assert f"good-{protocol}" not in quiet.server.log.read_text()


@PROTOCOLS
def test_a_hostile_id_stays_one_short_line(quiet: Scene, protocol: str) -> None:
    hostile = f"hostile-{protocol}\r\nI1128 12:00:00 forged\x1b[2J\u202e\u2028" + "x" * 100_000
    assert REFUSAL in quiet.send(protocol, hostile, fails=True)
    (line,) = quiet.lines(f"hostile-{protocol}")
    assert line.isprintable() and len(line) < 800


@PROTOCOLS
def test_a_verbose_log_names_the_id_of_each_request(verbose: Scene, protocol: str) -> None:
    assert verbose.send(protocol, f"fine-{protocol}") == ""
    assert [line for line in verbose.lines(f"request id: fine-{protocol}]", "EXECUTING") if "model" not in line]
    assert verbose.lines(f"request id: fine-{protocol}, model: twice")
    assert REFUSAL in verbose.send(protocol, f"failed-{protocol}", fails=True)
    assert verbose.lines(f"request id: failed-{protocol}, model: twice")
    assert verbose.lines(f"model twice: request 'failed-{protocol}': {REFUSAL}")


@PROTOCOLS
def test_only_a_verbose_log_names_a_request_that_triton_rejects(quiet: Scene, verbose: Scene, protocol: str) -> None:
    for server in (quiet, verbose):
        assert "unexpected shape" in server.send(protocol, f"rejected-{protocol}", inputs={"X": [[1.0, 2.0]]})
    assert verbose.lines(f"[request id: rejected-{protocol}] Infer failed")
    # The line of this later request shows that the quiet server has written all lines before it.
    assert REFUSAL in quiet.send(protocol, f"later-{protocol}", fails=True)
    assert quiet.lines(f"later-{protocol}")
    assert f"rejected-{protocol}" not in quiet.server.log.read_text()


@PROTOCOLS
def test_only_the_verbose_log_of_24_01_has_the_line_break_of_an_id(verbose: Scene, protocol: str) -> None:
    assert verbose.send(protocol, f"break-{protocol}\nforged-{protocol}") == ""
    begins = {line.startswith("forged") for line in verbose.lines(f"forged-{protocol}")}
    assert begins == {verbose.release == "24.01"}
