# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The base class of the action plugins: it reads the variables of the host and calls modules on the host."""

from __future__ import annotations

import base64
import glob
import hashlib
import os
import time
import traceback
from abc import abstractmethod
from contextlib import contextmanager
from functools import cache
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleAuthenticationFailure, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.template import Templar, trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils import request as module_request
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import concerns_of
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as host_library
from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import reasons
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import release_rows
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, yaml_of

# Keys that are removed from a result, because Ansible would act on them
REMOVED_KEYS = ("invocation", "ansible_stats")
# Keys of a result whose texts Ansible displays
DISPLAYED_KEYS = ("msg", "report", "refusals", "warnings", "errors")
# Keys of the result of a failed change that Ansible displays. With more keys, an operator would overlook the message.
FAILED_CHANGE_KEYS = ("failed", "changed", "msg", "did", "back", "restored", "warnings", "exception")
# The prefix of the facts in which Ansible reports the interpreter of a host
INTERPRETER_PREFIX = "discovered_interpreter_"
# After a loss of contact, the controller repeats a call every RETRY_SECONDS until the time limit of the call.
# It repeats the call for at least RECONNECT_SECONDS, even if the time limit is over.
RECONNECT_SECONDS, RETRY_SECONDS = 60.0, 2.0
# The most repetitions of a call whose module was killed, for example by the kernel to free memory
MAX_RETRIES = 5


@cache
def role_defaults() -> Dict[str, Any]:
    """Return the defaults of all roles of the collection, as templates."""
    defaults: Dict[str, Any] = {}
    for path in sorted(glob.glob(os.path.join(COLLECTION, "roles", "*", "defaults", "main.yml"))):
        defaults.update(yaml_of(path) or {})
    return {name: _trusted(value) for name, value in defaults.items()}


