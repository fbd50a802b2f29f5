#!/usr/bin/python
"""Module model_store: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Model releases of a host, and the transaction in which it switches between them
description:
  - Takes large files that M(npufleet.triton.model_blobs) has brought into O(incoming), verifies the SHA-256 of every one and keeps
    them as immutable blobs; writes each model's release into a fresh directory; then renames the link C(served/<model>) over to it.
  - Nothing is edited in place and nothing half-made is ever below C(served/), so a server that polls never sees it.
  - A release directory is never used twice, also for content that was there before, because Triton reloads a model only
    when the newest time stamp in its tree grows.
  - Links move inside a transaction, which is written down first and stays open until what they lead to is proven
    (O(state=proven)) or what served before is linked again (O(state=restored)). A run that breaks off leaves it open, and the
    next one finishes it.
  - A file of the store that is not what it has to be is put right before anything else is done, out of the history or the release.
  - The run has to hold the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description:
      - V(released) makes releases of O(models), switches to them and withdraws O(withdraw), inside a transaction. Without any of
        them it makes an empty store, which a server of no models reads.
      - V(proven) closes the open transaction, writes the history and removes releases that nothing needs.
      - V(restored) links again what served before the open transaction, in fresh directories, and moves no byte over the network.
      - V(rolled_back) switches O(models), or every served model, to the release O(to), inside a transaction, and holds them there.
      - V(forgotten) ends what holds O(models), or every model, at an older release.
      - V(absent) removes the store with all that the project keeps in it. It is refused where the directory is no store, or has a
        file that is not the project's.
    type: str
    choices: [released, proven, restored, rolled_back, forgotten, absent]
    default: released
  incoming:
    description: Directory on the same file system with transferred blobs, each named by its SHA-256.
    type: path
  models:
    description:
      - With O(state=released) the models to release, as C(triton_models) places them. One that is held at an older release is made
        anew out of that.
      - With O(state=rolled_back) and O(state=forgotten) the models that are meant. Default is every one.
    type: list
    elements: str
    default: []
  withdraw:
    description: Names of the models that are no longer to be served.
    type: list
    elements: str
    default: []
  to:
    description:
      - Where O(state=rolled_back) goes, V(previous) for the proven release before the one that is served, a release's label such as
        V(0003-0123456789ab), or at least four digits of its digest.
    type: str
    default: previous
  why:
    description: The reason, for the history and for whoever meets a hold.
    type: str
    default: ""
  hung:
    description: With O(state=restored), models whose load hangs in the server until it is started again. The next plan has that.
    type: list
    elements: str
    default: []
  keep:
    description:
      - How many different proven releases of each model stay, by their last proof. The same content made anew counts once.
      - Those that are served, held or in a transaction stay in any case, and so does the newest proven one beside the served one.
      - Default is the variable C(model_repository_keep).
    type: int
    default: 3
attributes:
  check_mode:
    support: full
    description: Reports what would be switched.
"""

EXAMPLES = r"""
- name: Make and switch to new releases
  npufleet.triton.model_store:
    incoming: /var/lib/npufleet/incoming
    models: [digits]

- name: Keep them, now that they are proven
  npufleet.triton.model_store:
    state: proven

- name: Go back to what served before, because they are not
  npufleet.triton.model_store:
    state: restored
    why: digits answers wrong

- name: Roll one model back by hand
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
  description: The release that each model whose link moved is served from, null for one that is served no more.
  returned: O(state=released), O(state=restored), O(state=rolled_back)
  type: dict
open:
  description: Whether a transaction is open now, which has to be proven or put back.
  returned: success
  type: bool
moves:
  description: For each of these models C(from) and C(to) as labels, null for none, and C(what) is done.
  returned: O(state=released), O(state=restored), O(state=rolled_back), O(state=proven)
  type: dict
removed:
  description: What O(keep) left no room for.
  returned: O(state=proven)
  type: raw
forgotten:
  description: Models that were held and are no more.
  returned: O(state=forgotten)
  type: list
  elements: str
mended:
  description: Files of the store that were damaged and are put right; what was in one is beside it, as C(.damaged).
  returned: when there were any
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
