#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: model_blobs
short_description: Transfer large files of models to a host, and store them by their SHA-256
description:
  - If the controller has a file or can fetch it, the controller sends the file with rsync. The host downloads the other files.
    Interrupted transfers are resumed.
  - Every file is verified before it is stored. M(npufleet.triton.server_change) later creates releases with these files.
  - Only one transfer to a host runs at a time. Other transfers wait until it has ended.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  sha256:
    description: Digests of the files. M(npufleet.triton.host_state) returns the digests of missing files.
    type: list
    elements: str
    required: true
  origins:
    description: Source of each file, by the digest of the file. Default is the sources in the manifests of the host's models.
    type: dict
  root:
    description: Root of the store. Default is the variable C(npufleet_root).
    type: path
  incoming:
    description: Directory for incoming files, on the file system of the store. Default is the variable C(npufleet_incoming).
    type: path
attributes:
  check_mode:
    support: full
    description: Reports a change if a file is missing, and transfers nothing.
"""

EXAMPLES = r"""
- name: Transfer the missing large files
  npufleet.triton.model_blobs:
    sha256: "{{ state.actual.models.missing }}"
"""

RETURN = r"""
transferred:
  description: Size in bytes of each transferred file, by its SHA-256.
  returned: success, not in check mode
  type: dict
bytes_moved:
  description: Number of bytes that this call transferred, without the bytes of an earlier interrupted transfer.
  returned: success, not in check mode
  type: int
"""

from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request, store
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import receive

# The action plugin validates the arguments of the task with this specification, too.
OPTIONS: Dict[str, Any] = {
    "sha256": {"type": "list", "elements": "str", "required": True},
    "origins": {"type": "dict"},
    "root": {"type": "path"},
    "incoming": {"type": "path"},
}
REQUEST = {
    # The step of the transfer (fetch/receive.py)
    "step": {"type": "dict", "required": True},
    # Credentials with which the host downloads. The key `addresses` has the secret parts of addresses.
    "secrets": {"type": "dict", "default": {}, "no_log": True},
}


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    root = params["root"]
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        result = receive.serve(root, params["incoming"], params["step"], params["secrets"])
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(changed=True, **result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
