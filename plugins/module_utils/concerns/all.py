"""All concerns in the order in which they are applied."""

from __future__ import annotations

from types import ModuleType
from typing import Dict

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

# Each has desired() for the controller, read() for the host, and diff() between the two.
CONCERNS: Dict[str, ModuleType] = {
    one.CONCERN: one for one in (driver, engine, image, models, server, watchdog, probe_timer, monitoring)
}
