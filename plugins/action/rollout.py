# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of rollout: announces batches and ends the change of a host (plugin_utils/run/rollout.py)."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.npufleet.triton.plugins.modules.rollout import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, outputs, rollout, runs

# The files of the durations and of the names of all hosts, in npufleet_output_dir
RECORD = "durations.json"
LISTING = "rollout.txt"


class ActionModule(FleetAction):
    """The announcement of a batch, which calls no host, or the end of the change of a host."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, given = self.validate_argument_spec(argument_spec=OPTIONS)
        path = os.path.join(self._loader.path_dwim(given["output_dir"]), RECORD)
        batch = [name for name in task_vars["ansible_play_batch"] if name in task_vars["hostvars"]]
        if given["state"] == "ended":
            return self._end(host, task_vars, path, batch, given)
        result: Dict[str, Any] = {"changed": False}
        ahead = _ahead(task_vars, batch, given["serial"])
        total, listed = len(task_vars["ansible_play_hosts_all"]), None
        # The first batch announces all hosts of the rollout.
        if sum(len(part) for part in ahead) == total > rollout.MOST_NAMES:
            listed = os.path.join(os.path.dirname(path), LISTING)
            try:
                outputs.write(listed, rollout.listing(ahead))
            except OSError as error:
                listed, result["warnings"] = None, [f"The names of the hosts cannot be written: {error}"]
        result["msg"] = rollout.announcement(ahead, rollout.read(path), total, listed)
        self._display.display(host_text.line(result["msg"]))
        return result

    def _end(
        self, host: str, task_vars: Dict[str, Any], path: str, batch: Sequence[str], given: Mapping[str, Any]
    ) -> Dict[str, Any]:
        result: Dict[str, Any] = {"changed": False}
        reasons = _reasons(host, given["failed"], given["lost"])
        reasons += [f"{name}: {why}" for name, why in run_guard.STEPS.lost([host])]
        if given["release"]:
            reasons += self._release(host, task_vars)
        # The first host records the durations of the batch.
        if host == batch[0]:
            try:
                rollout.write(path, _durations(task_vars["hostvars"], batch))
            except OSError as error:
                result["warnings"] = [f"The durations cannot be recorded: {error}"]
        return {**result, "failed": True, "msg": "; ".join(reasons)} if reasons else result

    def _release(self, host: str, task_vars: Dict[str, Any]) -> List[str]:
        """Return the reasons why the lease of the host was not released. An unreachable host alone would not end the rollout."""
        root = self.variables(task_vars)["npufleet_root"]
        try:
            released = self.call_module("host_lease", {"state": "released", "root": root}, task_vars, runs.lease_owner(host))
        except AnsibleConnectionFailure as error:
            reason = "became unreachable before its lease was released, no further batch starts. Check the host, and run again"
            return [f"{host} {reason}: {error.message}"]
        except host_text.InvalidAnswer as invalid:
            return [str(invalid)]
        return [str(released["msg"])] if released.get("failed") else []


def _ahead(variables: Mapping[str, Any], batch: Sequence[str], serial: Any) -> List[List[rollout.PlannedHost]]:
    """Return the plans of the hosts of this batch and of each batch after it."""
    known = variables["hostvars"]
    hosts: List[str] = list(variables["ansible_play_hosts_all"])
    # Batches are consecutive parts of the list of all hosts. Ansible has removed the lost hosts from the current batch.
    later = set(hosts[hosts.index(batch[-1]) + 1 :])
    divided = rollout.batches(hosts, rollout.parse_serial("100%" if serial is None else serial))
    rest = [[host for host in part if host in later] for part in divided]
    return [[_planned(host, known[host]) for host in part] for part in [list(batch), *filter(None, rest)]]


def _reasons(host: str, failed: str, lost: Sequence[str]) -> List[str]:
    """Return the reasons to start no further batch. A lost host does not fail the play, so `host` fails in its place."""
    found = [f"{host} failed the gate, no further batch starts. {failed}"] if failed else []
    if lost:
        others = "" if failed else f". {host} itself is in sync"
        reason = "became unreachable during the change, no further batch starts. Check the host, and run again"
        found.append(f"{', '.join(lost)} {reason}{others}")
    return found


def _durations(known: Mapping[str, Any], batch: Sequence[str]) -> Dict[str, rollout.Duration]:
    """Return the durations of the successful host changes of a batch."""
    began = {host: known[host].get("npufleet_began") for host in batch if not known[host].get("npufleet_failed")}
    durations = {host: round(time.time() - float(at), 1) for host, at in began.items() if at}
    # Templates cannot read a monotonic clock. The duration is negative if the clock was set back.
    return {
        host: rollout.Duration(seconds, _planned(host, known[host]).concerns) for host, seconds in durations.items() if seconds >= 0
    }


def _planned(host: str, known: Mapping[str, Any]) -> rollout.PlannedHost:
    """Return the plan of a host. If its data has an unexpected shape, the plan has no concerns and unknown bytes."""
    state = known.get("npufleet_state") or {}
    try:
        concerns = list(dict.fromkeys(str(entry["concern"]) for entry in state.get("plan") or []))
        missing = (state.get("actual", {}).get("models") or {}).get("missing") or []
        sizes = [_size(state["origins"].get(digest) or {}) for digest in missing]
    except host_text.SHAPE_ERRORS:
        return rollout.PlannedHost(host, [], None)
    return rollout.PlannedHost(host, concerns, None if None in sizes else sum(size or 0 for size in sizes))


def _size(origin: Mapping[str, Any]) -> Optional[int]:
    """Return the bytes of a blob; None if neither the inventory nor the controller knows them."""
    if "size" in origin:
        return int(origin["size"])
    try:
        return os.path.getsize(str(origin["file"]))
    except (KeyError, OSError):
        return None
