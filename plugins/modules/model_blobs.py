#!/usr/bin/python
"""Module model_blobs: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_blobs
short_description: Bring large files of models to a host, and keep them by their SHA-256
description:
  - The controller pushes with rsync what it has or can fetch, and the host fetches the rest itself; either goes on where an
    earlier transfer broke off. How far it is is told every ten seconds.
  - What arrived is verified, every byte, before it is kept. Nothing is released or switched by it, as
    M(npufleet.triton.model_store) does that.
  - One transfer at a time brings files to a host; another one waits for it.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  sha256:
    description: The files, by their digests. M(npufleet.triton.host_state) tells those that are missing.
    type: list
    elements: str
    required: true
  origins:
    description: Where each of them comes from, by its digest. Default is what the models of the host say.
    type: dict
  root:
    description: Root of the store. Default is the variable C(npufleet_root).
    type: path
  incoming:
    description: Directory on the same file system that files arrive in. Default is the variable C(npufleet_incoming).
    type: path
attributes:
  check_mode:
    support: full
    description: Reports a change where a file is missing, and brings none.
"""

EXAMPLES = r"""
- name: Bring the large files that are missing
  npufleet.triton.model_blobs:
    sha256: "{{ state.actual.models.missing }}"
"""

RETURN = r"""
transferred:
  description: Bytes of each file that was brought, by its SHA-256.
  returned: success, not in check mode
  type: dict
bytes_moved:
  description: Their sum, without what had arrived before.
  returned: success, not in check mode
  type: int
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request, store
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import receive

# The action plugin reads the task's arguments by the same specification.
OPTIONS: Dict[str, Any] = {
    "sha256": {"type": "list", "elements": "str", "required": True},
    "origins": {"type": "dict"},
    "root": {"type": "path"},
    "incoming": {"type": "path"},
}
REQUEST = {
    # One step of the transfer, as the controller asks for it
    "step": {"type": "dict"},
    # What object stores and servers want to know of a host that fetches itself, and under `addresses` what is secret in those
    "secrets": {"type": "dict", "default": {}, "no_log": True},
}


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    root = params["root"]
    if params["step"] is None:
        module.fail_json(msg="a transfer is made by the controller: call it as npufleet.triton.model_blobs")
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        answer = receive.serve(root, params["incoming"], params["step"], params["secrets"])
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(changed=True, **answer)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
