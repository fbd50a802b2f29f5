"""A simulated host: the project's store and modules with a real tritonserver on this machine.

The code is that of a real host: manifests, blobs, releases, the transaction, the loads, and reading of digests. The order of the
steps is that of the roles. Ansible, ssh, Docker and the watchdog are missing. The scenarios with a lab test them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import releases
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models
from ansible_collections.npufleet.triton.plugins.module_utils.plan import sentence
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton import repository as repository_api
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import models as desired_models
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from pytriton_wheel import environment
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

CLOSED = ["model-repository", "shared-memory", "trace", "logging"]
MODELS = ("alpha", "beta", "gamma", "cached")
VARIABLES = {
    "npufleet_card": "RBLN-CA22",
    "npufleet_npus": 1,
    "npufleet_release_row": {"triton": {"version": "2.51.0"}, "sdk": {"shape": "0.9"}},
    "model_repository_verify": False,
    "model_repository_bundle": "",
    "model_repository_fetch": "controller",
    "rbln_release": "lab-24.10",
}
# Seconds until a change is served on a fast machine, until a server ends after SIGTERM, and until all servers have started
PATIENCE, EXIT, STARTS = 12, 3, 600
# Bytes of a server's log that are searched for the reason of a failure
MAX_LOG = 1 << 20
# The linter parses Python. CPython before 3.11.8 must not do this in several threads at once (its issue 106905).
ONE_PARSER = threading.Lock()


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("triton_python_backend_shm_region_*"))


def forget_shared_memory(before: set[Path]) -> None:
    """Remove the shared memory of killed servers, if no process has it open."""
    # The regions are listed first. A region that another run creates later is not in this list, so it is not removed.
    left = shared_memory() - before
    for path in Path("/proc").glob("[0-9]*/maps"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            maps = path.read_text(errors="replace")
            left = {region for region in left if region.name not in maps}
    for region in left:
        region.unlink(missing_ok=True)


class Failed(Exception):
    """The reason why a run failed, as an operator reads it."""


# These ports are below the range from which the kernel chooses ports, so a port stays free until its server starts.
PORTS = iter(random.sample(range(20000, 32000), 12000))


def free_port() -> int:
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
    raise Failed("no port from 20000 to 32000 is free")


class Host:
    """A simulated host in one mode of model control. The method `run` does what a run of models.yml does."""

    def __init__(self, mode: str, directory: Path, program: Path) -> None:
        self.mode = mode
        # The directory of Triton
        self.program = program
        directory.mkdir(parents=True, exist_ok=True)
        self.root = str(directory / "store")
        # The store as the container sees it. It is read-only, because Python would write bytecode into the directories of models.
        self.seen = str(directory / "seen")
        self.incoming = str(directory / "store/incoming")
        self.log = directory / "log"
        self.port, self.grpc_port = free_port(), free_port()
        self.runs = self.starts = 0
        self.patience = float(PATIENCE)
        self.key = {"name": "npufleet-key", "path": str(directory / "server/key")}
        self.server: subprocess.Popen[bytes] | None = None
        self.desired: dict[str, Any] = {}

    # The server

    def start(self) -> None:
        self.starts += 1
        server = self.program
        command = [server / "bin/tritonserver", f"--model-repository={self.seen}/served", f"--model-control-mode={self.mode}"]
        command += {"none": [], "poll": ["--repository-poll-secs=1"], "explicit": ["--load-model=*"]}[self.mode]
        command += [f"--backend-directory={server / 'backends'}", f"--cache-directory={server / 'caches'}"]
        command += ["--cache-config=local,size=1048576", f"--http-port={self.port}", "--http-address=127.0.0.1"]
        command += [
            f"--grpc-port={self.grpc_port}",
            "--grpc-address=127.0.0.1",
            "--allow-metrics=false",
            f"--exit-timeout-secs={EXIT}",
        ]
        if keys.content(self.key["path"]) is None:
            key_file = Path(self.key["path"])
            key_file.parent.mkdir()
            key_file.write_text(secrets.token_hex(32))
        # A shell reads the key, as in the container.
        closed = {"triton_server_restricted_apis": CLOSED, "triton_server_api_key_name": self.key["name"]}
        command = [
            word.replace(keys.FILE, self.key["path"]) for word in server_key.command(closed, [str(word) for word in command])
        ]
        with self.log.open("ab") as sink:
            self.server = subprocess.Popen(
                command,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **environment(server)},
                start_new_session=True,
            )

    def stop(self, drain: bool = True) -> None:
        """Stop the server as the engine stops a container: send SIGTERM, and after a time limit kill all its processes."""
        if self.server is None:
            return
        if drain:
            self.server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(EXIT * 2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        self.server = None

    def restart(self, drain: bool = True) -> None:
        self.stop(drain)
        self.start()

    def revive(self) -> None:
        """Start the server again if it has ended by itself, as the engine does."""
        if self.server is not None and self.server.poll() is not None:
            self.restart()

    def served(self) -> dict[str, Any]:
        """Return the models that the server serves."""
        self.revive()
        return read_served({"address": "127.0.0.1", "http_port": self.port, "key": self.key}) or {}

    def asker(self) -> repository_api.Server:
        """Return an object that loads and unloads models with the client of the image, which runs here and not in a container."""

        def run(command: list[str], seconds: float) -> tuple[int, str]:
            here = [sys.executable, *command[1:3], json.dumps({**json.loads(command[3]), "port": self.grpc_port})]
            done = subprocess.run(here, capture_output=True, text=True, timeout=seconds, check=False)
            return done.returncode, done.stdout + done.stderr

        return repository_api.Server("127.0.0.1", self.port, self.patience, self.key, run)

    def wait(self, desired: dict[str, Any], seconds: float = 0) -> None:
        """Wait until the server serves these releases, according to the digests in its memory. Raises Failed."""
        deadline = time.monotonic() + (seconds or self.patience)
        while True:
            served = self.served()
            lacking = sorted(name for name, release in desired.items() if not repository_api.in_sync(served.get(name, {}), release))
            if not lacking:
                return
            if time.monotonic() >= deadline:
                raise Failed(f"{self.mode}: start {self.starts} does not serve {', '.join(lacking)}: {self.log_errors(lacking)}")
            time.sleep(0.2)

    def log_errors(self, names: list[str]) -> str:
        """Return the errors about these models in Triton's log, or else its last lines."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - MAX_LOG))
            lines = log.read(MAX_LOG).decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("E") and any(name in line for name in names)]
        return "; ".join(errors or lines[-12:])[-1500:]

    # A run

    def begin(self, repository: Path) -> None:
        """Install the first releases before the server starts."""
        self.run(repository, dies=True)
        began = time.monotonic()
        self.start()
        self.wait(self.desired, STARTS)
        # On any machine, a change takes less time than the first start of all servers at once.
        self.patience = max(self.patience, 2 * (time.monotonic() - began))
        self.run(repository)

    def drift(self, repository: Path) -> str:
        """Return the drift of the concern `models` as a text."""
        return "; ".join(map(sentence, self.plan(self.manifests(repository))))

    def plan(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        desired = desired_models.desired(
            {**VARIABLES, "npufleet_root": self.root, "npufleet_incoming": self.incoming}, Context(found)
        )
        return models.diff(desired, models.read(desired))

    def run(self, repository: Path, dies: bool = False, between: Callable[[], None] | None = None, changed: bytes = b"") -> bool:
        """Do an ordinary run, and return True if it changed anything. Raises Failed, after a restore of the previous releases.

        With `dies`, the run ends after it has moved the links. `between` is called at this moment. `changed` are bytes that replace
        the begin of the large files during the transfer.
        """
        self.runs += 1
        me = store.Run(f"here/{self.runs}", "tests@here", self.mode)
        manifests = self.manifests(repository)
        self.desired = {name: {key: model[key] for key in ("versions", "release", "steps")} for name, model in manifests.items()}
        plan = self.plan(manifests)
        if not plan:
            return False
        names = [item["name"] for item in plan if item["action"] == "release"]
        try:
            store.prepare(self.root)
            self.transfer([manifests[name] for name in names], changed)
            new = {name: manifest.to_release(manifests[name]) for name in names}
            releases.release(self.root, me, {"releases": new, "withdraw": [], "incoming": self.incoming})
        except (store.StoreError, OSError) as error:
            raise Failed(f"{self.mode}: {error}") from error
        if dies:
            return True
        if between:
            between()
        try:
            self.serve(self.desired)
            self.prove()
        except (Failed, repository_api.Refused) as error:
            self.restore(me, str(error))
            raise Failed(f"{self.mode}: the previous releases serve again: {error}") from error
        releases.prove(self.root, me, {"why": "", "keep": 5})
        return True

    def manifests(self, repository: Path) -> dict[str, Any]:
        """Return {model: manifest} of a repository. Raises Failed if the controller refuses a model, before anything changes."""
        variables = {**VARIABLES, "npufleet_model_repository": str(repository), "inventory_hostname": self.mode, "group_names": []}
        variables["triton_models"] = [{"name": name} for name in MODELS]
        with ONE_PARSER:
            by_name, reasons = manifest.manifests(variables)
        if reasons:
            raise Failed(f"{self.mode}: refused: {'; '.join(reasons)}")
        return by_name

    def transfer(self, manifests: list[dict[str, Any]], changed: bytes) -> None:
        """Write the large files into incoming/, as rsync does."""
        os.makedirs(self.incoming, exist_ok=True)
        for digest, origin in ((digest, origin) for model in manifests for digest, origin in model["origins"].items()):
            content = Path(origin["file"]).read_bytes()
            Path(self.incoming, digest).write_bytes(changed + content[len(changed) :])

    def serve(self, desired: dict[str, Any]) -> None:
        """Let the server load the current releases, as the role does in this mode. Raises Failed."""
        opened = models.read({"root": self.root, "incoming": self.incoming, "verify": False, "models": {}})["transaction"]
        if self.mode == "none" or (opened and opened["stale"]):
            self.restart()
        elif self.mode == "explicit":
            change = repository_api.Change(self.asker(), desired)
            change.apply()
            if change.reasons:
                raise Failed("; ".join(f"model {name}: {why}" for name, why in change.reasons.items()))
        self.wait(desired)

    def prove(self) -> None:
        """Check the answer of every model: 2 * 3 must be 6. Raises Failed."""
        for name in self.desired:
            x = triton.InferInput("X", [1, 1], "FP32")
            x.set_data_from_numpy(np.array([[3]], np.float32))
            with triton.InferenceServerClient(f"127.0.0.1:{self.grpc_port}") as client:
                try:
                    y = client.infer(name, [x]).as_numpy("Y")
                except InferenceServerException as error:
                    raise Failed(f"model {name}: {error}") from error
            if y.tolist() != [[6.0]]:
                raise Failed(f"model {name}: the answer is {y.tolist()}, expected [[6.0]]")

    def restore(self, me: store.Run, why: str) -> None:
        """Restore the previous links, and let the server load these releases. If this fails, restart the server."""
        releases.restore(self.root, me, {"why": why, "hung": []})
        before = store.current_models(self.root, self.desired)
        try:
            self.serve(before)
        except (Failed, repository_api.Refused):
            self.restart()
            self.wait(before, STARTS)
        releases.prove(self.root, me, {"why": why, "keep": 5})
