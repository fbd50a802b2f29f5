# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Controller side of host_state: computes the desired state of the host, then calls the host once."""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Pattern, Tuple

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe, secret
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import needs_site
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, short
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings, preflight_inputs, row_remarks
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.reasons import collected
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import (
    Templated,
    collect_desired,
    desired,
    inventory_specs,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, rollout, runs

# Messages about a missing or wrong sudo password
NO_PASSWORD = re.compile(
    r"(missing|incorrect) \S+ password|a password is required|sorry, try again|not in the sudoers", re.IGNORECASE
)
# Ansible caches the path of a host's interpreter, even if the host was reinstalled with another system.
NO_INTERPRETER = re.compile(r"module interpreter '([^']+)' was not found")
# The keys of every result
ALWAYS = ("plan", "report", "maintenance", "actual", "held")
# The types of these keys, if a result has them
TYPES = {
    "seen": dict,
    "plan": list,
    "report": list,
    "refusals": list,
    "actual": dict,
    "held": dict,
    "moves": dict,
    "held_by": dict,
    "store": dict,
    "clock": float,
}
# The parts of the server's state that become options of the container: key, field (None for the value itself), pattern, message
OPTIONS: Tuple[Tuple[str, Optional[str], Pattern[str], str], ...] = (
    ("driver_files", "binds", driver_files.BIND, "mount is {}, expected a file of the driver"),
    ("access", "devices", device_access.DEVICE, "device is {}, expected the node of a card"),
    ("access", "groups", device_access.GROUP, "group is {}, expected the number of a group that is not root's"),
    ("image", None, re.compile("sha256:[0-9a-f]{64}"), "image is {}, expected the ID that its engine has given it"),
)
KINDS = {list: "a list", dict: "a mapping", float: "a number"}
# Seconds between two calls of a host that another run is changing
PAUSE = 2.0


def beyond_models(plan: List[Item]) -> List[str]:
    """Return the reasons against a change of models only: the differences that need site.yml."""
    return [
        "{} is {}, expected {}. Run playbooks/site.yml; this playbook only changes models".format(
            item["name"], short(item["current"] or "missing"), short(item["desired"])
        )
        for item in plan
        if needs_site(item)
    ]


class ActionModule(FleetAction):
    """A call of a host, with the desired state that follows from inventory, release row and model manifests."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        known = self._task.args.get("known")
        if known:
            # The option is the name of a variable, because templating the whole result would take long.
            state = task_vars.get(str(known))
            if not isinstance(state, Mapping):
                expected = "expected the name of a variable with a result of host_state"
                raise AnsibleActionFail(f"known is {short(known)}, {expected}")
            return {**state, "changed": False, "known": True}
        if self._task.args.get("rollback") or boolean(self._task.args.get("preflight", False)):
            return self._planned(host, task_vars)
        with self.refusing(host):
            return self._seen(host, task_vars)

    def _planned(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the plan of the host, with every reason against it.

        The task does not fail because of a reason, so that the reasons of all hosts can be reported together.
        """
        reasons: List[str] = []
        planned: Dict[str, Any] = {}
        with collected(reasons):
            variables = self.variables(task_vars)
            concerns, rollback = self._task.args.get("concerns"), self._task.args.get("rollback")
            if rollback:
                arguments = {"linked": boolean(self._task.args.get("linked", False)), "rollback": rollback}
                planned = self._rollback(variables, concerns or [], arguments, task_vars, host)
            else:
                planned = self._preflight(variables, concerns, task_vars, host)
            planned = self._for_playbooks(planned, variables)
        return {**planned, "refusals": [*planned["refusals"], *reasons]} if planned else self._refused(reasons)

    def _seen(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the state of the host and its differences from the desired state."""
        variables = self.variables(task_vars)
        concerns = self._task.args.get("concerns")
        if concerns is None:
            concerns = self.concerns(variables, task_vars)
        if boolean(self._task.args.get("unsealed", False)):
            return {"changed": False, "desired": desired(variables, concerns, seal=False)[0]}
        given = ("prove", "linked", "timeout", "store")
        arguments = {key: self._task.args[key] for key in given if key in self._task.args}
        # Without concerns, only the maintenance mark is read, which needs no desired state.
        proof = boolean(arguments.get("prove", False))
        wanted, manifests = desired(variables, concerns, now=proof) if concerns else ({}, {})
        handed = self._handed(variables, wanted, host)
        result = self._look(arguments, handed, task_vars)
        if result.get("failed"):
            # The rest of the result would hide the message.
            return {key: result[key] for key in ("failed", "msg", "plan", "exception") if key in result}
        with host_text.parsing(host):
            told = self._complete(result, manifests, handed)
        if self._task.args.get("concerns") is None and "image" in concerns:
            # These remarks are about the whole host, so only a call for all concerns returns them.
            told["warnings"] = [*told.get("warnings", []), *row_remarks.untested_remarks(variables)]
            told["untested"] = variables["npufleet_row"].get("untested")
        return self._for_playbooks(told, variables, batched=boolean(arguments.get("linked", False)))

    @staticmethod
    def _for_playbooks(result: Dict[str, Any], variables: Mapping[str, Any], batched: bool = True) -> Dict[str, Any]:
        """Add the variables with which playbooks ask for confirmation and form batches.

        hostvars does not have variables of a playbook. An invalid variable is a reason against a change, but not against reading.
        """
        more: Dict[str, Any] = {}
        reasons: List[str] = []
        with collected(reasons):
            more["protected"] = variables["npufleet_protected"]
        with collected(reasons):
            if batched and rollout.SERIAL in variables:
                more["serial"] = rollout.parse_serial(variables[rollout.SERIAL])
        if reasons:
            told = list(result.get("refusals", []))
            more["refusals"] = [*told, *(reason for reason in reasons if reason not in told)]
            more.update({"in_sync": False} if "in_sync" in result else {})
        return {**result, **more}

    @staticmethod
    def _handed(variables: Templated, wanted: Dict[str, Any], host: str) -> Dict[str, Any]:
        """Return the part of the request that every call of the module has."""
        mark = "{}/{}".format(variables["npufleet_root"], lease.MARK)
        return {"desired": wanted, "host": host, "mark": mark, "run": runs.run_id()}

    def _rollback(
        self, variables: Templated, concerns: List[str], arguments: Dict[str, Any], task_vars: Dict[str, Any], host: str
    ) -> Dict[str, Any]:
        """Return the changes of a rollback, and every reason against it."""
        reasons: List[str] = []
        with collected(reasons):
            wanted, manifests = desired(variables, concerns)
            handed = self._handed(variables, wanted, host)
            result = self._answer(lambda: self._look(arguments, handed, task_vars))
            if result.get("failed"):
                return self._refused([self._become(result)])
            with host_text.parsing(host):
                host_text.require(result, "moves", "refusals")
                return self._complete(result, manifests, handed)
        return self._refused(reasons)

    @staticmethod
    def _answer(look: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """Return the result of a call; a failed result with the reason if the module did not run."""
        try:
            return look()
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            return {"failed": True, "msg": str(error.message)}

    def _look(self, arguments: Dict[str, Any], handed: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the result of the module. Call it again if the host is held by a run of this controller that has ended."""
        result = self.ask("host_state", arguments, task_vars, handed)
        holder = result.get("held_by")
        if isinstance(holder, dict) and runs.has_ended(holder.get("run")):
            result = self.ask("host_state", arguments, task_vars, {**handed, "ended": holder["run"]})
        return result

    def _settled(self, handed: Dict[str, Any], task_vars: Dict[str, Any], wait: int) -> Dict[str, Any]:
        """Return the result of the module. `between` has the times of the call and the return.

        Another run may be restarting the server, which is no reason to refuse a change of models. The call is repeated until that
        run has ended, for `wait` seconds at most.
        """
        deadline = time.monotonic() + wait
        while True:
            began = time.time()
            result = self._look({"preflight": True}, handed, task_vars)
            result["between"] = (began, time.time())
            with host_text.parsing(handed["host"]):
                judged = not result.get("held_by") or result.get("maintenance") or not beyond_models(result.get("plan") or [])
            if judged or time.monotonic() >= deadline:
                return result
            time.sleep(PAUSE)

    @staticmethod
    def _complete(result: Dict[str, Any], manifests: Dict[str, Any], handed: Mapping[str, Any]) -> Dict[str, Any]:
        """Validate the result, and add the facts that roles need and that are not sent to hosts."""
        wanted = handed["desired"]
        for key, kind in TYPES.items():
            if not isinstance(result.get(key, kind()), kind):
                raise host_text.InvalidText(f"{key} is {short(result[key], 80)}, expected {KINDS[kind]}")
        # These values from the host become options of the container, so they must be files and devices of the driver.
        server = result.get("actual", {}).get("server") or {}
        for part, field, fits, words in OPTIONS:
            found = (
                (server.get(part) or {}).get(field, []) if field else [entry for entry in [server.get(part)] if entry is not None]
            )
            strange = [entry for entry in found if not fits.fullmatch(str(entry))]
            if strange:
                raise host_text.InvalidText(words.format(short(strange[0], 80)))
        host_text.require(result, *ALWAYS)
        if len(result["report"]) != len(result["plan"]):
            raise host_text.InvalidText(
                f"report has {len(result['report'])} lines about {len(result['plan'])} differences, expected one for each"
            )
        if not isinstance(result["maintenance"], (dict, type(None))):
            raise host_text.InvalidText(f"maintenance is {short(result['maintenance'], 80)}, expected a mapping or nothing")
        holder = result.get("held_by")
        if holder:
            words = "{}: another run is changing this host: {} since {}".format(
                handed["host"], holder.get("by"), holder.get("since")
            )
            result["warnings"] = [*result.get("warnings", []), host_text.indented(words)]
        for name, hold in result.get("held", {}).items():
            mine = wanted.get("server", {}).get("models", {}).get(name, {})
            mine.update({key: hold[key] for key in mine if key in hold})
        # Results show addresses without logins and signatures. The actions that download files read these from the inventory.
        result["origins"] = {
            digest: {**origin, "url": http_probe.bare(origin["url"])} if origin.get("url") else origin
            for manifest in manifests.values()
            for digest, origin in manifest["origins"].items()
        }
        # Secrets could be guessed from their digests and the key of the digests (`seal`).
        result["desired"] = {
            concern: {name: entry for name, entry in part.items() if name != "seal"} for concern, part in wanted.items()
        }
        result["mark"] = handed["mark"]
        return result

    def _preflight(
        self, variables: Templated, concerns: Optional[List[str]], task_vars: Dict[str, Any], host: str
    ) -> Dict[str, Any]:
        """Return the plan, with every reason against it."""
        reasons: List[str] = []
        wanted: Dict[str, Any] = {}
        with collected(reasons):
            reasons += findings.findings(variables, inventory_specs(), task_vars)
        with collected(reasons):
            if concerns is None:
                # The variable is read here, because a template in the task would load a filter for each host.
                concerns = list(variables["preflight_concerns"]) or self.concerns(variables, task_vars)
            wanted, manifests, more = collect_desired(variables, concerns)
            reasons += [entry for entry in more if entry not in reasons]
        if not wanted or concerns is None:
            return self._refused(reasons)
        with collected(reasons):
            handed = self._handed(variables, wanted, host)
            judges = bool({"driver", "models"} & set(concerns))
            if judges:
                handed["suppliers"], handed["passwords"] = preflight_inputs.suppliers(variables)
                handed["conditions"] = preflight_inputs.conditions(variables, manifests)
                handed["passwords"]["addresses"] = secret.address_secrets([handed["suppliers"], handed["conditions"]])
            models_only = "models" in concerns and "image" not in concerns
            wait = int(variables["npufleet_lease_wait"]) if models_only else 0
            result = self._answer(lambda: self._settled(handed, task_vars, wait))
            if result.get("failed"):
                return self._refused([*reasons, self._become(result)])
            began, ended = result.pop("between")
            with host_text.parsing(host):
                result = self._complete(result, manifests, handed)
                if not result.get("maintenance"):
                    reasons += beyond_models(result["plan"]) if models_only else []
                    if judges:
                        reasons += preflight_inputs.refusals(variables, manifests, result["plan"], result["actual"])
                        if result["plan"] and "driver" in result["actual"]:
                            skew = int(variables["preflight_clock_skew"])
                            reasons += preflight_inputs.clock(result["clock"], began, ended, skew)
                        result["warnings"] = [*result.get("warnings", []), *row_remarks.warnings(variables)]
                refusals = [*reasons, *result.get("refusals", [])]
                in_sync = not (refusals or result["plan"] or result["maintenance"])
                return {**result, "refusals": refusals, "in_sync": in_sync}
        return self._refused(reasons)

    @staticmethod
    def _refused(reasons: List[str]) -> Dict[str, Any]:
        """Return the result for a host that could not be read."""
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
    def _become(result: Dict[str, Any]) -> str:
        """Return the reason why a module did not run, with the next step if the reason is known."""
        words = " ".join(str(result.get(key) or "") for key in ("msg", "module_stderr", "module_stdout"))
        if NO_PASSWORD.search(words):
            found = " ".join(words.split())[:120]
            return (
                f"sudo refuses to become root ({found}). Give the password with --ask-become-pass or as ansible_become_password in "
                "the vault, and check that ansible_user may use sudo"
            )
        gone = NO_INTERPRETER.search(words)
        if gone:
            return (
                f"{gone[1]} is missing, expected the Python of the last call. Run once with --flush-cache, or set "
                "ansible_python_interpreter"
            )
        return "the host could not be read: {}".format(" ".join(words.split())[:500])
