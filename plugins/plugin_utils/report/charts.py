# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The charts of the report. The module chart_series reads their series from Prometheus.

This module runs only on the controller and imports nothing of ansible-core.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes, system
from ansible_collections.npufleet.triton.plugins.module_utils.chart_series import QUERIES, STEPS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import count_of, short

Values = Sequence[Optional[float]]
# Size of a chart in units of its SVG picture
WIDTH, HEIGHT = 240, 48
# Maximum numbers: models with a chart, rollouts with a mark, and characters of the reason why charts are missing
MAX_MODELS, MAX_ROLLOUTS, MAX_REASON = 7, 5, 300
# Values of this size or larger are not drawn.
MAX_VALUE = 1e15
# A model is failing if more than this part of its last requests failed.
FAILING_SHARE = 0.01
_ANY = re.compile(".*", re.DOTALL)
_SERIES = [{"labels": {_ANY: str}, "values": [(int, float, shapes.NULL)]}]
SHAPE = {"start": int, "step": int, "series": {_ANY: _SERIES}, "flaw": (str, shapes.NULL)}
NOT_READ = "this run has not read them. Run playbooks/report.yml, which reads them from Prometheus"


class Line(NamedTuple):
    """A line of a chart: its CSS class, its name in the legend, and its values."""

    kind: str
    name: str
    values: Values


def view(hosts: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]] = ()) -> Dict[str, Any]:
    """Return the charts, or {"note": reason why charts are missing}.

    `hosts` is {monitoring host: result of chart_series, or None if the series were not read}. `rollouts` are the records of
    rollouts, newest first.
    """
    if not hosts:
        return {"note": "the inventory has no host in monitoring_hosts"}
    results = {host: result for host, result in hosts.items() if result is not None}
    notes = [] if results else [NOT_READ]
    for host, result in results.items():
        data, flaw = _checked(result)
        if not flaw:
            return _charts(data, rollouts)
        notes.append(f"{host}: {flaw}")
    return {"note": short("; ".join(notes), MAX_REASON)}


def _checked(result: Any) -> Tuple[Dict[str, Any], str]:
    """Return the result as plain data, and the reason why this data cannot be drawn, or "" if it can be drawn."""
    try:
        data = json.loads(json.dumps(result))
    except (TypeError, ValueError):
        return {}, "the result of chart_series cannot be written as JSON"
    if not isinstance(data, dict) or data.get("unreachable") or data.get("failed"):
        why = data.get("msg") or "the series could not be read" if isinstance(data, dict) else "the result is not a JSON object"
        return {}, str(why)
    flaw = shapes.mismatch(data, SHAPE) or data["flaw"]
    if not flaw and not (0 < data["step"] < MAX_VALUE and 0 <= data["start"] < 1e11):
        flaw = "the times of the series are out of range"
    if not flaw and not any(data["series"].get(name) for name in QUERIES):
        flaw = "Prometheus has no series of the fleet"
    return data, flaw or ""


