# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired state of the concern traffic: no host is drained, so no host has the file that marks a drain."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.traffic import RECORD
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the path of the file that a rollout writes on a host before it drains the host."""
    return {"record": os.path.join(variables["npufleet_root"], RECORD)}
