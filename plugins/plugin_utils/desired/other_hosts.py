# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Variables of other hosts. hostvars has no defaults of roles, so this module adds them."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Dict, Mapping

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


@cache
def _defaults(role: str) -> Dict[str, Any]:
    return dict(own_yaml(os.path.join(COLLECTION, "roles", role, "defaults", "main.yml")))
