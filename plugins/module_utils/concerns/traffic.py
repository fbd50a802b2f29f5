# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `traffic`: a host to which the load balancers send no requests, or fewer requests, because of a rollout.

Before a rollout drains a host or lowers its weight, it writes a record on the host. The record is removed when the host gets its
full share of the traffic again. If the rollout ends earlier, the record stays and counts as a difference: the next run proves the
host and restores its share.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item, short

CONCERN = "traffic"
# The record, in the root directory of the store
RECORD = "traffic.json"
SHAPE = {"by": str, "since": str}


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"limited": the record {"by", "since"} of a rollout that has not restored the share, or None without a record}."""
    found = shapes.read(desired["record"], SHAPE)
    if not found.exists:
        return {"limited": None}
    content = {"by": "an unreadable record", "since": "?"} if found.flaw else found.content
    return {"limited": {name: short(content[name], 100) for name in SHAPE}}


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return at most one difference: the host does not get its full share."""
    found = actual["limited"]
    if not found:
        return []
    current = "limited by a rollout of {by} since {since}".format(**found)
    return [item(CONCERN, "share of the traffic", current, "its full share, after a proof", "undrain")]
