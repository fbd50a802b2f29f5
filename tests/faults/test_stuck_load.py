"""Tests of stuck loads: a stub gives no sign of life while it initializes, so server and stub wait for each other forever.

The tests do not depend on timing: they stop a stub in its `initialize` until the server has given it up, and then let it continue.
"""

from __future__ import annotations

import base64
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import drivers, host_change, lease
from ansible_collections.npufleet.triton.plugins.module_utils.process import supervised
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json
from ansible_collections.npufleet.triton.plugins.module_utils.watch import actions, settings
from ansible_collections.npufleet.triton.plugins.module_utils.watch.judge import Judge
from ansible_collections.npufleet.triton.plugins.module_utils.watch.ledger import Ledger
from ansible_collections.npufleet.triton.plugins.module_utils.watch.watchdog import Watchdog
from bare_server import INFER, WHEELS
from host import forget_shared_memory, free_port, shared_memory
from pytriton_wheel import environment, tritonserver

HERE = Path(__file__).parent
# Seconds after which a stuck load is ended, and the longest time in seconds for each step, even on a slow machine
LIMIT, PATIENCE = 5, 600
NOTHING = '        """There is nothing to load."""\n'
WAITS = """        import os, time
        open(os.path.join("{place}", "initializes-%d" % os.getpid()), "w").close()
        while not os.path.exists(os.path.join("{place}", "go")):
            time.sleep(0.05)
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition returns a true value, and return this value."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.1)
    return found


class Scene:
    """A server in explicit mode whose model `alpha` waits in its initialize for the file `go`."""

    def __init__(self, place: Path, release: str, starts: bool) -> None:
        self.place, self.root = place, place / "root"
        self.port = free_port()
        shutil.copytree(HERE / "models/alpha", self.root / "served/alpha")
        code = self.root / "served/alpha/1/model.py"
        assert NOTHING in code.read_text()
        code.write_text(code.read_text().replace(NOTHING, NOTHING + WAITS.format(place=place)))
        home = tritonserver(HERE.parents[1] / "build/faults", WHEELS[release])
        self.command = [
            str(home / "bin/tritonserver"),
            f"--model-repository={self.root}/served",
            "--model-control-mode=explicit",
            *(["--load-model=alpha"] if starts else []),
            f"--backend-directory={home / 'backends'}",
            # Servers before 24.04 number their shared memory, so two servers on one machine would share it without this prefix.
            f"--backend-config=python,shm-region-prefix-name=triton_python_backend_shm_region_{self.port}_",
            f"--http-port={self.port}",
            "--http-address=127.0.0.1",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ]
        self.environment = {**environment(home), "HOME": str(place)}

    @property
    def pid(self) -> int:
        """The server's process."""
        raise NotImplementedError

    # The error of a thread of this scene
    failed: BaseException | None = None

    def begin(self, act: Callable[[], Any]) -> None:
        """Call a function in a thread. If it raises an error, serves() fails."""

        def run() -> None:
            try:
                act()
            except BaseException as error:
                self.failed = error
                raise

        threading.Thread(target=run, daemon=True).start()

    def request_load(self) -> None:
        """Request a load of the model."""
        address = ("127.0.0.1", self.port, "POST", "/v2/repository/models/alpha/load", float(PATIENCE), "{}")
        self.begin(lambda: http_json(*address))

    def live(self) -> bool:
        return http_json("127.0.0.1", self.port, "GET", "/v2/health/live")[0] == 200

    def serves(self) -> bool:
        assert self.failed is None, self.failed
        return http_json("127.0.0.1", self.port, "POST", "/v2/models/alpha/infer", 5.0, INFER)[0] == 200

    def harm(self) -> int:
        """Stop the stub in its `initialize` until the server gives it up, and then let it continue. Return its process ID."""
        (mark,) = until(lambda: list(self.place.glob("initializes-*")), "no stub initializes")
        stub = int(mark.name.partition("-")[2])
        os.kill(stub, signal.SIGSTOP)
        wait4 = stuck_load.CALL_NUMBERS[platform.machine()][0]
        until(lambda: stub in stuck_load._waited_for(self.pid, wait4), "the server does not give up the stub")
        (self.place / "go").touch()
        os.kill(stub, signal.SIGCONT)
        return stub

    def end(self) -> None:
        raise NotImplementedError


class Bare(Scene):
    """A server that is restarted when it ends, as an engine does, without a watchdog or a supervisor."""

    server: subprocess.Popen[bytes] | None = None
    over = False

    def start(self) -> None:
        with (self.place / "log").open("ab") as log:
            environment = {**os.environ, **self.environment}
            self.server = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.started = time.time()

    @property
    def pid(self) -> int:
        assert self.server
        return self.server.pid

    def revive(self) -> None:
        if self.server and self.server.poll() is not None and not self.over:
            self.start()

    def end(self) -> None:
        self.over = True
        if self.server:
            with suppress(ProcessLookupError):
                os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()


