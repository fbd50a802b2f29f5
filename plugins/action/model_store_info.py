"""Controller side of model_store_info: where the store of the host is."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class ActionModule(FleetAction):
    """Asks once."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        root = self.variables(task_vars)["npufleet_root"]
        return self.ask("model_store_info", {"root": root, **self._task.args}, task_vars)
