"""Helpers of several unit tests: variables of the action plugins, runs of a module, and small servers."""

from __future__ import annotations

import ast
import atexit
import configparser
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import role_defaults
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parent / "fixtures"
# Names that a path may contain, and names that no request can contain
UTF8 = ["\ubaa8\ub378", "50%", "%6fk", 'quo"te', "back\\slash", "a:b", ".."]
URL_UNSAFE_NAMES = ["with space", "new\nline", "a/b", "ok?x", "ok#x", "nul\0", "del\x7f", ""]
ROW = {
    "sdk": {"package": "rebel-compiler", "version": "0.6.2", "shape": "0.6"},
    "driver": {"package": "rebellions", "version": "1.2.92", "form": "deb"},
    "triton": {"version": "2.42.0", "image": "triton:base", "python": "3.10", "tritonclient": "2.41.1", "numpy": "<2"},
    "cards": ["RBLN-CA12"],
    "systems": {"ubuntu-22.04": ">=5.10"},
}


ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


def fixture(name: str) -> Any:
    """Return a JSON document below fixtures/."""
    return json.loads((FIXTURES / name).read_text())


def load_program(name: str) -> ModuleType:
    """Import a file of the checkout that is not in a package, such as tests/docs.py."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def fleet(**inventory: Any) -> Templated:
    """Return the variables of a host for the action plugins: the inventory over the defaults of all roles, templated lazily."""
    merged = dict(role_defaults())
    merged.update(
        inventory_hostname="npu1",
        group_names=["npu_hosts"],
        groups={},
        role_path=str(ROOT / "roles/common"),
        rbln_release="24.01",
        npufleet_npus=2,
        npufleet_card="RBLN-CA12",
        npufleet_release_rows={"24.01": ROW},
        npufleet_release_row=ROW,
        npufleet_lock={},
        triton_models=[],
    )
    merged.update(inventory)
    return Templated(merged, Templar(DataLoader(), variables=merged).template, [*inventory, "npufleet_release_rows"])


@cache
def imports(path: Path, inside: bool = False) -> list[str]:
    """Return the imports of a file; with `inside` also those in its functions."""
    tree = ast.parse(path.read_text(), str(path))
    names = []
    for node in ast.walk(tree) if inside else tree.body:
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{name.name}" for name in node.names]
    return names


@cache
def common_home(purpose: str) -> str:
    """Return a directory that all tests share until they end."""
    home = tempfile.mkdtemp(prefix=f"npufleet-{purpose}-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def playbook_command(directory: Path, *arguments: object, **environment: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of ansible-playbook with the settings of this checkout."""
    home = f"{directory}/ansible"
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_") and "proxy" not in name.lower()},
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": home,
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_LOCAL_TEMP": f"{home}/tmp",
        "ANSIBLE_REMOTE_TEMP": f"{home}/tmp",
        "ANSIBLE_NOCOLOR": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **environment,
    }
    return [str(ANSIBLE_PLAYBOOK), *map(str, arguments)], settings


def ansible_playbook(directory: Path, *arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook with the settings of this checkout. Its temporary files are below `directory`."""
    command, settings = playbook_command(directory, *arguments, **environment)
    return subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=600, check=False)


def assert_timer(directory: Path, name: str, files: dict[str, Any]) -> None:
    """Assert that the texts `service` and `timer` are valid units, also for systemd if this machine has it."""
    paths = {kind: directory / f"{name}.{kind}" for kind in ("service", "timer")}
    for kind, sections in (("service", ["Unit", "Service"]), ("timer", ["Unit", "Timer", "Install"])):
        paths[kind].write_text(files[kind])
        unit = configparser.ConfigParser(interpolation=None)
        unit.read(paths[kind])
        assert unit.sections() == sections
    analyze = shutil.which("systemd-analyze")
    # Without systemd here, the hosts of the lab check the units.
    if analyze:
        command = [analyze, "verify", "--man=no", *map(str, paths.values())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def until(condition: Callable[[], bool]) -> None:
    """Wait up to a minute until a condition is true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class _Done(BaseException):
    """The result of a module. It is no Exception, so that no handler of the module catches it."""


def time_of(module: ModuleType, monkeypatch: Any) -> SimpleNamespace:
    """Replace the time of a module by one that passes only while it sleeps. Return it, with `now` and `slept`."""
    clock = SimpleNamespace(now=100.0, slept=[])

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now, sleep=sleep))
    return clock


def run_module(module: ModuleType, arguments: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """Run a module, and return its result with the key `failed`. Fields of its REQUEST are passed as the request."""
    request = {name: value for name, value in arguments.items() if name in getattr(module, "REQUEST", {})}
    options = {name: value for name, value in arguments.items() if name not in request}

    def ending(failed: bool) -> Any:
        def end(_self: AnsibleModule, **result: Any) -> None:
            raise _Done({"failed": failed, **result})

        return end

    with (
        patch_module_args({**options, **({"_request": request} if request else {}), "_ansible_check_mode": check}),
        mock.patch.object(AnsibleModule, "exit_json", ending(False)),
        mock.patch.object(AnsibleModule, "fail_json", ending(True)),
    ):
        try:
            module.main()
        except _Done as done:
            return done.args[0]
    raise AssertionError("the module ended without a result")


class Answers:
    """Answers by `METHOD /path`, as (status, body), and the requests of a server. Bodies other than bytes are sent as JSON."""

    def __init__(self, answers: dict[str, tuple[int, Any]]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.port = 0


def _handler(answers: Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: Any) -> None:
            pass

        def _answer(self) -> None:
            answers.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            # Like Triton, which does not decode the path
            asked = f"{self.command} {self.path}".encode("latin-1").decode("utf-8", "replace")
            answers.asked.append(asked)
            answers.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, body = answers.answers.get(asked, (404, {"error": f"nothing at {asked}"}))
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_DELETE = _answer

    return Handler


@contextmanager
def _serving(server: _Server) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that do not wait for their answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def http_server(answers: dict[str, tuple[int, Any]], address: str = "127.0.0.1") -> Iterator[Answers]:
    """Start an HTTP server on a free port of the loopback, or of another address of this machine."""
    kept = Answers(answers)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = type("Server", (_Server,), {"address_family": family})((address, 0), _handler(kept))
    kept.port = server.server_address[1]
    with _serving(server):
        yield kept


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self) -> tuple[Any, Any]:
        request, _address = super().get_request()
        return request, ("unix", 0)


@contextmanager
def unix_server(path: Path, answers: dict[str, tuple[int, Any]]) -> Iterator[Answers]:
    """Start an HTTP server on a socket, like that of the engine. The path has at most 107 bytes."""
    kept = Answers(answers)
    server = _UnixServer(os.fspath(path), _handler(kept))  # type: ignore[arg-type]
    with _serving(server):
        yield kept


class FakeEngine:
    """A replacement of `Engine()` with answers by resource; it raises OSError without answers."""

    def __init__(self, answers: dict[str, Any] | None) -> None:
        self.answers = answers

    def __call__(self) -> FakeEngine:
        return self

    def get(self, resource: str) -> Any:
        if self.answers is None:
            raise OSError("no engine")
        return self.answers.get(resource)

    def container(self, name: str) -> Any:
        return Engine.container(self, name)  # type: ignore[arg-type]
