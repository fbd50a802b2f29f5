"""A host without a host: the project's own store and modules beside a real tritonserver on this machine.

What runs here is what runs on a host: manifests, blobs, releases, the transaction, the loads, reading digests back. The order is
that of the roles. What is left out is Ansible, ssh, Docker and the watchdog, which the lab scenarios have.
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
# Seconds for a change to be served on a machine that starts three servers quickly, for a server to end its work, and for that start
PATIENCE, EXIT, STARTS = 12, 3, 600
# Bytes of a server's log that are searched for the reason of a failure
MAX_LOG = 1 << 20
# The linter parses Python, which a CPython before 3.11.8 does in one thread at a time alone (its issue 106905)
ONE_PARSER = threading.Lock()


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("triton_python_backend_shm_region_*"))


def forget_shared_memory(before: set[Path]) -> None:
    """Remove the regions that servers left which were killed, and that no process has open."""
    # Listed first: a region that a server of another run makes meanwhile is not in the maps that were read before.
    left = shared_memory() - before
    for path in Path("/proc").glob("[0-9]*/maps"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            maps = path.read_text(errors="replace")
            left = {region for region in left if region.name not in maps}
    for region in left:
        region.unlink(missing_ok=True)


class Failed(Exception):
    """Why a run failed, in the words that an operator reads."""


# Below those that the kernel gives to whoever asks for any: one of these stays free until its server starts
PORTS = iter(random.sample(range(20000, 32000), 12000))


def free_port() -> int:
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
    raise Failed("found no free port from 20000 to 32000")


class Host:
    """One host in one mode of control: `run` is a run of models.yml on it."""

    def __init__(self, mode: str, place: Path, program: Path) -> None:
        self.mode = mode
        # Where Triton is unpacked
        self.program = program
        place.mkdir(parents=True, exist_ok=True)
        self.root = str(place / "store")
        # As the container sees it: read-only, or Python would write bytecode beside the models
        self.seen = str(place / "seen")
        self.incoming = str(place / "store/incoming")
        self.log = place / "log"
        self.port, self.grpc_port = free_port(), free_port()
        self.runs = self.starts = 0
        self.patience = float(PATIENCE)
        self.key = {"name": "npufleet-key", "path": str(place / "server/key")}
        self.server: subprocess.Popen[bytes] | None = None
        self.wanted: dict[str, Any] = {}

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
            place = Path(self.key["path"])
            place.parent.mkdir()
            place.write_text(secrets.token_hex(32))
        # As the container's shell reads it
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
        """As the engine stops a container: told first, killed with all of its processes when its time is over."""
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
        """A server that ended by itself is started again, as the engine does it."""
        if self.server is not None and self.server.poll() is not None:
            self.restart()

    def served(self) -> dict[str, Any]:
        """What the server has loaded."""
        self.revive()
        return read_served({"address": "127.0.0.1", "http_port": self.port, "key": self.key}) or {}

    def asker(self) -> repository_api.Server:
        """What loads and unloads: the client of the image, run here in the place of its container."""

        def run(command: list[str], seconds: float) -> tuple[int, str]:
            here = [sys.executable, *command[1:3], json.dumps({**json.loads(command[3]), "port": self.grpc_port})]
            done = subprocess.run(here, capture_output=True, text=True, timeout=seconds, check=False)
            return done.returncode, done.stdout + done.stderr

        return repository_api.Server("127.0.0.1", self.port, self.patience, self.key, run)

    def wait(self, wanted: dict[str, Any], seconds: float = 0) -> None:
        """Until these releases are served, by the digests that the server has in memory."""
        deadline = time.monotonic() + (seconds or self.patience)
        while True:
            served = self.served()
            lacking = sorted(name for name, release in wanted.items() if not repository_api.in_sync(served.get(name, {}), release))
            if not lacking:
                return
            if time.monotonic() >= deadline:
                raise Failed(f"{self.mode}: start {self.starts} does not serve {', '.join(lacking)}: {self.words(lacking)}")
            time.sleep(0.2)

    def words(self, names: list[str]) -> str:
        """Triton's own, out of its log: what it says of these models, or last."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - MAX_LOG))
            lines = log.read(MAX_LOG).decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("E") and any(name in line for name in names)]
        return "; ".join(errors or lines[-12:])[-1500:]

    # A run

    def begin(self, repository: Path) -> None:
        """From nothing: what is switched is there when the server starts."""
        self.run(repository, dies=True)
        began = time.monotonic()
        self.start()
        self.wait(self.wanted, STARTS)
        # A change takes less than the first start of all servers at once, on this machine too.
        self.patience = max(self.patience, 2 * (time.monotonic() - began))
        self.run(repository)

    def drift(self, repository: Path) -> str:
        """What the concern `models` has to say."""
        return "; ".join(map(sentence, self.plan(self.manifests(repository))))

    def plan(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        desired = desired_models.desired(
            {**VARIABLES, "npufleet_root": self.root, "npufleet_incoming": self.incoming}, Context(found)
        )
        return models.diff(desired, models.read(desired))

    def run(self, repository: Path, dies: bool = False, between: Callable[[], None] | None = None, changed: bytes = b"") -> bool:
        """One ordinary run; whether it changed anything. Raises Failed, after what served was put back.

        `dies`: it is killed when it has switched. `between`: what somebody does at that moment. `changed`: bytes that the large
        files have on their way.
        """
        self.runs += 1
        me = store.Run(f"here/{self.runs}", "tests@here", self.mode)
        found = self.manifests(repository)
        self.wanted = {name: {key: model[key] for key in ("versions", "release", "steps")} for name, model in found.items()}
        plan = self.plan(found)
        if not plan:
            return False
        names = [item["name"] for item in plan if item["action"] == "release"]
        try:
            store.prepare(self.root)
            self.transfer([found[name] for name in names], changed)
            made = {name: manifest.to_release(found[name]) for name in names}
            releases.release(self.root, me, {"releases": made, "withdraw": [], "incoming": self.incoming})
        except (store.StoreError, OSError) as error:
            raise Failed(f"{self.mode}: {error}") from error
        if dies:
            return True
        if between:
            between()
        try:
            self.serve(self.wanted)
            self.prove()
        except (Failed, repository_api.Refused) as error:
            self.put_back(me, str(error))
            raise Failed(f"{self.mode}: the previous releases serve again: {error}") from error
        releases.prove(self.root, me, {"why": "", "keep": 5})
        return True

    def manifests(self, repository: Path) -> dict[str, Any]:
        """What the controller makes of the repository: where it refuses, nothing has changed yet."""
        variables = {**VARIABLES, "npufleet_model_repository": str(repository), "inventory_hostname": self.mode, "group_names": []}
        variables["triton_models"] = [{"name": name} for name in MODELS]
        with ONE_PARSER:
            found, reasons = manifest.manifests(variables)
        if reasons:
            raise Failed(f"{self.mode}: refused: {'; '.join(reasons)}")
        return found

    def transfer(self, wanted: list[dict[str, Any]], changed: bytes) -> None:
        """Large files into incoming/, as rsync leaves them."""
        os.makedirs(self.incoming, exist_ok=True)
        for digest, origin in ((digest, origin) for requirement in wanted for digest, origin in requirement["origins"].items()):
            content = Path(origin["file"]).read_bytes()
            Path(self.incoming, digest).write_bytes(changed + content[len(changed) :])

    def serve(self, wanted: dict[str, Any]) -> None:
        """Have the server take what is linked, as the role does it in this mode."""
        opened = models.read({"root": self.root, "incoming": self.incoming, "verify": False, "models": {}})["transaction"]
        if self.mode == "none" or (opened and opened["stale"]):
            self.restart()
        elif self.mode == "explicit":
            change = repository_api.Change(self.asker(), wanted)
            change.apply()
            if change.reasons:
                raise Failed("; ".join(f"model {name}: {why}" for name, why in change.reasons.items()))
        self.wait(wanted)

    def prove(self) -> None:
        """Every model answers right. The golden data is that twice 3 is 6."""
        for name in self.wanted:
            x = triton.InferInput("X", [1, 1], "FP32")
            x.set_data_from_numpy(np.array([[3]], np.float32))
            with triton.InferenceServerClient(f"127.0.0.1:{self.grpc_port}") as client:
                try:
                    y = client.infer(name, [x]).as_numpy("Y")
                except InferenceServerException as error:
                    raise Failed(f"model {name}: {error}") from error
            if y.tolist() != [[6.0]]:
                raise Failed(f"model {name}: found {y.tolist()}, wanted [[6.0]]")

    def put_back(self, me: store.Run, why: str) -> None:
        """Link and serve again what served before; where the server does not take it, it is started again."""
        releases.restore(self.root, me, {"why": why, "hung": []})
        before = store.current_models(self.root, self.wanted)
        try:
            self.serve(before)
        except (Failed, repository_api.Refused):
            self.restart()
            self.wait(before, STARTS)
        releases.prove(self.root, me, {"why": why, "keep": 5})