class Watched(Bare):
    """A server with the watchdog. The server takes the place of a container."""

    def start(self) -> None:
        if self.server is None:
            super().start()
            self.begin(self.watch)
        else:
            super().start()

    def watch(self) -> None:
        scene = self
        lease.WATCHDOG = str(self.place / "lock")
        limits = dict.fromkeys(
            ("fault_timeout", "stall_timeout", "process_timeout", "silence_timeout", "start_timeout", "load_timeout"), PATIENCE
        )
        where = {"address": "127.0.0.1", "http_port": self.port, "root": str(self.root)}
        more = {"mode": "explicit", "container": "triton", "max_actions": 4, "backoff": 30, "stuck_load_limit": LIMIT}
        config = settings.Watchdog(**{**dict.fromkeys(settings.Watchdog._fields), **limits, **where, **more})

        class Host(actions.Host):
            def container(self) -> Any:
                scene.revive()
                started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(scene.started))
                return {"Id": "c", "State": {"Status": "running", "Running": True, "Pid": scene.pid, "StartedAt": started}}

        watchdog = Watchdog(config, Host(config), Ledger(config), Judge(config))
        while not self.over:
            watchdog.round()
            time.sleep(1)


class Supervised(Scene):
    """A server as a process in the container in which Ansible runs, with its supervisor. A change requests the load."""

    def start(self) -> None:
        config = {
            "command": self.command,
            "environment": self.environment,
            "stop_timeout": 5,
            "program": archive.digest("process.supervisor"),
            "stuck_load_limit": LIMIT,
        }
        program = base64.b64encode(archive.program("process.supervisor")).decode()
        supervised.start(str(self.root), config, program, sys.executable)

    @property
    def pid(self) -> int:
        holder = supervised.holder(str(self.root))
        children = Path(f"/proc/{holder}/task/{holder}/children")
        (found,) = until(lambda: children.read_text().split(), "the supervisor has no server")
        return int(found)

    def request_load(self) -> None:
        to = {"address": "127.0.0.1", "http_port": self.port, "key": None, "mode": "explicit", "models": {}, "grpc": False}
        limits = {"ready_timeout": PATIENCE, "key": None}
        order: Any = {"root": str(self.root), "run": "r", "by": "b", "host": "h", "desired": {"server": to}, "container": limits}
        found = host_change.HostChange(order, drivers.ProcessDriver(order))
        self.begin(lambda: found._load({"alpha": {"release": None}}))

    def end(self) -> None:
        supervised.stop(str(self.root))


KINDS = {"alone": Bare, "watchdog": Watched, "supervisor": Supervised}


@pytest.fixture(scope="module", params=sorted(WHEELS))
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Any]]:
    """{(kind of server, "start" or "load"): scene}. Each server has a stuck load, either at its start or on a request."""
    before = shared_memory()
    found: dict[tuple[str, str], Any] = {}
    for who, kind in KINDS.items():
        for way in ("start", "load"):
            found[who, way] = kind(tmp_path_factory.mktemp(f"{who}-{way}"), request.param, way == "start")

    def begin(key: tuple[str, str]) -> int:
        found[key].start()
        if key[1] == "load":
            until(found[key].live, "no server answers")
            found[key].request_load()
        return int(found[key].harm())

    try:
        with ThreadPoolExecutor(len(found)) as pool:
            for scene, stub in zip(found.values(), pool.map(begin, found)):
                scene.stub = stub
        yield found
    finally:
        for scene in found.values():
            scene.end()
        forget_shared_memory(before)


@pytest.mark.parametrize("way", ["start", "load"])
@pytest.mark.parametrize("who", ["watchdog", "supervisor"])
def test_a_load_that_is_stuck_is_ended_and_served(scenes: dict[tuple[str, str], Any], who: str, way: str) -> None:
    scene = scenes[who, way]
    until(scene.serves, f"the server of the {who} does not serve after a {way}")
    assert not Path(f"/proc/{scene.stub}").exists()


@pytest.mark.parametrize("way", ["start", "load"])
def test_without_help_server_and_stub_wait_forever(scenes: dict[tuple[str, str], Any], way: str) -> None:
    """The problem that watchdog and supervisor solve. Then a guard ends the load, as in a change with a container."""
    scene = scenes["alone", way]
    (wait,) = until(lambda: stuck_load.take_sample(scene.pid).waits, "the load is not stuck")
    assert (wait.stub.pid, wait.server.pid, wait.instance[:8]) == (scene.stub, scene.pid, "alpha_0_")
    for who in ("watchdog", "supervisor"):
        until(scenes[who, way].serves, f"the server of the {who} does not serve")
    assert list(stuck_load.take_sample(scene.pid).waits) == [wait]
    assert not scene.serves()
    with stuck_load.Guard(lambda: scene.pid, LIMIT) as guard:
        until(lambda: guard.ended_loads == [wait], "the guard does not end the load")
    if way == "start":
        # A failed load at the start also ends the server.
        until(lambda: scene.server.poll() is not None, "the server does not end")
        scene.revive()
    else:
        until(lambda: "not healthy" in (scene.place / "log").read_text(), "the load did not fail")
        scene.request_load()
    until(scene.serves, "the server does not serve")
