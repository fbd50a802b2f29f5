"""The contract of a concern's file on the host: how its state is read and compared."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Protocol

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item

NPU_HOSTS, MONITORING_HOSTS = "npu_hosts", "monitoring_hosts"


class Concern(Protocol):
    """A part of a host that is planned, applied and proven on its own: a file of this room."""

    # Its name in plans, and the group of hosts that have it
    CONCERN: str
    GROUP: str

    def read(self, wanted: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the actual state as root reads it. Changes nothing, and works on a bare host."""

    def diff(self, wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
        """Return the differences between desired and actual state."""
