# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concerns of a host in the order in which they are applied. Every other list is derived from this one or compared with it."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Protocol, Tuple

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
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item

NPU_HOSTS, MONITORING_HOSTS = "npu_hosts", "monitoring_hosts"


class Part(Protocol):
    """A concern's file on the host. Its file on the controller has the same name (plugin_utils/desired)."""

    CONCERN: str

    def read(self, desired: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the actual state as root reads it. Changes nothing, and works on a bare host."""

    def diff(self, desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
        """Return the differences between desired and actual state."""


def _no_warning(_actual: Mapping[str, Any]) -> Optional[str]:
    return None


class Concern(NamedTuple):
    """A part of a host that is planned, applied and proven on its own."""

    part: Part
    # The role that applies the concern, and the tags by which site.yml runs it
    role: str
    tags: Tuple[str, ...]
    group: str = NPU_HOSTS
    # The playbooks that read the concern beside site.yml and status.yml
    playbooks: Tuple[str, ...] = ()
    # The actions by which models.yml may end a difference; None allows every action
    models_actions: Optional[Tuple[str, ...]] = ()
    # The systemd unit whose state is read with the concern
    unit: str = ""
    # True if the desired state may hold secrets, which travel and are shown as digests
    sealed: bool = False
    # The function that returns what needs an operator beside the plan
    warning: Callable[[Mapping[str, Any]], Optional[str]] = _no_warning


# The tags of the server's role also apply what serves beside it or changes with it.
SERVER_TAGS = ("server", "models")
LOADS = ("load", "unload", "restart", "wait", "prove")
CONCERNS: Dict[str, Concern] = {
    concern.part.CONCERN: concern
    for concern in (
        Concern(driver, "rbln_driver", ("driver",), playbooks=("models", "recover")),
        Concern(engine, "docker_engine", ("engine",), playbooks=("recover",), sealed=True),
        Concern(image, "triton_image", ("image",)),
        Concern(models, "model_repository", SERVER_TAGS, playbooks=("models", "recover", "rollback"), models_actions=None),
        Concern(
            server, "triton_server", SERVER_TAGS, playbooks=("models", "recover", "rollback"), models_actions=LOADS, sealed=True
        ),
        Concern(watchdog, "triton_server", SERVER_TAGS, unit=watchdog.UNIT, warning=watchdog.warning),
        Concern(
            probe,
            "monitoring",
            ("check", *SERVER_TAGS),
            playbooks=("models",),
            models_actions=None,
            unit=probe.TIMER,
            warning=probe.warning,
        ),
        Concern(monitoring, "monitoring", ("monitoring",), MONITORING_HOSTS),
    )
}


def concerns_of(groups: List[str], npu_group: str) -> List[str]:
    """Return the concerns of a host in these groups of the inventory, whose hosts with NPUs are in `npu_group`."""
    return [name for name, concern in CONCERNS.items() if (npu_group if concern.group == NPU_HOSTS else concern.group) in groups]


def needs_site(item: Item) -> bool:
    """Return True if only site.yml may end a difference, and models.yml must not."""
    # The answer of a host may name any concern.
    concern = CONCERNS.get(item["concern"])
    allowed = concern.models_actions if concern else ()
    return allowed is not None and item["action"] not in allowed
