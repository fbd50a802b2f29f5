"""A real Triton with the backend of this checkout and the lab's SDK, in a container of the lab's engine."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Optional, Tuple, Type

import images
import network
import standins
from artefact import compile_onnx
from engine import docker
from perf import counter
from settings import BUILD as LAB_BUILD
from settings import LABEL, ROOT, LabError, run

BUILD = ROOT / "build" / "bench"
BACKEND = ROOT / "files/backends/rbln"
ANSWERS = ROOT / "tests/bench/answers.py"
RELEASES = {"24.01": "lab-24.01", "24.10": "lab-24.10"}
# perf_analyzer needs the library of CUDA's runtime to start.
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12==12.9.79"
CUDA_LIBRARY = "/usr/local/lib/python3.11/dist-packages/nvidia/cuda_runtime/lib/libcudart.so.12"
DOCKERFILE = f"""FROM {{base}}
COPY *.whl /wheels/
RUN PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-index --no-deps /wheels/*.whl \\
 && rm -r /wheels && ln -s {CUDA_LIBRARY} /usr/lib/x86_64-linux-gnu/ && command -v perf_analyzer
"""
# The restricted APIs of a host, without those of shared memory, which perf_analyzer uses for its tensors
CLOSED = "model-repository,trace,logging"
RESTRICTED = ("http-restricted-api", "grpc-restricted-protocol")
READY_SECONDS = 120
# The longest time in seconds until the server has counted an answer that it has sent
COUNTED_SECONDS = 5


def ensure_image(release: str) -> str:
    """Return an image with Triton, the packages of a release image, and perf_analyzer. Build it again if an input has changed."""
    base = images.ensure_triton(release)["image"]
    image = f"npufleet-bench/triton:{release}"
    wheels = standins.wheels_of_image() + standins.download("--no-deps", CUDA_RUNTIME, into=LAB_BUILD / "wheels" / "cuda")
    wheels.append(sdk_wheel(release))
    digest = hashlib.sha256(DOCKERFILE.encode() + docker("image", "inspect", "--format", "{{.Id}}", base).encode())
    for wheel in wheels:
        digest.update(wheel.name.encode() + wheel.read_bytes())
    if images.recorded_inputs(image) != digest.hexdigest():
        print(f"bench: building the image of Triton {release} with perf_analyzer", flush=True)
        images.run_build(image, DOCKERFILE.format(base=base), {entry.name: entry for entry in wheels}, digest.hexdigest(), base)
    return image


def sdk_wheel(release: str) -> Path:
    """Build the wheel of this checkout's stand-in SDK for a release, and return its path."""
    version = standins.sdk_version(RELEASES[release])
    return Path(run(sys.executable, str(ROOT / "lab/sdk/build.py"), version, str(BUILD / "sdk")))


def ensure_network(release: str) -> Path:
    """Return the compiled file of the bench's network for a release. Its record and network.onnx are in the same directory."""
    directory = BUILD / "network" / release
    inputs = standins.source_digest(ROOT / "lab/sdk", ROOT / "lab/models", ROOT / "files/compile", ROOT / "tests/bench")
    done = directory / "made.json"
    if not done.exists() or json.loads(done.read_text())["inputs"] != inputs:
        shutil.rmtree(directory, ignore_errors=True)
        row = RELEASES[release]
        onnx = network.as_onnx()
        tensor = {"name": "INPUT__0", "shape": list(network.PICTURE), "dtype": "float32"}
        batches = tuple(range(1, network.LARGEST + 1))
        made = compile_onnx("bench", onnx, [tensor], batches, standins.card_of(row), standins.sdk_version(row), directory)
        (directory / "network.onnx").write_bytes(onnx)
        done.write_text(json.dumps({"inputs": inputs, "path": made["path"]}))
    return Path(json.loads(done.read_text())["path"])


class Server:
    """A Triton server with a model repository and `npus` emulated NPUs, which take `device_ms` for each run.

    The class is a context manager: the container, its NPUs and its ledger exist until the end of the block.
    """

    def __init__(self, release: str, repository: Path, device_ms: float, npus: int = 1) -> None:
        self.release, self.repository, self.device_ms, self.npus = release, repository, device_ms, npus
        self.name = f"npufleet-bench-{os.getpid()}"
        self.home = BUILD / "run" / self.name
        self.ledger = self.home / "ledger"

    def __enter__(self) -> Server:
        shutil.rmtree(self.home, ignore_errors=True)
        self.ledger.mkdir(parents=True)
        (self.home / "npus").mkdir()
        for node in ("rsd0", *(f"rbln{number}" for number in range(self.npus))):
            (self.home / "npus" / node).touch()
        settings = {
            "DEV_ROOT": "/run/bench/npus",
            "LEDGER": "/run/bench/ledger",
            "DEVICE_MS": self.device_ms,
            "NPU_NAME": standins.card_of(RELEASES[self.release]),
        }
        try:
            docker(
                *("run", "--detach", "--name", self.name, "--label", f"{LABEL}=bench", "--privileged", "--shm-size=1g"),
                *("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
                *("--volume", f"{self.repository}:/models:ro", "--volume", f"{BACKEND}:/opt/tritonserver/backends/rbln:ro"),
                *("--volume", f"{self.home}:/run/bench", "--volume", f"{ANSWERS}:/opt/bench/answers.py:ro"),
                *(entry for name, value in settings.items() for entry in ("--env", f"RBLN_LAB_{name}={value}")),
                f"npufleet-bench/triton:{self.release}",
                *("tritonserver", "--model-repository=/models", "--allow-gpu-metrics=false"),
                *(f"--{option}={CLOSED}:npufleet-key={secrets.token_hex()}" for option in RESTRICTED),
            )
            self.address = docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", self.name)
            self.pid = int(docker("inspect", "--format", "{{.State.Pid}}", self.name))
            self._wait_until_ready()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._remove()

    def _remove(self) -> None:
        docker("rm", "--force", "--volumes", self.name, check=False)
        shutil.rmtree(self.home, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with suppress(OSError):
                self.request("GET", "v2/health/ready")
                return
            if docker("inspect", "--format", "{{.State.Running}}", self.name) != "true" or time.monotonic() > deadline:
                raise LabError(f"Triton {self.release} did not become ready; its log ends with:\n  {self.log()}")
            time.sleep(0.1)

    def log(self, lines: int = 12) -> str:
        """Return the last lines of the server's log."""
        return docker("logs", "--tail", str(lines), self.name, check=False).replace("\n", "\n  ")

    def request(self, method: str, path: str, port: int = 8000) -> str:
        """Send a request, and return the body of the response. Raises OSError, such as urllib's HTTPError."""
        request = urllib.request.Request(
            f"http://{self.address}:{port}/{path}", method=method, data=b"" if method == "POST" else None
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def answered(self, model: str) -> Tuple[int, int]:
        """Return (requests, rows) that the server has answered successfully. Wait until both counts do not change any more."""
        deadline = time.monotonic() + COUNTED_SECONDS
        before = self.counted(model)
        while True:
            time.sleep(0.1)
            now = self.counted(model)
            if now == before or time.monotonic() > deadline:
                return now
            before = now

    def counted(self, model: str) -> Tuple[int, int]:
        """Return the current counts (requests, rows) of successful answers."""
        text = self.request("GET", "metrics", 8002)
        return counter(text, "nv_inference_request_success", model), counter(text, "nv_inference_count", model)

    def execute(self, *command: str, check: bool = True) -> str:
        """Return the standard output of a command in the container."""
        return docker("exec", self.name, *command, check=check)
