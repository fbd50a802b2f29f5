# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Variables and addresses of other hosts. hostvars has no defaults of roles, so this module adds them."""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from typing import Any, Dict, Mapping, Optional, Union

from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, own_yaml

# {variable: the role that has the default of this variable}
ROLES = {
    "npufleet_http_port": "common",
    "npufleet_grpc_port": "common",
    "npufleet_metrics_port": "common",
    "triton_server_metrics_listen_address": "triton_server",
    "load_balancer_metrics_address": "load_balancer",
}


def variable_of(variables: Mapping[str, Any], host: str, name: str) -> Any:
    """Return the value of a variable in ROLES for any host: the value that the host sets, or the default of the role."""
    value = variables["hostvars"][host].get(name)
    return _defaults(ROLES[name])[name] if value is None else value


def address_of(variables: Mapping[str, Any], host: str) -> str:
    """Return the address at which other hosts reach a host: its npufleet_address, its ansible_host, or its name."""
    facts = variables["hostvars"][host]
    return str(facts.get("npufleet_address") or facts.get("ansible_host") or host).strip("[]")


def parsed_ip(text: str) -> Optional[Union[ipaddress.IPv4Address, ipaddress.IPv6Address]]:
    """Return the IP address in a text without brackets, or None for any other text."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


@cache
def _defaults(role: str) -> Dict[str, Any]:
    return dict(own_yaml(os.path.join(COLLECTION, "roles", role, "defaults", "main.yml")))
