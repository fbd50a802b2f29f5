# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: refusal_table
short_description: Render the reasons to refuse a run as one text
description:
  - Returns a heading, and one line for each reason. A reason appears once, after the names of its hosts.
  - A host has reasons if M(npufleet.triton.host_state) has returned reasons, if its plan failed, or if it has no plan. The plan is
    in the variable C(npufleet_state). A host in maintenance has no reasons. An unreachable host is left out.
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
"""

EXAMPLES = r"""
- name: Refuse the run and list the reasons of each host
  ansible.builtin.fail:
    msg: "{{ reasons }}"
  vars:
    reasons: "{{ ansible_play_hosts_all | npufleet.triton.refusal_table(ansible_play_hosts, hostvars) }}"
  when: reasons | length > 0
  run_once: true
"""

RETURN = r"""
_value:
  description: The text. It is empty if no host has a reason.
  type: str
"""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.filter.by_host import by_host
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, rollout, runs

NO_PLAN = "the plan is missing. See the failed task above, and run again"


def refusal_table(hosts: Sequence[str], remaining: Sequence[str], hostvars: Mapping[str, Any]) -> str:
    """Return the table of the reasons of all hosts that were reachable."""
    states = {host: hostvars[host].get("npufleet_state") for host in hosts}
    reasons_by_host: Dict[str, List[str]] = {}
    serials: Dict[str, Sequence[rollout.Size]] = {}
    for host, state in states.items():
        reasons = _reasons(state, host in remaining)
        if reasons == [NO_PLAN]:
            reasons = [why for _host, why in run_guard.STEPS.lost([host])] or reasons
        if reasons is None:
            continue
        reasons_by_host[host] = reasons
        if isinstance(state, Mapping) and state.get("serial") and state.get("moves", state.get("plan")):
            serials[host] = state["serial"]
    try:
        batches = rollout.batches(list(serials), rollout.common_serial(serials))
    except Refusal as refusal:
        for host in serials:
            reasons_by_host[host] += refusal.reasons
    else:
        for host in serials:
            if states[host].get("pause") == rollout.CONFIRM and len(batches) > 1 and not runs.has_terminal():
                reasons_by_host[host].append(rollout.NO_TERMINAL)
    return table(reasons_by_host)


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


def table(reasons: Mapping[str, List[str]]) -> str:
    """Return a heading, and one line for each reason with its hosts. The reasons keep the order in which they first appear."""
    refused = [host for host, host_reasons in reasons.items() if host_reasons]
    if not refused:
        return ""
    reason_count = len({reason for host_reasons in reasons.values() for reason in host_reasons})
    count = "1 reason" if reason_count == 1 else f"{reason_count} reasons"
    return f"{len(refused)} of {len(reasons)} hosts refused, {count}, nothing was changed:\n{by_host(reasons)}"


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"refusal_table": refusal_table}
