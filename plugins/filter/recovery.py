"""Filter recovery: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: recovery
short_description: What has to be done for a host that is ill, and no more
description:
  - Takes what M(npufleet.triton.host_state) has found of C(driver), C(engine), C(models) and C(server), compared with what the
    store links, and says by which steps the host serves again. The first one that helps is the last one that is done.
  - Another driver, container or model is no recovery. What needs one, or hands, is given as C(refused).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The result of M(npufleet.triton.host_state).
    type: dict
    required: true
  answers:
    description: Why the answers to the checks are not proven; empty where they are, or nobody could be asked.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Say what would be done
  ansible.builtin.debug:
    msg: "{{ found | npufleet.triton.recovery('2 of 3 checks failed') }}"
  vars:
    found: {plan: [], actual: {server: {engine: true}}}
"""

RETURN = r"""
_value:
  description: >-
    C(found), a sentence for each thing that is wrong; C(steps), out of V(serve), V(restart) and V(reload), of which none is needed
    on a host that is well; C(refused), what no step of these can put right.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, sentence
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# Start the server and load what it lacks; start it anew; load the driver's module anew below it
STEPS = ["serve", "restart", "reload"]
# What of the cards a module that is loaded anew may find again. The others are missing, of another type or wrongly installed
WEDGED = ("cards", "/dev/rsd0", "/dev/rbln*")
# Another driver, or what is made of it for containers
BY_THE_ROLE = ("install", cdi.INSTALL, cdi.LINK, cdi.GENERATE)
BY_SITE = "that is another driver or container, and no recovery: run playbooks/site.yml"


def recovery(state: Mapping[str, Any], answers: str = "") -> Dict[str, List[str]]:
    """{"found", "steps", "refused"} of one host."""
    found: List[str] = []
    refused: List[str] = []
    needed = -1
    if not (state["actual"].get("server") or {}).get("engine"):
        refused.append("found no engine that answers, wanted one that runs the server: run playbooks/site.yml")
    for entry in state["plan"]:
        concern, name, action = entry["concern"], entry["name"], entry["action"]
        words = host_text.line(sentence(entry))
        if concern == "driver":
            if action in BY_THE_ROLE or (action == INSPECT and name not in (*WEDGED, "reboot")):
                refused.append(f"{words}: " + (BY_SITE if action in BY_THE_ROLE else "see docs/troubleshooting/driver.md"))
            elif name == "module" or action == INSPECT:
                found.append(words)
                needed = STEPS.index("reload")
        elif concern in ("models", "server"):
            if action in ("create", "replace", "write", "key"):
                refused.append(f"{words}: {BY_SITE}")
            else:
                found.append(words)
                needed = max(needed, STEPS.index("serve"))
    if answers:
        found.append(host_text.told(host_text.received(answers)))
        # A server that lacks something has had no chance yet
        needed = max(needed, STEPS.index("restart")) if needed < 0 else needed
    return {"found": found, "steps": [] if refused or needed < 0 else STEPS[needed:], "refused": refused}


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"recovery": recovery}
