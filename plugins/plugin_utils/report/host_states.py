# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Temporary files for the status entries of hosts. The report at the end of the run reads these files.

Ansible's process for a host stores the entry of this host in the temporary directory of the run, because the complete state of a
large fleet would fill the memory of the main process. Only the user of the run can read this directory. Ansible removes the
directory at the end of the run.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from typing import Any, Dict, Mapping, Optional

from ansible import constants
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import outputs


def remove(host: str) -> None:
    """Remove the entry of a host, which an earlier playbook of this run may have stored. Raises OSError."""
    with suppress(FileNotFoundError):
        os.remove(_path(host))


def write(entry: Mapping[str, Any]) -> None:
    """Store the entry of a host. Raises OSError."""
    outputs.write(_path(entry["host"]), json.dumps(entry))


def read(host: str) -> Optional[Dict[str, Any]]:
    """Return the entry of a host, or None if its state was not read. Raises OSError."""
    try:
        with open(_path(host), encoding="utf-8") as source:
            return dict(json.load(source))
    except FileNotFoundError:
        return None


def _path(host: str) -> str:
    # The name of a host can contain characters that a file name cannot have.
    return os.path.join(constants.DEFAULT_LOCAL_TMP, f"status-{hashlib.sha256(host.encode()).hexdigest()}.json")
