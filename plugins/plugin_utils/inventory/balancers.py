# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The comparison of settings that must be equal on all load balancers of a fleet, because clients can use each of them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import LOAD_BALANCER_HOSTS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs

# The variables that must be equal on all balancers
COMMON_VARIABLES = (
    "load_balancer_pool",
    "load_balancer_http_port",
    "load_balancer_grpc_port",
    "load_balancer_users",
    "load_balancer_client_ca",
    "load_balancer_trace_context",
    "load_balancer_check_model",
    "load_balancer_check_body",
    "load_balancer_check_expect",
    "load_balancer_check_interval",
    "load_balancer_check_timeout",
    "load_balancer_stream_timeout",
)
# Variables that must be set on all balancers or on no balancer. Their values can differ.
SET_ON_ALL = ("load_balancer_tls_certificate",)
# Variables whose values are not shown
SECRET_VARIABLES = ("load_balancer_users",)


def differences(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield one reason with all differences between the load balancers. On any other host, yield nothing."""
    balancers = (variables["groups"] or {}).get(LOAD_BALANCER_HOSTS, [])
    if variables["inventory_hostname"] not in balancers or len(balancers) < 2:
        return
    parts: List[str] = []
    for name in (*COMMON_VARIABLES, *SET_ON_ALL):
        default = variables["npufleet_group"] if name == "load_balancer_pool" else inventory_specs()[name].get("default")
        by_value: Dict[str, List[str]] = {}
        for host in balancers:
            value = variables["hostvars"][host].get(name, default)
            by_value.setdefault(str(bool(value) if name in SET_ON_ALL else value), []).append(host)
        if len(by_value) > 1:
            texts = {value: "one value" if name in SECRET_VARIABLES else short(value, 60) or "empty" for value in by_value}
            parts.append(f"{name} is " + " and ".join(f"{texts[value]} on {', '.join(hosts)}" for value, hosts in by_value.items()))
    if parts:
        yield f"{'; '.join(parts)}, expected equal values on all load balancers. Set them for the group {LOAD_BALANCER_HOSTS}."
