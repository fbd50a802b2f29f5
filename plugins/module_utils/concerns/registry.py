# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The list of all concerns, in the order in which they are applied. Tests compare other lists of concerns with this list."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import (
    balancer,
    driver,
    engine,
    image,
    metrics,
    models,
    monitoring,
    probe,
    server,
    traffic,
    watchdog,
)
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item

NPU_HOSTS, LOAD_BALANCER_HOSTS, MONITORING_HOSTS = GROUPS = ("npu_hosts", "load_balancer_hosts", "monitoring_hosts")


class HostSide(Protocol):
    """The Python module that implements a concern on the host. Its counterpart on the controller is in plugin_utils/desired."""

    CONCERN: str

    def read(self, desired: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the actual state. This function runs as root, changes nothing, and also works on a new host."""

    def diff(self, desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
        """Return the differences between desired and actual state."""


class Concern(NamedTuple):
    """A part of a host that is planned and applied on its own. It is proven by reading its actual state again."""

    host_side: HostSide
    # The role that applies the concern, and the tags with which site.yml runs the role. The tasks of a host change apply `traffic`.
    role: str
    tags: Tuple[str, ...]
    # The groups of the inventory whose hosts have the concern
    groups: Tuple[str, ...] = (NPU_HOSTS,)
    # The playbooks that read the concern, in addition to site.yml and status.yml
    playbooks: Tuple[str, ...] = ()
    # The actions that models.yml may perform for the concern; None allows every action
    models_actions: Optional[Tuple[str, ...]] = ()
    # The systemd unit whose state is read with the concern
    unit: str = ""
    # True if the desired state can contain secrets. Queries to the host and plans then have digests in place of these secrets.
    sealed: bool = False
    # A function that returns a warning about something that is not in the plan but needs an operator, or None
    warning: Callable[[Mapping[str, Any]], Optional[str]] = lambda _actual: None


# With either of these tags, site.yml applies the models, the server, the watchdog and the probe.
SERVER_TAGS = ("server", "models")
CONCERNS: Dict[str, Concern] = {
    concern.host_side.CONCERN: concern
    for concern in (
        Concern(driver, "rbln_driver", ("driver",), playbooks=("models", "recover")),
        Concern(engine, "docker_engine", ("engine",), playbooks=("recover",), sealed=True),
        Concern(image, "triton_image", ("image",)),
        Concern(models, "model_repository", SERVER_TAGS, playbooks=("models", "recover", "rollback"), models_actions=None),
        Concern(
            server,
            "triton_server",
            SERVER_TAGS,
            playbooks=("models", "recover", "rollback"),
            models_actions=("load", "unload", "restart", "wait", "prove"),
            sealed=True,
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
        Concern(metrics, "monitoring", ("monitoring",), (NPU_HOSTS, LOAD_BALANCER_HOSTS), unit=metrics.TIMER),
        Concern(traffic, "", (), playbooks=("models", "recover", "rollback"), models_actions=None),
        Concern(
            balancer,
            "load_balancer",
            ("balancer",),
            (LOAD_BALANCER_HOSTS,),
            unit=files.UNIT,
            sealed=True,
            warning=balancer.warning,
        ),
        Concern(monitoring, "monitoring", ("monitoring",), (MONITORING_HOSTS,)),
    )
}


def groups_of(inventory_groups: Sequence[str], npu_group: str) -> List[str]:
    """Return the entries of GROUPS to which a host belongs. `npu_group` is the inventory's name of NPU_HOSTS (npufleet_group)."""
    return [group for group in GROUPS if (npu_group if group == NPU_HOSTS else group) in inventory_groups]


def concerns_of(inventory_groups: Sequence[str], npu_group: str) -> List[str]:
    """Return the concerns of a host that is in these inventory groups. `npu_group` is as in groups_of."""
    groups = groups_of(inventory_groups, npu_group)
    return [name for name, concern in CONCERNS.items() if any(group in groups for group in concern.groups)]


def needs_site(item: Item) -> bool:
    """Return True if only site.yml may perform the action of a difference, and models.yml must not."""
    # The plan comes from a host, so it may name a concern that is not in CONCERNS.
    concern = CONCERNS.get(item["concern"])
    allowed = concern.models_actions if concern else ()
    return allowed is not None and item["action"] not in allowed
