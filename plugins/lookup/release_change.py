# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: release_change
short_description: Changes of a host under another release row
description:
  - Returns what changes on a host if C(rbln_release) names another release row (of C(files/releases.yml)) than the row that the
    host runs now.
  - The changes concern versions, models that need another compiled file, driver, image, units, clients and exporters, cards and
    systems that are no longer supported, and known vulnerabilities.
  - The variable C(npufleet_state) must have the result of M(npufleet.triton.host_state) with
    O(npufleet.triton.host_state#module:preflight) under the new row. Its C(refusals) are the reasons against the change.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: The row in the inventory, or an empty text. It is current if the server does not report the row of its image.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Compute the changes of the host
  ansible.builtin.set_fact:
    changes: "{{ lookup('npufleet.triton.release_change', '26.05') }}"
"""

RETURN = r"""
_raw:
  description: One list of sentences. If the new row does not exist, the list is empty, and C(refusals) names the missing row.
  type: list
  elements: list
"""

from contextlib import suppress
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import host_variables
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import release_change
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text


class LookupModule(LookupBase):
    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[List[str]]:
        task_vars = variables or {}
        host, state = task_vars["inventory_hostname"], task_vars["npufleet_state"]
        try:
            host_vars = host_variables(self._templar, task_vars)
            rows, name = host_vars["npufleet_release_rows"], str(host_vars.get("rbln_release"))
            if name not in rows:
                return [[]]
            with host_text.rejecting_invalid_answers(host):
                label = (state["actual"].get("server") or {}).get("release")
                old = release_change.current_release(host_text.line(label) if label else None, terms[0], name, rows)
                new = release_change.Release(name, rows[name])
                sentences = list(release_change.row_changes(old, new))
                # Preflight has already reported an invalid variable as a refusal.
                with suppress(Refusal, AnsibleUndefinedVariable):
                    sentences += release_change.host_changes(host_vars, state, old, new)
                return [[host_text.line(sentence) for sentence in sentences]]
        except (Refusal, host_text.InvalidAnswer) as reason:
            raise AnsibleError(f"{host}: {reason}") from None
