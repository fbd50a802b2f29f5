#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: balancer_server
short_description: Drain or undrain a server of a load balancer
description:
  - Drains a server of the HAProxy that the role C(load_balancer) has configured, makes it ready again, or sets its weight. Run the
    module on the balancer.
  - A drained server finishes its requests and streams in flight, and gets no new requests. HTTP and gRPC are drained together.
  - Records who drained the server and why. Drains survive reloads and restarts of HAProxy.
  - Fails if HAProxy does not have the desired state afterwards.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.balancer
options:
  name:
    description: Name of the server, which is the name of its host in the inventory.
    type: str
    required: true
  state:
    description:
      - V(drained) drains the server. V(ready) makes it ready, also after HAProxy's own maintenance state or a weight of 0.
      - Without this option, only the weight is set.
    type: str
    choices: [ready, drained]
  weight:
    description:
      - Weight of the server, from 1 to 256. HAProxy distributes new requests in proportion to the weights. The role sets 100.
      - With O(state=ready), the weight is set before the server becomes ready.
    type: int
  kind:
    description:
      - Kind of the owner of a drain. The order from low to high is V(rollout), V(maintenance), V(operator).
      - O(state=ready) undrains a server if the kind of its drain is the same or lower. O(state=drained) takes over such a drain.
      - A drain of a higher kind keeps its owner. The server then stays drained, and RV(kept) is true.
      - A server that was drained directly on the runtime socket of HAProxy has no record, and counts as drained by an operator.
    type: str
    choices: [rollout, maintenance, operator]
    default: operator
  run:
    description: ID of the run that drains the server, for the record. The action plugin sets this option.
    type: str
    default: ""
  by:
    description: Person who drains the server, for the record. The action plugin sets this option.
    type: str
    default: unknown
  reason:
    description: Reason of the drain, for the record.
    type: str
    default: ""
  wait:
    description:
      - Longest time in seconds that O(state=drained) waits until no request or stream of the server is in flight. Requests in old
        workers (see O(master_socket)) also count as in flight.
    type: int
    default: 0
  close:
    description:
      - Close the requests and streams that are in flight after O(wait) seconds. Otherwise, a bidirectional stream stays in flight
        as long as its client keeps it open.
    type: bool
    default: false
  allow_outage:
    description: Drain the server even if no other server is ready and up.
    type: bool
    default: false
  up_within:
    description:
      - Longest time in seconds that O(state=ready) waits for new health checks of the server. If they do not pass, the task fails,
        and the server stays drained.
      - With V(0), the server becomes ready at once, even if its last health check is older than its last change.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
    description: Changes nothing, and waits for nothing.
  diff_mode:
    support: full
    description: Shows state, weight and owner.
"""

EXAMPLES = r"""
- name: Drain the host on each balancer, and close the remaining requests after two minutes
  npufleet.triton.balancer_server:
    name: "{{ inventory_hostname }}"
    state: drained
    kind: maintenance
    reason: New memory
    wait: 120
    close: true
  delegate_to: "{{ balancer }}"
  loop: "{{ groups['load_balancer_hosts'] }}"
  loop_control:
    loop_var: balancer

- name: Send a tenth of the usual requests to the host when its health checks pass
  npufleet.triton.balancer_server:
    name: "{{ inventory_hostname }}"
    state: ready
    weight: 10
    up_within: 60
  delegate_to: lb1
"""

RETURN = r"""
server:
  description: >-
    The server after the call, in the form of RV(npufleet.triton.balancer_info#module:servers) without counters and traffic. In
    check mode, the server as the call would leave it.
  returned: success
  type: dict
kept:
  description: True if the drain keeps its owner, because that owner has a higher kind (see O(kind)). The server stays drained.
  returned: success
  type: bool
in_flight:
  description: Requests and streams that were in flight when the server was drained.
  returned: success
  type: int
closed:
  description: Number of requests and streams that were closed.
  returned: success
  type: int
waited:
  description: Seconds until nothing was in flight, or until the remaining requests were closed.
  returned: success
  type: float
"""

from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import change, runtime
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer

OPTIONS: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["ready", "drained"]},
    "weight": {"type": "int"},
    "kind": {"type": "str", "choices": ["rollout", "maintenance", "operator"], "default": "operator"},
    "run": {"type": "str", "default": ""},
    "by": {"type": "str", "default": "unknown"},
    "reason": {"type": "str", "default": ""},
    "wait": {"type": "int", "default": 0},
    "close": {"type": "bool", "default": False},
    "allow_outage": {"type": "bool", "default": False},
    "up_within": {"type": "int", "default": 0},
    "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
    "master_socket": {"type": "path", "default": "/run/haproxy-master.sock"},
    "directory": {"type": "path", "default": "/var/lib/npufleet-balancer"},
}
# Name of the balancer in the inventory, for messages
REQUEST = {"host": {"type": "str", "default": "the balancer"}}
# Smallest and largest weight. 256 is the limit of HAProxy. A server with a weight of 0 would get no requests.
WEIGHT_RANGE = (1, 256)
# Longest wait in seconds. The connection of Ansible has to stay open during the wait.
MAX_WAIT = 86400


def flaw(params: Mapping[str, Any]) -> str:
    """Return the reason why the options are invalid, or "" for valid options."""
    weight = params["weight"]
    if weight is not None and not WEIGHT_RANGE[0] <= weight <= WEIGHT_RANGE[1]:
        return "weight is {}, expected {} to {}. Use state=drained to send no requests".format(weight, *WEIGHT_RANGE)
    for name, state in (("wait", "drained"), ("up_within", "ready")):
        if not 0 <= params[name] <= MAX_WAIT:
            return f"{name} is {params[name]}, expected 0 to {MAX_WAIT}"
        if params[name] and params["state"] != state:
            return f"{name} is {params[name]}, expected 0 unless state={state}"
    if params["close"] and params["state"] != "drained":
        return "close is true, expected false unless state=drained"
    return "" if params["state"] or weight is not None else "neither state nor weight is set, expected one of them"


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    reason = flaw(params)
    if reason:
        module.fail_json(msg="{}: {}: {}".format(params["host"], params["name"], reason))
    desired = change.Desired(**{field: params[field] for field in change.Desired._fields})
    balancer = Balancer(params["socket"], params["master_socket"])
    try:
        result = change.Change(balancer, params["directory"], desired, module.check_mode, module.warn).apply()
    except runtime.BalancerError as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))
    before, after = ({field: result[name][field] for field in ("state", "weight", "drained")} for name in ("before", "server"))
    diff = {"diff": {"before": before, "after": after}} if module._diff else {}
    module.exit_json(**{name: value for name, value in result.items() if name != "before"}, **diff)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
