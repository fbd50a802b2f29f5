# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The drained servers of a load balancer as metrics.

HAProxy reports which servers are drained. The records of the drains show who drained a server, and since when.
"""

from __future__ import annotations

from typing import Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import READY, Server
from ansible_collections.npufleet.triton.plugins.module_utils.system import seconds_since_1970
from ansible_collections.npufleet.triton.plugins.module_utils.textfile import Families

HELP = {
    "npufleet_balancer_drained_since_timestamp_seconds": "Time at which the drain of a server of the load balancer began.",
    "npufleet_balancer_server_drained": "1 for each drained server of the load balancer, with the kind of its drain.",
}


def families(servers: Mapping[str, Server], records: Mapping[str, Mapping[str, str]]) -> Families:
    """Return the metrics of the servers that get no new requests. `records` is {server: record of its drain}.

    A server without a record was drained by an operator on the runtime socket, at an unknown time.
    """
    found: Families = {name: [] for name in HELP}
    for name, server in servers.items():
        if server.state == READY:
            continue
        record = records.get(name)
        labels: Dict[str, str] = {"server": name, "kind": record["kind"] if record else drains.KINDS[-1]}
        found["npufleet_balancer_server_drained"].append((labels, 1))
        since = seconds_since_1970(record["since"]) if record else None
        if since is not None:
            found["npufleet_balancer_drained_since_timestamp_seconds"].append((labels, since))
    return found
