"""Programs of a test that begin as a fork of a process which has made their imports: those of ansible-playbook, or of a module.

Half of what a short run costs are imports that are the same in each. A fork has its own environment, directory and output, reads
the settings itself, and leaves nothing behind in the process that it came of.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

# Of a controller, without whatever reads settings as it is imported (ansible.constants). The first says that it is one.
CONTROLLER = (
    "ansible._internal",
    "ansible.config.manager",
    "ansible.utils.collection_loader",
    "cryptography.hazmat.primitives.serialization",
    "google.protobuf.text_format",
    "jinja2.nativetypes",
    "jinja2.sandbox",
    "numpy",
    "yaml",
)
# Of a module on its host
HOST = (
    "ansible.module_utils.basic",
    "ansible.module_utils.common.text.converters",
    "ansible.module_utils._internal._ansiballz._loader",
    "hashlib",
    "http.client",
    "tempfile",
    "urllib.request",
)
# Tests have threads
STARTING = threading.Lock()


class Forks:
    """One such process, which ends with this one; asked for a run, it forks."""

    def __init__(self, kind: str, path: list[str]) -> None:
        self.place = tempfile.TemporaryDirectory(prefix="forks-")
        self.address = f"{self.place.name}/{kind}"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.address)
        listening.listen(64)
        # Whoever has numpy in a process that forks wants no threads of it
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, kind, str(listening.fileno())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[listening.fileno()])
        listening.close()
        atexit.register(self.end)

    def end(self) -> None:
        self.process.communicate()
        self.place.cleanup()


def ask(address: str, request: dict[str, Any], timeout: float | None = None) -> tuple[int, bytes, bytes]:
    """(exit code, output, errors) of a fork of the process that listens there."""
    with (
        socket.socket(socket.AF_UNIX) as asked,
        open(os.memfd_create("out"), "w+b") as out,
        open(os.memfd_create("errors"), "w+b") as errors,
    ):
        asked.connect(address)
        asked.settimeout(timeout)
        sent = json.dumps(request).encode()
        socket.send_fds(asked, [b"%16d" % len(sent)], [out.fileno(), errors.fileno()])
        asked.sendall(sent)
        answers = asked.makefile("r")
        pid = int(answers.readline())
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(str(request), timeout or 0) from None
        out.seek(0)
        errors.seek(0)
        return code, out.read(), errors.read()


@cache
def _controller() -> Forks:
    return Forks("controller", [])


@cache
def _host() -> Forks:
    import ansible

    sent = Path(_controller().place.name) / "sent/ansible"
    sent.mkdir(parents=True)
    (sent / "__init__.py").write_text(f"__version__ = {ansible.__version__!r}\n")
    for part in ("module_utils", "modules"):
        (sent / part).symlink_to(Path(ansible.__file__).parent / part)
    return Forks("host", [str(sent.parent)])


def controller() -> str:
    """Where to ask for a run of ansible-playbook."""
    with STARTING:
        return _controller().address


def host() -> str:
    """Where to ask for a module: of Ansible it has what is sent with one, and nothing of a controller."""
    with STARTING:
        return _host().address


# In the process that forks


def prepare_controller() -> None:
    """What Ansible's own collection says of itself is parsed in every run, and may be kept: the loader leaves room for that."""
    finder = importlib.import_module("ansible.utils.collection_loader._collection_finder")
    finder._meta_yml_to_dict = cache(finder._meta_yml_to_dict)
    text = Path(finder.import_module("ansible").__file__).parent / "config/ansible_builtin_runtime.yml"
    finder._meta_yml_to_dict(text.read_bytes(), ("ansible.builtin", "runtime.yml"))


def playbook(request: dict[str, Any]) -> None:
    """As the program ansible-playbook does it; with a `host`, modules of this machine are forks of that, too."""
    sys.argv = ["ansible-playbook", *request["arguments"]]
    if host := request.get("host"):
        modules = importlib.import_module("forked_modules")
        modules.fork(host)
        # Those of another place may have other files
        if "ANSIBLE_COLLECTIONS_PATH" not in os.environ:
            modules.pack_once(os.path.dirname(host))
    importlib.import_module("ansible.cli.playbook").main()


def module(request: dict[str, Any]) -> None:
    """As a module is run where it was unpacked; what it imports of collections lies beside it."""
    sys.path.remove(os.path.dirname(__file__))
    collections = type(sys)("ansible_collections")
    collections.__path__ = request["collections"]
    sys.modules["ansible_collections"] = collections
    loader = importlib.import_module("ansible.module_utils._internal._ansiballz._loader")
    parameters = json.dumps({"ANSIBLE_MODULE_ARGS": request["parameters"]}).encode()
    loader.run_module(json_params=parameters, profile="legacy", module_fqn=request["module"], modlib_path="", extensions={})


def begin(request: dict[str, Any], run: Callable[[dict[str, Any]], None], descriptors: list[int]) -> None:
    """The fork itself: a program that ends by itself, with its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in zip([null, *descriptors], range(3)):
        os.dup2(ours, theirs)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, "rw"[number > 0], closefd=False) for number in range(3))
    code = 1
    try:
        run(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def answer(asked: socket.socket, run: Callable[[dict[str, Any]], None]) -> None:
    """Fork for what is asked, and say how it ended."""
    size, descriptors, _flags, _from = socket.recv_fds(asked, 16, 2)
    request = json.loads(asked.makefile("rb").read(int(size)))
    pid = os.fork()
    if not pid:
        begin(request, run, descriptors)
    asked.sendall(b"%d\n" % pid)
    _pid, status = os.waitpid(pid, 0)
    asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def serve(kind: str, descriptor: int) -> None:
    """Until whoever started this ends."""
    modules, run = {"controller": (CONTROLLER, playbook), "host": (HOST, module)}[kind]
    for name in modules:
        importlib.import_module(name)
    if kind == "controller":
        prepare_controller()
    assert "ansible.constants" not in sys.modules
    # What is there by now is no garbage of a fork; to look for it would be to copy it
    gc.freeze()
    listening = socket.socket(fileno=descriptor)
    # What is typed at a terminal is for whoever started this
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answering: list[int] = []
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        asked, _from = listening.accept()
        answering = [pid for pid in answering if not os.waitpid(pid, os.WNOHANG)[0]]
        pid = os.fork()
        if not pid:
            answer(asked, run)
            os._exit(0)
        answering.append(pid)
        asked.close()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
