#!/usr/bin/python
"""Module triton_model: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_model
short_description: Load or unload a model of a Triton server in explicit mode
description:
  - Asks the server to load or unload one model through its repository API, and gives Triton's own reason when it will not.
  - A load is answered when the model serves; that it is the wanted release is for M(npufleet.triton.host_state) to prove,
    because the server answers 200 also where it saw no reason to reload.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  name:
    description: Name of the model.
    type: str
    required: true
  state:
    description: V(loaded) loads it, or loads it again when its files are newer; V(unloaded) takes it away.
    type: str
    choices: [loaded, unloaded]
    default: loaded
  address:
    description: Address of the server, as the host sees it.
    type: str
    default: 127.0.0.1
  port:
    description: HTTP port of the server.
    type: int
    default: 8000
  timeout:
    description: Seconds that a load may take.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Reports the change and asks the server for nothing.
"""

EXAMPLES = r"""
- name: Load the release that was just switched to
  npufleet.triton.triton_model:
    name: digits
    state: loaded
"""

RETURN = r"""
status:
  description: HTTP status of Triton's answer.
  returned: when the server was asked
  type: int
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.probe import http_json


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["loaded", "unloaded"], "default": "loaded"},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 8000},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    if module.check_mode:
        module.exit_json(changed=True)
    verb = {"loaded": "load", "unloaded": "unload"}[wanted["state"]]
    resource = "/v2/repository/models/{}/{}".format(wanted["name"], verb)
    status, answer = http_json(wanted["address"], wanted["port"], "POST", resource, timeout=float(wanted["timeout"]), body="{}")
    if status != 200:
        reason = answer.get("error") if isinstance(answer, dict) else answer
        module.fail_json(
            msg="model {}: Triton on port {} would not {} it (status {}): {}".format(
                wanted["name"], wanted["port"], verb, status, reason
            ),
            status=status,
        )
    module.exit_json(changed=True, status=status)


if __name__ == "__main__":
    main()
