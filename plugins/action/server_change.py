# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of server_change: sends the desired state and the checks, and waits until the host has made the change."""

from __future__ import annotations

import uuid
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.change import cards
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ENGINE_TIMEOUT
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import Contact, FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import host_checks
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import TLS_OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated, desired
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import check_results
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, runs

# Seconds after which a call returns even if the change has not ended. If npufleet_progress is not 0, it replaces this value.
WAIT_SECONDS = 10.0


class ActionModule(FleetAction):
    """An action that sends one request for the whole change, and then calls the host again until the change has ended."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        arguments = {"root": variables["npufleet_root"], **self._task.args}
        with_checks = arguments.get("run_checks", True) and arguments.get("state", "changed") == "changed"
        path = self.results_path(variables["inference_check_results_dir"], host) if with_checks else None
        with self.refusing(host):
            request = self._request(host, task_vars, variables)
            if with_checks:
                checks = host_checks.checks_of(host, host_checks.with_defaults({}, variables), variables)
                request["secrets"] = _secrets(checks.server)
                request["checks"] = checks.for_change(variables, variables["inference_check_image"], checks.key)
        check_results.remove(path)
        show_progress = int(variables["npufleet_progress"]) > 0
        result = self._wait(host, arguments, request, task_vars, show_progress)
        with host_text.rejecting_invalid_answers(host):
            if path and result.get("checks"):
                check_results.write(path, host, result.get("msg", ""), result["checks"])
            if result.get("failed"):
                return self.failed_change(result)
            host_text.require_keys(result, "proven")
            result["answered"] = bool(with_checks and result.get("proven"))
            if with_checks and checks.unchecked and result.get("proven"):
                result["warnings"] = [*result.get("warnings", []), host_checks.warning(host, checks.unchecked)]
        return result

    def _request(self, host: str, task_vars: Mapping[str, Any], variables: Templated) -> Dict[str, Any]:
        desired_state, manifests = desired(variables, ["models", "server"])
        names = self._task.args.get("release") or []
        unknown = sorted(set(names) - set(manifests))
        if unknown:
            raise Refusal(f"triton_models does not place {', '.join(unknown)} on this host")
        return {
            **runs.lease_owner(host),
            "id": uuid.uuid4().hex,
            "wait": float(int(variables["npufleet_progress"]) or WAIT_SECONDS),
            "desired": desired_state,
            "container": self.container(variables),
            "poll_seconds": int(variables["triton_server_poll_seconds"]),
            "keep": int(variables["model_repository_keep"]),
            "releases": {name: manifest.to_release(manifests[name]) for name in names},
            "incoming": variables["npufleet_incoming"],
        }

    def _wait(
        self, host: str, arguments: Dict[str, Any], request: Mapping[str, Any], task_vars: Mapping[str, Any], show_progress: bool
    ) -> Dict[str, Any]:
        """Return the result of the change. With `show_progress`, display its current step after each call."""
        next_request = {name: request[name] for name in ("run", "by", "host", "id", "wait", "secrets") if name in request}
        next_request["only_wait"] = True
        limit = _limit(request, float(arguments.get("accept_within") or 0))
        contact = Contact(host, limit, lambda message: self._display.warning(host_text.line(message)))
        # A repeated call is safe, because a host begins only one change with this ID.
        result = contact.call(lambda: self.call_module("server_change", arguments, task_vars, request))
        while result.get("under_way"):
            # The states `accepted` and `restored` decide about an earlier change, so the host returns the ID of that change. The
            # next call waits for the end of that change.
            next_request["id"] = str(result.get("id", next_request["id"]))
            with host_text.rejecting_invalid_answers(host):
                step = (result.get("steps") or [{"step": "begin", "at": "now"}])[-1]
                message = host_text.line(f"{host}: {step['step']}, since {step['at']}")
                if show_progress:
                    self._display.display(message)
            result = contact.call(lambda: self.call_module("server_change", arguments, task_vars, next_request))
        return result


def _limit(request: Mapping[str, Any], accept_within: float) -> float:
    """Return the seconds that a change, its checks and a restore take if each step takes its whole time limit.

    The time limit for loads is counted once for all models together. If it were counted for each model, the run would wait for
    hours for a host that has lost its power.
    """
    times, checks = request["container"], (request.get("checks") or {}).get("document") or {}
    # A change waits for free cards, stops the old container, waits for free cards again, and loads and proves the models.
    one_change = 2 * times["free_timeout"] + times["stop_timeout"] + ENGINE_TIMEOUT + 2 * times["ready_timeout"]
    check_time = float(checks.get("timeout") or 0) * (len(checks.get("checks") or []) + 1)
    return float(cards.TIMEOUT_SECONDS + 2 * one_change + check_time + accept_within)


def _secrets(server: Mapping[str, Any]) -> List[str]:
    """Return the values of headers and the TLS keys with which checks reach the server."""
    keys = [server[kind]["key"] for kind in TLS_OPTIONS if (server.get(kind) or {}).get("key")]
    return [*map(str, (server.get("headers") or {}).values()), *keys]
