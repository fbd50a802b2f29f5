#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: balancer_info
short_description: Read the servers of a load balancer and their traffic
description:
  - Reads the servers of the HAProxy that the role C(load_balancer) has configured. Run the module on the balancer.
  - With O(since), the module also counts the requests that finished since that time, by server and protocol. HAProxy keeps one
    line for each finished request in its memory.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.balancer
  - npufleet.triton.project.reader
options:
  since:
    description: Start of the window in seconds since 1970, by the clock of the balancer.
    type: float
  config:
    description: Path of HAProxy's configuration file. RV(config) returns its digest.
    type: path
    default: /etc/haproxy/haproxy.cfg
"""

EXAMPLES = r"""
- name: Read the balancer at the start of the window
  npufleet.triton.balancer_info:
  register: start

- name: Read the traffic since then
  npufleet.triton.balancer_info:
    since: "{{ start.now }}"
  register: traffic
"""

RETURN = r"""
now:
  description: >-
    End of the windows in seconds since 1970, by the clock of the balancer. The end is 50 ms before the call, because HAProxy can
    still be writing lines about the last moments.
  returned: success
  type: float
running:
  description: Whether HAProxy answers. If not, RV(servers) is empty, and the other values are null or not returned.
  returned: success
  type: bool
reason:
  description: Reason why HAProxy does not answer. Null if HAProxy answers.
  returned: success
  type: str
process:
  description: The current worker of HAProxy, as C(pid) and C(started) (seconds since 1970).
  returned: success
  type: dict
version:
  description: Version of HAProxy.
  returned: success
  type: str
config:
  description: SHA-256 of O(config). Null if the file cannot be read.
  returned: success
  type: str
records_flaw:
  description: Reason why the file with the records of drains counts as damaged. Null for a good or missing file.
  returned: success
  type: str
servers:
  description:
    - The servers by name. Empty if the configuration of HAProxy is not from the role C(load_balancer).
    - C(state) is V(ready), V(drained) or V(maintenance). A server with a weight of 0 counts as V(drained).
    - C(weight) is the weight. C(health) is V(up) or V(down) by the last health checks, or V(unknown) for a server without checks.
    - C(in_flight) is the number of requests and streams in flight, of both protocols and in all workers of HAProxy.
    - C(drained) has C(kind), C(by), C(run), C(reason) and C(since) (UTC) of the drain. It is null for a ready server, and for a
      server that was drained directly on the runtime socket.
    - C(counters) has HAProxy's counters for C(http) and for C(grpc) since the current worker started. The counters are
      C(requests), C(responses_4xx), C(responses_5xx), C(connection_errors), C(response_errors), C(client_aborts) and
      C(server_aborts).
    - With O(since), C(traffic) has one window for C(http) and one for C(grpc). A window counts finished inference requests.
    - In a window, C(requests) is the number of requests, and C(streams) is the number of streams among them. C(other) has the
      C(requests) and C(failed) of all calls that are no inference requests.
    - In a window, C(failed) is the number of failed requests by kind. The kinds are C(4xx), C(5xx), C(connect) (no connection to
      the server), C(aborted) (the server closed the connection or was silent), C(grpc) (a gRPC status other than 0 in the headers),
      C(client) (the client gave up) and C(closed) (a drain closed the request).
    - In a window, C(latency) is a histogram of the successful requests that are not streams. Its keys are upper bounds of the
      latency in ms, and its values are numbers of requests. C(by_model) has the same numbers for each model, of HTTP requests only.
  returned: success
  type: dict
unserved:
  description: With O(since), one window for C(http) and one for C(grpc). They count the requests that no server received.
  returned: with O(since), if HAProxy runs
  type: dict
complete:
  description: >-
    Whether the windows have all requests that finished since O(since). False if the current worker started after O(since), or if
    the memory for finished requests was too small.
  returned: with O(since), if HAProxy runs
  type: bool
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import report, runtime
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer

OPTIONS: Dict[str, Any] = {
    "since": {"type": "float"},
    "config": {"type": "path", "default": "/etc/haproxy/haproxy.cfg"},
    "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
    "master_socket": {"type": "path", "default": "/run/haproxy-master.sock"},
    "directory": {"type": "path", "default": "/var/lib/npufleet-balancer"},
}
# Name of the balancer in the inventory, for messages
REQUEST = {"host": {"type": "str", "default": "the balancer"}}


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    balancer = Balancer(params["socket"], params["master_socket"])
    try:
        result = report.read(balancer, params["directory"], params["config"], params["since"])
    except runtime.BalancerError as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))
    module.exit_json(changed=False, **result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
