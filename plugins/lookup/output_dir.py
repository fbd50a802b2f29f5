"""Lookup output_dir: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: output_dir
short_description: Where playbooks leave what they have found
description:
  - C(build) of the checkout that the collection is; where it is installed, C(build) of the directory that the run was started in.
    An installed collection is written by nobody.
  - The default of the variable C(npufleet_output_dir), for playbooks, which do not see the defaults of roles.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: None.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Say where the report is
  ansible.builtin.debug:
    msg: "{{ npufleet_output_dir | default(lookup('npufleet.triton.output_dir')) }}/report/index.html"
"""

RETURN = r"""
_raw:
  description: The directory, which may not be there yet.
  type: list
  elements: path
"""

import os
from typing import Any, Dict, List, Optional

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

# What a checkout has, and what is built of it leaves out
SOURCE = "galaxy.yml"


class LookupModule(LookupBase):
    """Looks at what lies beside the collection's own files."""

    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        checkout = os.path.exists(os.path.join(COLLECTION, SOURCE))
        return [os.path.join(COLLECTION if checkout else os.getcwd(), "build")]
