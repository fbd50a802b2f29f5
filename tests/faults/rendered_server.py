"""A real tritonserver with the command line that the collection renders from the variables of a host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated
from bare_server import HERE, TIMEOUT, WHEELS
from host import EXIT, forget_shared_memory, free_port, shared_memory
from pytriton_wheel import environment, tritonserver
from tritonclient import grpc
from tritonclient.utils import InferenceServerException


def rendered(inventory: Mapping[str, Any]) -> list[str]:
    """Return the command line of tritonserver for these variables over the defaults of the roles."""
    variables = {**role_defaults(), "inventory_hostname": "npu-01", **inventory}
    return container.command(Templated(variables, Templar(DataLoader(), variables=variables).template, inventory), [])


class RenderedServer:
    """A running server in mode `none`, and clients of it that send a request ID."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int, grpc_port: int) -> None:
        self.process, self.log, self.port, self.grpc_port = process, log, port, grpc_port

    def http(self, model: str, identity: str, inputs: Mapping[str, Any], timeout: float = TIMEOUT, **headers: str) -> str:
        """Send a JSON request over HTTP. Return its error, or "" if the response has the same ID."""
        tensors = [
            {"name": name, "datatype": "FP32", "shape": list(np.shape(value)), "data": value} for name, value in inputs.items()
        ]
        url = f"http://127.0.0.1:{self.port}/v2/models/{model}/infer"
        body = json.dumps({"id": identity, "inputs": tensors}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=timeout) as response:
                assert json.load(response)["id"] == identity
                return ""
        except urllib.error.HTTPError as error:
            return str(json.load(error)["error"])

    def grpc(self, model: str, identity: str, inputs: Mapping[str, Any], **headers: str) -> str:
        """Send a request over gRPC. Return its error, or "" if the response has the same ID."""
        tensors = []
        for name, value in inputs.items():
            tensors.append(grpc.InferInput(name, list(np.shape(value)), "FP32"))
            tensors[-1].set_data_from_numpy(np.array(value, np.float32))
        with grpc.InferenceServerClient(f"127.0.0.1:{self.grpc_port}") as client:
            try:
                answer = client.infer(model, tensors, request_id=identity, headers=headers, client_timeout=TIMEOUT)
            except InferenceServerException as error:
                return str(error.message())
        assert answer.get_response().id == identity
        return ""

    def wait(self, condition: Callable[[], Any], what: str, within: float = TIMEOUT) -> None:
        """Wait for a condition, `within` seconds at most. Raises AssertionError if it does not occur or if the server ends."""
        deadline = time.monotonic() + within
        while not condition():
            assert self.process.poll() is None, f"the server ended with {self.process.poll()}. {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{what}: not within {within} s. {self.log.read_text()[-2000:]}"
            time.sleep(0.05)

    def ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=5):
            return True
        return False


@contextlib.contextmanager
def rendered_server(
    directory: Path,
    release: str,
    models: Path,
    backends: Path | None = None,
    settings: Mapping[str, str] | None = None,
    **inventory: Any,
) -> Iterator[RenderedServer]:
    """Run a server with these models, variables and settings of its environment. It ends with the block."""
    home = tritonserver(HERE.parents[1] / "build/faults", WHEELS[release])
    port, grpc_port = free_port(), free_port()
    # On this machine, the program, its ports and its backends differ. The name of the shared memory is set, because servers before
    # 24.04 have numbers as names, so that two servers on one machine would share their memory.
    here = {"tritonserver": str(home / "bin/tritonserver")}
    here |= {"--http-port=8000": f"--http-port={port}", "--grpc-port=8001": f"--grpc-port={grpc_port}"}
    own = {
        "triton_server_model_repositories": [str(models)],
        "triton_server_model_control_mode": "none",
        "triton_server_exit_timeout": EXIT,
        "triton_server_allow_metrics": False,
        "triton_server_extra_args": [
            f"--backend-directory={backends or home / 'backends'}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            f"--backend-config=python,shm-region-prefix-name=triton_python_backend_shm_region_{port}_",
        ],
    }
    command = rendered({**own, **inventory})
    assert set(here) <= set(command)
    log = directory / "log"
    before = shared_memory()
    with log.open("w") as output:
        process = subprocess.Popen(
            [here.get(word, word) for word in command],
            stdout=output,
            stderr=output,
            env={**os.environ, **environment(home), **(settings or {})},
            start_new_session=True,
        )
    server = RenderedServer(process, log, port, grpc_port)
    try:
        server.wait(server.ready, "the start of the server")
        yield server
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT * 2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        forget_shared_memory(before)
