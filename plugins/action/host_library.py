"""Controller side of host_library: the version of this collection, and its archive for a host that lacks it."""

from __future__ import annotations

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.plugin_utils import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class ActionModule(FleetAction):
    """Asks once."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        return self.ask("host_library", {}, task_vars, {"version": library.version()}, self.library_for_a_host)
