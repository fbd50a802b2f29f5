# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The result of balancer_info: the state of a balancer, and its traffic since a given time."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import change, drains, runtime, traffic
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BACKENDS, BalancerError
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer

# HAProxy writes the line of a request shortly after the request has ended. So a window (the time in which traffic is counted) ends
# this many seconds before the lines are read. The next window starts at the end of the last window, so that every request is
# counted exactly once.
MARGIN = 0.05


def read(balancer: Balancer, home: str, config: str, since: Optional[float]) -> Dict[str, Any]:
    """Return the result of balancer_info. Raises BalancerError."""
    now = time.time() - MARGIN
    try:
        current = runtime.process(balancer.runtime)
    except runtime.NotRunning as error:
        unknown = dict.fromkeys(("process", "version", "records_flaw"))
        return {"now": now, "running": False, "reason": str(error), **unknown, "config": config_digest(config), "servers": {}}
    servers, old = balancer.servers(), balancer.old_in_flight()
    rows = runtime.by_protocol(runtime.parse_stat(balancer.runtime.command("show stat")))
    records = drains.read(home)
    no_counts = dict.fromkeys(runtime.COUNTERS, 0)
    found: Dict[str, Any] = {}
    for name, server in servers.items():
        described = change.describe(server, server.in_flight + old.get(name, 0), records.by_server.get(name))
        # HAProxy may have been reloaded since the first answer, so a server can be missing in this one.
        counters = {protocol: rows[protocol][name].counters if name in rows[protocol] else no_counts for protocol in BACKENDS}
        found[name] = {**described, "counters": counters}
    result: Dict[str, Any] = {
        "now": now,
        "running": True,
        "reason": None,
        "process": {"pid": current.pid, "started": current.started},
        "version": current.version,
        "config": config_digest(config),
        "records_flaw": records.flaw,
        "servers": found,
    }
    if since is not None:
        # Without a server of this project, HAProxy runs another configuration, which has no ring (traffic.RING).
        requests, complete = _requests(balancer, current, since, now) if found else ([], False)
        windows = traffic.window(requests)
        for name, entry in found.items():
            entry["traffic"] = {protocol: windows.get(name, {}).get(protocol, traffic.empty()) for protocol in BACKENDS}
        unserved = windows.get(traffic.NO_SERVER, {})
        result["unserved"] = {protocol: unserved.get(protocol, traffic.empty()) for protocol in BACKENDS}
        result["complete"] = complete
    return result


def config_digest(path: str) -> Optional[str]:
    """Return the SHA-256 of the configuration, or None if it cannot be read."""
    try:
        with open(path, "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return None


def _requests(balancer: Balancer, current: runtime.ProcessInfo, since: float, until: float) -> Tuple[List[traffic.Request], bool]:
    """Return the requests that finished from `since` until `until` in all workers, and True if no request is missing."""
    requests: List[traffic.Request] = []
    # If HAProxy was reloaded after `since`, the ring of an ended worker is lost.
    complete = current.started <= since
    for worker in [balancer.runtime, *balancer.old_workers()]:
        answer = worker.command(f"show events {traffic.RING}")
        if answer.startswith("No such event sink"):
            raise BalancerError(f"HAProxy has no ring {traffic.RING}, expected the configuration of the role load_balancer")
        if not runtime.is_gone(answer):
            ring = traffic.parse_ring(answer, since, until)
            requests += ring.requests
            complete = complete and ring.covers
    return requests, complete