def _charts(data: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    series = {name: data["series"].get(name, []) for name in QUERIES}
    models = _models(series)
    cards = _cards(series)
    end = data["start"] + STEPS * data["step"]
    count = _last(_first_values(series["cards"]))
    return {
        "note": "",
        "hours": round(STEPS * data["step"] / 3600),
        "end": system.timestamp(end),
        "size": {"width": WIDTH, "height": HEIGHT},
        "rollouts": _rollouts(rollouts, data["start"], end),
        "bands": _bands(_first_values(series["changes"])),
        "models": models[:MAX_MODELS],
        "more_models": max(len(models) - MAX_MODELS, 0),
        "fleet": _fleet(series),
        "cards": cards,
        "card_count": max(int(count or 0), len(cards)),
        "faulted": sum(card["level"] == "wrong" for card in cards),
    }


def _models(series: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the tile of each model. Failing models come first, then the models with the most requests."""
    rates, latencies, failures = (_by_labels(series[name], "model") for name in ("rate", "latency", "failures"))
    tiles = []
    for model in sorted({*rates, *latencies, *failures}):
        rate, failed = rates.get(model, []), failures.get(model, [])
        requests, wrong = _last(rate) or 0.0, _last(failed) or 0.0
        failing = wrong > FAILING_SHARE * (requests + wrong)
        lines = [Line("main", "requests", rate), *([Line("wrong", "failed", failed)] if any(failed) else [])]
        charts = [_chart(lines, "/s"), _chart([Line("main", "latency", latencies.get(model, []))], " ms")]
        tiles.append({"title": model, "level": "wrong" if failing else "good", "rank": requests, "charts": charts})
    return sorted(tiles, key=_order)


def _fleet(series: Mapping[str, Any]) -> List[Dict[str, Any]]:
    charts = []
    for most, median, unit, factor in (("hottest", "typical_temperature", " °C", 1.0), ("fullest", "typical_memory", " %", 100.0)):
        if series[most]:
            main, soft = _first_values(series[most]), _first_values(series[median])
            charts.append(_chart([Line("main", f"{most} card", main), Line("soft", "median", soft)], unit, 100.0, factor))
    return charts


def _cards(series: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return a tile for each card that chart_series.py has selected. Faulted cards come first, then the hottest cards."""
    temperatures, memories, healths = (_by_labels(series[name], "host", "npu") for name in ("temperature", "memory", "healthy"))
    tiles = []
    for name in sorted({*temperatures, *memories, *healths}):
        values = temperatures.get(name, [])
        faulted = _last(healths.get(name, [])) == 0
        charts = [
            _chart([Line("main", "temperature", values)], " °C", 100.0),
            _chart([Line("main", "memory", memories.get(name, []))], " %", 100.0, 100.0),
        ]
        hottest = max((value for value in values if value is not None), default=0.0)
        tiles.append({"title": name, "level": "wrong" if faulted else "good", "rank": hottest, "charts": charts})
    return sorted(tiles, key=_order)


def _order(tile: Mapping[str, Any]) -> Tuple[bool, float]:
    """Return the sort key of a tile. Wrong tiles come first, then the tiles with the highest rank."""
    return tile["level"] != "wrong", -tile["rank"]


def _by_labels(series: Sequence[Mapping[str, Any]], *labels: str) -> Dict[str, List[Optional[float]]]:
    """Return {name: numbers of the series}. A name has the values of the labels, such as `npu-01 NPU 0`.

    Series without one of the labels are left out.
    """
    values_by_labels = {}
    for entry in series:
        if all(label in entry["labels"] for label in labels):
            name = " NPU ".join(short(entry["labels"][label]) for label in labels)
            values_by_labels[name] = _drawable(entry["values"])
    return values_by_labels


def _first_values(series: Sequence[Mapping[str, Any]]) -> List[Optional[float]]:
    return _drawable(series[0]["values"]) if series else []


def _drawable(values: Values) -> List[Optional[float]]:
    return [None if value is None or not 0 <= value < MAX_VALUE else float(value) for value in values[: STEPS + 1]]


def _last(values: Values) -> Optional[float]:
    """Return the value at the end of the charts, or None if the line has no value at that time."""
    return values[-1] if values else None


def _chart(lines: Sequence[Line], unit: str, limit: float = 0.0, factor: float = 1.0) -> Dict[str, Any]:
    """Return the drawing of the lines on one scale, which begins at 0 and includes `limit`."""
    scaled = [line._replace(values=[None if value is None else value * factor for value in line.values]) for line in lines]
    all_values = [value for line in scaled for value in line.values if value is not None]
    top = max([limit, *all_values]) or 1.0
    return {
        "legend": [{"kind": line.kind, "name": line.name, "now": _amount(_last(line.values), unit)} for line in scaled],
        "top": _amount(top, unit),
        "lines": [{"kind": line.kind, "parts": _parts(line.values, top)} for line in scaled],
    }


def _amount(value: Optional[float], unit: str) -> str:
    if value is None:
        return "no data"
    digits = 0 if value >= 100 or unit in (" °C", " %") else 1
    return f"{value:,.{digits}f}{unit}"


def _parts(values: Values, top: float) -> List[str]:
    """Split a line at its gaps, and return the points of each part. A lone point is doubled, because a line needs two points."""
    parts: List[List[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            parts.append([])
        else:
            parts[-1].append(f"{_x(index)},{(1 - value / top) * (HEIGHT - 2) + 1:.1f}")
    return [" ".join(part if len(part) > 1 else [part[0], part[0]]) for part in parts if part]


def _x(index: float) -> str:
    return f"{index * WIDTH / STEPS:.1f}"


def _rollouts(records: Sequence[Mapping[str, Any]], start: int, end: int) -> List[Dict[str, str]]:
    """Return the position and the text of the last rollouts in the period of the charts, oldest first."""
    marks: List[Dict[str, str]] = []
    for record in records:
        ended = system.seconds_since_1970(record["batches"][0]["ended"]) if record["batches"] else None
        if ended is not None and start <= ended <= end and len(marks) < MAX_ROLLOUTS:
            hosts = {host for batch in record["batches"] for host in batch["hosts"]}
            about = f"{short(record['playbook'])} by {short(record['by'])}, {count_of(len(hosts), 'host')}"
            text = f"{system.timestamp(ended)[11:16]} UTC {about}"
            marks.append({"x": _x((ended - start) * STEPS / (end - start)), "text": text})
    return marks[::-1]


def _bands(changes: Values) -> List[Dict[str, str]]:
    """Return the spans in which a change was running on at least one host."""
    bands: List[List[int]] = []
    for index, value in enumerate(changes):
        if value:
            if bands and bands[-1][1] == index - 1:
                bands[-1][1] = index
            else:
                bands.append([index, index])
    # A change with a single value gets the width of one step.
    return [{"x": _x(max(first - 0.5, 0)), "width": _x(last - first + 1)} for first, last in bands]
