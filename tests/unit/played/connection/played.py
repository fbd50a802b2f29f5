"""A connection to a simulated host: no module runs, each result comes from a scenario, and each call is recorded.

Playbooks, roles, action plugins and Ansible itself are real. A scenario is {host: fields}. Each field is optional. A pattern is a
regular expression for recorded calls, such as `npu-1 server_change with_checks`.

plan               the items of the plan. An item ends after a call that matches its pattern `until`
fails, failure     the pattern of calls that fail, and more fields of their result
results            {pattern: result} of calls with another result than the default
lost, hangs        patterns of calls at which the host becomes unreachable, or does not answer
not_started        a pattern of task names. On the controller, the process of such a task cannot be started
maintenance_after  the host is in maintenance after a call that matches this pattern
fresh              the plan counts as fresh when the lease is taken
refusals, missing, absent, release, held_by, moves, managed, unnamed: facts that host_state or adoption reports
balancer, servers, failed, drained_by: the host is a load balancer; facts about its servers by name
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: played
short_description: A simulated host of a test
description: Returns results for the modules that would run on the host.
author: The npufleet developers (@npufleet)
options: {}
"""

import ast
import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.executor.process.worker import WorkerProcess
from ansible.plugins.connection import ConnectionBase
from ansible_collections.npufleet.triton.plugins.plugin_utils import library

STAGE = Path(os.environ["NPUFLEET_STAGE"])
SCENARIO: dict[str, Any] = json.loads((STAGE / "scenario.json").read_text())
# Options that are recorded with a call, to distinguish the calls of a module
RECORDED_OPTIONS = ("state", "concerns", "preflight", "models", "name", "cmd", "_raw_params", "argv", "path", "dest")
MARK = {"reason": "swap card 2", "by": "kim", "since": "2026-01-01T00:00:00Z"}


def call_of(module: str, arguments: dict[str, Any]) -> str:
    """Return the record of a call in one line: the module, and words that say what it does."""
    if module == "host_state":
        words = ["preflight"] if "preflight" in arguments else sorted(arguments["_request"]["desired"])
        return " ".join([module, *words, *(["prove"] if arguments.get("prove") else [])])
    if module == "server_change":
        flags = {
            "rollback": arguments.get("rollback"),
            "current_releases": arguments.get("current_releases"),
            "with_checks": (arguments.get("_request") or {}).get("checks"),
        }
        return " ".join(filter(None, [module, arguments.get("state"), *(word for word, is_set in flags.items() if is_set)]))
    if module == "host_files":
        request = arguments["_request"]
        paths = [entry["path"] for entry in (*request["directories"], *request["files"])]
        restarted = [f"restart {unit}" for unit in request["restart"]]
        return " ".join([module, *paths, *(f"absent {path}" for path in request["absent"]), *restarted])
    if module == "inference_check" and arguments.get("accepted"):
        return "inference_check accepted"
    words = [json.dumps(arguments[key]).strip('"') for key in RECORDED_OPTIONS if arguments.get(key) not in (None, False)]
    return " ".join([module, *words])


def happened(pattern: str) -> bool:
    """Return True if a recorded call of any host matches the pattern."""
    calls = STAGE / "calls"
    return calls.exists() and re.search(pattern, calls.read_text(), re.MULTILINE) is not None


def later(host: str, first: str, second: str) -> bool:
    """Return True if the last call of a host that matches one of two patterns matches the first pattern."""
    calls = re.findall(rf"^{host} (.*)$", (STAGE / "calls").read_text(), re.MULTILINE)
    return [bool(re.match(first, call)) for call in calls if re.match(f"({first})|({second})", call)][-1:] == [True]


def stopped(host: str) -> bool:
    """Return True if the container of the server is stopped. The simulated engine never starts it by itself."""
    return later(host, "(triton|docker)_container stopped|systemd_service restarted docker", "server_change")


