"""What the action plugins share: the variables of the host over the defaults of every role of the collection."""

from __future__ import annotations

# First: all that is imported after it takes less time. pylint: disable-next=unused-import
from ansible_collections.npufleet.triton.plugins.plugin_utils import bytecode  # noqa: F401  # isort: skip

import base64
import gc
import glob
import hashlib
import json
import os
import traceback
from abc import abstractmethod
from contextlib import contextmanager
from functools import cache
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from ansible import constants as C
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleUndefinedVariable
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import filter_loader, test_loader
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import of_groups
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, patterns
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as host_library
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.plugin_utils import host_text, library
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import (
    ROWS,
    Templated,
    inventory_specs,
    rows,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import release_rows
from ansible_collections.npufleet.triton.plugins.plugin_utils.paths import COLLECTION, yaml_of

# Keys of a result by which Ansible does something else than to tell it
NOT_A_RESULT = ("invocation", "ansible_stats")
# Keys whose texts people read
TOLD = ("msg", "report", "refusals", "warnings", "errors")
FOUND_BY_ANSIBLE = "discovered_interpreter_"
ACTIONS = "ansible_collections.npufleet.triton.plugins.action."


@cache
def role_defaults() -> Dict[str, Any]:
    """The defaults of every role of the collection, as templates."""
    found: Dict[str, Any] = {}
    for path in sorted(glob.glob(os.path.join(COLLECTION, "roles", "*", "defaults", "main.yml"))):
        found.update(yaml_of(path) or {})
    return {name: _trusted(value) for name, value in found.items()}


def _trusted(value: Any) -> Any:
    """With its templates told as such: Ansible's own way to read a file tells each value's line, too, in five times the time."""
    if isinstance(value, dict):
        return {key: _trusted(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_trusted(entry) for entry in value]
    return trust_as_template(value) if isinstance(value, str) and "{" in value else value


def _once() -> None:
    """What every task would do again, as each has a process of its own: done as this is imported, which is once in a run."""
    inventory_specs()
    release_rows()
    role_defaults()
    library.version()
    # Every plan has its digest in it, by the probe
    archive.of(check_client.ENTRY)
    # Ansible's own tests and filters, for conditions
    test_loader.get("defined")
    filter_loader.get("default")
    patterns.compile_all()
    # How a host is told
    get_module_encoder("legacy", Direction.CONTROLLER_TO_MODULE)
    # All of this stays until the run ends: neither its end nor a process of a host has to look through it for what can be freed
    gc.freeze()


_once()


class FleetAction(ActionBase):
    """An action that computes on the controller what is wanted, then asks the host through one module call."""

    supports_raw_params = False
    _requires_connection = True

    def __init_subclass__(cls) -> None:
        """With an action comes the module that it asks: imported once, before each host has a process of its own."""
        super().__init_subclass__()
        if cls.__module__.startswith(ACTIONS):
            library.module(cls.__module__[len(ACTIONS) :])

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        try:
            return self.act(host, task_vars)
        except Refusal as refusal:
            # Of a variable that is read on the way
            raise self.refuse(host, refusal) from None
        except host_text.Misunderstood as reason:
            self._display.vvv("".join(traceback.format_exception(reason)))
            raise AnsibleActionFail(str(reason)) from None

    @abstractmethod
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """The action's result for this host."""

    def variables(self, task_vars: Mapping[str, Any]) -> Templated:
        """The host's variables; what the inventory leaves open comes from the roles' defaults."""
        merged = dict(role_defaults())
        given = [name for name, value in task_vars.items() if name not in merged or merged[name] != value]
        merged.update(task_vars)
        merged["role_path"] = os.path.join(COLLECTION, "roles", "common")
        templar = self._templar.copy_with_new_env(available_variables=merged)
        made = {} if ROWS in given else {ROWS: rows}
        return Templated(merged, templar.template, given, made, self._moment(task_vars))

    def _moment(self, task_vars: Mapping[str, Any]) -> str:
        """Where hosts that are at this task together leave what they have in common; gone with the run. Nowhere for a lone one."""
        hosts = task_vars.get("ansible_play_batch") or []
        if len(hosts) < 2:
            return ""
        batch = hashlib.sha256(" ".join(hosts).encode()).hexdigest()[:16]
        return os.path.join(C.DEFAULT_LOCAL_TMP, f"{self._task._uuid}-{batch}")

    def results_path(self, directory: str, host: str) -> str:
        """Where reports find the answers of a host to its checks, in a directory of the controller."""
        return os.path.join(self._loader.path_dwim(directory), f"{host}.json")

    @staticmethod
    def concerns(variables: Mapping[str, Any], task_vars: Mapping[str, Any]) -> List[str]:
        """What there is to look at on a host of these groups."""
        return of_groups(list(task_vars.get("group_names", [])), str(variables["npufleet_group"]))

    @staticmethod
    def container(variables: Mapping[str, Any]) -> Dict[str, Any]:
        """What a host has to know of its container to stop, start and put it back without a controller; times in seconds."""
        return {
            "name": variables["triton_server_name"],
            "free_timeout": int(variables["npufleet_free_timeout"]),
            "stop_timeout": int(variables["triton_server_stop_timeout"]),
            "ready_timeout": int(variables["triton_server_ready_timeout"]),
            "key": keys.desired(variables),
        }

    def ask(
        self,
        module: str,
        arguments: Mapping[str, Any],
        task_vars: Mapping[str, Any],
        handed: Optional[Mapping[str, Any]] = None,
        lacking: Optional[Callable[[], Mapping[str, Any]]] = None,
    ) -> Dict[str, Any]:
        """One module call on the host, with what is handed over beside its options, and its answer as data.

        `lacking` is handed over too where the host has no library of this version. The arguments carry whole files: they are for
        no system log.
        """
        host = task_vars["inventory_hostname"]
        given = {**arguments, request.NAME: dict(handed)} if handed is not None else dict(arguments)
        quiet = {**task_vars, "ansible_no_target_syslog": True}
        try:
            answer = self._by_library(module, given, quiet)
            if answer is None:
                if lacking:
                    given[request.NAME].update(lacking())
                answer = self._execute_module(f"npufleet.triton.{module}", module_args=given, task_vars=quiet)
        except AnsibleConnectionFailure as error:
            # What ssh says is the host's, too
            raise AnsibleConnectionFailure(str(host_text.received(error.message))) from None
        with host_text.understood(host):
            result: Dict[str, Any] = host_text.received(dict(answer))
            # Facts would be variables of the host; its interpreter is Ansible's own finding
            facts = {name: entry for name, entry in result.pop("ansible_facts", {}).items() if name.startswith(FOUND_BY_ANSIBLE)}
        for name in NOT_A_RESULT:
            result.pop(name, None)
        result.update({name: host_text.told(result[name]) for name in TOLD if name in result})
        return {**result, "ansible_facts": facts} if facts else result

    @staticmethod
    def library_for_a_host() -> Dict[str, Any]:
        """What is handed to a module that brings the library to a host that lacks it."""
        return {"library": base64.b64encode(library.packed(C.DEFAULT_LOCAL_TMP)).decode()}

    def _by_library(self, module: str, given: Mapping[str, Any], task_vars: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """The answer of a module that the host has already; None where it has not, and nothing was run."""
        if self._task.async_val or not self._is_pipelining_enabled("new"):
            return None
        named = str(task_vars.get("ansible_python_interpreter") or "auto")
        python = "/usr/bin/python3" if named.startswith("auto") else self._templar.template(named)
        checked = library.checked(module, given)
        if checked is None:
            return None
        words = [self._compute_environment_string(), python, "-IS", host_library.path(library.version()), "call", module]
        told = {"options": checked.options, "check_mode": self._task.check_mode, "diff": self._task.diff}
        sent = json.dumps(told, cls=get_module_encoder("legacy", Direction.CONTROLLER_TO_MODULE))
        done = self._low_level_execute_command(" ".join(filter(None, words)), in_data=sent.encode())
        _before, called, said = done["stdout"].partition(host_library.CALLED)
        if not called:
            return None
        try:
            answer = json.loads(said[: said.rindex("}") + 1])
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            why = f"{module} ended with {done['rc']} and without an answer"
            answer = {"failed": True, "msg": why, "module_stderr": done["stderr"]}
        return remove_values(answer, checked.secrets) if checked.secrets else answer

    @contextmanager
    def refusing(self, host: str) -> Iterator[None]:
        """Turns what bad input raises inside into one refusal of the host."""
        try:
            yield
        except (Refusal, AnsibleUndefinedVariable, KeyError, TypeError, ValueError) as error:
            raise self.refuse(host, error) from None

    def reasons(self, error: Exception) -> List[str]:
        """What bad input raised, as the reasons that it stands for."""
        if isinstance(error, Refusal):
            return error.reasons
        if isinstance(error, AnsibleUndefinedVariable):
            return [f"{error.message}: set it in the inventory"]
        return [str(error)]

    def refuse(self, host: str, error: Exception) -> AnsibleActionFail:
        """One message with every reason."""
        lines = "".join("\n  - " + host_text.told(reason) for reason in self.reasons(error))
        return AnsibleActionFail(f"{host} is refused, nothing was changed:{lines}")
