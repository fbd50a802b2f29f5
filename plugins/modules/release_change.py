#!/usr/bin/python
"""Module release_change: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_change
short_description: Say what another release row would bring to a host
description:
  - Says what the row that C(rbln_release) names now would change on a host that runs another one, up or down. Versions, models that
    need another compiled file, driver, image, units, what clients and exporters will see otherwise, cards and systems that are no
    longer supported, known vulnerabilities.
  - What the host has and what would be done is what M(npufleet.triton.host_state) has found under the new row, with
    O(npufleet.triton.host_state#module:preflight), in the variable C(npufleet_state). What stands in the way is in its C(refusals).
  - It runs on the controller alone and asks no host.
version_added: 0.2.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.controller
options:
  before:
    description:
      - The row that the inventory names, for a host whose server does not say which one its image was built for.
      - Empty for none.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Work out what the other release brings
  npufleet.triton.release_change:
    before: "26.05"
  register: release_change
"""

RETURN = r"""
before:
  description:
    - The row that the host runs, by the label of its server's image, or else as the inventory has it. Null where neither tells.
  returned: success
  type: str
said:
  description: What would change, in sentences. Empty where there is no such row, which is one of the C(refusals).
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Entry point of whoever calls it without its action."""
    module = AnsibleModule(argument_spec={"before": {"type": "str", "required": True}}, supports_check_mode=True)
    module.fail_json(msg="the rows are known on the controller alone: call it as npufleet.triton.release_change")


if __name__ == "__main__":
    main()
