"""Says what a rollout is about to do, and ends the turn of a host: see plugin_utils/run/rollout.py."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.npufleet.triton.plugins.modules.rollout import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, rollout, runs

# In npufleet_output_dir
RECORD = "turns.json"


class ActionModule(FleetAction):
    """What was found on a host is in its variables: at the beginning nobody is asked."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, given = self.validate_argument_spec(argument_spec=OPTIONS)
        path = os.path.join(self._loader.path_dwim(given["output_dir"]), RECORD)
        batch = [name for name in task_vars["ansible_play_batch"] if name in task_vars["hostvars"]]
        if given["state"] == "ended":
            return self._end(host, task_vars, path, batch, given)
        words = self._words(task_vars, batch, path, given["serial"])
        self._display.display(host_text.line(words))
        return {"changed": False, "msg": words}

    def _end(
        self, host: str, task_vars: Dict[str, Any], path: str, batch: Sequence[str], given: Mapping[str, Any]
    ) -> Dict[str, Any]:
        result: Dict[str, Any] = {"changed": False}
        reasons = _reasons(host, given["failed"], given["lost"])
        reasons += [f"{name}: {why}" for name, why in run_guard.STEPS.lost([host])]
        if given["release"]:
            reasons += self._release(host, task_vars)
        # Once for all of them
        if host == batch[0]:
            try:
                rollout.write(path, _took(task_vars["hostvars"], batch))
            except OSError as error:
                result["warnings"] = [f"how long this took cannot be remembered: {error}"]
        return {**result, "failed": True, "msg": "; ".join(reasons)} if reasons else result

    def _release(self, host: str, task_vars: Dict[str, Any]) -> List[str]:
        """Why the host is not released. A host that is lost would be no failure of the play, and the next batch would start."""
        root = self.variables(task_vars)["npufleet_root"]
        try:
            released = self.ask("host_lease", {"state": "released", "root": root}, task_vars, runs.holder(host))
        except AnsibleConnectionFailure as error:
            words = (
                f"{host} became unreachable as it was to be released, no further batch starts. See what runs there, and run again"
            )
            return [f"{words}: {error.message}"]
        except host_text.Misunderstood as reason:
            return [str(reason)]
        return [str(released["msg"])] if released.get("failed") else []

    def _words(self, variables: Mapping[str, Any], batch: Sequence[str], path: str, serial: Any) -> str:
        known = variables["hostvars"]
        hosts: List[str] = list(variables["ansible_play_hosts_all"])
        # Batches are parts of one list; this one is what Ansible made of it, without hosts that were lost
        later = hosts[hosts.index(batch[-1]) + 1 :]
        divided = rollout.batches(hosts, rollout.sizes("100%" if serial is None else serial))
        rest = [[host for host in part if host in later] for part in divided]
        parts = [[_turn(host, known[host]) for host in part] for part in [list(batch), *filter(None, rest)]]
        return rollout.words(parts, rollout.read(path), len(hosts))


def _reasons(host: str, failed: str, lost: Sequence[str]) -> List[str]:
    """Why no further batch starts. A host that is lost is out of the play and no failure of it: those that are left miss it."""
    found = [f"{host} failed the gate, no further batch starts. {failed}"] if failed else []
    if lost:
        whole = "" if failed else f". {host} itself is as wanted"
        words = "became unreachable during the change, no further batch starts. See what runs there, and run again"
        found.append(f"{', '.join(lost)} {words}{whole}")
    return found


def _took(known: Mapping[str, Any], batch: Sequence[str]) -> Dict[str, rollout.Took]:
    """Of the hosts whose turn went well."""
    began = {host: known[host].get("npufleet_began") for host in batch if not known[host].get("npufleet_failed")}
    took = {host: round(time.time() - float(at), 1) for host, at in began.items() if at}
    # By the time of day, as a template has no other clock. Nothing is known of a turn during which it was set back
    return {host: rollout.Took(seconds, _turn(host, known[host]).concerns) for host, seconds in took.items() if seconds >= 0}


def _turn(host: str, known: Mapping[str, Any]) -> rollout.Turn:
    """What the plan of a host says. That is data, and may be of any shape: nothing is known then."""
    state = known.get("npufleet_state") or {}
    try:
        concerns = list(dict.fromkeys(str(entry["concern"]) for entry in state.get("plan") or []))
        missing = (state.get("actual", {}).get("models") or {}).get("missing") or []
        sizes = [_size(state["origins"].get(digest) or {}) for digest in missing]
    except host_text.MISFITS:
        return rollout.Turn(host, [], None)
    return rollout.Turn(host, concerns, None if None in sizes else sum(size or 0 for size in sizes))


def _size(origin: Mapping[str, Any]) -> Optional[int]:
    """Bytes of a large file, where the inventory or the controller knows them."""
    if "size" in origin:
        return int(origin["size"])
    try:
        return os.path.getsize(str(origin["file"]))
    except (KeyError, OSError):
        return None
