#!/usr/bin/python
"""Module release_change: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_change
short_description: Describe what another release row would change on a host
description:
  - Describes what the row of C(rbln_release) would change on a host that runs another one, up or down. Covers versions, models that
    need another compiled file, driver, image, units, changes for clients and exporters, cards and systems that are no longer
    supported, and known vulnerabilities.
  - Reads the result of M(npufleet.triton.host_state) with O(npufleet.triton.host_state#module:preflight) under the new row from the
    variable C(npufleet_state). The reasons against the change are in its C(refusals).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.controller
options:
  before:
    description:
      - The row that the inventory names. It is used for a host whose server does not report the row of its image.
      - Empty for none.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Describe the changes of the other release
  npufleet.triton.release_change:
    before: "26.05"
  register: release_change
"""

RETURN = r"""
before:
  description:
    - The row that the host runs, according to the label of the image of its server, or else to the inventory. Null if unknown.
  returned: success
  type: str
said:
  description: The changes as sentences. Empty if the row does not exist, which is one of the C(refusals).
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Fail, because the action does the work on the controller."""
    module = AnsibleModule(argument_spec={"before": {"type": "str", "required": True}}, supports_check_mode=True)
    module.fail_json(msg="release_change runs on the controller. Call it as npufleet.triton.release_change.")


if __name__ == "__main__":
    main()
