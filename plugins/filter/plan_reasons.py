# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Filter plan_reasons: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_reasons
short_description: Collect the reasons to refuse a run, by host
description:
  - Returns the reasons of each host of a play, for P(npufleet.triton.refusal_table#filter).
  - A host has reasons if M(npufleet.triton.host_state) has returned reasons, if its plan failed, or if it has no plan. A host in
    maintenance has no reasons. An unreachable host is left out.
  - If the hosts to change have different values of C(npufleet_rollout_serial), each of these hosts has a reason.
  - A host with C(npufleet_rollout_pause=confirm) has a reason if there are several batches and the run has no terminal.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: All hosts of the play (C(ansible_play_hosts_all)).
    type: list
    elements: str
    required: true
  remaining:
    description: The hosts of the play that have not failed (C(ansible_play_hosts)).
    type: list
    elements: str
    required: true
  hostvars:
    description: The variables of the hosts (C(hostvars)).
    type: dict
    required: true
  result:
    description: Name of the variable that has the plan.
    type: str
    default: npufleet_state
"""

EXAMPLES = r"""
- name: Refuse the run and list the reasons of each host
  ansible.builtin.fail:
    msg: "{{ reasons | npufleet.triton.refusal_table }}"
  vars:
    reasons: "{{ ansible_play_hosts_all | npufleet.triton.plan_reasons(ansible_play_hosts, hostvars) }}"
  when: reasons.values() is any
  run_once: true
"""

RETURN = r"""
_value:
  description: Reasons by host. The list of a host without a reason is empty.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, rollout, runs

NO_PLAN = "the plan is missing. See the failed task above, and run again"


def plan_reasons(
    hosts: Sequence[str], remaining: Sequence[str], hostvars: Mapping[str, Any], result: str = "npufleet_state"
) -> Dict[str, List[str]]:
    """Return {host: reasons} for the hosts that were reachable."""
    reasons_by_host: Dict[str, List[str]] = {}
    serials: Dict[str, Sequence[rollout.Size]] = {}
    for host in hosts:
        state = hostvars[host].get(result)
        reasons = _reasons(state, host in remaining)
        if reasons == [NO_PLAN]:
            reasons = [why for _host, why in run_guard.STEPS.lost([host])] or reasons
        if reasons is None:
            continue
        reasons_by_host[host] = reasons
        if isinstance(state, Mapping) and state.get("serial") and state.get("moves", state.get("plan")):
            serials[host] = state["serial"]
    confirmed = [host for host in serials if hostvars[host][result].get("pause") == rollout.CONFIRM]
    try:
        batches = rollout.batches(list(serials), rollout.common_serial(serials))
    except Refusal as refusal:
        for host in serials:
            reasons_by_host[host] += refusal.reasons
    else:
        if confirmed and len(batches) > 1 and not runs.has_terminal():
            for host in confirmed:
                reasons_by_host[host].append(rollout.NO_TERMINAL)
    return reasons_by_host


def _reasons(state: Any, remaining: bool) -> Optional[List[str]]:
    """Return the reasons of one host, or None if the host was unreachable."""
    if not isinstance(state, Mapping):
        return [NO_PLAN]
    if state.get("unreachable"):
        return None
    if state.get("maintenance"):
        # The run does not change a host in maintenance. So the host needs no plan, even if it has left the play.
        return []
    reasons = [str(reason) for reason in state.get("refusals") or []]
    if isinstance(state.get("timedout"), Mapping) and not reasons:
        limit = state["timedout"].get("period")
        reasons.append(
            f"the query has no answer within {limit} s (npufleet_query_timeout). Check the host for a driver or disk that hangs, "
            "or exclude it with --limit"
        )
    if state.get("failed") and not reasons:
        reasons.append(host_text.line(state.get("msg") or NO_PLAN))
    return reasons if reasons or remaining else [NO_PLAN]


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"plan_reasons": plan_reasons}
