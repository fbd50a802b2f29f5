"""In a run of ansible-playbook: a module for this machine and this Python is a fork (forked.py), not packed and compiled anew.

And most tasks are run by the run itself: most of what a short one takes is to copy what a fork touches of Ansible. Of several
hosts, all but the last have their processes, so that they wait beside each other.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import threading
import time
import zipfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible import __version__ as version
from ansible import constants as C
from ansible._internal._task import TaskContext
from ansible.executor import module_common
from ansible.executor.module_common import _BuiltModule
from ansible.executor.process.worker import WorkerProcess
from ansible.executor.task_executor import TaskExecutor
from ansible.executor.task_result import _RawTaskResult
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.plugins import action, strategy
from ansible.plugins.connection import local
from ansible.plugins.strategy import linear
from forked import ROOT, ask
from forked_parsed import Kept, state

MARK = b"# a module that is not packed: "
# What waits for no host
QUICK = {
    f"ansible.builtin.{name}"
    for name in (
        *("add_host", "assert", "debug", "fail", "group_by", "include_role", "include_tasks", "include_vars", "set_fact"),
        "validate_argument_spec",
    )
}


def pack_once(place: Path) -> None:
    """From now on, a module is packed once for all runs that have the same sources; each run would do it anew."""
    pack = module_common._find_module_utils

    def packed(**given: Any) -> Any:
        own = Path(C.DEFAULT_LOCAL_TMP, "ansiballz_cache")
        # Collections from elsewhere are of one test
        if not own.exists() and Path(C.COLLECTIONS_PATHS[0]).is_relative_to(ROOT):
            shared = place / sources()
            shared.mkdir(parents=True, exist_ok=True)
            # The task of another host may be as far
            with suppress(FileExistsError):
                own.symlink_to(shared)
        return pack(**given)

    module_common._find_module_utils = packed


def sources() -> str:
    """What changes with whatever is sent: Ansible with its collections, and the modules of this one with what they share."""
    found = [version, sys.prefix]
    plugins = Path(importlib.import_module("ansible_collections.npufleet.triton").__path__[0], "plugins")
    for path in sorted(path for part in ("modules", "module_utils") for path in (plugins / part).rglob("*.py")):
        found += [str(path), *map(str, state(str(path)))]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


class Compiled(zipfile.ZipFile):
    """An archive in which sources have their bytecode beside them, which another version of Python leaves alone."""

    # How bytecode begins that is taken without a look at its source
    HEADER = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    # Most of it is that of other archives, too
    store: Kept

    def writestr(self, zinfo_or_arcname: Any, data: Any, *given: Any, **more: Any) -> None:
        super().writestr(zinfo_or_arcname, data, *given, **more)
        name = getattr(zinfo_or_arcname, "filename", zinfo_or_arcname)
        if name.endswith(".py"):
            code = self.store.bytecode(f"{name} {data!r}", lambda: compile(data, name, "exec", dont_inherit=True))
            super().writestr(f"{name}c", self.HEADER + code, *given, **more)


def pack_compiled(store: Kept) -> None:
    """From now on a module is sent with bytecode: without, each call compiles its sources anew, half of what a short one takes."""
    Compiled.store = store
    module_common.zipfile = SimpleNamespace(**{**vars(zipfile), "ZipFile": Compiled})


def named(path: str) -> tuple[str, str]:
    """(full name of a module, root of the collections that it may import) by its file."""
    root, collections, below = str(Path(path).with_suffix("")).rpartition("/ansible_collections/")
    if not collections:
        return f"ansible.modules.{Path(path).stem}", ""
    return f"ansible_collections.{below}".replace("/", "."), root + collections


def fork(address: str) -> None:
    """From now on, by the process that listens there."""
    base, connection = action.ActionBase, local.Connection
    executed, pipelined, packed, sent = (
        base._execute_module,
        base._is_pipelining_enabled,
        action.modify_module,
        connection.exec_command,
    )
    # Of the call at hand
    forks = False

    def execute(self: Any, *given: Any, task_vars: Any = None, wrap_async: bool = False, **more: Any) -> dict[str, Any]:
        nonlocal forks
        there = task_vars["ansible_delegated_vars"][self._task.delegate_to] if self._task.delegate_to else task_vars
        python = self._templar.template(there.get("ansible_python_interpreter"))
        waited = not (wrap_async or self._task.async_val or self._connection.become)
        forks = waited and isinstance(self._connection, connection) and python == sys.executable
        try:
            return executed(self, *given, task_vars=task_vars, wrap_async=wrap_async, **more)
        finally:
            forks = False

    def pipelines(self: Any, *given: Any, **more: Any) -> bool:
        return forks or pipelined(self, *given, **more)

    def pack(**given: Any) -> Any:
        if not forks:
            return packed(**given)
        name, root = named(given["module_path"])
        encoder = get_module_encoder("legacy", Direction.CONTROLLER_TO_MODULE)
        request = {
            "module": name,
            "collections": [root] if root else [],
            "parameters": json.loads(json.dumps(given["module_args"], cls=encoder)),
            "environment": {**os.environ, **{key: str(value) for key, value in given["environment"].items()}},
            "directory": os.getcwd(),
        }
        return _BuiltModule(
            b_module_data=MARK + json.dumps(request).encode(),
            module_style="new",
            shebang=f"#!{sys.executable}",
            serialization_profile="legacy",
        )

    def send(self: Any, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        if in_data and in_data.startswith(MARK):
            return ask(address, json.loads(in_data[len(MARK) :]))
        return sent(self, cmd, in_data=in_data, sudoable=sudoable)

    base._execute_module, base._is_pipelining_enabled = execute, pipelines
    action.modify_module, connection.exec_command = pack, send


def execute_here(every: bool) -> None:
    """From now on, a task has no process that waits for nothing, that is the last host's, or any with `every`."""
    begin, lockstep = WorkerProcess.start, linear.StrategyModule._get_next_task_lockstep
    parent, run = os.getppid, os.getpid()
    # Of the task at hand
    last = None

    def tasks(strategy: Any, hosts: list[Any], iterator: Any) -> list[tuple[Any, Any]]:
        nonlocal last
        found = lockstep(strategy, hosts, iterator)
        last = found[0 if found[0][1].run_once else -1][0] if found else None
        return found

    def start(worker: Any) -> None:
        if every or worker._task.action in QUICK or worker._host is last:
            _execute(worker)
        else:
            begin(worker)

    WorkerProcess.start, linear.StrategyModule._get_next_task_lockstep = start, tasks
    # To whatever runs in a task, the run is its parent
    os.getppid = lambda: run if os.getpid() == run else parent()


def wait_for_results() -> None:
    """From now on a run is woken by what its tasks' processes say; it would look each few milliseconds whether they have."""
    arrived = threading.Event()

    class Results(deque[Any]):
        def append(self, result: Any) -> None:
            super().append(result)
            arrived.set()

    def sleep(seconds: float) -> None:
        # Whether such a process is dead, or one may begin, is a matter of looking
        arrived.wait(10 * seconds)
        arrived.clear()

    strategy.deque, strategy.time = Results, SimpleNamespace(**{**vars(time), "sleep": sleep})


def _execute(worker: Any) -> None:
    """What the process of a task and host does, with a task of its own, as a fork has."""
    task = worker._task.copy(exclude_parent=True)
    task._parent = worker._task._parent
    with TaskContext(task):
        done = TaskExecutor(
            worker._host,
            task,
            worker._task_vars,
            worker._play_context.copy(),
            worker._loader,
            worker._shared_loader_obj,
            worker._final_q,
            worker._variable_manager,
        ).run()
    result = _RawTaskResult(host=worker._host, task=task, return_data=done, task_fields=task.dump_attrs())
    worker._final_q.send_task_result(result)
