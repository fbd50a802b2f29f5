# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: compile_plan
short_description: Find the models that have to be compiled
description:
  - Reads the compile specs and the sources of models, and the records of compiled files on the controller. A compile spec is an
    entry of the variable C(model_compile_models).
  - A model is up to date if its source, compile spec, card and SDK are the same as in the record of its compiled file.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: The compile specs.
    type: list
    elements: dict
    required: true
  card:
    description: Type of card to compile for, such as V(RBLN-CA22). If a compile spec names a card, that card is used.
    type: str
    required: true
  sdk:
    description: The SDK of the release row, with C(version) and C(shape).
    type: dict
    required: true
  directory:
    description: Directory for compiled files. If a compile spec names a directory, that directory is used.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Show the models to compile
  ansible.builtin.debug:
    msg: "{{ found.reasons or found.models | selectattr('why') | map(attribute='name') }}"
  vars:
    found: "{{ lookup('npufleet.triton.compile_plan', *model_compile_models, card=npufleet_card, sdk=npufleet_release_row.sdk,
      directory=model_compile_dir) }}"
"""

RETURN = r"""
_raw:
  description:
    - One dictionary. C(reasons) has the errors of all compile specs. If there are no errors, C(models) has one entry for each of
      them.
    - In an entry, C(why) is the reason to compile the model, or an empty text if the model is up to date. C(file) is the compiled
      file on the controller. C(artefacts) is the value for C(triton_models) that names this file.
    - C(push) and C(spec) are sent to the build host.
  type: list
  elements: dict
"""

from typing import Any, Dict, List, Optional

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compile_plan


class LookupModule(LookupBase):
    def run(self, terms: List[Any], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[Dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        card, sdk, directory = (self.get_option(name) for name in ("card", "sdk", "directory"))
        try:
            return [{"models": compile_plan.plan(terms, card, sdk, directory), "reasons": []}]
        except Refusal as refusal:
            return [{"models": [], "reasons": refusal.reasons}]
