"""Programs of a test that begin as a fork of a process which has made their imports: those of ansible-playbook, or of a module.

Half of what a short run costs are imports that are the same in each. A fork has its own environment, directory and output, reads
the settings itself unless it came of a process with just these, and leaves nothing behind there.

`forked.py with COMMAND ...` runs a command whose own runs of bin/ansible-playbook are forks, but not those of what they start.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

# Of a controller, without whatever reads settings as it is imported (ansible.constants). The first says that it is one.
CONTROLLER = (
    "ansible._internal",
    "ansible.config.manager",
    "ansible.module_utils.facts.compat",
    "ansible.parsing.utils.addresses",
    "ansible.utils.collection_loader",
    "ansible.utils.unsafe_proxy",
    "cryptography.hazmat.primitives.serialization",
    "google.protobuf.text_format",
    "importlib.metadata",
    "jinja2.nativetypes",
    "jinja2.sandbox",
    "multiprocessing.queues",
    "numpy",
    "packaging.requirements",
    "resolvelib",
    "yaml",
)
# What a run of ansible-playbook looks for among all of a kind, and what it looks up beside the collection's own action plugins
KINDS = ("become", "cache", "callback", "inventory", "shell", "strategy")
PLUGINS = {
    "action": ("command", "copy", "debug", "fail", "normal", "set_fact", "template"),
    "callback": ("ansible.builtin.default", "npufleet.triton.progress"),
    "connection": ("_paramiko_ssh", "local", "paramiko_ssh", "psrp", "ssh", "winrm"),
    "inventory": ("constructed",),
    "lookup": ("env", "npufleet.triton.fleet_group", "npufleet.triton.output_dir"),
}
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
ROOT = Path(__file__).resolve().parents[2]
# Where to ask for a run of bin/ansible-playbook
AT = "FORKED_AT"
# Tests have threads
STARTING = threading.Lock()


class Forks:
    """One such process, which ends with this one; asked for a run, it forks. A controller asks for its modules at `host`."""

    def __init__(self, kind: str, path: list[str], settings: Mapping[str, str] = os.environ, host: str = "") -> None:
        self.place = tempfile.TemporaryDirectory(prefix="forks-")
        self.address = f"{self.place.name}/{kind}"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.address)
        listening.listen(64)
        # Whoever has numpy in a process that forks wants no threads of it
        environment = {**settings, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, kind, str(listening.fileno()), host]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[listening.fileno()])
        listening.close()
        atexit.register(self.end)

    def end(self) -> None:
        self.process.communicate()
        self.place.cleanup()


def ask(address: str, request: dict[str, Any], timeout: float | None = None) -> tuple[int, bytes, bytes]:
    """(exit code, output, errors) of a fork of the process that listens there."""
    with open(os.memfd_create("out"), "w+b") as out, open(os.memfd_create("errors"), "w+b") as errors:
        code = _ask(address, request, [out.fileno(), errors.fileno()], timeout)
        out.seek(0)
        errors.seek(0)
        return code, out.read(), errors.read()


def _ask(address: str, request: dict[str, Any], output: list[int], timeout: float | None = None) -> int:
    """The exit code of a fork that writes to these descriptors, and is interrupted where this process ends before it."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(address)
        asked.settimeout(timeout)
        sent = json.dumps(request).encode()
        socket.send_fds(asked, [b"%16d" % len(sent)], output)
        asked.sendall(sent)
        answers = asked.makefile("r")
        pid = int(answers.readline())
        try:
            return int(answers.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(str(request), timeout or 0) from None


def ansible_playbook() -> int:
    """The exit code of this process as bin/ansible-playbook: that of a fork where a command asks for that (`with`)."""
    environment, arguments = dict(os.environ), sys.argv[1:]
    address = environment.pop(AT, None)
    if not address:
        playbook({"arguments": arguments})
        return 0
    return _ask(address, {"arguments": arguments, "environment": environment, "directory": os.getcwd()}, [1, 2])


def run_with(command: list[str]) -> int:
    """The exit code of a command whose runs of ansible-playbook are forks."""
    return subprocess.run(command, env={**os.environ, AT: controller()}, check=False).returncode


@cache
def _host() -> Forks:
    """Of Ansible it has what is sent with a module, and nothing of a controller."""
    import ansible

    place = tempfile.TemporaryDirectory(prefix="forks-")
    atexit.register(place.cleanup)
    sent = Path(place.name, "ansible")
    sent.mkdir()
    (sent / "__init__.py").write_text(f"__version__ = {ansible.__version__!r}\n")
    for part in ("module_utils", "modules"):
        (sent / part).symlink_to(Path(ansible.__file__).parent / part)
    return Forks("host", [place.name])


@cache
def _controller() -> Forks:
    return Forks("controller", [], host=_host().address)


@cache
def _settled(settings: tuple[tuple[str, str], ...]) -> Forks:
    others = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return Forks("settled", [], {**others, **dict(settings)}, _host().address)


def controller() -> str:
    """Where to ask for a run of ansible-playbook, with any settings."""
    with STARTING:
        return _controller().address


def settled(environment: Mapping[str, str]) -> str:
    """Where to ask for a run of ansible-playbook with just these settings: they have been read, and modules are packed once."""
    with STARTING:
        return _settled(tuple(sorted(item for item in environment.items() if item[0].startswith("ANSIBLE_")))).address


# In the process that forks


def prepare_controller() -> None:
    """What Ansible says of its own collection and settings is parsed in every run, and may be kept."""
    finder = importlib.import_module("ansible.utils.collection_loader._collection_finder")
    finder._meta_yml_to_dict = cache(finder._meta_yml_to_dict)
    text = Path(finder.import_module("ansible").__file__).parent / "config/ansible_builtin_runtime.yml"
    finder._meta_yml_to_dict(text.read_bytes(), ("ansible.builtin", "runtime.yml"))
    manager = importlib.import_module("ansible.config.manager")
    read = cache(partial(manager.ConfigManager._read_config_yaml_file, None))
    manager.ConfigManager._read_config_yaml_file = lambda _self, path: read(path)
    read(str(text.with_name("base.yml")))


def prepare_settled() -> None:
    """Plugins are code, and documents that say which settings they have; our documents are parsed, filters looked for."""
    loader = importlib.import_module("ansible.plugins.loader")
    parsed = importlib.import_module("forked_parsed")
    parsed.look_once()
    loader.init_plugin_loader()
    # Each run would do it again, and warn of that
    importlib.import_module("ansible.cli").init_plugin_loader = lambda *_given: None
    own = importlib.import_module("ansible_collections.npufleet.triton.plugins.action")
    names = [f"npufleet.triton.{Path(path).stem}" for path in Path(own.__path__[0]).glob("*.py")]
    for kind in KINDS:
        assert list(getattr(loader, f"{kind}_loader").all(class_only=True)), f"there are no {kind} plugins"
    for kind, plugins in PLUGINS.items():
        for name in [*plugins, *(names if kind == "action" else [])]:
            assert getattr(loader, f"{kind}_loader").get(name, class_only=True), f"there is no {kind} plugin {name}"
    for kind in ("filter", "test"):
        for name in filter(str.isidentifier, getattr(importlib.import_module("jinja2.defaults"), f"DEFAULT_{kind.upper()}S")):
            getattr(loader, f"{kind}_loader").get(name)
    places = (Path(own.__path__[0]).parents[1] / "roles", ROOT / "playbooks")
    parsed.parse_documents(path for place in places for path in place.rglob("*.yml"))


def settled_playbook(request: dict[str, Any], host: str) -> None:
    """As `playbook`, with a temporary directory of its own."""
    constants = importlib.import_module("ansible.constants")
    kept = constants.DEFAULT_LOCAL_TMP
    constants.DEFAULT_LOCAL_TMP = tempfile.mkdtemp(prefix="run-", dir=kept)
    atexit.register(shutil.rmtree, constants.DEFAULT_LOCAL_TMP)
    playbook(request, host)


def playbook(request: dict[str, Any], host: str = "") -> None:
    """As ansible-playbook does it; with a `host`, modules of this machine are forks of that. `alone`, no task is a process."""
    sys.argv = ["ansible-playbook", *request["arguments"]]
    # First of Ansible's, as in its own program
    names = ("ansible.cli.playbook", "forked_modules", "forked_parsed")
    program, modules, parsed = (importlib.import_module(name) for name in names)
    # Whoever may only read the checkout has a place of the user's
    place = ROOT / "build/forked" if os.access(ROOT, os.W_OK) else Path.home() / ".cache/forked"
    kept = parsed.Kept(place / "bytecode")
    modules.pack_compiled(kept)
    modules.pack_once(place / "modules")
    parsed.keep_templates(kept)
    parsed.copy_quickly()
    parsed.look_once()
    if host:
        modules.fork(host)
    modules.execute_here(every=request.get("alone", False))
    modules.wait_for_results()
    program.main()


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
    # What the process that forks has to take away stays its own
    atexit._clear()
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
    # Whoever asked says no more: there is something to read where it has ended
    alone = asked in select.select([asked, os.pidfd_open(pid)], [], [])[0]
    if alone:
        os.kill(pid, signal.SIGINT)
    _pid, status = os.waitpid(pid, 0)
    if not alone:
        asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def serve(kind: str, descriptor: int, host: str) -> None:
    """Until whoever started this ends."""
    modules, run = {
        "controller": (CONTROLLER, partial(playbook, host=host)),
        "settled": ((*CONTROLLER, "ansible.cli.playbook", "forked_modules", "forked_parsed"), partial(settled_playbook, host=host)),
        "host": (HOST, module),
    }[kind]
    for name in modules:
        importlib.import_module(name)
    if kind != "host":
        prepare_controller()
    if kind == "settled":
        prepare_settled()
    assert kind == "settled" or "ansible.constants" not in sys.modules
    # What is there by now is no garbage of a fork, and to look for it would be to copy it; what a short run leaves may stay
    gc.freeze()
    if kind == "settled":
        gc.disable()
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
    if sys.argv[1] == "with":
        sys.exit(run_with(sys.argv[2:]))
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
