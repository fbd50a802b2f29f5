"""Tests of bfloat16 tensors in the `rbln` backend on real Triton servers: 24.10 serves them, 24.01 refuses the model by name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import ROOT, SDK
from onnx import TensorProto, helper
from pytriton_wheel import tritonserver
from tritonclient import grpc

BUILD = ROOT / "build/heavy"
VERSION = "0.9.4+lab"
COMPILE = """
import sys, rebel
info = [[("A", [rows, 3], "bfloat16"), ("B", [rows, 2], "int64")] for rows in (1, 4)]
rebel.compile_from_onnx(sys.argv[1], info, npu="RBLN-CA22").save(sys.argv[2])
"""


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with the model `half`, which returns the square of B, and A + A, where A is bfloat16."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["B", "B"], ["SQUARE"]), helper.make_node("Add", ["A", "A"], ["TWICE"])],
        "half",
        [value("A", TensorProto.FLOAT, ["n", 3]), value("B", TensorProto.INT64, ["n", 2])],
        [value("SQUARE", TensorProto.INT64, ["n", 2]), value("TWICE", TensorProto.FLOAT, ["n", 3])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "half.onnx").write_bytes(made.SerializeToString())
    model = tmp_path / "models/half"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "rbln"\ninstance_group [ { kind: KIND_MODEL, count: 1 } ]\n')
    environment = {**os.environ, "PYTHONPATH": str(SDK), "RBLN_LAB_VERSION": VERSION}
    command = [sys.executable, "-c", COMPILE, str(tmp_path / "half.onnx"), str(model / "1/model.rbln")]
    subprocess.run(command, env=environment, check=True)
    return model.parent


@contextlib.contextmanager
def serving(wheel: str, models: Path, dev: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (HTTP address, gRPC address, log) of a server that has tried to load the models, with the backend of this checkout."""
    server = tritonserver(BUILD, wheel)
    backends = dev.parent / "backends"
    shutil.copytree(server / "backends/python", backends / "python")
    shutil.copytree(ROOT / "files/backends/rbln", backends / "rbln")
    # No SDK is installed, so it is copied into the directory of the backend, from which the stub also imports.
    shutil.copytree(SDK / "rebel", backends / "rbln/rebel")
    http, other, log = port(), port(), dev.parent / "log"
    options = [f"--model-repository={models}", f"--backend-directory={backends}", f"--http-port={http}", f"--grpc-port={other}"]
    options += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-metrics=true", f"--metrics-port={port()}"]
    options += ["--exit-on-error=false", "--exit-timeout-secs=5"]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{server.parent.parent / 'nvidia_pytriton.libs'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RBLN_LAB_DEV_ROOT": str(dev),
        "RBLN_LAB_VERSION": VERSION,
    }
    with log.open("w") as sink:
        process = subprocess.Popen(
            [server / "bin/tritonserver", *options], stdout=sink, stderr=sink, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/live", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield f"127.0.0.1:{http}", f"127.0.0.1:{other}", log
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def assert_right_answer(client: Any, rows: int) -> None:
    half = np.dtype(ml_dtypes.bfloat16)
    first = (np.arange(rows * 3).reshape(rows, 3) - 2.5).astype(half)
    second = np.arange(rows * 2).reshape(rows, 2)
    inputs = [grpc.InferInput("A", [rows, 3], "BF16"), grpc.InferInput("B", [rows, 2], "INT64")]
    inputs[0].set_data_from_numpy(first.astype(np.float32))
    inputs[1].set_data_from_numpy(second)
    answer = client.infer("half", inputs)
    assert answer.get_output("TWICE").datatype == "BF16"
    np.testing.assert_array_equal(answer.as_numpy("TWICE"), first.astype(np.float32) * 2)
    np.testing.assert_array_equal(answer.as_numpy("SQUARE"), second**2)


def test_bfloat16_is_answered_by_24_10(models: Path, dev: Path) -> None:
    with serving("0.7.0", models, dev) as (_http, address, log):
        with grpc.InferenceServerClient(address) as client:
            assert client.is_model_ready("half"), log.read_text()[-3000:]
            # If the backend did not release the memory of each request, so many requests would exhaust it.
            for number in range(300):
                assert_right_answer(client, 1 + number % 4)
        assert "Exception ignored" not in log.read_text()


def test_bfloat16_is_refused_by_24_01(models: Path, dev: Path) -> None:
    with serving("0.5.1", models, dev) as (http, _address, _log):
        request = urllib.request.Request(f"http://{http}/v2/repository/index", data=b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            (model,) = json.load(answer)
    assert model["state"] == "UNAVAILABLE"
    assert "model half: it has bfloat16 tensors, which the python backend of this Triton does not support" in model["reason"]
