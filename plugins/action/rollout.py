"""Says what a rollout is about to do, and remembers how long it took: see plugin_utils/rollout.py."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible.plugins.action import ActionBase
from ansible_collections.npufleet.triton.plugins.plugin_utils import host_text, rollout

# In npufleet_output_dir
RECORD = "turns.json"


class ActionModule(ActionBase):
    """Asks no host: what was found on it is in its variables."""

    _requires_connection = False
    supports_raw_params = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        result: Dict[str, Any] = {**super().run(tmp, task_vars), "changed": False}
        variables = task_vars or {}
        path = os.path.join(self._loader.path_dwim(self._task.args["output_dir"]), RECORD)
        batch = [host for host in variables["ansible_play_batch"] if host in variables["hostvars"]]
        if self._task.args.get("state", "begun") == "begun":
            result["msg"] = self._words(variables, batch, path)
            self._display.display(host_text.line(result["msg"]))
            return result
        turns = {}
        for host in batch:
            known = variables["hostvars"][host]
            if known.get("npufleet_began") and not known.get("npufleet_failed"):
                turns[host] = rollout.Took(round(time.time() - float(known["npufleet_began"]), 1), _turn(host, known).concerns)
        try:
            rollout.write(path, turns)
        except OSError as error:
            result["warnings"] = [f"how long this took cannot be remembered: {error}"]
        return result

    def _words(self, variables: Mapping[str, Any], batch: Sequence[str], path: str) -> str:
        known = variables["hostvars"]
        hosts: List[str] = list(variables["ansible_play_hosts_all"])
        # Batches are parts of one list; this one is what Ansible made of it, without hosts that were lost
        later = hosts[hosts.index(batch[-1]) + 1 :]
        divided = rollout.batches(hosts, self._task.args.get("serial") or "100%")
        rest = [[host for host in part if host in later] for part in divided]
        parts = [[_turn(host, known[host]) for host in part] for part in [list(batch), *filter(None, rest)]]
        return rollout.words(parts, rollout.read(path), len(hosts))


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
