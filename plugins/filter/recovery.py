# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: recovery
short_description: Compute the steps that recover a host
description:
  - Returns the steps after which a host serves its current releases again. A recovery ends after the first step that helps.
  - A healthy host with an unfinished drain (concern C(traffic)) needs no step. It still takes part in the rollout, which proves the
    host and sends it requests again.
  - A recovery installs no driver, container or model. C(refused) has the differences that need an installation or an operator.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The result of M(npufleet.triton.host_state).
    type: dict
    required: true
  answers:
    description: The reason why the answers of the server are not proven. Empty if they are proven, or if the server did not run.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the recovery steps
  ansible.builtin.debug:
    msg: "{{ found | npufleet.triton.recovery('2 of 3 checks failed') }}"
  vars:
    found: {plan: [], actual: {server: {engine: true}}}
"""

RETURN = r"""
_value:
  description: >-
    C(found) has a sentence for each difference. C(steps) has some of V(serve), V(restart) and V(reload), and is empty for a healthy
    host. C(refused) has the differences that no step can repair. C(changes) is true if the host takes part in the recovery.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, sentence
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# `serve` starts the server and loads missing models, `restart` restarts the server, `reload` reloads the driver's kernel module.
STEPS = ["serve", "restart", "reload"]
# Differences of the cards that a reload of the kernel module can repair. All other differences of the cards need an operator.
RELOAD_REPAIRS = ("cards", "/dev/rsd0", "/dev/rbln*")
# Actions that change the driver or its files for containers
ROLE_ACTIONS = ("install", cdi.INSTALL, cdi.LINK, cdi.GENERATE)
NEEDS_SITE = "a recovery does not replace drivers or containers: run playbooks/site.yml"


def recovery(state: Mapping[str, Any], answers: str = "") -> Dict[str, Any]:
    """Return {"found", "steps", "refused", "changes"} for one host. RETURN explains the keys."""
    differences: List[str] = []
    refused: List[str] = []
    step_index = -1
    if not (state["actual"].get("server") or {}).get("engine"):
        refused.append("the engine does not answer, expected a running engine: run playbooks/site.yml")
    for entry in state["plan"]:
        concern, name, action = entry["concern"], entry["name"], entry["action"]
        difference = host_text.line(sentence(entry))
        if concern == "driver":
            if action in ROLE_ACTIONS or (action == INSPECT and name not in (*RELOAD_REPAIRS, "reboot")):
                refused.append(f"{difference}: " + (NEEDS_SITE if action in ROLE_ACTIONS else "see docs/troubleshooting/driver.md"))
            elif name == "module" or action == INSPECT:
                differences.append(difference)
                step_index = STEPS.index("reload")
        elif concern in ("models", "server"):
            if action in ("create", "replace", "write", "key"):
                refused.append(f"{difference}: {NEEDS_SITE}")
            else:
                differences.append(difference)
                step_index = max(step_index, STEPS.index("serve"))
    if answers:
        differences.append(host_text.indented(host_text.sanitized(answers)))
        # If there is another difference, the step for this difference can also correct the answers. Otherwise, a restart is needed.
        if step_index < 0:
            step_index = STEPS.index("restart")
    unfinished = [host_text.line(sentence(entry)) for entry in state["plan"] if entry["concern"] == "traffic"]
    steps = [] if refused or step_index < 0 else STEPS[step_index:]
    changes = bool(steps or unfinished) and not refused
    return {"found": [*differences, *unfinished], "steps": steps, "refused": refused, "changes": changes}


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"recovery": recovery}
