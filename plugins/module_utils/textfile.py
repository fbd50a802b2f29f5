# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Files with metrics ("pages") for the textfile collector of node exporter.

Node exporter drops a whole page if one of its lines is invalid or if a series occurs twice. So `page` leaves out repeated series
and values that are not finite, and shortens and escapes labels.
"""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Sequence, Tuple

# Labels and value of a series
Sample = Tuple[Mapping[str, str], float]
# {name of a metric: its series}
Families = Dict[str, List[Sample]]
# Limits of a page: series of one metric, and characters of a label's value
MAX_SERIES, MAX_VALUE = 1000, 200
# The metric with the number of dropped series, for every metric with more than MAX_SERIES series
DROPPED = "npufleet_dropped_series"
_DESCRIPTION = "Number of series of a metric that were dropped, because a metric may have at most 1000 series."


def page(families: Mapping[str, Sequence[Sample]], descriptions: Mapping[str, str]) -> str:
    """Return the metrics as a page, sorted by name and labels. Metrics without a series have no line.

    If several series have the same labels, only the first series counts. If there are more than MAX_SERIES series, the page has the
    first MAX_SERIES of them and the number of dropped series.
    """
    lines, dropped = [], []
    for name in sorted(families):
        series: Dict[str, float] = {}
        for labels, value in families[name]:
            if math.isfinite(value):
                series.setdefault(_labels(labels), float(value))
        lines += _family(name, descriptions[name], series) if series else []
        if len(series) > MAX_SERIES:
            dropped.append((_labels({"metric": name}), float(len(series) - MAX_SERIES)))
    lines += _family(DROPPED, _DESCRIPTION, dict(dropped)) if dropped else []
    return "\n".join(lines) + "\n"


def _family(name: str, description: str, series: Mapping[str, float]) -> List[str]:
    """Return the lines of a metric. `series` is {labels as text: value}."""
    samples = [f"{name}{labels} {series[labels]:.15g}" for labels in sorted(series)[:MAX_SERIES]]
    return [f"# HELP {name} {description}", f"# TYPE {name} gauge", *samples]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def escaped(value: str) -> str:
    """Return the value of a label, cut at MAX_VALUE and escaped for a page."""
    text = value[:MAX_VALUE].encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
