# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The validation of the lock file. The role triton_image writes this file, and people can edit it."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, Optional

from ansible.errors import AnsibleError
from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import reasons

# The ID becomes a part of a file name. image_supply.py checks the content of `supply` when an image is built.
ENTRY = {
    "id?": re.compile("[A-Za-z0-9:_-]{1,200}"),
    **dict.fromkeys(("reference?", "recipe?", "content?", "archive?", "repo_digest?"), str),
    "options?": [str],
    "supply?": {},
    "versions?": {},
}
RESTORE = "Restore the reviewed file"


def entry_error(entry: Any) -> Optional[str]:
    """Return the first error of the entry of a release, or None."""
    error = shapes.mismatch(entry, ENTRY)
    if error is None and "content" in entry and "reference" not in entry:
        error = "it has content and no reference"
    return error


def errors(variables: Mapping[str, Any]) -> List[str]:
    """Return [the error] of the lock file or of its entry for the release of a host, or []."""
    try:
        lock = variables.get("npufleet_lock", {})
    except Refusal:
        return [f"{variables['npufleet_lock_file']} contains no object, expected a map with an entry for each release. {RESTORE}"]
    except AnsibleError as error:
        return [f"{variables['npufleet_lock_file']} cannot be read: {reasons.of_error(error)[0].rstrip('.')}. {RESTORE}"]
    release = variables["rbln_release"]
    flaw = entry_error(lock[release]) if release in lock else None
    next_step = f"{RESTORE}, or remove this release from it: site.yml then builds and pins a new image"
    return [f"{variables['npufleet_lock_file']}, release {release}: {flaw}. {next_step}"] if flaw else []
