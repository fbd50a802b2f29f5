# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The drift of a fleet as metrics. Monitoring hosts store these metrics for node exporter until the next run of status.yml."""

from __future__ import annotations

import collections
from typing import Any, Dict, Iterable, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import textfile

HELP = {
    "npufleet_drift_items": "Differences of a host from the inventory, by concern.",
    "npufleet_status_timestamp_seconds": "When the status of the fleet was last read.",
}


def metrics(now: float, entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the entries of a status document as a page of metrics.

    A host without differences has no series. A host in maintenance has no series either, even if it differs. The label is
    `inventory_host` and not `host`, because Prometheus renames a label of a series if the target has a label with the same name.
    """
    # An entry can come from the status file of an earlier run, so keys may be missing.
    drifted = [entry for entry in entries if entry.get("state") == "drift"]
    counts: Dict[Tuple[str, str], int] = collections.Counter(
        (str(entry["host"]), str(item.get("concern", ""))) for entry in drifted for item in entry.get("plan") or []
    )
    families: textfile.Families = {
        "npufleet_drift_items": [
            ({"inventory_host": host, "concern": concern}, count) for (host, concern), count in counts.items()
        ],
        "npufleet_status_timestamp_seconds": [({}, now)],
    }
    return textfile.page(families, HELP)
