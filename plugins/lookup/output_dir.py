# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: output_dir
short_description: The directory in which playbooks write their results
description:
  - Returns the path of C(build) in the project's checkout. If the collection is installed, returns the path of C(build) in the
    working directory, because no playbook writes into an installed collection.
  - Playbooks use this lookup as the default of C(npufleet_output_dir), because they do not see the defaults of roles.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
"""

EXAMPLES = r"""
- name: Show the path of the report
  ansible.builtin.debug:
    msg: "{{ npufleet_output_dir | default(lookup('npufleet.triton.output_dir')) }}/report/index.html"
"""

RETURN = r"""
_raw:
  description: The directory, which may not exist yet.
  type: list
  elements: path
"""

import os
from typing import Any, Dict, List, Optional

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

# A checkout has this file, and the collection that is built from it does not.
CHECKOUT_FILE = "galaxy.yml"


class LookupModule(LookupBase):
    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        checkout = os.path.exists(os.path.join(COLLECTION, CHECKOUT_FILE))
        return [os.path.join(COLLECTION if checkout else os.getcwd(), "build")]
