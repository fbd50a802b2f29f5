#!/usr/bin/python
"""Module model_store_info: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store_info
short_description: Releases, history, holds and damage of a host's model store
description:
  - Reads the store as it is and changes nothing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
attributes:
  check_mode:
    support: full
    description: Reads as always.
"""

EXAMPLES = r"""
- name: Read what was deployed here, and when
  npufleet.triton.model_store_info:
  register: store
"""

RETURN = r"""
history:
  description:
    - "Every change that is written down, oldest first: C(when), C(who), C(model), C(what), C(from), C(to), C(result), C(why)."
  returned: success
  type: list
  elements: dict
holds:
  description: Models that are held at an older release, with C(by), C(when) and C(why).
  returned: success
  type: dict
transaction:
  description: The open transaction, null where there is none.
  returned: success
  type: dict
damaged:
  description: What is wrong with files of the store, by their names. The next change puts right what can be had again.
  returned: success
  type: dict
releases:
  description: Labels of the releases of each model, newest first.
  returned: success
  type: dict
"""

import os
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request, store
from ansible_collections.npufleet.triton.plugins.module_utils.store import damage

OPTIONS: Dict[str, Any] = {"root": {"type": "path", "default": "/var/lib/npufleet"}}


def info(root: str) -> Dict[str, Any]:
    """What is in a store; of one that is not there yet, nothing."""
    home = os.path.join(root, "releases")
    return {
        "changed": False,
        "history": store.read_history(root),
        "holds": store.read_holds(root),
        "transaction": store.read_transaction(root),
        "damaged": damage.found(root),
        "releases": {name: store.labels(root, name) for name in (sorted(os.listdir(home)) if os.path.isdir(home) else [])},
    }


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    root = module.params["root"]
    try:
        module.exit_json(**info(root))
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
