"""The concerns, in the order in which they are applied: the one place that knows which there are."""

from __future__ import annotations

from typing import Dict, List, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.concerns import (
    driver,
    engine,
    image,
    models,
    monitoring,
    probe,
    server,
    watchdog,
)
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.contract import NPU_HOSTS, Concern

ALL: Tuple[Concern, ...] = (driver, engine, image, models, server, watchdog, probe, monitoring)
CONCERNS: Dict[str, Concern] = {concern.CONCERN: concern for concern in ALL}
# What systemd says of these units is read with the rest of their concern, for all by one call: {"enabled", "active"}
UNITS: Dict[str, str] = {watchdog.CONCERN: watchdog.UNIT, probe.CONCERN: probe.TIMER}
# The desired state of these may hold secrets. It travels and is shown with digests in their place.
SEALED = (engine.CONCERN, server.CONCERN)


def of_groups(groups: List[str], npus: str) -> List[str]:
    """The concerns of a host in these groups of the inventory, where `npus` is the one of hosts with NPUs."""
    return [name for name, concern in CONCERNS.items() if (npus if concern.GROUP == NPU_HOSTS else concern.GROUP) in groups]