def _trusted(value: Any) -> Any:
    """Mark the templates in a value as trusted, so that Ansible evaluates them. Ansible's own loader takes five times as long."""
    if isinstance(value, dict):
        return {key: _trusted(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_trusted(entry) for entry in value]
    return trust_as_template(value) if isinstance(value, str) and "{" in value else value


def host_variables(templar: Any, task_vars: Mapping[str, Any], results_prefix: str = "") -> Templated:
    """Return the variables of a host, with the defaults of all roles. The class Templated describes `results_prefix`."""
    merged = dict(role_defaults())
    set_names = [name for name, value in task_vars.items() if name not in merged or merged[name] != value]
    merged.update(task_vars)
    merged["role_path"] = os.path.join(COLLECTION, "roles", "common")
    template = templar.copy_with_new_env(available_variables=merged).template
    return Templated(merged, template, set_names, results_prefix)


# Ansible imports an action once, and then forks a process for each host of a task. The calls below fill the caches before the
# forks, so each run reads the files only once.
inventory_specs()
release_rows()
role_defaults()
library.version()
# The first template of a process loads Ansible's filters and tests, which takes longer than the templates of most variables.
_FILTERS_AND_TESTS = "{{ '' | default('') | regex_replace('', '') is ansible.builtin.file or [] | zip([]) | list }}"
Templar().template(trust_as_template(_FILTERS_AND_TESTS))


class FleetAction(ActionBase):
    """An action that computes the desired state on the controller and calls a module on the host."""

    supports_raw_params = False
    _requires_connection = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        try:
            return self.act(host, task_vars)
        except Refusal as refusal:
            # A variable of the host is invalid.
            raise self.refuse(host, refusal) from None
        except host_text.InvalidAnswer as reason:
            self._display.vvv("".join(traceback.format_exception(reason)))
            raise AnsibleActionFail(str(reason)) from None

    @abstractmethod
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result of the action for a host."""

    @property
    def play_context(self) -> Any:
        """Return Ansible's settings of this task, with the passwords from prompts. Ansible keeps them in a private attribute."""
        return self._play_context

    def variables(self, task_vars: Mapping[str, Any]) -> Templated:
        """Return the variables of the host."""
        return host_variables(self._templar, task_vars, self._results_prefix(task_vars))

    def _results_prefix(self, task_vars: Mapping[str, Any]) -> str:
        """Return the path prefix of the results that the hosts of this task share (shared_results.py). For one host, return ""."""
        hosts = task_vars.get("ansible_play_batch") or []
        if len(hosts) < 2:
            return ""
        batch = hashlib.sha256(" ".join(hosts).encode()).hexdigest()[:16]
        # Ansible has no public attribute that identifies the task.
        return os.path.join(constants.DEFAULT_LOCAL_TMP, f"{self._task._uuid}-{batch}")

    def results_path(self, directory: str, host: str) -> str:
        """Return the path of the check results of a host, in a directory of the controller."""
        return os.path.join(self._loader.path_dwim(directory), f"{host}.json")

    @staticmethod
    def concerns(variables: Mapping[str, Any], task_vars: Mapping[str, Any]) -> List[str]:
        """Return the concerns of a host. Its groups decide them."""
        return concerns_of(list(task_vars.get("group_names", [])), str(variables["npufleet_group"]))

    @staticmethod
    def failed_change(result: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the part of the result of a failed change that Ansible displays."""
        return {name: result[name] for name in FAILED_CHANGE_KEYS if name in result}

    @staticmethod
    def container(variables: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the settings with which a host stops, starts and restores the container without the controller."""
        return {
            "name": variables["triton_server_name"],
            "free_timeout": int(variables["npufleet_free_timeout"]),
            "stop_timeout": int(variables["triton_server_stop_timeout"]),
            "ready_timeout": int(variables["triton_server_ready_timeout"]),
            "stuck_load_limit": int(variables["triton_server_stuck_load_timeout"]),
            "key": server_key.desired(variables),
        }

    def call_module(
        self,
        module: str,
        arguments: Mapping[str, Any],
        task_vars: Mapping[str, Any],
        request: Optional[Mapping[str, Any]] = None,
    ) -> Dict[str, Any]:
        """Call a module on the host with options and a request. Return the sanitized result. Raises Refusal for wrong options."""
        host = task_vars["inventory_hostname"]
        options = {**arguments, module_request.NAME: dict(request)} if request is not None else dict(arguments)
        try:
            answer = self._call(module, options, task_vars)
        except AnsibleConnectionFailure as error:
            # The message of ssh can contain text that the host sent.
            raise type(error)(str(host_text.sanitized(error.message))) from None
        host_text.check_size(host, module, answer)
        with host_text.rejecting_invalid_answers(host):
            result: Dict[str, Any] = host_text.sanitized(dict(answer))
            # Ansible would turn facts into variables of the host. It needs only the interpreter that it has discovered.
            facts = {name: entry for name, entry in result.pop("ansible_facts", {}).items() if name.startswith(INTERPRETER_PREFIX)}
        for name in REMOVED_KEYS:
            result.pop(name, None)
        result.update({name: host_text.indented(result[name]) for name in DISPLAYED_KEYS if name in result})
        return {**result, "ansible_facts": facts} if facts else result

    def _call(self, module: str, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the result of a module, with the secrets of its options masked.

        The module runs from the library (module_utils/programs/library.py). If the host lacks the library, a call as root installs
        it first. Without root, Ansible copies the module to the host as usual.
        """
        parameters = library.parameters(module, options)
        call = {"library": host_library.path(library.version()), "module": module, "parameters": parameters.values}
        result = self._run("library_call", call, task_vars)
        if result.get("library_missing") and not result.get("as_root"):
            result = self._run(module, options, task_vars)
        elif result.get("library_missing"):
            self._install_library(task_vars)
            result = self._run("library_call", call, task_vars)
            if result.get("library_missing"):
                raise AnsibleActionFail(
                    f"{task_vars['inventory_hostname']}: {call['library']} is missing, expected the library that was just "
                    "installed. Find out what removes it."
                )
        return module_request.mask_result(result, parameters.secrets)

    def _run(self, module: str, arguments: Mapping[str, Any], task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        """Run a module of this collection through Ansible, without a copy of its arguments in the system log."""
        # In a module and its arguments, Ansible replaces the text `syslog.LOG_USER` by `syslog.` and the value of
        # ansible_syslog_facility. With the value LOG_USER, the text stays the same.
        call_vars = {**task_vars, "ansible_no_target_syslog": True, "ansible_syslog_facility": "LOG_USER"}
        return dict(self._execute_module(f"npufleet.triton.{module}", module_args=dict(arguments), task_vars=call_vars))

    def _install_library(self, task_vars: Mapping[str, Any]) -> None:
        host, version = task_vars["inventory_hostname"], library.version()
        archive = base64.b64encode(library.packed(constants.DEFAULT_LOCAL_TMP)).decode()
        result = self._run("host_library", {"version": version, "archive": archive}, task_vars)
        if result.get("failed"):
            reason = host_text.line(result.get("msg", "the library cannot be installed"))
            raise AnsibleActionFail(f"{host}: {reason}")
        self._display.display(f"{host}: installed the library {host_library.path(version)}")

    @contextmanager
    def refusing(self, host: str) -> Iterator[None]:
        """Convert an exception in this context into one refusal of the host. Failures of Ansible itself pass unchanged."""
        try:
            yield
        except (AnsibleActionFail, AnsibleConnectionFailure):
            raise
        except Exception as error:
            raise self.refuse(host, error) from None

    def refuse(self, host: str, error: Exception) -> AnsibleActionFail:
        """Return one Ansible error for the host. Its message and its list `refusals` contain every reason."""
        refusals = [host_text.indented(reason) for reason in reasons.of_error(error)]
        lines = "".join("\n  - " + reason for reason in refusals)
        return AnsibleActionFail(f"{host} is refused, nothing was changed:{lines}", result={"refusals": refusals})


class Contact:
    """Module calls on a host that are repeated after a loss of contact.

    The calls are repeated until `limit` seconds after the creation of this object, and at least for RECONNECT_SECONDS after the
    loss. `report` is called with a message when contact is lost, and when contact is restored.
    """

    def __init__(self, host: str, limit: float, report: Callable[[str], None]) -> None:
        self.host, self.report = host, report
        self.end = time.monotonic() + limit

    def call(self, module_call: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Return the answer of a call. Repeat the call after a loss of contact, or if its module was killed.

        Raises AnsibleConnectionFailure after the limit, and immediately if the host refuses the login.
        """
        lost_at, killed_calls = 0.0, 0
        while True:
            try:
                answer = module_call()
            except AnsibleAuthenticationFailure:
                raise
            except AnsibleConnectionFailure as failure:
                now = time.monotonic()
                if not lost_at:
                    lost_at = now
                    seconds = max(self.end, now + RECONNECT_SECONDS) - now
                    reason = " ".join(str(failure.message).split())
                    self.report(
                        f"{self.host}: contact was lost. The change continues on the host. The host is called again for "
                        f"{seconds:.0f} s: {reason}"
                    )
                if now >= max(self.end, lost_at + RECONNECT_SECONDS):
                    raise
                time.sleep(RETRY_SECONDS)
                continue
            if "module_stderr" in answer and killed_calls < MAX_RETRIES:
                killed_calls += 1
                time.sleep(RETRY_SECONDS)
                continue
            if lost_at:
                self.report(f"{self.host}: contact is restored")
            return answer
