# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of fleet_report: writes the status of a fleet and renders the report (plugin_utils/report/)."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.npufleet.triton.plugins.module_utils import system
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import (
    LOAD_BALANCER_HOSTS,
    MONITORING_HOSTS,
    NPU_HOSTS,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import (
    charts,
    check_results,
    drift,
    host_states,
    page,
    status,
    view,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import record
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import outputs

# Largest number of rollouts in the report
MAX_ROLLOUTS = 10


class ActionModule(ActionBase):
    """An action that runs only on the controller. It reads the states that earlier tasks have stored."""

    _requires_connection = False
    supports_raw_params = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        result: Dict[str, Any] = {**super().run(tmp, task_vars), "changed": False}
        variables = task_vars or {}
        state = self._task.args.get("state", "rendered")
        if state == "reset":
            results = self._loader.path_dwim(self._task.args["results_dir"])
            for host in variables["ansible_play_hosts_all"]:
                check_results.remove(os.path.join(results, f"{host}.json"))
            return result
        paths = {name: self._loader.path_dwim(self._task.args[name]) for name in ("status_file", "results_dir", "report_file")}
        groups: Mapping[str, List[str]] = variables["groups"]
        npu_hosts = list(groups.get(str(variables.get("npufleet_group", NPU_HOSTS)), []))
        fleet = list(dict.fromkeys([*npu_hosts, *groups.get(LOAD_BALANCER_HOSTS, []), *groups.get(MONITORING_HOSTS, [])]))
        now = time.time()
        try:
            statuses, results = view.read(fleet, paths["status_file"], paths["results_dir"])
            if state == "read":
                when = system.timestamp(now)
                entries = [_entry(when, host, variables["hostvars"]) for host in variables["ansible_play_hosts_all"]]
                document = status.document(when, list(statuses.values()), fleet, entries)
                outputs.write(paths["status_file"], status.text(document))
                statuses = {entry["host"]: entry for entry in document["hosts"]}
                result["metrics"] = drift.metrics(now, document["hosts"])
                result["differs"] = {entry["host"]: entry["report"] for entry in entries if entry["state"] != "in sync"}
                good = ("in sync", "maintenance")
                result["hosts_not_in_sync"] = [entry["host"] for entry in entries if entry["state"] not in good]
            # The records of rollouts are next to the status file.
            rollouts = record.latest(os.path.join(os.path.dirname(paths["status_file"]), record.DIRECTORY))
            # This run has read the series of the charts from the monitoring hosts.
            series = {host: variables["hostvars"][host].get("npufleet_charts") for host in groups.get(MONITORING_HOSTS, [])}
            shown = charts.view(series, rollouts), record.cards(rollouts[:MAX_ROLLOUTS])
            report = view.view(fleet, npu_hosts, statuses, results, now, *shown)
            outputs.write(paths["report_file"], page.page(view.escaped(report)))
        except OSError as error:
            raise AnsibleActionFail(f"the report could not be written: {error}: correct npufleet_output_dir") from None
        counts = {name: report["counts"][name] for name in ("all", "wrong", "unknown", "good")}
        return {**result, "path": os.path.realpath(paths["report_file"]), "counts": counts}


def _entry(when: str, host: str, hostvars: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return the status entry of a host: the entry that host_state has stored, otherwise an entry from its variables."""
    stored = host_states.read(host)
    if stored:
        return stored
    # Ansible computes the variables of a host at each access to `hostvars`, so this is the only access.
    variables = hostvars[host]
    return status.host_entry(when, host, variables.get("npufleet_state"), variables.get("rbln_release"))
