"""Says what another release row would bring to a host: see plugin_utils/inventory/release_change.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Dict

from ansible.errors import AnsibleUndefinedVariable
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import release_change
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text


class ActionModule(FleetAction):
    """Asks no host: what was found on it is in its variable npufleet_state."""

    _requires_connection = False

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        variables = self.variables(task_vars)
        state = task_vars["npufleet_state"]
        with self.refusing(host):
            rows, name = variables["npufleet_release_rows"], str(variables.get("rbln_release"))
        if name not in rows:
            # Preflight names those that there are
            return {"changed": False, "before": None, "said": []}
        with host_text.understood(host):
            label = (state["actual"].get("server") or {}).get("release")
            before = release_change.before(host_text.line(label) if label else None, self._task.args["before"], name, rows)
            after = release_change.Release(name, rows[name])
            said = list(release_change.row_changes(before, after))
            # A variable that is wrong is one of the reasons that preflight tells
            with suppress(Refusal, AnsibleUndefinedVariable):
                said += release_change.host_changes(variables, state, before, after)
            return {
                "changed": False,
                "before": before.name if before else None,
                "said": [host_text.line(sentence) for sentence in said],
            }
