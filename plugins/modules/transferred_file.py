#!/usr/bin/python
"""Module transferred_file: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: transferred_file
short_description: A file that root takes over from the connecting user, or gives to it
description:
  - Transfers run as the connecting user, in a directory of that user's. What lies there is whatever that user, or who has stolen
    its login, put there.
  - Nothing of it is followed, loaded or kept before it is root's alone. A link, a second name and a file that somebody can still
    write to are refused.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  state:
    description:
      - V(taken) moves O(name) out of O(incoming) to O(path), as root's, and keeps it only where its digest is O(sha256).
      - V(given) moves O(path) to O(name) in O(incoming), for O(user) alone to read, and replaces whatever lies there.
    type: str
    choices: [taken, given]
    required: true
  incoming:
    description: Directory of the connecting user, on the file system of O(path).
    type: path
    required: true
  name:
    description: Name of the file in O(incoming).
    type: str
    required: true
  path:
    description: Path of the file where it is root's, in a directory that root alone can write to.
    type: path
    required: true
  sha256:
    description: SHA-256 that the file has to have. Needed with O(state=taken).
    type: str
  user:
    description: The connecting user. Needed with O(state=given).
    type: str
attributes:
  check_mode:
    support: none
    description: Is skipped, as nothing was transferred.
"""

EXAMPLES = r"""
- name: Take the archive over
  npufleet.triton.transferred_file:
    state: taken
    incoming: /var/lib/npufleet/incoming
    name: image.tar
    path: /var/lib/npufleet/image/image.tar
    sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""

RETURN = r"""
sha256:
  description: SHA-256 of the file; with O(state=given) the one that it had before the user could change it.
  returned: success
  type: str
"""

import os
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, takeover
from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest


def take(incoming: str, name: str, path: str, sha256: str) -> str:
    """State taken."""
    proven = takeover.take(incoming, name, path, 0o400, file_digest)
    if proven != sha256.lower():
        takeover.remove(path)
        raise StoreError(f"found SHA-256 {proven}, wanted {sha256}; it was removed: transfer it again")
    return proven


def give(incoming: str, name: str, path: str, user: str) -> str:
    """State given."""
    try:
        receiver = pwd.getpwnam(user)
    except KeyError:
        raise StoreError(f"found no user {user} on this host, wanted the one that connects: set ansible_user") from None
    return takeover.give(path, incoming, name, receiver, file_digest)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["taken", "given"], "required": True},
            "incoming": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str"},
            "user": {"type": "str"},
        },
        required_if=[("state", "taken", ["sha256"]), ("state", "given", ["user"])],
    )
    params = module.params
    incoming, name, path = params["incoming"], params["name"], params["path"]
    if name in ("", ".", "..") or "/" in name:
        module.fail_json(msg=f"name: found {name!r}, wanted the name of a file in {incoming}")
    try:
        if params["state"] == "taken":
            proven = take(incoming, name, path, params["sha256"])
        else:
            proven = give(incoming, name, path, params["user"])
    except takeover.Unfit as error:
        module.fail_json(msg=f"{os.path.join(incoming, name)}: {error}; it was removed: transfer it again")
    except (StoreError, OSError) as error:
        module.fail_json(msg=f"{os.path.join(incoming, name)}: {error}")
    module.exit_json(changed=True, sha256=proven)


if __name__ == "__main__":
    main()
