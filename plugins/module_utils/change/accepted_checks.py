# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The checks that the current releases of a host passed when their change was accepted.

After a failed change they prove the restored releases, which may fail the checks of newer releases.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes, store
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable

# Only root may read the file: it has golden data and perhaps the key of a restricted API. No container mounts its directory.
PATH = "/etc/npufleet/accepted_checks.json"
# The first line: the digest of each release, and of the rest of the file
HEAD = {"releases": {re.compile(".+", re.DOTALL): str}, "content": str}
CHECKS = {"image": str, "program": str, "document": {"host": str, "server": dict, "checks": [dict]}}


def write(root: str, checks: Mapping[str, Any]) -> None:
    """Keep the checks that the current releases have passed. Raises OSError and StoreError."""
    body = json.dumps(checks, sort_keys=True)
    head = {"releases": _current_releases(root), "content": hashlib.sha256(body.encode()).hexdigest()}
    durable.write(PATH, f"{json.dumps(head, sort_keys=True)}\n{body}", 0o600)


def read(root: str) -> Optional[Dict[str, Any]]:
    """Return the kept checks, None if they belong to other releases or cannot be used."""
    try:
        with open(PATH, "rb") as source:
            head, body = shapes.parse_as(source.readline(), HEAD), source.read()
        if head["releases"] != _current_releases(root) or head["content"] != hashlib.sha256(body).hexdigest():
            return None
        # The digest proves that this project wrote the body, in which golden data may be infinite.
        checks: Dict[str, Any] = json.loads(body)
    except (OSError, ValueError, store.StoreError):
        return None
    return None if shapes.mismatch(checks, CHECKS) else checks


def _current_releases(root: str) -> Dict[str, str]:
    return {name: model["release"] for name, model in store.current_models(root, {}).items()}
