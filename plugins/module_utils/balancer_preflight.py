# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The preflight of a load balancer on its host: the reasons why its plan cannot be applied."""

from __future__ import annotations

import re
from typing import Any, Iterator, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.balancer import CONCERN
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import listeners
from ansible_collections.npufleet.triton.plugins.module_utils.system import bind_error

# The process of the balancer itself, as preflight.listeners describes it
_HAPROXY = re.compile(r"process \d+ \(haproxy\)")


def refusals(desired: Mapping[str, Any], actual: Mapping[str, Any], plan: List[Item]) -> List[str]:
    """Return every reason why a plan cannot be applied, or an empty list if the plan does not change the balancer."""
    if not any(entry["concern"] == CONCERN for entry in plan):
        return []
    foreign_config = (
        f"{files.CONFIG} is a configuration of the site, expected no file or the default of the package, because the role owns "
        "this file. Move it away, or use other hosts in load_balancer_hosts"
    )
    return [*([foreign_config] if actual["owner"] == "site" else []), *_listeners(desired, actual)]


def _listeners(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each address that the host does not have, and for each port that another process uses."""
    missing_addresses = set()
    for address, port, variable in desired["listens"]:
        name = "load_balancer_bind" if variable != "load_balancer_metrics_address" else variable
        why = bind_error(address)
        if why and address not in missing_addresses:
            missing_addresses.add(address)
            yield f"{name} has {address}, expected an address of this host ({why}). Correct it, or set net.ipv4.ip_nonlocal_bind"
        user = "" if why else listeners(address).get(port, "")
        if user and not (actual["owner"] == "npufleet" and _HAPROXY.fullmatch(user)):
            yield f"port {port} is taken by {user}, expected it free for the load balancer. Stop it, or set another {variable}"
