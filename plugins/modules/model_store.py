#!/usr/bin/python
"""Module model_store: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Make model releases on a host and switch to them atomically
description:
  - Takes large files that were transferred into O(incoming), verifies the SHA-256 of every one and keeps them as immutable
    blobs; writes each model's release into a fresh directory; then renames the link C(served/<model>) over to it.
  - Nothing is edited in place and nothing half-made is ever below C(served/), so a server that polls never sees it.
  - A release directory is never used twice, also for content that was there before, because Triton reloads a model only
    when the newest time stamp in its tree grows.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  root:
    description: Root of the store.
    type: path
    default: /var/lib/npufleet
  incoming:
    description: Directory on the same file system with transferred blobs, each named by its SHA-256.
    type: path
  models:
    description: Names of the models to release. The controller fills in their files.
    type: list
    elements: str
    default: []
  withdraw:
    description: Names of the models that are no longer to be served.
    type: list
    elements: str
    default: []
  releases:
    description: Files of each model to release, with digests and the content of small ones. Computed on the controller.
    type: dict
    default: {}
  transfer:
    description:
      - Only bring large files, by their SHA-256, as blobs; nothing is released or switched. In a playbook a list of digests.
      - The controller makes the steps for the host out of it, pushes with rsync, and tells every ten seconds how far it is.
    type: raw
  origins:
    description: Where each file of O(transfer) comes from, by its SHA-256, as C(origins) of host_state says it.
    type: dict
    default: {}
  secrets:
    description: What object stores and servers want to know of a host that fetches itself. Filled in on the controller.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reports what would be released and withdrawn.
"""

EXAMPLES = r"""
- name: Make and switch to new releases
  npufleet.triton.model_store:
    incoming: /var/lib/npufleet/incoming
    models: [digits]

- name: Bring the large files that are missing
  npufleet.triton.model_store:
    transfer: "{{ state.actual.models.missing }}"
    origins: "{{ state.origins }}"
"""

RETURN = r"""
switched:
  description: The release directory that each model now is served from.
  returned: success
  type: dict
transferred:
  description: Bytes of each blob that was brought, by its SHA-256.
  returned: with O(transfer)
  type: dict
bytes_moved:
  description: Their sum, without what had arrived before.
  returned: with O(transfer)
  type: int
"""

import os
from typing import Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils import blobs, store, transfers


def transfer(module: AnsibleModule) -> None:
    """One step of a transfer, as the controller asks for it."""
    order, root = module.params["transfer"], module.params["root"]
    if not isinstance(order, dict):
        module.fail_json(msg="a transfer is made by the controller: call it as npufleet.triton.model_store")
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        answer = transfers.serve(root, module.params["incoming"], order, module.params["secrets"])
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(changed=True, **answer)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/var/lib/npufleet"},
            "incoming": {"type": "path"},
            "models": {"type": "list", "elements": "str", "default": []},
            "withdraw": {"type": "list", "elements": "str", "default": []},
            "releases": {"type": "dict", "default": {}},
            "transfer": {"type": "raw"},
            "origins": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    if module.params["transfer"] is not None:
        transfer(module)
    root, releases = module.params["root"], module.params["releases"]
    withdraw = [name for name in module.params["withdraw"] if os.path.lexists(os.path.join(root, "served", name))]
    unknown = sorted(set(module.params["models"]) - set(releases))
    if unknown:
        module.fail_json(msg="triton_models places no {} on this host".format(", ".join(unknown)))
    changed = bool(releases or withdraw)
    if module.check_mode:
        module.exit_json(changed=changed, switched={})
    switched: Dict[str, str] = {}
    try:
        store.prepare(root)
        solid = [
            name
            for name in [*releases, *withdraw]
            if os.path.isdir(served := os.path.join(root, "served", name)) and not os.path.islink(served)
        ]
        if solid:
            raise store.StoreError(f"served/{', served/'.join(sorted(solid))} is a directory and no link: move it out of the store")
        wanted = sorted({one["sha256"] for release in releases.values() for one in release["files"].values() if one["blob"]})
        blobs.ingest(root, module.params["incoming"], wanted)
        # Every release is whole before the first link moves.
        made = {name: store.make_release(root, name, releases[name]) for name in sorted(releases)}
        for name, label in made.items():
            store.switch(root, name, label)
            switched[name] = label
        for name in withdraw:
            os.unlink(os.path.join(root, "served", name))
    except (store.StoreError, OSError) as error:
        module.fail_json(
            msg="model store {}: {}; {} switched before that".format(root, error, sorted(switched) or "nothing"),
            switched=switched,
        )
    module.exit_json(changed=changed, switched=switched)


if __name__ == "__main__":
    main()
