# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Controller side of host_state: computes what is wanted of the host, then asks it once."""

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

# How become says that sudo took no password, or not this one
NO_PASSWORD = re.compile(
    r"(missing|incorrect) \S+ password|a password is required|sorry, try again|not in the sudoers", re.IGNORECASE
)


# Of a host that was installed anew with another system: Ansible keeps what it has found
NO_INTERPRETER = re.compile(r"module interpreter '([^']+)' was not found")
# What every answer has
ALWAYS = ("plan", "report", "maintenance", "actual", "held")
# What an answer is made of, where it has it
SHAPE = {
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
# What of a host's answer becomes an option of its container
GIVEN: Tuple[Tuple[str, Optional[str], Pattern[str], str], ...] = (
    ("driver_files", "binds", driver_files.BIND, "a mount {}, wanted files of the driver only"),
    ("access", "devices", device_access.DEVICE, "a device {}, wanted nodes of the cards only"),
    ("access", "groups", device_access.GROUP, "a group {}, wanted the number of one that is not root's"),
    ("image", None, re.compile("sha256:[0-9a-f]{64}"), "an image {}, wanted the ID that its engine has given it"),
)
KINDS = {list: "a list", dict: "a mapping", float: "a number"}
# Seconds between two looks at a host that another run is changing
AGAIN = 2.0


def beyond_models(plan: List[Item]) -> List[str]:
    """Return the reasons against a change of models: differences that only site.yml ends."""
    return [
        "found {} {}, wanted {}: run playbooks/site.yml, this playbook changes models only".format(
            item["name"], short(item["current"]), short(item["desired"])
        )
        for item in plan
        if needs_site(item)
    ]


class ActionModule(FleetAction):
    """Fills in `desired` from the inventory, the release row and the model manifests."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        known = self._task.args.get("known")
        if known:
            # Its name alone: to template all of it takes longer than all else of a turn's small tasks
            state = task_vars.get(str(known))
            if not isinstance(state, Mapping):
                words = "wanted the name of one with what host_state has returned"
                raise AnsibleActionFail(f"known: found no such variable as {short(known)}, {words}")
            return {**state, "changed": False, "known": True}
        if self._task.args.get("rollback") or boolean(self._task.args.get("preflight", False)):
            return self._planned(host, task_vars)
        with self.refusing(host):
            return self._seen(host, task_vars)

    def _planned(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """Return the plan of the host, or every reason why there is none.

        A reason is a result and no failure here, because the reasons of all hosts are reported together.
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
        """Return what was read of the host."""
        variables = self.variables(task_vars)
        concerns = self._task.args.get("concerns")
        if concerns is None:
            concerns = self.concerns(variables, task_vars)
        if boolean(self._task.args.get("unsealed", False)):
            return {"changed": False, "desired": desired(variables, concerns, seal=False)[0]}
        given = ("prove", "linked", "timeout", "store")
        arguments = {key: self._task.args[key] for key in given if key in self._task.args}
        # The mark does not depend on what is wanted of the host
        proof = boolean(arguments.get("prove", False))
        wanted, manifests = desired(variables, concerns, now=proof) if concerns else ({}, {})
        handed = self._handed(variables, wanted, host)
        result = self._look(arguments, handed, task_vars)
        if result.get("failed"):
            # The message says it all; the rest would bury it.
            return {key: result[key] for key in ("failed", "msg", "plan", "exception") if key in result}
        with host_text.parsing(host):
            told = self._complete(result, manifests, handed)
        if self._task.args.get("concerns") is None and "image" in concerns:
            # Of a host as a whole, once in a run of status
            told["warnings"] = [*told.get("warnings", []), *row_remarks.untested(variables)]
            told["untested"] = variables["npufleet_row"].get("untested")
        return self._for_playbooks(told, variables, batched=boolean(arguments.get("linked", False)))

    @staticmethod
    def _for_playbooks(result: Dict[str, Any], variables: Mapping[str, Any], batched: bool = True) -> Dict[str, Any]:
        """Add the variables by which playbooks ask and divide, as the host's own task sees them.

        Variables of a playbook are in no hostvars. A wrong one is a reason against a change, and none against looking.
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
        """What the module is handed in any case."""
        mark = "{}/{}".format(variables["npufleet_root"], lease.MARK)
        return {"desired": wanted, "host": host, "mark": mark, "run": runs.run_id()}

    def _rollback(
        self, variables: Templated, concerns: List[str], arguments: Dict[str, Any], task_vars: Dict[str, Any], host: str
    ) -> Dict[str, Any]:
        """Return what a rollback would change, and every reason why it cannot."""
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
        """What was seen; of a module that did not run at all, why."""
        try:
            return look()
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            return {"failed": True, "msg": str(error.message)}

    def _look(self, arguments: Dict[str, Any], handed: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """The module's answer; asked again where the run that holds the host is one of this machine and is gone."""
        result = self.ask("host_state", arguments, task_vars, handed)
        holder = result.get("held_by")
        if isinstance(holder, dict) and runs.has_ended(holder.get("run")):
            result = self.ask("host_state", arguments, task_vars, {**handed, "ended": holder["run"]})
        return result

    def _settled(self, handed: Dict[str, Any], task_vars: Dict[str, Any], wait: int) -> Dict[str, Any]:
        """The module's answer, with `between`: when it was asked, and when it was there.

        A server that another run restarts at this moment is no reason to refuse a change of models: that is judged once the other
        one has ended, or after as many seconds as a run waits for another.
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
            time.sleep(AGAIN)

    @staticmethod
    def _complete(result: Dict[str, Any], manifests: Dict[str, Any], handed: Mapping[str, Any]) -> Dict[str, Any]:
        """Add what the apply steps need beside the plan, and no host has to see."""
        wanted = handed["desired"]
        for key, kind in SHAPE.items():
            if not isinstance(result.get(key, kind()), kind):
                raise host_text.InvalidText(f"found {key} {short(result[key], 80)}, wanted {KINDS[kind]}")
        # What a host has found is given to the container as it says, so it is nothing but the driver's files and devices
        server = result.get("actual", {}).get("server") or {}
        for part, field, fits, words in GIVEN:
            found = (
                (server.get(part) or {}).get(field, []) if field else [entry for entry in [server.get(part)] if entry is not None]
            )
            strange = [entry for entry in found if not fits.fullmatch(str(entry))]
            if strange:
                raise host_text.InvalidText(f"found {words.format(short(strange[0], 80))}")
        host_text.require(result, *ALWAYS)
        if len(result["report"]) != len(result["plan"]):
            raise host_text.InvalidText(
                f"found {len(result['report'])} lines about {len(result['plan'])} differences, wanted one for each"
            )
        if not isinstance(result["maintenance"], (dict, type(None))):
            raise host_text.InvalidText(f"found maintenance {short(result['maintenance'], 80)}, wanted a mapping or nothing")
        holder = result.get("held_by")
        if holder:
            words = "{}: another run is changing this host: {} since {}".format(
                handed["host"], holder.get("by"), holder.get("since")
            )
            result["warnings"] = [*result.get("warnings", []), host_text.indented(words)]
        for name, hold in result.get("held", {}).items():
            mine = wanted.get("server", {}).get("models", {}).get(name, {})
            mine.update({key: hold[key] for key in mine if key in hold})
        # Of an address the part that may be shown: model_store knows the whole of it
        result["origins"] = {
            digest: {**origin, "url": http_probe.bare(origin["url"])} if origin.get("url") else origin
            for manifest in manifests.values()
            for digest, origin in manifest["origins"].items()
        }
        # The key that digests were made by is nothing to try out guesses with
        result["desired"] = {
            concern: {name: entry for name, entry in part.items() if name != "seal"} for concern, part in wanted.items()
        }
        result["mark"] = handed["mark"]
        return result

    def _preflight(
        self, variables: Templated, concerns: Optional[List[str]], task_vars: Dict[str, Any], host: str
    ) -> Dict[str, Any]:
        """The plan, and every reason why it cannot be applied."""
        reasons: List[str] = []
        wanted: Dict[str, Any] = {}
        with collected(reasons):
            reasons += findings.findings(variables, inventory_specs(), task_vars)
        with collected(reasons):
            if concerns is None:
                # Here, as to template it in the task would take each host its first look for a filter
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
        """The answer for a host that could not be asked, or not wholly."""
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
        """Why a module did not run at all, in the words of this project where the reason is known."""
        words = " ".join(str(result.get(key) or "") for key in ("msg", "module_stderr", "module_stdout"))
        if NO_PASSWORD.search(words):
            found = " ".join(words.split())[:120]
            return (
                f"found that sudo refuses ({found}), wanted to become root: give the password with --ask-become-pass or as "
                "ansible_become_password in the vault, and see that ansible_user may use sudo"
            )
        gone = NO_INTERPRETER.search(words)
        if gone:
            return (
                f"found no {gone[1]} on the host, wanted the Python that it had when it was looked at last: run once with "
                "--flush-cache, or set ansible_python_interpreter"
            )
        return "the host could not be read: {}".format(" ".join(words.split())[:500])
