#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: End the holds of models, or remove the model store of a host
description:
  - A manual rollback holds a model at an older release. The hold lasts until the files of the model on the controller or its
    compiled files in the inventory change, or until this module ends the hold.
  - To end holds, the run must have the lease of the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
  - npufleet.triton.project.writer
options:
  state:
    description:
      - V(forgotten) ends the holds of O(models), or of every model. Damaged files of the store are repaired first.
      - V(absent) removes the store, and everything else in O(root). The task fails if O(root) is not a store, or contains a file
        that does not belong to the project.
    type: str
    choices: [forgotten, absent]
    required: true
  models:
    description: Models whose holds end. Default is every model.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: End every hold
  npufleet.triton.model_store:
    state: forgotten

- name: Remove the store
  npufleet.triton.model_store:
    state: absent
"""

RETURN = r"""
forgotten:
  description: Models that are no longer held.
  returned: O(state=forgotten)
  type: list
  elements: str
mended:
  description: Repaired files of the store. A copy of the damaged content has the suffix C(.damaged).
  returned: if files were repaired
  type: list
  elements: str
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, releases
from ansible_collections.npufleet.triton.plugins.module_utils.store import removal

OPTIONS: Dict[str, Any] = {
    "root": {"type": "path", "default": "/var/lib/npufleet"},
    "state": {"type": "str", "choices": ["forgotten", "absent"], "required": True},
    "models": {"type": "list", "elements": "str", "default": []},
}
# The private options that the controller passes: `run`, `by` and `host`
REQUEST = request.HOLDER_OPTIONS


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    root, caller = params["root"], store.Run(params["run"], params["by"], params["host"])
    try:
        if params["state"] == "absent":
            # The lease of the caller is a file in the store. It is removed with the store, so it is not renewed here.
            result: Dict[str, Any] = {"changed": bool(removal.entries(root)) if module.check_mode else removal.remove(root)}
        elif module.check_mode:
            holds = store.read_holds(root)
            ended_holds = sorted(set(holds) & set(params["models"] or holds))
            result = {"changed": bool(ended_holds), "forgotten": ended_holds}
        else:
            with lease.working(root, lease.Holder(caller.run, caller.by)):
                result = releases.apply(root, caller, {**params, "why": ""})
    except lease.LeaseError as error:
        module.fail_json(msg=f"{caller.host or root}: {error}")
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(**result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
