"""Controller side of host_state: computes what is wanted of the host, then asks it once."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleUndefinedVariable
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe, secret
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.plugin_utils import host_text, runs
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings, preflight_inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import (
    Templated,
    desired,
    inventory_specs,
    survey,
)

# How become says that sudo took no password, or not this one
NO_PASSWORD = re.compile(
    r"(missing|incorrect) \S+ password|a password is required|sorry, try again|not in the sudoers", re.IGNORECASE
)


# What an answer is made of, where it has it
SHAPE = {"plan": list, "report": list, "refusals": list, "actual": dict, "held": dict, "held_by": dict, "clock": float}
KINDS = {list: "a list", dict: "a mapping", float: "a number"}
# What a change of models alone does to a server
OF_MODELS = ("load", "unload", "restart", "wait", "prove")


def beyond_models(plan: List[Dict[str, Any]]) -> List[str]:
    """Differences that no change of models alone can end."""
    return [
        "found {} {}, wanted {}: run playbooks/site.yml, this playbook changes models only".format(
            item["name"], short(item["current"]), short(item["desired"])
        )
        for item in plan
        if item["concern"] not in ("models", "probe") and item["action"] not in OF_MODELS
    ]


class ActionModule(FleetAction):
    """Fills in `desired` from the inventory, the release row and the model manifests."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        concerns = self._task.args.get("concerns")
        if concerns is None:
            concerns = self.concerns(variables, task_vars)
        if boolean(self._task.args.get("preflight", False)):
            return self._preflight(variables, list(concerns), task_vars, host)
        if boolean(self._task.args.get("unsealed", False)):
            with self.refusing(host):
                return {"changed": False, "desired": desired(variables, concerns, seal=False)[0]}
        arguments = {key: self._task.args[key] for key in ("prove", "linked", "timeout") if key in self._task.args}
        with self.refusing(host):
            # The mark does not depend on what is wanted of the host
            proof = boolean(arguments.get("prove", False))
            wanted, manifests = desired(variables, concerns, now=proof) if concerns else ({}, {})
            handed: Dict[str, Any] = {"desired": wanted, "host": host, "mark": self._mark(variables), "run": runs.run_id()}
        result = self._look(arguments, handed, task_vars)
        if result.get("failed"):
            # The message says it all; the rest would bury it.
            return {key: result[key] for key in ("failed", "msg", "plan", "exception") if key in result}
        with host_text.understood(host):
            return self._complete(result, wanted, manifests, handed)

    def _look(self, arguments: Dict[str, Any], handed: Dict[str, Any], task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """The module's answer; asked again where the run that holds the host is one of this machine and is gone."""
        result = self.ask("host_state", arguments, task_vars, handed)
        holder = result.get("held_by")
        if isinstance(holder, dict) and runs.has_ended(holder.get("run")):
            result = self.ask("host_state", arguments, task_vars, {**handed, "ended": holder["run"]})
        return result

    @staticmethod
    def _mark(variables: Templated) -> str:
        """Where a host says that it is in maintenance."""
        return "{}/maintenance.json".format(variables["npufleet_root"])

    @staticmethod
    def _complete(
        result: Dict[str, Any], wanted: Dict[str, Any], manifests: Dict[str, Any], handed: Mapping[str, Any]
    ) -> Dict[str, Any]:
        """Add what the apply steps need beside the plan, and no host has to see."""
        for key, kind in SHAPE.items():
            if not isinstance(result.get(key, kind()), kind):
                raise host_text.NoData(f"found {key} {short(result[key], 80)}, wanted {KINDS[kind]}")
        holder = result.get("held_by")
        if holder:
            words = "{}: another run is changing this host: {} since {}".format(
                handed["host"], holder.get("by"), holder.get("since")
            )
            result["warnings"] = [*result.get("warnings", []), host_text.told(words)]
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

    def _preflight(self, variables: Templated, concerns: List[str], task_vars: Dict[str, Any], host: str) -> Dict[str, Any]:
        """The plan, and every reason why it cannot be applied; a reason is a result here and no failure."""
        reasons: List[str] = []
        try:
            reasons += findings.findings(variables, inventory_specs(), task_vars)
            wanted, manifests, more = survey(variables, concerns)
            reasons += [entry for entry in more if entry not in reasons]
            handed: Dict[str, Any] = {"desired": wanted, "host": host, "mark": self._mark(variables), "run": runs.run_id()}
            if {"driver", "models"} & set(concerns):
                handed["suppliers"], handed["passwords"] = preflight_inputs.suppliers(variables)
                handed["conditions"] = preflight_inputs.conditions(variables, manifests)
                handed["passwords"]["addresses"] = secret.of_addresses([handed["suppliers"], handed["conditions"]])
        except (Refusal, AnsibleUndefinedVariable, KeyError, TypeError, ValueError, OSError) as error:
            reasons += [entry for entry in self.reasons(error) if entry not in reasons]
            return self._refused(reasons)
        if not wanted:
            return self._refused(reasons)
        try:
            began = time.time()
            result = self._look({"preflight": True}, handed, task_vars)
            ended = time.time()
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            result = {"failed": True, "msg": str(error.message)}
        if result.get("failed"):
            return self._refused([*reasons, self._become(result)])
        try:
            with host_text.understood(host):
                if "models" in concerns and "image" not in concerns and not result.get("maintenance"):
                    reasons += beyond_models(result["plan"])
                if {"driver", "models"} & set(concerns) and not result.get("maintenance"):
                    reasons += preflight_inputs.refusals(variables, manifests, result["plan"], result["actual"])
                    if result["plan"] and "driver" in result["actual"]:
                        reasons += preflight_inputs.clock(result["clock"], began, ended, int(variables["preflight_clock_skew"]))
                    result["warnings"] = [*result.get("warnings", []), *preflight_inputs.warnings(variables)]
                result["refusals"] = reasons + result.get("refusals", [])
                return self._complete(result, wanted, manifests, handed)
        except host_text.Misunderstood as reason:
            return self._refused([*reasons, str(reason)])

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
        return "the host could not be read: {}".format(" ".join(words.split())[:500])