def state_of(host: str, arguments: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the result of host_state."""
    desired, first = arguments["_request"].get("desired") or {}, "preflight" in arguments
    plan = [
        item
        for item in fields.get("plan", [])
        if item["concern"] in desired and (first or "until" in item) and not happened(rf"^{host} {item.get('until', '$never')}")
    ]
    if "server" in desired and stopped(host):
        plan.append({"concern": "server", "name": "container", "current": "exited", "desired": "running", "action": "start"})
    mark = MARK if "maintenance_after" in fields and happened(fields["maintenance_after"]) else None
    if arguments.get("prove") and plan:
        return {"failed": True, "msg": f"{host} is not in sync: {plan}", "plan": plan}
    down = stopped(host) or any(item["concern"] == "server" and item["action"] == "start" for item in plan)
    # A container that was started manually has another name until an adoption renames it.
    named = "unnamed" not in fields or happened(rf'^{host} command \["docker", "rename"')
    container = {"command": [], "id": "1"} if named else None
    actual = {
        "driver": {
            "module": "1.0.0",
            "tool": {"contexts": 0 if stopped(host) else 1},
            "kernel": "6.1",
            "kernel_packages": [],
            "packages": {},
            "services": [],
            "in_the_way": [],
            "reboot": False,
            "toolkit": {"version": "0.2.0", "link": None, "error": None},
        },
        "engine": {
            "daemon": {},
            "running": {},
            "program": "/usr/sbin/dockerd",
            "private": False,
            "drop_ins": (desired.get("engine") or {}).get("drop_ins"),
        },
        "image": {"engine": True, "id": None},
        "models": {"missing": fields.get("missing", []), "transaction": None, "served": {}},
        "balancer": {"owner": "npufleet"},
        "server": {
            "container": container,
            "state": "exited" if down else "running",
            "engine": True,
            "previous": False,
            "release": fields.get("release"),
            "absent": fields.get("absent", []),
            "driver_files": {"missing": []},
            "access": {"missing": [], "mismatches": []},
        },
    }
    report = [item["name"] for item in plan]
    answer = {"plan": plan, "report": report, "maintenance": mark, "actual": actual, "held": {}, "clock": time.time()}
    seen = {"at": time.time(), "after": "", "current_releases": bool(arguments.get("current_releases"))}
    moves = {"moves": fields.get("moves", MOVES)} if arguments.get("rollback") else {}
    held_by = {"held_by": fields["held_by"]} if "held_by" in fields else {}
    return {**answer, "seen": seen, "refusals": fields.get("refusals", []), **moves, **held_by}


def traffic_of(balancer: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the result of balancer_info: every host of the scenario is a server, and answers 200 requests in each window."""
    fields = SCENARIO[balancer]
    servers = {}
    for host in SCENARIO:
        if host != balancer and "balancer" not in SCENARIO[host]:
            known = {"state": "ready", "weight": 100, "health": "up", "in_flight": 0, "drained": None}
            server = {**known, **fields.get("servers", {}).get(host, {})}
            after = arguments.get("since") and happened(rf"^{balancer} balancer_server ready {host}")
            failed = fields.get("failed", {}).get(host, 0) if after else 0
            model = {"requests": 200, "failed": {"5xx": failed}, "latency": {"5": 200}}
            window = {**model, "by_model": {"add": model}, "other": {"requests": 0, "failed": {}}}
            servers[host] = {**server, **({"traffic": {"http": window}} if arguments.get("since") else {})}
    return {"now": time.time(), "running": True, "reason": None, "config": "0", "complete": True, "servers": servers}


def answer(host: str, module: str, arguments: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Record the call of a module, and return the result of the module."""
    fields = SCENARIO.get(host, {})
    call = f"{host} {call_of(module, arguments)}{' check_mode' if check_mode else ''}"
    if "lost" in fields and (happened(rf"^{host} LOST") or re.search(fields["lost"], call)):
        call = f"{host} LOST"
    with (STAGE / "calls").open("a") as calls:
        calls.write(call + "\n")
    if call.endswith(" LOST"):
        raise AnsibleConnectionFailure(f"{host} does not answer any more")
    while "hangs" in fields and re.search(fields["hangs"], call):
        # The time limit of the task ends this process
        time.sleep(0.1)
    if "fails" in fields and re.search(fields["fails"], call):
        return {"failed": True, "msg": f"{host} is played to fail", **fields.get("failure", {})}
    for pattern, result in fields.get("results", {}).items():
        if re.search(pattern, call):
            return dict(result)
    if module == "balancer_info":
        return {"changed": False, **traffic_of(host, arguments)}
    if module == "balancer_server":
        owner = fields.get("drained_by", {}).get(arguments["name"])
        record = {"kind": owner, "by": "kim", "run": "", "reason": "fan is loud", "since": "2026-01-01T00:00:00Z"}
        state = "drained" if owner else arguments.get("state", "ready")
        server = {
            "state": state,
            "weight": arguments.get("weight", 100),
            "health": "up",
            "in_flight": 0,
            "drained": record if owner else None,
        }
        ended = {"closed": 1, "waited": 0.1} if arguments.get("wait") else {"closed": 0, "waited": 0.0}
        return {"changed": not owner, "server": server, "kept": bool(owner), "in_flight": 3, **ended}
    if module == "adoption":
        return {"changed": False, "found": {**ANSWERS[module]["found"], "managed": "managed" in fields}}
    if module == "triton_requests":
        return {"changed": False, "now": time.time(), "models": {}}
    if module == "host_state":
        return {"changed": False, **state_of(host, arguments, fields)}
    if (
        module == "host_lease"
        and arguments.get("unless_maintenance")
        and "maintenance_after" in fields
        and happened(fields["maintenance_after"])
    ):
        return {**ANSWERS[module], "taken": False, "maintenance": MARK}
    if module == "host_lease" and arguments.get("state") is None:
        return {**ANSWERS[module], "fresh": "fresh" in fields and bool(arguments["seen"])}
    if module == "host_lease":
        return {"changed": False, "released": True}
    if module == "server_change" and arguments.get("state") == "restored":
        return {
            "failed": True,
            "msg": f"{host}: the previous releases serve again: {arguments['why']}",
            "back": "the releases before",
        }
    released = {"released": arguments.get("release_host", False)} if module == "server_change" else {}
    if released.get("released"):
        with (STAGE / "calls").open("a") as calls:
            calls.write(f"{host} server_change released the lease\n")
    # A proven change waits until it is accepted.
    waiting = module == "server_change" and arguments.get("accept_within") and not arguments.get("state")
    return {"changed": True, **ANSWERS.get(module, {}), **released, **({"seconds_to_accept": 60.0} if waiting else {})}


MOVES = {"add": {"from": "0002-b", "to": "0001-a"}}
ANSWERS: dict[str, dict[str, Any]] = {
    "host_lease": {"changed": False, "taken": True, "taken_over": None, "settled": None, "maintenance": None},
    "triton_container": {"did": "what was asked"},
    "server_change": {
        "proven": True,
        "moves": MOVES,
        "did": ["what was asked"],
        "checks": [],
        "under_way": False,
    },
    # The facts that a reboot needs
    "setup": {
        "ansible_facts": {"ansible_distribution": "Debian", "ansible_distribution_version": "12", "ansible_os_family": "Debian"}
    },
    "find": {"files": [{"path": "/bin/systemctl"}], "matched": 1},
    "stat": {"stat": {"exists": True}},
    "inference_check": {"proven": True, "msg": "all passed", "checks": []},
    # A container that an operator started, without a model of its own
    "adoption": {
        "found": {
            "inspect": json.loads((Path(__file__).parents[2] / "fixtures/hand_made_containers.json").read_text())["guide"],
            "image": {"Config": {"Env": [], "Cmd": ["bash"]}},
            "default_runtime": "runc",
            "process": {
                "pid": 1,
                "argv": ["tritonserver", "--model-repository=/opt/tritonserver/python_backend"],
                "environment": {},
                "directory": "/",
                "user": "0",
                "main": True,
            },
            "managed": False,
            "server": {"version": "2.42.0", "address": "", "port": 8000},
            "models": {"add": {"home": "/x", "versions": ["1"], "files": {}, "contents": {}, "config": {}}},
            "left_out": [],
        }
    },
}


class Connection(ConnectionBase):
    """A connection that runs nothing. It finds out which module Ansible sends, and returns the result from the scenario."""

    transport = "played"
    has_pipelining = True
    always_pipeline_modules = True

    def _connect(self) -> Connection:
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        host = self._play_context.remote_addr
        if in_data:
            result = answer(host, *module_of(in_data.decode()))
            return int(bool(result.get("failed"))), json.dumps(result).encode(), b""
        if "systemctl reboot" in cmd:
            with (STAGE / "calls").open("a") as calls:
                calls.write(f"{host} reboot\n")
            return 0, b"", b""
        if "boot_id" in cmd:
            return 0, b"boot-2" if happened(rf"^{host} reboot") else b"boot-1", b""
        if "whoami" in cmd:
            return 0, b"root", b""
        # The action `copy` makes a temporary directory, and removes it.
        temporary = re.search(r"ansible-tmp-[\d.-]+", cmd)
        if temporary and "mkdir" in cmd:
            return 0, f"{temporary[0]}=/played/{temporary[0]}\n".encode(), b""
        if re.search(r"/bin/sh -c '(chmod|rm -f -r|setfacl) ", cmd):
            return 0, b"", b""
        raise AssertionError(f"unexpected command for a played host: {cmd}")

    def put_file(self, in_path: str, out_path: str) -> None:
        assert out_path.startswith("/played/"), out_path

    def fetch_file(self, in_path: str, out_path: str) -> None:
        raise AssertionError(f"unexpected file of a played host: {in_path}")

    def close(self) -> None:
        pass


def module_of(source: str) -> tuple[str, dict[str, Any], bool]:
    """Return the module that Ansible sends, its arguments without the defaults, and whether it is check mode."""
    # library_call contains the name and the parameters of the actual module
    carried = re.search(r'^ *text = r"""(.*)"""$', source, re.MULTILINE)
    if carried:
        call = json.loads(carried[1])
        return call["module"], without_defaults(call["module"], call["parameters"]), bool(call["_ansible_check_mode"])
    # The last match is the call, because the wrapper of Ansible contains other matches before it.
    name = ast.literal_eval(re.findall(r"^ *module_fqn=('.*'),$", source, re.MULTILINE)[-1]).rpartition(".")[2]
    params = re.findall(r"^ *params=(['\"].*['\"]),$", source, re.MULTILINE)[-1]
    arguments = json.loads(ast.literal_eval(params))["ANSIBLE_MODULE_ARGS"]
    check_mode = bool(arguments["_ansible_check_mode"])
    return name, {key: value for key, value in arguments.items() if not key.startswith("_ansible_")}, check_mode


def without_defaults(module: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a module that have another value than their default."""
    options = library.module(module).OPTIONS
    return {name: value for name, value in parameters.items() if value != options.get(name, {}).get("default")}


# The main process imports every connection plugin before it starts the first process
really_start = WorkerProcess.start


def start(self: WorkerProcess) -> None:
    """Replace WorkerProcess.start: the processes of the tasks that match the field `not_started` cannot be started."""
    not_started = SCENARIO.get(self._host.name, {}).get("not_started")
    if not_started and re.search(not_started, self._task.get_name()):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    really_start(self)


WorkerProcess.start = start
