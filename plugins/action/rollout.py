# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of rollout: announces batches, and completes the change of a host (plugin_utils/run/rollout.py)."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible import context
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.npufleet.triton.plugins.modules.rollout import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import record
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, outputs, rollout, runs

# Files in npufleet_output_dir: the durations of host changes, and the names of all hosts of a rollout
DURATIONS_FILE = "durations.json"
HOSTS_FILE = "rollout.txt"
# Largest number of rollouts in the list
MAX_LISTED = 5


class ActionModule(FleetAction):
    """An action that announces a batch, or ends the change of a host. It calls the host only to end its change."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, options = self.validate_argument_spec(argument_spec=OPTIONS)
        directory = self._loader.path_dwim(options["output_dir"])
        records = os.path.join(directory, record.DIRECTORY)
        if options["state"] == "listed":
            return {"changed": False, "lines": record.table(record.latest(records, MAX_LISTED))}
        batch = [name for name in task_vars["ansible_play_batch"] if name in task_vars["hostvars"]]
        if options["state"] == "ended":
            return self._end(host, task_vars, directory, batch, options)
        result: Dict[str, Any] = {"changed": False}
        hosts, hostvars = list(task_vars["ansible_play_hosts_all"]), task_vars["hostvars"]
        batches = rollout.batches(hosts, rollout.parse_serial("100%" if options["serial"] is None else options["serial"]))
        # Batches are counted from 0.
        number = next(number for number, names in enumerate(batches) if batch[0] in names)
        # Ansible has removed unreachable hosts from `batch`. The later batches follow the last host of `batch`.
        later = set(hosts[hosts.index(batch[-1]) + 1 :])
        rest = [[name for name in names if name in later] for names in batches]
        next_batches = [[_planned(name, hostvars[name]) for name in names] for names in (batch, *filter(None, rest))]
        total, hosts_path = len(hosts), None
        # The first batch announces all hosts of the rollout.
        if sum(map(len, next_batches)) == total > rollout.MAX_NAMES:
            hosts_path = os.path.join(directory, HOSTS_FILE)
            try:
                outputs.write(hosts_path, rollout.listing(next_batches))
            except OSError as error:
                hosts_path, result["warnings"] = None, [f"The names of the hosts cannot be written: {error}"]
        states = [hostvars[name].get("npufleet_state") for name in hosts]
        pauses = [state.get("pause") for state in states if isinstance(state, Mapping)]
        pause = "" if self._task.check_mode else rollout.longest_pause(pauses)
        durations = rollout.read(os.path.join(directory, DURATIONS_FILE))
        result["msg"] = rollout.announcement(next_batches, durations, total, hosts_path, pause if number == 0 else "")
        if options["announce"]:
            self._display.display(host_text.line(result["msg"]))
        pause_result = _pause(pause, number, len(next_batches))
        owner = _owner(host, task_vars)
        # Each host records these facts about the rollout.
        result["rollout"] = {"playbook": owner.playbook, "commit": None, "batch": number + 1, "batches": number + len(next_batches)}
        # The record of a rollout is created at its first batch.
        if not pause_result.get("failed") and not self._task.check_mode:
            try:
                names = [[planned.host for planned in next_batch] for next_batch in next_batches]
                # A rollout of one batch does not pause.
                own_pause = pause if len(names) > 1 else ""
                if number:
                    own_record = record.record_of_run(records, owner)
                else:
                    own_record = record.begin(records, owner, names, own_pause, time.time())
                result["rollout"]["commit"] = own_record and own_record["commit"]
            except OSError as error:
                result["warnings"] = [*result.get("warnings", []), f"The rollout cannot be recorded: {error}"]
        return {**result, **pause_result}

    def _end(
        self, host: str, task_vars: Dict[str, Any], directory: str, batch: Sequence[str], options: Mapping[str, Any]
    ) -> Dict[str, Any]:
        warnings: List[str] = []
        reasons = _reasons(host, options["failed"], options["lost"])
        reasons += [f"{name}: {why}" for name, why in run_guard.STEPS.lost([host])]
        if options["release"]:
            reasons += self._release(host, task_vars)
        # The first host records the durations of the batch.
        if host == batch[0]:
            try:
                rollout.write(os.path.join(directory, DURATIONS_FILE), _durations(task_vars["hostvars"], batch))
            except OSError as error:
                warnings.append(f"The durations cannot be recorded: {error}")
            if not self._task.check_mode:
                warnings += _record(host, task_vars, os.path.join(directory, record.DIRECTORY), batch, options["lost"])
        result = {"changed": False, **({"warnings": warnings} if warnings else {})}
        return {**result, "failed": True, "msg": "; ".join(reasons)} if reasons else result

    def _release(self, host: str, task_vars: Dict[str, Any]) -> List[str]:
        """Return the reasons why the lease of the host was not released. With a reason, the task fails and stops the rollout."""
        root = self.variables(task_vars)["npufleet_root"]
        hostvars = record.host_entry(task_vars["hostvars"][host], [], time.time())
        arguments = {"state": "released", "root": root, "rollout": record.end_on_host(hostvars)}
        try:
            released = self.call_module("host_lease", arguments, task_vars, runs.lease_owner(host))
        except AnsibleConnectionFailure as error:
            reason = "became unreachable before its lease was released, no further batch starts. Check the host, and run again"
            return [f"{host} {reason}: {error.message}"]
        except host_text.InvalidAnswer as invalid:
            return [str(invalid)]
        return [str(released["msg"])] if released.get("failed") else []


def _record(host: str, task_vars: Mapping[str, Any], records: str, batch: Sequence[str], lost: Sequence[str]) -> List[str]:
    """Add the batch to the record of the rollout, and return warnings."""
    hostvars, now = task_vars["hostvars"], time.time()
    entries = {
        name: record.host_entry(hostvars[name], _planned(name, hostvars[name]).concerns, now, name in lost)
        for name in [*batch, *(name for name in lost if name in hostvars and name not in batch)]
    }
    try:
        record.add(records, _owner(host, task_vars), entries, now)
    except OSError as error:
        return [f"The rollout cannot be recorded: {error}"]
    return []


def _pause(pause: str, number: int, next_batches: int) -> Dict[str, Any]:
    """Return the pause before a batch: {"seconds"}, {"confirm"}, a failed result, or {}. `number` counts batches from 0.

    The rollout pauses only before the second batch. If nobody can confirm that batch, the task already fails for the first batch.
    """
    follows = number == 1 or (number == 0 and next_batches > 1)
    if pause == rollout.CONFIRM and follows and not runs.has_terminal():
        return {"failed": True, "msg": f"{rollout.NO_TERMINAL} {'Nothing' if number == 0 else 'No further host'} was changed."}
    if not pause or number != 1:
        return {}
    return {"confirm": True} if pause == rollout.CONFIRM else {"seconds": int(pause)}


def _owner(host: str, task_vars: Mapping[str, Any]) -> record.Owner:
    owner = runs.lease_owner(host)
    playbook = os.path.basename(str((context.CLIARGS.get("args") or [""])[0]))
    return record.Owner(owner["run"], owner["by"], playbook, str(task_vars.get("inventory_dir") or ""))


def _reasons(host: str, failed: str, lost: Sequence[str]) -> List[str]:
    """Return the reasons to start no further batch. An unreachable host does not fail the play, so `host` fails in its place."""
    reasons = [f"{host} failed the gate, no further batch starts. {failed}"] if failed else []
    if lost:
        others = "" if failed else f". {host} itself is in sync"
        reason = "became unreachable during the change, no further batch starts. Check the host, and run again"
        reasons.append(f"{', '.join(lost)} {reason}{others}")
    return reasons


def _durations(hostvars: Mapping[str, Any], batch: Sequence[str]) -> Dict[str, rollout.Duration]:
    """Return the durations of the successful host changes of a batch."""
    starts = {host: hostvars[host].get("npufleet_began") for host in batch if not hostvars[host].get("npufleet_failed")}
    durations = {host: round(time.time() - float(start), 1) for host, start in starts.items() if start}
    # Templates cannot read the monotonic clock, so the starts are times of day. A duration is negative if the clock was set back.
    known = {host: seconds for host, seconds in durations.items() if seconds >= 0}
    return {host: rollout.Duration(seconds, _planned(host, hostvars[host]).concerns) for host, seconds in known.items()}


def _planned(host: str, hostvars: Mapping[str, Any]) -> rollout.PlannedHost:
    """Return the plan of a host. If its data has an unexpected shape, the plan has no concerns, and its size is unknown."""
    state = hostvars.get("npufleet_state") or {}
    try:
        concerns = list(dict.fromkeys(str(entry["concern"]) for entry in state.get("plan") or []))
        missing = (state.get("actual", {}).get("models") or {}).get("missing") or []
        sizes = [_size(state["origins"].get(digest) or {}) for digest in missing]
    except host_text.SHAPE_ERRORS:
        return rollout.PlannedHost(host, [], None)
    return rollout.PlannedHost(host, concerns, None if None in sizes else sum(size or 0 for size in sizes))


def _size(origin: Mapping[str, Any]) -> Optional[int]:
    """Return the bytes of a blob, or None if the inventory names no size and the controller has no such file."""
    if "size" in origin:
        return int(origin["size"])
    try:
        return os.path.getsize(str(origin["file"]))
    except (KeyError, OSError):
        return None
