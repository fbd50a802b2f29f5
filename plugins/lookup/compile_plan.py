"""Lookup compile_plan: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: compile_plan
short_description: Which models have to be compiled, and why
description:
  - Reads on the controller the specs of models, their sources and the records of what was compiled before. A model whose source,
    spec, card and SDK are those of its record needs nothing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _terms:
    description: The specs, as in C(model_compile_models).
    type: list
    elements: dict
    required: true
  card:
    description: Type of card to compile for, such as V(RBLN-CA22), where a spec does not name one.
    type: str
    required: true
  sdk:
    description: The SDK of the release row, with C(version) and C(shape).
    type: dict
    required: true
  directory:
    description: Directory for compiled files, where a spec does not name one.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Say what would be compiled
  ansible.builtin.debug:
    msg: "{{ found.reasons or found.models | selectattr('why') | map(attribute='name') }}"
  vars:
    found: "{{ lookup('npufleet.triton.compile_plan', *model_compile_models, card=npufleet_card, sdk=npufleet_row.sdk,
      directory=model_compile_dir) }}"
"""

RETURN = r"""
_raw:
  description:
    - One dictionary. C(reasons) is everything that is wrong with any spec; without any, C(models) has one entry for each spec.
    - Of an entry, C(why) is the reason to compile it, empty when there is none. C(file) is the compiled file on
      the controller, C(artefacts) what a model lists for it when it is there. C(push) and C(spec) are what the build host is given.
  type: list
  elements: dict
"""

from typing import Any, Dict, List, Optional

from ansible.plugins.lookup import LookupBase
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compile_plan


class LookupModule(LookupBase):
    """Leaves the rest to plugin_utils/models/compile_plan.py."""

    def run(self, terms: List[Any], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[Dict[str, Any]]:
        """One dictionary."""
        self.set_options(var_options=variables, direct=kwargs)
        card, sdk, directory = (self.get_option(name) for name in ("card", "sdk", "directory"))
        try:
            return [{"models": compile_plan.plan(terms, card, sdk, directory), "reasons": []}]
        except Refusal as refusal:
            return [{"models": [], "reasons": refusal.reasons}]
