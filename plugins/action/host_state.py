# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of host_state: computes the desired state of the host, then reads the host with one call."""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Pattern, Tuple

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe, secret, system
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, needs_site
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.traffic import CONCERN
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, Refusal, short
from ansible_collections.npufleet.triton.plugins.modules import host_state
from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access, of_concern
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings, preflight_inputs, release_change
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.reasons import collected
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated, collect_desired, desired
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import host_states, status
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import traffic
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, rollout, runs

# Messages about a missing or wrong sudo password
NO_PASSWORD = re.compile(r"(?i)(missing|incorrect) \S+ password|a password is required|sorry, try again|not in the sudoers")
# Ansible caches the interpreter path of a host. The path is wrong after the host is reinstalled with another system.
NO_INTERPRETER = re.compile(r"module interpreter '([^']+)' was not found")
DETAILS = host_state.OPTIONS["details"]["choices"]
# A brief result lacks these keys, because they contain most of the data.
LARGE_KEYS = ("actual", "desired", "origins")
# The keys of every result
REQUIRED_KEYS = ("plan", "report", "maintenance", "actual", "held")
# {type: keys of a result whose values have this type}. A result may lack keys that are not in REQUIRED_KEYS.
KEYS_BY_TYPE = {
    dict: ("seen", "actual", "held", "moves", "held_by", "store"),
    list: ("plan", "report", "refusals"),
    float: ("clock",),
}
# Values that the host reports and that become options of the container. The parts of an entry: the key in the state of the
# server, a field below this key (None if the key itself has the value), the pattern of a valid value, and the message about an
# invalid value.
CONTAINER_VALUES: Tuple[Tuple[str, Optional[str], Pattern[str], str], ...] = (
    ("driver_files", "binds", driver_files.BIND, "mount is {}, expected a file of the driver"),
    ("access", "devices", device_access.GRANTED_DEVICE, "device is {}, expected the node of a card"),
    ("access", "groups", device_access.GROUP_ID, "group is {}, expected the number of a group that is not root's"),
    ("image", None, re.compile("sha256:[0-9a-f]{64}"), "image is {}, expected an image ID of the engine"),
)
TYPE_NAMES = {list: "a list", dict: "a mapping", float: "a number"}
# Seconds between two calls of a host that another run is changing
POLL_SECONDS = 2.0

# Ansible imports this action once, and then forks a process for each task and host. These modules are imported before the forks, so
# that not every process has to read their files.
library.module("host_state")
for _concern in CONCERNS:
    of_concern(_concern)


