# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The summary of a run: the number of hosts in each state, and one reason for each refused, failed or unreachable host.

This module runs only on the controller and imports nothing of ansible-core.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import count_of, short
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# The prefix that Ansible adds to the message of a failed task
PREFIX = re.compile(r"^((Task|Action|Module) failed: )+")
# The most characters of a reason
MAX_REASON = 300


def by_sentence(sentences: Mapping[str, Sequence[str]], total: Optional[int] = None) -> List[str]:
    """Return one line for each sentence with its hosts. The sentences keep the order in which they first appear.

    `total` is the number of all hosts. The default is the number of hosts in `sentences`.
    """
    hosts: Dict[str, List[str]] = {}
    for host, host_sentences in sentences.items():
        for sentence in host_sentences:
            hosts.setdefault(sentence, []).append(host)
    count = total or len(sentences)
    return [f"  - {'every host' if len(names) == count > 1 else ', '.join(names)}: {sentence}" for sentence, names in hosts.items()]


def reason(host: str, result: Mapping[str, Any]) -> str:
    """Return the reason of a failed result in one line. Two hosts with the same failure have the same reason."""
    items = [item for item in result.get("results") or [] if isinstance(item, Mapping) and item.get("failed")]
    messages = list(dict.fromkeys(str(item.get("msg") or "") for item in [*items, result]))
    text = host_text.line(next(filter(None, messages), "") or "the task has no message, see above")
    name = rf"(?<![\w.-]){re.escape(host)}(?![\w-])"
    text = re.sub(rf"{name}: ?", "", PREFIX.sub("", text))
    return short(re.sub(name, "<host>", re.sub(rf"^{name} ", "", text)), MAX_REASON)


class Summary:
    """The results of a run, recorded while the run continues."""

    def __init__(self) -> None:
        self._reasons: Dict[str, str] = {}
        self._refusals: Dict[str, List[str]] = {}
        self._plans: Dict[str, List[Tuple[str, str]]] = {}
        self._maintenance: Set[str] = set()
        self._run_failures: List[str] = []

    def read(self, host: str, state: Mapping[str, Any]) -> None:
        """Record a result of host_state. Of the plans of a host, only the first is recorded, because the run applies it."""
        self._refusals[host] = [str(refusal) for refusal in state.get("refusals") or []]
        # The plan comes from the host, which can send anything.
        items = [item for item in state.get("plan") or [] if isinstance(item, Mapping)]
        self._plans.setdefault(host, [(short(item.get("concern")), short(item.get("action"))) for item in items])
        if state.get("maintenance"):
            self._maintenance.add(host)

    def failed(self, host: str, result: Mapping[str, Any], for_all: bool = False) -> None:
        """Record a failure. The last failure is the reason of the host. With `for_all`, the failure ended the whole run."""
        if for_all:
            self._run_failures.append(reason(host, {"msg": str(result.get("msg") or "").partition("\n")[0].rstrip(":")}))
        else:
            self._reasons[host] = reason(host, result)

    def lines(
        self, hosts: Sequence[str], changed: Collection[str], failed: Collection[str], unreachable: Collection[str], plan: bool
    ) -> List[str]:
        """Return the summary. If `plan` is true, the summary has the totals of the plan, and no host counts as changed."""
        states = {host: self._state(host, () if plan else changed, failed, unreachable) for host in hosts}
        counts = Counter(states.values())
        order = ("ok", "changed", "in maintenance", "refused", "failed", "unreachable")
        texts = [f"{counts[state]} {state}" for state in order if counts[state]]
        lines = [f"the run ended early: {text}" for text in dict.fromkeys(self._run_failures)]
        lines.append(f"{count_of(len(hosts), 'host')}: {', '.join(texts)}")
        if plan:
            lines.append(self._totals(hosts))
        bad = {host: [self._reason(host, state)] for host, state in states.items() if state in order[3:]}
        return [*lines, *by_sentence(bad, len(hosts))]

    def _state(self, host: str, changed: Collection[str], failed: Collection[str], unreachable: Collection[str]) -> str:
        if host in unreachable:
            return "unreachable"
        if self._run_failures and self._refusals.get(host):
            return "refused"
        # If a failure ends the whole run, Ansible counts one host as failed, although this host has no failure of its own.
        if host in failed and (host in self._reasons or not self._run_failures):
            return "failed"
        if host in self._maintenance:
            return "in maintenance"
        return "changed" if host in changed else "ok"

    def _reason(self, host: str, state: str) -> str:
        if state == "refused":
            reasons = self._refusals[host]
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            return reason(host, {"msg": reasons[0]}) + more
        text = self._reasons.get(host, "see the failed task above")
        return f"unreachable: {text}" if state == "unreachable" else text

    def _totals(self, hosts: Sequence[str]) -> str:
        """Return the totals of the plan: the number of hosts, and for each concern and action the number of differences."""
        plans = {host: self._plans.get(host, []) for host in hosts if host not in self._maintenance}
        changing = [host for host, items in plans.items() if items]
        counts = Counter(item for host in changing for item in plans[host])
        if not counts:
            return "plan: no host would change"
        texts = ", ".join(f"{concern} {action} {count}" for (concern, action), count in sorted(counts.items()))
        return f"plan: {count_of(sum(counts.values()), 'difference')} on {count_of(len(changing), 'host')}: {texts}"
