"""Asks real Tritons for their verdict on every case: `make lint-corpus`. Writes verdicts.json and prints how the linter compares.
With --new only those are asked whose content has no recorded verdict.

A verdict is what became of loading the model that a case is about: loads, refuses (the server says no), hangs (no answer in
PATIENCE seconds) or ends (the server did). One server answers case after case; after a hang or an end it is started again. Cases of
`roots` are about what a server does with a whole repository when it starts.

Of backends the wheels have Python's alone. Of the others the servers get a stand-in, a library that reads no file and sends empty
responses: what the verdict is about then is what Triton itself makes of the config. build/lint-corpus.log has the words of each
refusal.
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
from compare import RELEASES, VERDICTS, digest, keeps_server, laid, recorded, table  # noqa: E402
from pytriton_wheel import tritonserver  # noqa: E402
from tritonclient import grpc as triton  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

BUILD = TESTS.parent / "build/faults"
LOG = TESTS.parent / "build/lint-corpus.log"
# nvidia-pytriton that carries each release
WHEELS = {"24.01": "0.5.1", "24.10": "0.7.0"}
# Seconds for one load, for a server to start, and for what was loaded to be gone
PATIENCE, STARTS, GOES = 15, 60, 20
# Servers of each release: most of the time goes by with waiting for what hangs
SERVERS = 4


# Backends and repository agents of NVIDIA's images of which there is a stand-in
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


def library(place: Path) -> bytes:
    """Build the stand-in. Needs a C compiler."""
    built = place / "stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(built)], input=SOURCE.encode(), check=True)
    return built.read_bytes()


class Server:
    """A Triton in explicit mode over a repository that changes from case to case."""

    def __init__(self, release: str, place: Path) -> None:
        self.program = tritonserver(BUILD, WHEELS[release])
        self.place = place
        self.repository = place / "models"
        self.repository.mkdir(parents=True)
        self.library = library(place)
        (place / "backends").mkdir()
        (place / "backends/python").symlink_to(self.program / "backends/python")
        for kind, prefix, names in (("backends", "triton", STAND_INS), ("agents", "tritonrepoagent", AGENTS)):
            for name in names:
                (place / kind / name).mkdir(parents=True)
                (place / kind / name / f"lib{prefix}_{name}.so").write_bytes(self.library)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, explicit: bool = True) -> None:
        """Start it, and wait until it answers."""
        with socket.socket() as http, socket.socket() as grpc:
            for free in (http, grpc):
                free.bind(("127.0.0.1", 0))
            self.url, self.grpc = (f"127.0.0.1:{free.getsockname()[1]}" for free in (http, grpc))
        command = [str(self.program / "bin/tritonserver"), f"--model-repository={self.repository}", "--exit-on-error=false"]
        command += [f"--model-control-mode={'explicit' if explicit else 'none'}", f"--backend-directory={self.place / 'backends'}"]
        command += [f"--repoagent-directory={self.place / 'agents'}"]
        command += [f"--http-port={self.url.rpartition(':')[2]}", "--http-address=127.0.0.1"]
        command += [f"--grpc-port={self.grpc.rpartition(':')[2]}", "--grpc-address=127.0.0.1"]
        # Without it resources of the rate limiter are passed over
        command += ["--rate-limit=execution_count"]
        # Of its own: older stubs take one that another server is just about to make
        command += [f"--backend-config=python,shm-region-prefix-name={self.place.name}"]
        command += ["--metrics-address=127.0.0.1", "--metrics-port=0", "--allow-gpu-metrics=false"]
        libraries = f"{self.program.parent.parent / 'nvidia_pytriton.libs'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        deadline = time.monotonic() + (STARTS if explicit else PATIENCE)
        while self.said("GET", "/v2/health/live", 2) != 200:
            if not explicit and (self.process.poll() is not None or time.monotonic() > deadline):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Triton did not start: {(self.place / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it with all of its processes, which it started in a session of its own."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            for region in Path("/dev/shm").glob(f"{self.place.name}*"):
                region.unlink()

    def said(self, method: str, path: str, seconds: float) -> int:
        """The status of an answer; 0 for none in time, -1 for a connection that broke."""
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
        """What becomes of loading the model that this case is about."""
        files = CASES[name][1]
        self.words = ""
        if name.startswith("roots-"):
            self.stop()
            laid(self.repository, files, self.library)
            verdict = self.at_start(subject(files))
            self.stop()
        else:
            if not keeps_server(name):
                self.stop()
            if self.process is None:
                self.start()
            laid(self.repository, files, self.library)
            verdict = self.load(subject(files))
        if self.process is not None and (verdict in ("hangs", "ends") or not self._emptied()):
            self.stop()
        for path in self.repository.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return verdict

    def at_start(self, model: str) -> str:
        """What becomes of the model in a server that starts with the whole repository."""
        self.start(explicit=False)
        assert self.process is not None
        if self.process.poll() is not None:
            return "ends"
        if self.said("GET", "/v2/health/live", 5) != 200:
            return "hangs"
        return "loads" if self.said("GET", f"/v2/models/{model}/ready", 5) == 200 else "refuses"

    def load(self, model: str) -> str:
        """What became of it. Over gRPC, as no request over HTTP has every name."""
        with triton.InferenceServerClient(self.grpc) as client:
            try:
                client.load_model(model, client_timeout=PATIENCE)
            except InferenceServerException as error:
                self.words = str(error.message())
                if "DEADLINE_EXCEEDED" in str(error.status()):
                    return "hangs"
                return "refuses" if self.said("GET", "/v2/health/live", 5) == 200 else "ends"
        return "loads"

    def _emptied(self) -> bool:
        """Unload everything; whether it went."""
        deadline = time.monotonic() + GOES
        while time.monotonic() < deadline:
            if self.said("POST", "/v2/repository/index", 5) != 200:
                return False
            # The server tells names as they are, which need not be UTF-8
            index = json.loads(self.answer.decode("utf-8", "replace"))
            there = [model["name"] for model in index if model.get("state") in ("READY", "LOADING", "UNLOADING")]
            if not there:
                return True
            with triton.InferenceServerClient(self.grpc) as client:
                for entry in there:
                    with contextlib.suppress(InferenceServerException):
                        client.unload_model(entry, client_timeout=10)
            time.sleep(0.02)
        return False


def asked(release: str, names: list[str]) -> dict[str, str]:
    """The verdict of this release on each of these cases."""
    place = Path(tempfile.mkdtemp(prefix="lint-corpus-"))
    server = Server(release, place)
    try:
        verdicts = {}
        for name in names:
            verdicts[name] = server.verdict(name)
            with LOG.open("a", encoding="utf-8", errors="backslashreplace") as log:
                print(release, name, verdicts[name], " ".join(server.words.split()), file=log)
        return verdicts
    finally:
        server.stop()
        shutil.rmtree(place)


def main() -> None:
    """Ask all servers at once."""
    before = recorded() if "--new" in sys.argv[1:] else {}
    # By content, as a case more renames those behind it
    known = {found: verdicts for found, *verdicts in before.values()}
    kept = {name: known[digest(name)] for name in CASES if digest(name) in known}
    names = [name for name in CASES if name not in kept]
    for version in WHEELS.values():
        tritonserver(BUILD, version)  # once, before several of them want it
    LOG.unlink(missing_ok=True)
    shares = [(release, names[number::SERVERS]) for release in RELEASES for number in range(SERVERS)]
    verdicts: dict[str, dict[str, str]] = {release: {} for release in RELEASES}
    with ThreadPoolExecutor(len(shares)) as pool:
        for (release, _names), found in zip(shares, pool.map(lambda share: asked(*share), shares)):
            verdicts[release].update(found)
    kept.update({name: [verdicts[release][name] for release in RELEASES] for name in names})
    lines = [json.dumps(name) + ": " + json.dumps([digest(name), *kept[name]]) for name in CASES]
    VERDICTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(table())


if __name__ == "__main__":
    main()