def beyond_models(plan: List[Item]) -> List[str]:
    """Return a reason for each difference that a change of models alone cannot correct."""
    todo = "Run playbooks/site.yml; this playbook only changes models"
    return [
        f"{item['name']} is {short(item['current'] or 'missing')}, expected {short(item['desired'])}. {todo}"
        for item in plan
        if needs_site(item)
    ]


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variable_name = self._task.args.get("known")
        if variable_name:
            # The option names a variable, because templating the whole result would take long.
            state = task_vars.get(str(variable_name))
            if not isinstance(state, Mapping):
                expected = "the name of a variable with a result of host_state"
                raise AnsibleActionFail(f"known is {short(variable_name)}, expected {expected}")
            return {**state, "changed": False, "known": True}
        details = self._task.args.get("details", "always")
        if details not in DETAILS:
            raise AnsibleActionFail(f"details is {short(details)}, expected one of {', '.join(DETAILS)}")
        if details == "report":
            host_states.remove(host)
        if self._task.args.get("rollback") or boolean(self._task.args.get("preflight", False)):
            result = self._planned(host, task_vars)
        else:
            with self.refusing(host):
                result = self._read_state(host, task_vars)
        if details == "report" and not result.get("failed"):
            release = self._templar.template(task_vars.get("rbln_release"))
            host_states.write(status.host_entry(system.timestamp(), host, result, release))
        brief = details == "report" or (details == "changes" and result.get("in_sync", False))
        return {name: value for name, value in result.items() if name not in LARGE_KEYS} if brief else result

    def _planned(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the plan of the host, and every reason against the plan in `refusals`.

        The task does not fail, so that a later task can report the refusals of all hosts together.
        """
        reasons: List[str] = []
        planned: Dict[str, Any] = {}
        with collected(reasons):
            variables = self.variables(task_vars)
            concerns, rollback = self._task.args.get("concerns"), self._task.args.get("rollback")
            if rollback:
                arguments = {"current_releases": boolean(self._task.args.get("current_releases", False)), "rollback": rollback}
                planned = self._rollback(variables, concerns or [], arguments, task_vars, host)
            else:
                planned = self._preflight(variables, concerns, task_vars, host)
            planned = self._for_playbooks(planned, variables)
        return {**planned, "refusals": [*planned["refusals"], *reasons]} if planned else self._refused(reasons)

    def _read_state(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the state of the host and its differences from the desired state."""
        variables, requested = self.variables(task_vars), self._task.args.get("concerns")
        concerns = self.concerns(variables, task_vars) if requested is None else requested
        if boolean(self._task.args.get("unsealed", False)):
            return {"changed": False, "desired": desired(variables, concerns, seal=False)[0]}
        options = ("prove", "current_releases", "timeout", "store")
        arguments = {key: self._task.args[key] for key in options if key in self._task.args}
        # Without concerns, the module reads only the maintenance mark. This needs no desired state.
        proof = boolean(arguments.get("prove", False))
        desired_state, manifests = desired(variables, concerns, proof=proof) if concerns else ({}, {})
        request = self._request(variables, desired_state, host)
        result = self._call_host_state(arguments, request, task_vars)
        if result.get("failed"):
            # In the output of Ansible, the other keys would hide the message.
            return {key: result[key] for key in ("failed", "msg", "plan", "exception") if key in result}
        with host_text.rejecting_invalid_answers(host):
            result = self._complete(result, manifests, request)
        if requested is None and "image" in concerns:
            # These remarks are about the whole host, so only a call for all concerns returns them.
            result["warnings"] = [*result.get("warnings", []), *release_change.untested_remarks(variables)]
            result["untested"] = variables["npufleet_release_row"].get("untested")
        # Only the playbooks of a rollout set `current_releases` or request the concern `traffic`.
        batched = boolean(arguments.get("current_releases", False)) or CONCERN in (requested or [])
        result = self._for_playbooks(result, variables, batched=batched)
        if not concerns:
            reasons: List[str] = []
            with collected(reasons):
                result["traffic"] = {"hook": traffic.drain_hook(variables)}
            result["refusals"] = [*result.get("refusals", []), *reasons]
        return result

    def _for_playbooks(self, result: Dict[str, Any], variables: Mapping[str, Any], batched: bool = True) -> Dict[str, Any]:
        """Add the variables from which playbooks derive confirmations and batches, because `hostvars` lacks the defaults of roles.

        If a variable is invalid, the host can still be read, but a change is refused. `batched` is False if no rollout follows.
        """
        extra: Dict[str, Any] = {}
        reasons: List[str] = []
        with collected(reasons):
            extra["protected"] = variables["npufleet_protected"]
        with collected(reasons):
            if batched and rollout.SERIAL in variables:
                extra["serial"] = rollout.parse_serial(variables[rollout.SERIAL])
        with collected(reasons):
            if batched and rollout.PAUSE in variables:
                # Nothing pauses in check mode.
                extra["pause"] = "" if self._task.check_mode else rollout.parse_pause(variables[rollout.PAUSE])
        with collected(reasons):
            if batched:
                extra["traffic"] = traffic.UNCHANGED if result.get("in_sync") else traffic.settings(variables, result)
        if reasons:
            refusals = list(result.get("refusals", []))
            extra["refusals"] = [*refusals, *(reason for reason in reasons if reason not in refusals)]
            extra.update({"in_sync": False} if "in_sync" in result else {})
        return {**result, **extra}

    @staticmethod
    def _request(variables: Templated, desired_state: Dict[str, Any], host: str) -> Dict[str, Any]:
        mark = "{}/{}".format(variables["npufleet_root"], lease.MAINTENANCE_FILE)
        return {"desired": desired_state, "host": host, "mark": mark, "run": runs.run_id()}

    def _rollback(
        self, variables: Templated, concerns: List[str], arguments: Dict[str, Any], task_vars: Dict[str, Any], host: str
    ) -> Dict[str, Any]:
        """Return the changes of a rollback, and every reason against the rollback."""
        reasons: List[str] = []
        with collected(reasons):
            desired_state, manifests = desired(variables, concerns)
            request = self._request(variables, desired_state, host)
            result = self._result_of(lambda: self._call_host_state(arguments, request, task_vars))
            with host_text.rejecting_invalid_answers(host):
                host_text.require_keys(result, "moves", "refusals")
                return self._complete(result, manifests, request)
        return self._refused(reasons)

    @classmethod
    def _result_of(cls, call: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Return the result of a call. Raises Refusal if the module did not run."""
        try:
            result = call()
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            result = {"failed": True, "msg": str(error.message)}
        if result.get("failed"):
            raise Refusal(cls._failure_reason(result))
        return result

    def _call_host_state(self, arguments: Dict[str, Any], request: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result of the module. Call it again if the owner of the host's lease is a run that has ended."""
        result = self.call_module("host_state", arguments, task_vars, request)
        owner = result.get("held_by")
        if isinstance(owner, dict) and runs.has_ended(owner.get("run")):
            result = self.call_module("host_state", arguments, task_vars, {**request, "ended": owner["run"]})
        return result

    def _after_other_run(self, request: Dict[str, Any], task_vars: Dict[str, Any], wait: int) -> Dict[str, Any]:
        """Return the result of preflight. Its key `between` has the times before and after the call.

        While another run restarts the server, the server differs from the desired state. This difference usually disappears when
        the other run ends, so it is no reason to refuse a change of models. The call is repeated until the other run has ended, but
        for `wait` seconds at most.
        """
        deadline = time.monotonic() + wait
        while True:
            call_start = time.time()
            result = self._call_host_state({"preflight": True}, request, task_vars)
            result["between"] = (call_start, time.time())
            with host_text.rejecting_invalid_answers(request["host"]):
                done = not result.get("held_by") or result.get("maintenance") or not beyond_models(result.get("plan") or [])
            if done or time.monotonic() >= deadline:
                return result
            time.sleep(POLL_SECONDS)

    @staticmethod
    def _complete(result: Dict[str, Any], manifests: Dict[str, Any], request: Mapping[str, Any]) -> Dict[str, Any]:
        """Validate the result, and add the facts that roles need. These facts are not sent to hosts."""
        desired_state = request["desired"]
        for kind, keys in KEYS_BY_TYPE.items():
            for key in keys:
                if not isinstance(result.get(key, kind()), kind):
                    raise host_text.InvalidText(f"{key} is {short(result[key], 80)}, expected {TYPE_NAMES[kind]}")
        server = result.get("actual", {}).get("server") or {}
        for key, field, pattern, message in CONTAINER_VALUES:
            value = server.get(key)
            values = (value or {}).get(field, []) if field else [] if value is None else [value]
            invalid = [entry for entry in values if not pattern.fullmatch(str(entry))]
            if invalid:
                raise host_text.InvalidText(message.format(short(invalid[0], 80)))
        host_text.require_keys(result, *REQUIRED_KEYS)
        if len(result["report"]) != len(result["plan"]):
            lengths = len(result["report"]), len(result["plan"])
            raise host_text.InvalidText("report has {} lines about {} differences, expected one for each".format(*lengths))
        if not isinstance(result["maintenance"], (dict, type(None))):
            raise host_text.InvalidText(f"maintenance is {short(result['maintenance'], 80)}, expected a mapping or nothing")
        owner = result.get("held_by")
        if owner:
            warning = f"{request['host']}: another run is changing this host: {owner.get('by')} since {owner.get('since')}"
            result["warnings"] = [*result.get("warnings", []), host_text.indented(warning)]
        for name, hold in result.get("held", {}).items():
            model = desired_state.get("server", {}).get("models", {}).get(name, {})
            model.update({key: hold[key] for key in model if key in hold})
        # Results contain no logins and no signed addresses. Actions that download files read the complete addresses from the
        # inventory.
        result["origins"] = {
            digest: {**origin, "url": http_probe.public_address(origin["url"])} if origin.get("url") else origin
            for manifest in manifests.values()
            for digest, origin in manifest["origins"].items()
        }
        # The key of the digests is left out, because a reader of the result could use the key to test guesses of the secrets.
        result["desired"] = {
            concern: {name: entry for name, entry in part.items() if name != "digest_key"}
            for concern, part in desired_state.items()
        }
        result["mark"] = request["mark"]
        return result

    def _preflight(
        self, variables: Templated, concerns: Optional[List[str]], task_vars: Dict[str, Any], host: str
    ) -> Dict[str, Any]:
        """Return the plan, and every reason against the plan in `refusals`."""
        reasons: List[str] = []
        desired_state: Dict[str, Any] = {}
        with collected(reasons):
            reasons += findings.findings(variables, task_vars)
        with collected(reasons):
            if concerns is None:
                # The action reads this variable itself. If a task passed it as a template, Ansible would load a filter for each
                # host.
                concerns = list(variables["preflight_concerns"]) or self.concerns(variables, task_vars)
            desired_state, manifests, extra = collect_desired(variables, concerns)
            reasons += [entry for entry in extra if entry not in reasons]
        if not desired_state or concerns is None:
            return self._refused(reasons)
        with collected(reasons):
            request = self._request(variables, desired_state, host)
            has_conditions = bool({"driver", "models"} & set(concerns))
            if has_conditions:
                request["suppliers"], request["passwords"] = preflight_inputs.suppliers(variables)
                request["conditions"] = preflight_inputs.conditions(variables, manifests)
                request["passwords"]["addresses"] = secret.address_secrets([request["suppliers"], request["conditions"]])
            models_only = "models" in concerns and "image" not in concerns
            wait = int(variables["npufleet_lease_wait"]) if models_only else 0
            result = self._result_of(lambda: self._after_other_run(request, task_vars, wait))
            call_start, call_end = result.pop("between")
            with host_text.rejecting_invalid_answers(host):
                result = self._complete(result, manifests, request)
                if not result.get("maintenance"):
                    reasons += beyond_models(result["plan"]) if models_only else []
                    if has_conditions:
                        reasons += preflight_inputs.refusals(variables, manifests, result["plan"], result["actual"])
                        if result["plan"] and "driver" in result["actual"]:
                            skew = int(variables["preflight_clock_skew"])
                            reasons += preflight_inputs.clock(result["clock"], call_start, call_end, skew)
                        result["warnings"] = [*result.get("warnings", []), *release_change.warnings(variables)]
                refusals = [*reasons, *result.get("refusals", [])]
                in_sync = not (refusals or result["plan"] or result["maintenance"])
                return {**result, "refusals": refusals, "in_sync": in_sync}
        return self._refused(reasons)

    @staticmethod
    def _refused(reasons: List[str]) -> Dict[str, Any]:
        """Return the result for a host whose plan is unknown."""
        return {
            "changed": False,
            "plan": [],
            "report": [],
            "actual": {},
            "desired": {},
            "origins": {},
            "maintenance": None,
            "refusals": reasons,
            "in_sync": False,
        }

    @staticmethod
    def _failure_reason(result: Dict[str, Any]) -> str:
        """Return the reason why a module did not run, with the next step if the reason is known."""
        output = " ".join(" ".join(str(result.get(key) or "") for key in ("msg", "module_stderr", "module_stdout")).split())
        if NO_PASSWORD.search(output):
            todo = "Give the password with --ask-become-pass or as ansible_become_password in the vault"
            return f"sudo refuses to become root ({output[:120]}). {todo}, and check that ansible_user may use sudo"
        interpreter = NO_INTERPRETER.search(output)
        if interpreter:
            todo = "Run once with --flush-cache, or set ansible_python_interpreter"
            return f"{interpreter[1]} is missing, expected the Python of the last call. {todo}"
        return f"the host could not be read: {output[:500]}"
