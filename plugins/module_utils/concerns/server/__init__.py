# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `server`: Triton's container, as `docker inspect` reports it, and the models that the server has loaded."""

from __future__ import annotations

from typing import Any, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.credentials import CREDENTIALS_HOME
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.differences import (
    CONCERN,
    HANGING,
    TO_MOUNT,
    VERSION,
    diff,
    diff_models,
    diff_serving,
)
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.log_reader import hanging_loads
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.reader import read

# The desired state of a model that Triton itself reads from an object store
OBJECT_STORE_MODEL: Mapping[str, Any] = {
    **dict.fromkeys(("versions", "release", "source")),
    "steps": [],
    "memory": [],
    "switch": "beside",
    "cached": False,
}
