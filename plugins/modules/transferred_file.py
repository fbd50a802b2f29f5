#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: transferred_file
short_description: Take over a transferred file as root, or give a file to the connecting user
description:
  - Transfers run as the connecting user, in a directory of that user. Someone who has stolen the user's login controls this
    directory, just as a container controls each directory that it can write to.
  - A file is used only when nobody but root can change it. The module refuses symbolic links, files with more than one hard link,
    paths that are not regular files, and files that another process has open for writing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  state:
    description:
      - V(imported) moves O(name) from O(incoming) to O(path), and makes root the owner of the file. If the digest of the file is
        not O(sha256), the module removes the file, and the task fails.
      - V(exported) moves O(path) to O(name) in O(incoming), where only O(user) can read it. An existing file is replaced.
      - V(secured) replaces every file below the directory O(path) by a copy that only root can write. Use it for files of
        M(ansible.builtin.copy), which the connecting user may still have open for writing.
    type: str
    choices: [imported, exported, secured]
    required: true
  incoming:
    description: >-
      Directory that the connecting user or a container can write to, on the file system of O(path). Required unless
      O(state=secured).
    type: path
  name:
    description: Name of the file in O(incoming). Required unless O(state=secured).
    type: str
  path:
    description: Path of root's file, in a directory that only root can write to. With O(state=secured), path of the directory.
    type: path
    required: true
  sha256:
    description: Expected SHA-256 with O(state=imported). Without this option, the caller has to compare the returned digest.
    type: str
  mode:
    description: Octal mode in quotes that a file gets with O(state=imported) and O(state=secured).
    type: str
    default: "0400"
  limit:
    description: Largest size of a file in bytes.
    type: int
    default: 274877906944
  user:
    description: The connecting user. Required with O(state=exported).
    type: str
attributes:
  check_mode:
    support: none
    description: The task is skipped, because check mode transfers no file.
"""

EXAMPLES = r"""
- name: Take over the archive
  npufleet.triton.transferred_file:
    state: imported
    incoming: /var/lib/npufleet/incoming
    name: image.tar
    path: /var/lib/npufleet/image/image.tar
    sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""

RETURN = r"""
sha256:
  description: SHA-256 of the file. With O(state=exported), it was computed before the user could change the file.
  returned: success, unless O(state=secured)
  type: str
files:
  description: SHA-256 of each file, by its path below O(path).
  returned: success with O(state=secured)
  type: dict
"""

import os
import pwd
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, takeover


def import_file(params: Dict[str, Any], mode: int) -> Dict[str, Any]:
    """Take over a file, and return {"sha256": digest}. Raises StoreError."""
    digest = takeover.take(params["incoming"], params["name"], params["path"], mode, params["limit"])
    if params["sha256"] and digest != params["sha256"].lower():
        trees.remove(params["path"])
        raise StoreError(f"the SHA-256 is {digest}, expected {params['sha256']}; the file was removed: transfer it again")
    return {"sha256": digest}


def export_file(params: Dict[str, Any]) -> Dict[str, Any]:
    """Give a file to the connecting user, and return {"sha256": digest}. Raises StoreError."""
    try:
        receiver = pwd.getpwnam(params["user"])
    except KeyError:
        raise StoreError(
            f"user {params['user']} does not exist on this host, expected the connecting user: set ansible_user"
        ) from None
    return {"sha256": takeover.give(params["path"], params["incoming"], params["name"], receiver, params["limit"])}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["imported", "exported", "secured"], "required": True},
            "incoming": {"type": "path"},
            "name": {"type": "str"},
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str"},
            "mode": {"type": "str", "default": "0400"},
            "limit": {"type": "int", "default": 274877906944},
            "user": {"type": "str"},
        },
        required_if=[("state", "imported", ["incoming", "name"]), ("state", "exported", ["incoming", "name", "user"])],
    )
    params = module.params
    name, path = params["name"], params["path"]
    if params["state"] != "secured":
        if name in ("", ".", "..") or "/" in name:
            module.fail_json(msg=f"the name is {name!r}, expected the name of a file in {params['incoming']}")
        path = os.path.join(params["incoming"], name)
    try:
        mode = int(params["mode"], 8)
    except ValueError:
        module.fail_json(msg=f"the mode is {params['mode']!r}, expected octal digits in quotes, such as '0644'")
    try:
        if params["state"] == "imported":
            result = import_file(params, mode)
        elif params["state"] == "exported":
            result = export_file(params)
        else:
            result = {"files": takeover.take_over_tree(params["path"], mode, params["limit"])}
    except takeover.RejectedFile as error:
        consequence = "the file was removed: transfer it again" if params["state"] == "imported" else "the file was not used"
        module.fail_json(msg=f"{path}: {error}; {consequence}")
    except (StoreError, OSError) as error:
        module.fail_json(msg=f"{path}: {error}")
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
