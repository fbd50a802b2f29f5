"""The concerns, in the order in which they are applied: the one place that knows which there are."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.concerns import (
    driver,
    engine,
    image,
    models,
    monitoring,
    probe_timer,
    server,
    watchdog,
)
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.contract import NPU_HOSTS, Concern

ALL: Tuple[Concern, ...] = (driver, engine, image, models, server, watchdog, probe_timer, monitoring)
CONCERNS: Dict[str, Concern] = {concern.CONCERN: concern for concern in ALL}
# What systemd says of these units is read with the rest of their concern, for all by one call: {"enabled", "active"}
UNITS: Dict[str, str] = {watchdog.CONCERN: watchdog.UNIT, probe_timer.CONCERN: probe_timer.TIMER}
# What these want may be secret: it travels and is shown with digests in its place, made by a key
SEALED: Dict[str, Callable[[Mapping[str, Any], str], Dict[str, Any]]] = {
    engine.CONCERN: engine.sealed,
    server.CONCERN: server.sealed,
}


def of_groups(groups: List[str], npus: str) -> List[str]:
    """The concerns of a host in these groups of the inventory, where `npus` is the one of hosts with NPUs."""
    return [name for name, concern in CONCERNS.items() if (npus if concern.GROUP == NPU_HOSTS else concern.GROUP) in groups]
