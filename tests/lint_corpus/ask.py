"""Query real Tritons for their verdict on every case, and compare the linter with the verdicts: `make lint-corpus`.

The verdicts are written to verdicts.json. With --new, only the cases whose content has no recorded verdict are queried.

A verdict is the result of loading the model of a case: `loads`, `refuses` (the server returns an error), `hangs` (no response
within LOAD_TIMEOUT seconds) or `ends` (the server process ended). One server loads case after case. After `hangs` or `ends`, the
server is started again. For a case of `roots`, a server is started with the whole repository.

The wheels of nvidia-pytriton contain only the Python backend. For the other backends, the servers get a stand-in: a library that
reads no file and sends empty responses. The verdict on a model of such a backend depends only on how Triton itself handles the
config. build/lint-corpus.log contains the error message of each refusal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "unit"), str(TESTS / "lint_corpus")]

from building import subject  # noqa: E402
from cases import CASES  # noqa: E402
from compare import RELEASES, VERDICTS, can_share_server, digest, recorded, table, write_files  # noqa: E402
from pytriton_wheel import tritonserver  # noqa: E402
from tritonclient import grpc as triton  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

BUILD = TESTS.parent / "build/faults"
LOG = TESTS.parent / "build/lint-corpus.log"
# {release of Triton: version of nvidia-pytriton that contains it}
WHEELS = {"24.01": "0.5.1", "24.10": "0.7.0"}
# Seconds for one load, for the start of a server, and for the unload of all models
LOAD_TIMEOUT, START_TIMEOUT, UNLOAD_TIMEOUT = 15, 60, 20
# Servers of each release. Several are faster, because most of the time passes in loads that hang.
SERVERS = 4


# Backends and repository agents of NVIDIA's images that the servers get as stand-ins
STAND_INS = (
    *("identity", "onnxruntime", "openvino", "pytorch", "tensorrt", "tensorflow", "dali", "fil", "tensorrtllm", "repeat", "square"),
)
AGENTS = ("checksum",)
SOURCE = """
void* TRITONBACKEND_ResponseNew(void** response, void* request);
void* TRITONBACKEND_ResponseSend(void* response, unsigned flags, void* error);
void* TRITONBACKEND_RequestRelease(void* request, unsigned flags);
void* TRITONBACKEND_ModelInstanceExecute(void* instance, void** requests, unsigned count) {
  for (unsigned at = 0; at < count; at++) {
    void* response;
    if (!TRITONBACKEND_ResponseNew(&response, requests[at])) TRITONBACKEND_ResponseSend(response, 1, 0);
    TRITONBACKEND_RequestRelease(requests[at], 1);
  }
  return 0;
}
void* TRITONREPOAGENT_ModelAction(void* agent, void* model, int action) { return 0; }
"""


def library(directory: Path) -> bytes:
    """Build the stand-in with a C compiler, and return its bytes."""
    built = directory / "stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(built)], input=SOURCE.encode(), check=True)
    return built.read_bytes()


class Server:
    """A Triton in explicit mode. Its repository contains one case at a time."""

    def __init__(self, release: str, directory: Path) -> None:
        self.program = tritonserver(BUILD, WHEELS[release])
        self.directory = directory
        self.repository = directory / "models"
        self.repository.mkdir(parents=True)
        self.library = library(directory)
        (directory / "backends").mkdir()
        (directory / "backends/python").symlink_to(self.program / "backends/python")
        for kind, prefix, names in (("backends", "triton", STAND_INS), ("agents", "tritonrepoagent", AGENTS)):
            for name in names:
                (directory / kind / name).mkdir(parents=True)
                (directory / kind / name / f"lib{prefix}_{name}.so").write_bytes(self.library)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, explicit: bool = True) -> None:
        """Start the server, and wait until it is live. Outside explicit mode, it may also end or hang."""
        with socket.socket() as http, socket.socket() as grpc:
            for free in (http, grpc):
                free.bind(("127.0.0.1", 0))
            self.url, self.grpc = (f"127.0.0.1:{free.getsockname()[1]}" for free in (http, grpc))
        command = [str(self.program / "bin/tritonserver"), f"--model-repository={self.repository}", "--exit-on-error=false"]
        command += [
            f"--model-control-mode={'explicit' if explicit else 'none'}",
            f"--backend-directory={self.directory / 'backends'}",
        ]
        command += [f"--repoagent-directory={self.directory / 'agents'}"]
        command += [f"--http-port={self.url.rpartition(':')[2]}", "--http-address=127.0.0.1"]
        command += [f"--grpc-port={self.grpc.rpartition(':')[2]}", "--grpc-address=127.0.0.1"]
        # Without this option, Triton ignores the resources of the rate limiter.
        command += ["--rate-limit=execution_count"]
        # Each server has its own prefix, because older stubs could open a region that another server is creating.
        command += [f"--backend-config=python,shm-region-prefix-name={self.directory.name}"]
        command += ["--metrics-address=127.0.0.1", "--metrics-port=0", "--allow-gpu-metrics=false"]
        libraries = f"{self.program.parent.parent / 'nvidia_pytriton.libs'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        deadline = time.monotonic() + (START_TIMEOUT if explicit else LOAD_TIMEOUT)
        while self.status("GET", "/v2/health/live", 2) != 200:
            if not explicit and (self.process.poll() is not None or time.monotonic() > deadline):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Triton did not start: {(self.directory / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill the server and its stubs, which are in one session."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            for region in Path("/dev/shm").glob(f"{self.directory.name}*"):
                region.unlink()

    def status(self, method: str, path: str, seconds: float) -> int:
        """Return the HTTP status of a request, 0 after a timeout, or -1 for a broken connection."""
        request = urllib.request.Request(f"http://{self.url}{path}", b"{}" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                self.answer = response.read()
                return int(response.status)
        except urllib.error.HTTPError as error:
            self.answer = error.read()
            return error.code
        except TimeoutError:
            return 0
        except (OSError, HTTPException) as error:
            return 0 if isinstance(getattr(error, "reason", None), TimeoutError) else -1

    def verdict(self, name: str) -> str:
        """Return the verdict of this server on a case."""
        files = CASES[name][1]
        self.message = ""
        if name.startswith("roots-"):
            self.stop()
            write_files(self.repository, files, self.library)
            verdict = self.at_start(subject(files))
            self.stop()
        else:
            if not can_share_server(name):
                self.stop()
            if self.process is None:
                self.start()
            write_files(self.repository, files, self.library)
            verdict = self.load(subject(files))
        if self.process is not None and (verdict in ("hangs", "ends") or not self._emptied()):
            self.stop()
        for path in self.repository.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return verdict

    def at_start(self, model: str) -> str:
        """Return the verdict on a model when the server starts with the whole repository."""
        self.start(explicit=False)
        assert self.process is not None
        if self.process.poll() is not None:
            return "ends"
        if self.status("GET", "/v2/health/live", 5) != 200:
            return "hangs"
        return "loads" if self.status("GET", f"/v2/models/{model}/ready", 5) == 200 else "refuses"

    def load(self, model: str) -> str:
        """Return the verdict on loading a model. Use gRPC, because an HTTP request cannot contain every model name."""
        with triton.InferenceServerClient(self.grpc) as client:
            try:
                client.load_model(model, client_timeout=LOAD_TIMEOUT)
            except InferenceServerException as error:
                self.message = str(error.message())
                if "DEADLINE_EXCEEDED" in str(error.status()):
                    return "hangs"
                return "refuses" if self.status("GET", "/v2/health/live", 5) == 200 else "ends"
        return "loads"

    def _emptied(self) -> bool:
        """Unload all models. Return True if all of them were unloaded in time."""
        deadline = time.monotonic() + UNLOAD_TIMEOUT
        while time.monotonic() < deadline:
            if self.status("POST", "/v2/repository/index", 5) != 200:
                return False
            # The names of models need not be UTF-8.
            index = json.loads(self.answer.decode("utf-8", "replace"))
            loaded = [model["name"] for model in index if model.get("state") in ("READY", "LOADING", "UNLOADING")]
            if not loaded:
                return True
            with triton.InferenceServerClient(self.grpc) as client:
                for entry in loaded:
                    with contextlib.suppress(InferenceServerException):
                        client.unload_model(entry, client_timeout=10)
            time.sleep(0.02)
        return False


def query(release: str, names: list[str]) -> dict[str, str]:
    """Return {case: verdict} of one new server of a release."""
    directory = Path(tempfile.mkdtemp(prefix="lint-corpus-"))
    server = Server(release, directory)
    try:
        verdicts = {}
        for name in names:
            verdicts[name] = server.verdict(name)
            with LOG.open("a", encoding="utf-8", errors="backslashreplace") as log:
                print(release, name, verdicts[name], " ".join(server.message.split()), file=log)
        return verdicts
    finally:
        server.stop()
        shutil.rmtree(directory)


def main() -> None:
    """Query all servers in parallel, write the verdicts, and print the comparison."""
    recorded_verdicts = recorded() if "--new" in sys.argv[1:] else {}
    # Find verdicts by the digest of the content, because a new case changes the names of later cases.
    known = {content: verdicts for content, *verdicts in recorded_verdicts.values()}
    kept = {name: known[digest(name)] for name in CASES if digest(name) in known}
    names = [name for name in CASES if name not in kept]
    for version in WHEELS.values():
        # Install each version before several servers need it at the same time.
        tritonserver(BUILD, version)
    LOG.unlink(missing_ok=True)
    batches = [(release, names[number::SERVERS]) for release in RELEASES for number in range(SERVERS)]
    verdicts: dict[str, dict[str, str]] = {release: {} for release in RELEASES}
    with ThreadPoolExecutor(len(batches)) as pool:
        for (release, _names), results in zip(batches, pool.map(lambda batch: query(*batch), batches)):
            verdicts[release].update(results)
    kept.update({name: [verdicts[release][name] for release in RELEASES] for name in names})
    lines = [json.dumps(name) + ": " + json.dumps([digest(name), *kept[name]]) for name in CASES]
    VERDICTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(table())


if __name__ == "__main__":
    main()
