# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: judge
short_description: Judge the change of a host by the requests of clients
description:
  - Compares the requests of clients on a changed host during a period, the window, with a reference. The reference is the requests
    on the unchanged hosts of the same load balancers in the same window. If these are too few, the reference is the requests on the
    changed host before its drain.
  - The change is bad if a larger share of the requests fails than in the reference, or if the median or the 90 % quantile of the
    latency is clearly higher. It is also bad if Triton counts more failures of a model, or if requests for a model stay in the
    queue.
  - Requests that clients cancel do not count. Errors from 400 to 499 count only for models that answered before the change.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: Results of M(npufleet.triton.balancer_info) about the window, one for each load balancer.
    type: list
    elements: dict
    required: true
  host:
    description: Inventory name of the changed host.
    type: str
    required: true
  batch:
    description: The hosts that change together. Their requests are no reference.
    type: list
    elements: str
    required: true
  needed:
    description: Number of requests that a verdict needs.
    type: int
    required: true
  before:
    description: Results of M(npufleet.triton.balancer_info) about the window before the host was drained.
    type: list
    elements: dict
    default: []
  counters:
    description: Results of M(npufleet.triton.triton_requests) before the change, and at the beginning and the end of the window.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Judge the change of the host
  ansible.builtin.debug:
    msg: "{{ (windows | npufleet.triton.judge(inventory_hostname, ansible_play_batch, 100)).text }}"
"""

RETURN = r"""
_value:
  description: C(verdict), which is V(good), V(bad) or V(not judged), its reason as C(text), and the compared C(numbers).
  type: dict
"""

import json
from typing import Any, Callable, Dict, List, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout.judge import InvalidWindow, verdict_of_host


def judge(
    windows: Sequence[Any], host: str, batch: Sequence[str], needed: int, before: Sequence[Any] = (), counters: Sequence[Any] = ()
) -> Dict[str, Any]:
    """Return the verdict as a dict. Raises AnsibleFilterError if a result has an unexpected shape."""
    try:
        verdict = verdict_of_host(_plain(windows), str(host), list(batch), int(needed), _plain(before), _plain(counters))
    except InvalidWindow as error:
        raise AnsibleFilterError(
            f"{host}: the requests of clients cannot be judged: {error}. See `systemctl status haproxy`"
        ) from None
    return verdict._asdict()


def _plain(results: Sequence[Any]) -> List[Any]:
    """Return the data with plain types. Ansible adds its tags to data through subclasses of these types."""
    plain: List[Any] = json.loads(json.dumps(list(results)))
    return plain


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"judge": judge}
