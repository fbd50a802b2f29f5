"""Controller side of model_store: fills in the files of the models to release, who is at it, and brings large files to the host."""

from __future__ import annotations

import base64
import getpass
import os
import socket
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import manifest
from ansible_collections.npufleet.triton.plugins.module_utils.controller import FleetAction
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.probe import text
from ansible_collections.npufleet.triton.plugins.module_utils.sending import Sender
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError
from ansible_collections.npufleet.triton.plugins.module_utils.variables import Templated


class ActionModule(FleetAction):
    """Renders the models that are asked for and hands their small files over with the module's arguments."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        arguments = dict(self._task.args)
        variables = self.variables(task_vars)
        if arguments.get("transfer") is not None:
            return self._transfer(host, variables, task_vars)
        if arguments.get("state", "released") == "released":
            with self.refusing(host):
                found, reasons = manifest.manifests(variables)
                if reasons:
                    raise Refusal(reasons)
            arguments["releases"] = {name: _with_contents(found[name]) for name in arguments.get("models") or [] if name in found}
        arguments.setdefault("root", variables["npufleet_root"])
        # A play that includes one role does not see the defaults of another
        arguments.setdefault("keep", int(variables["model_repository_keep"]))
        person = os.environ.get("SUDO_USER") or getpass.getuser()
        arguments.update(run=run_id(), by=f"{person}@{socket.gethostname()}", host=host)
        # Between two calls lie at most: the models becoming ready twice, and their checks
        arguments["lease"] = 2 * int(variables["triton_server_ready_timeout"]) + 600
        wait = int(arguments.get("wait", variables["model_repository_lock_wait"]))
        result = self.ask("model_store", {**arguments, "wait": 0}, task_vars)
        if result.get("held"):
            # Who is at it may be a run of this machine that has ended, which nobody has to wait for.
            ended = result["held_by"] if result["held_by"] and has_ended(result["held_by"]) else ""
            result = self.ask("model_store", {**arguments, "wait": wait, "takeover": ended}, task_vars)
        return result

    def _transfer(self, host: str, variables: Templated, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Bring large files, and nothing else."""
        try:
            return Sender(self, host, variables, task_vars).send(self._task.args["transfer"], self._task.args.get("origins") or {})
        except StoreError as error:
            return {"failed": True, "msg": f"{host}: {error}"}


def run_id() -> str:
    """This run of Ansible: where its process ids count, the main process (each task has one of its own), when that began."""
    pid = os.getppid()
    return f"{_place()}/{pid}/{_began(pid)}"


def has_ended(run: str) -> bool:
    """Whether a run is one of this machine and is no more. Of other machines nobody knows."""
    place, _, process = run.partition("/")
    pid, _, began = process.partition("/")
    return place == _place() and pid.isdigit() and _began(int(pid)) != began


def _place() -> str:
    """Machine, its boot and the namespace of process ids: within these a process id and its beginning mean one process."""
    boot = (text("/proc/sys/kernel/random/boot_id") or "").strip()
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}:{boot}:{space}"


def _began(pid: int) -> str:
    """When a process began, in ticks since the boot; empty for one that is not there."""
    after_name = (text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else ""


def _with_contents(one: Dict[str, Any]) -> Dict[str, Any]:
    files = {}
    for path, facts in one["files"].items():
        files[path] = dict(facts)
        if not facts["blob"]:
            files[path]["content"] = base64.b64encode(one["contents"][path]).decode()
    return {**{key: one[key] for key in ("source", "release", "versions", "steps", "cached", "shape")}, "files": files}
