#!/usr/bin/python
"""Module model_store: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Manage the model releases of a host, and switch between them in a transaction
description:
  - Verifies the SHA-256 of the large files that M(npufleet.triton.model_blobs) has transferred to O(incoming) and stores them as
    immutable blobs. Writes the release of each model into a new directory. Then renames the link C(served/<model>) to it.
  - Nothing is edited in place, and nothing incomplete is ever below C(served/), so that a server that polls never reads it.
  - A release directory is never used twice, even for content that was served before, because Triton reloads a model only if the
    newest time stamp in its tree grows.
  - Links move inside a transaction. It is recorded first and stays open until the new releases are proven (O(state=proven)) or the
    previous ones are restored (O(state=restored)). An interrupted run leaves it open, and the next run finishes it.
  - Damaged files of the store are repaired first, from the history or the release.
  - The run has to hold the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description:
      - V(released) creates releases of O(models), switches to them and withdraws O(withdraw), inside a transaction. Without either
        it creates an empty store, which a server without models reads.
      - V(proven) closes the open transaction, writes the history and removes releases that are no longer needed.
      - V(restored) links the releases before the open transaction again, in new directories. Nothing is transferred.
      - V(rolled_back) switches O(models), or every served model, to the release O(to), inside a transaction, and holds them there.
      - V(forgotten) removes the holds of O(models), or of every model.
      - V(absent) removes the store with everything that the project keeps in it. It is refused if the directory is no store, or has
        a file that does not belong to the project.
    type: str
    choices: [released, proven, restored, rolled_back, forgotten, absent]
    default: released
  incoming:
    description: Directory with transferred blobs on the file system of the store. Each file is named by its SHA-256.
    type: path
  models:
    description:
      - With O(state=released) the models to release, as C(triton_models) places them. A model that is held at an older release is
        written again from that release.
      - With O(state=rolled_back) and O(state=forgotten) the models to change. Default is every model.
    type: list
    elements: str
    default: []
  withdraw:
    description: Names of the models that are no longer served.
    type: list
    elements: str
    default: []
  to:
    description:
      - Target of O(state=rolled_back). V(previous) is the proven release before the served one. Otherwise the label of a release,
        such as V(0003-0123456789ab), or at least four digits of its digest.
    type: str
    default: previous
  why:
    description: Reason for the history and for the message about the hold.
    type: str
    default: ""
  hung:
    description: With O(state=restored), models whose load hangs in the server. The next plan restarts the server.
    type: list
    elements: str
    default: []
  keep:
    description:
      - Number of different proven releases of each model to keep, the most recently proven ones first. Equal content counts once.
      - Releases that are served, held or in a transaction are always kept, and so is the newest proven one beside the served one.
      - Default is the variable C(model_repository_keep).
    type: int
    default: 3
attributes:
  check_mode:
    support: full
    description: Reports the switches that would be made.
"""

EXAMPLES = r"""
- name: Create new releases and switch to them
  npufleet.triton.model_store:
    incoming: /var/lib/npufleet/incoming
    models: [digits]

- name: Keep the new releases, which are proven
  npufleet.triton.model_store:
    state: proven

- name: Restore the previous releases
  npufleet.triton.model_store:
    state: restored
    why: digits answers wrong

- name: Roll one model back
  npufleet.triton.model_store:
    state: rolled_back
    models: [digits]
    to: previous
    why: wrong labels since Friday

- name: Remove the store
  npufleet.triton.model_store:
    state: absent
"""

RETURN = r"""
switched:
  description: The new release of each model whose link moved, null for a model that is no longer served.
  returned: O(state=released), O(state=restored), O(state=rolled_back)
  type: dict
open:
  description: Whether a transaction is open, which then has to be proven or restored.
  returned: success
  type: bool
moves:
  description: For each of these models the labels C(from) and C(to), null for none, and the kind of change as C(what).
  returned: O(state=released), O(state=restored), O(state=rolled_back), O(state=proven)
  type: dict
removed:
  description: Releases that were removed because of O(keep).
  returned: O(state=proven)
  type: raw
forgotten:
  description: Models whose hold was removed.
  returned: O(state=forgotten)
  type: list
  elements: str
mended:
  description: Damaged files of the store that were repaired. The damaged content is kept beside each file as C(.damaged).
  returned: when files were damaged
  type: list
  elements: str
"""

import os
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease, releases
from ansible_collections.npufleet.triton.plugins.module_utils.store import removal

OPTIONS: Dict[str, Any] = {
    "root": {"type": "path", "default": "/var/lib/npufleet"},
    "state": {
        "type": "str",
        "choices": ["released", "proven", "restored", "rolled_back", "forgotten", "absent"],
        "default": "released",
    },
    "incoming": {"type": "path"},
    "models": {"type": "list", "elements": "str", "default": []},
    "withdraw": {"type": "list", "elements": "str", "default": []},
    "to": {"type": "str", "default": "previous"},
    "why": {"type": "str", "default": ""},
    "hung": {"type": "list", "elements": "str", "default": []},
    "keep": {"type": "int", "default": 3},
}
REQUEST = {
    **request.HOLDER,
    # Files of each model to release, with digests and the content of small ones
    "releases": {"type": "dict", "default": {}},
}


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    root, state = params["root"], params["state"]
    run = store.Run(params["run"], params["by"], params["host"])
    withdraw = [name for name in params["withdraw"] if os.path.lexists(os.path.join(root, "served", name))]
    unknown = sorted(set(params["models"]) - set(params["releases"])) if state == "released" else []
    if unknown:
        module.fail_json(msg="triton_models places no {} on this host".format(", ".join(unknown)))
    answer: Dict[str, Any] = {}
    try:
        if state == "absent":
            # Its lease, which the caller holds, is in the store
            answer = {"changed": bool(removal.entries(root)) if module.check_mode else removal.remove(root)}
        elif module.check_mode:
            answer = releases.predicted(root, params, withdraw)
        elif state == "released" and releases.settled(root, params, withdraw):
            answer = {"changed": False, "switched": {}, "moves": {}}
        else:
            with lease.working(root, lease.Holder(run.run, run.by)):
                answer = releases.apply(root, run, params, withdraw, module.warn)
        answer["open"] = store.read_transaction(root) is not None
    except lease.LeaseError as error:
        module.fail_json(msg=f"{run.host or root}: {error}")
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(**answer)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
