#!/usr/bin/python
"""Module model_store_info: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store_info
short_description: Return releases, history, holds and damage of the model store of a host
description:
  - Reads the store and changes nothing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
attributes:
  check_mode:
    support: full
    description: Reads as usual.
"""

EXAMPLES = r"""
- name: Read the history of deployments
  npufleet.triton.model_store_info:
  register: store
"""

RETURN = r"""
history:
  description:
    - "Every recorded change, oldest first: C(when), C(who), C(model), C(what), C(from), C(to), C(result), C(why)."
  returned: success
  type: list
  elements: dict
holds:
  description: Models that are held at an older release, with C(by), C(when) and C(why).
  returned: success
  type: dict
transaction:
  description: The open transaction, null for none.
  returned: success
  type: dict
damaged:
  description: Damage of files of the store, by their names. The next change repairs the files whose content can be restored.
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
