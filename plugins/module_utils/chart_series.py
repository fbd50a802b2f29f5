# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The series of the charts in the report, read from the Prometheus of a host within limits of time and size."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, NamedTuple, Optional
from urllib.parse import quote

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json

# A line of a chart has STEPS + 1 points, and so STEPS steps between its points. At most MAX_CARDS cards get a line. If an answer
# has more than MAX_SERIES series, only the first MAX_SERIES series are used.
STEPS, MAX_CARDS, MAX_SERIES = 72, 12, 200
# Limits of the answer to one query: its bytes, and the seconds until the whole answer has arrived
MAX_BYTES, TIMEOUT_SECONDS = 1 << 23, 20.0
MAX_LABEL_LENGTH = 200
_CARD = "by (host, npu)"
_SUCCESS = "sum by (model) (rate(nv_inference_request_success[{window}s]))"
_MEMORY = "(npufleet_card_memory_used_bytes / npufleet_card_memory_size_bytes)"
_HOTTEST = f"max {_CARD} (max_over_time(npufleet_card_temperature_celsius[{{span}}s] @ end()))"
# The cards that get a line: first the faulty cards, then the hottest cards
_CHARTED_CARDS = f"topk({MAX_CARDS}, ({_HOTTEST} + 1000 * (1 - min {_CARD} (npufleet_card_healthy @ end()))) or {_HOTTEST})"
# {name: query}. `window` is the range of a rate, and `span` is the range of the charts, both in seconds.
QUERIES = {
    "rate": _SUCCESS,
    "latency": f"sum by (model) (rate(nv_inference_request_duration_us[{{window}}s])) / ({_SUCCESS} > 0) / 1000",
    "failures": 'sum by (model) (rate(nv_inference_request_failure{{reason!="CANCELED"}}[{window}s]))',
    "temperature": f"max {_CARD} (npufleet_card_temperature_celsius) and {_CHARTED_CARDS}",
    "memory": f"max {_CARD} {_MEMORY} and {_CHARTED_CARDS}",
    "healthy": f"min {_CARD} (npufleet_card_healthy) and {_CHARTED_CARDS}",
    "cards": f"count(count {_CARD} (npufleet_card_temperature_celsius))",
    "hottest": "max(npufleet_card_temperature_celsius)",
    "typical_temperature": "quantile(0.5, npufleet_card_temperature_celsius)",
    "fullest": f"max({_MEMORY})",
    "typical_memory": f"quantile(0.5, {_MEMORY})",
    "changes": "sum(npufleet_change_running)",
}
# All labels by which a query groups its series
LABELS = ("model", "host", "npu")
_SAMPLE = re.compile(r"[+-]?(Inf|NaN|[0-9.]+(e[+-]?[0-9]+)?)", re.ASCII)
_LABELS = {re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII): str}
SHAPE = {"data": {"resultType": re.compile("matrix"), "result": [{"metric": _LABELS, "values": [[(*shapes.NUMBER, _SAMPLE)]]}]}}


class Grid(NamedTuple):
    """The times of the points: STEPS + 1 times from `start` on, `step` seconds apart."""

    start: int
    step: int

    @property
    def end(self) -> int:
        """Return the time of the last point."""
        return self.start + STEPS * self.step


def grid(now: float, hours: int) -> Grid:
    """Return the grid of the charts. Its times are multiples of the step, so that the points of two reports have the same times."""
    step = hours * 3600 // STEPS
    return Grid(int(now) // step * step - STEPS * step, step)


def read(port: int, now: float, hours: int) -> Dict[str, Any]:
    """Return the series of all queries as {"start", "step", "series", "flaw"}.

    `start` and `step` are those of the grid. `series` is {name of a query: [{"labels", "values"}]}, with one value for each time of
    the grid. If a query fails, `flaw` is the reason and `series` is empty. Otherwise, `flaw` is None.
    """
    times = grid(now, hours)
    found: Dict[str, Any] = {"start": times.start, "step": times.step, "series": {}, "flaw": None}
    for query_name, query in QUERIES.items():
        text = query.format(window=max(times.step, 300), span=STEPS * times.step)
        path = f"/api/v1/query_range?query={quote(text)}&start={times.start}&end={times.end}&step={times.step}"
        status, answer = http_json("127.0.0.1", port, "GET", path, TIMEOUT_SECONDS, size=MAX_BYTES)
        flaw = _flaw(port, status, answer)
        if flaw:
            return {**found, "series": {}, "flaw": flaw}
        found["series"][query_name] = [
            {
                "labels": {name: entry["metric"][name][:MAX_LABEL_LENGTH] for name in LABELS if name in entry["metric"]},
                "values": _values(entry["values"], times),
            }
            for entry in answer["data"]["result"][:MAX_SERIES]
        ]
    return found


def _flaw(port: int, status: int, answer: Any) -> Optional[str]:
    """Return the reason why an answer cannot be used, or None."""
    if status == 0:
        return f"Prometheus does not answer on port {port} ({answer})"
    if status != 200:
        return f"Prometheus on port {port} answers with the status {status}, expected 200"
    flaw = shapes.mismatch(answer, SHAPE)
    return f"the program on port {port} does not answer as Prometheus does: {flaw}" if flaw else None


def _values(samples: List[Any], times: Grid) -> List[Optional[float]]:
    """Return one value for each time of the grid. The value is None where Prometheus has no sample."""
    values: List[Optional[float]] = [None] * (STEPS + 1)
    for sample in samples[: STEPS + 1]:
        if len(sample) != 2 or isinstance(sample[0], str):
            continue
        index, value = round((sample[0] - times.start) / times.step), float(sample[1])
        if 0 <= index <= STEPS and math.isfinite(value):
            values[index] = value
    return values
