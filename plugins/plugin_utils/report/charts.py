# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The charts of the report. Module chart_series reads their series from Prometheus. Controller only, without Ansible."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.chart_series import QUERIES, STEPS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short
from ansible_collections.npufleet.triton.plugins.plugin_utils.report.view import iso, moment

Values = Sequence[Optional[float]]
# Width and height of a chart in units of its picture, the most models with a chart, the most rollouts with a mark, and the most
# characters of the reason why there are no charts
WIDTH, HEIGHT, MODELS, ROLLOUTS, LONGEST_REASON = 240, 48, 7, 5, 300
# Values of this size or larger are not drawn.
LARGEST = 1e15
# A model is failing if more than this share of its last requests failed. The total is successful and failed requests per second.
FAILING = 0.01
_ANY = re.compile(".*", re.DOTALL)
_SERIES = [{"labels": {_ANY: str}, "values": [(int, float, shapes.NULL)]}]
SHAPE = {"start": int, "step": int, "series": {_ANY: _SERIES}, "flaw": (str, shapes.NULL)}
NOT_READ = "playbooks/report.yml reads them from Prometheus"


class Line(NamedTuple):
    """A line of a chart: its CSS class, its name in the legend, and its values."""

    kind: str
    name: str
    values: Values


class Tile(NamedTuple):
    """A tile with charts: its title, whether something is wrong, and the number that orders it among others."""

    title: str
    is_wrong: bool
    rank: float
    charts: List[Dict[str, Any]]


def view(hosts: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]] = ()) -> Dict[str, Any]:
    """Return the charts, or {"note": why there are none}.

    `hosts` are {monitoring host: result or None}, and `rollouts` the records of rollouts, newest first.
    """
    if not hosts:
        return {"note": "the inventory has no host in monitoring_hosts"}
    results = {host: result for host, result in hosts.items() if result is not None}
    notes = [] if results else [NOT_READ]
    for host, result in results.items():
        found, flaw = _checked(result)
        if not flaw:
            return _charts(found, rollouts)
        notes.append(f"{host}: {flaw}")
    return {"note": short("; ".join(notes), LONGEST_REASON)}


def _checked(result: Any) -> Tuple[Dict[str, Any], str]:
    """Return the result as plain data, and the reason why it cannot be drawn. The reason is empty if it can be drawn."""
    try:
        found = json.loads(json.dumps(result))
    except (TypeError, ValueError):
        return {}, "the result is no data"
    if not isinstance(found, dict) or found.get("unreachable") or found.get("failed"):
        return {}, str(found.get("msg") or "the series could not be read") if isinstance(found, dict) else "the result is no object"
    flaw = shapes.mismatch(found, SHAPE) or found["flaw"]
    if not flaw and not (0 < found["step"] < LARGEST and 0 <= found["start"] < 1e11):
        flaw = "the times of the series are out of range"
    if not flaw and not any(found["series"].get(name) for name in QUERIES):
        flaw = "Prometheus has no series of the fleet"
    return found, flaw or ""


def _charts(found: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    series = {name: found["series"].get(name, []) for name in QUERIES}
    models = _models(series)
    cards = _cards(series)
    end = found["start"] + STEPS * found["step"]
    count = _last(_only(series["cards"]))
    return {
        "note": "",
        "hours": round(STEPS * found["step"] / 3600),
        "end": datetime.fromtimestamp(end, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "size": {"width": WIDTH, "height": HEIGHT},
        "rollouts": _rollouts(rollouts, found["start"], end),
        "bands": _bands(_only(series["changes"])),
        "models": models[:MODELS],
        "more_models": max(len(models) - MODELS, 0),
        "fleet": _fleet(series),
        "cards": cards,
        "card_count": max(int(count or 0), len(cards)),
        "faulted": sum(card["level"] == "wrong" for card in cards),
    }


def _models(series: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the tile of each model. Failing models come first, then those with the most requests."""
    rates, latencies, failures = (_by(series[name], "model") for name in ("rate", "latency", "failures"))
    found = []
    for model in sorted({*rates, *latencies, *failures}):
        rate, failed = rates.get(model, []), failures.get(model, [])
        requests, wrong = _last(rate) or 0.0, _last(failed) or 0.0
        failing = wrong > FAILING * (requests + wrong)
        lines = [Line("main", "requests", rate), *([Line("wrong", "failed", failed)] if any(failed) else [])]
        charts = [_chart(lines, "/s"), _chart([Line("main", "latency", latencies.get(model, []))], " ms")]
        found.append(Tile(model, failing, requests, charts))
    return _tiles(found)


def _fleet(series: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the charts of all cards together."""
    return [
        _chart(
            [Line("main", f"{most} card", _only(series[most])), Line("soft", "median", _only(series[median]))], unit, limit, factor
        )
        for most, median, unit, limit, factor in (
            ("hottest", "typical_temperature", " °C", 100.0, 1.0),
            ("fullest", "typical_memory", " %", 100.0, 100.0),
        )
        if series[most]
    ]


def _cards(series: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return a tile for each card that the queries have chosen. Faulted cards come first, then the hottest cards."""
    temperatures, memories, healths = (_by(series[name], "host", "npu") for name in ("temperature", "memory", "healthy"))
    found = []
    for name in sorted({*temperatures, *memories, *healths}):
        values = temperatures.get(name, [])
        faulted = _last(healths.get(name, [])) == 0
        charts = [
            _chart([Line("main", "temperature", values)], " °C", 100.0),
            _chart([Line("main", "memory", memories.get(name, []))], " %", 100.0, 100.0),
        ]
        hottest = max((value for value in values if value is not None), default=0.0)
        found.append(Tile(name, faulted, hottest, charts))
    return _tiles(found)


def _tiles(found: Sequence[Tile]) -> List[Dict[str, Any]]:
    """Return the tiles for the page. Wrong ones come first, then those of the highest rank."""
    ordered = sorted(found, key=lambda tile: (not tile.is_wrong, -tile.rank))
    return [{"title": tile.title, "level": "wrong" if tile.is_wrong else "good", "charts": tile.charts} for tile in ordered]


def _by(series: Sequence[Mapping[str, Any]], *labels: str) -> Dict[str, List[Optional[float]]]:
    """Return {values of these labels: values of the series}. Series without one of the labels are left out."""
    found = {}
    for entry in series:
        if all(label in entry["labels"] for label in labels):
            name = " NPU ".join(short(entry["labels"][label]) for label in labels)
            found[name] = _drawable(entry["values"])
    return found


def _only(series: Sequence[Mapping[str, Any]]) -> List[Optional[float]]:
    return _drawable(series[0]["values"]) if series else []


def _drawable(values: Values) -> List[Optional[float]]:
    return [None if value is None or not 0 <= value < LARGEST else float(value) for value in values[: STEPS + 1]]


def _last(values: Values) -> Optional[float]:
    """Return the value at the end of the charts, or None if the line has no value at that time."""
    return values[-1] if values else None


def _chart(lines: Sequence[Line], unit: str, limit: float = 0.0, factor: float = 1.0) -> Dict[str, Any]:
    """Return the drawing of the lines on one scale, which begins at 0 and includes `limit`."""
    scaled = [line._replace(values=[None if value is None else value * factor for value in line.values]) for line in lines]
    known = [value for line in scaled for value in line.values if value is not None]
    top = max([limit, *known]) or 1.0
    legend = []
    for line in scaled:
        last = _last(line.values)
        legend.append({"kind": line.kind, "name": line.name, "now": "no data" if last is None else _amount(last, unit)})
    return {
        "legend": legend,
        "top": _amount(top, unit),
        "lines": [{"kind": line.kind, "parts": _parts(line.values, top)} for line in scaled],
    }


def _amount(value: float, unit: str) -> str:
    digits = 0 if value >= 100 or unit in (" °C", " %") else 1
    return f"{value:,.{digits}f}{unit}"


def _parts(values: Values, top: float) -> List[str]:
    """Split a line at its gaps, and return the points of each part. A lone point is doubled, because a line needs two points."""
    parts: List[List[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            parts.append([])
        else:
            parts[-1].append(f"{_x(place)},{(1 - value / top) * (HEIGHT - 2) + 1:.1f}")
    return [" ".join(part if len(part) > 1 else [part[0], part[0]]) for part in parts if part]


def _x(place: float) -> str:
    return f"{place * WIDTH / STEPS:.1f}"


def _rollouts(records: Sequence[Mapping[str, Any]], start: int, end: int) -> List[Dict[str, str]]:
    """Return the place and the text of the last rollouts within the time of the charts, oldest first."""
    marks: List[Dict[str, str]] = []
    for record in records:
        at = moment(record["batches"][0]["ended"]) if record["batches"] else None
        if at and start <= at.timestamp() <= end and len(marks) < ROLLOUTS:
            hosts = len({host for batch in record["batches"] for host in batch["hosts"]})
            count = f"{hosts} host{'' if hosts == 1 else 's'}"
            text = f"{iso(at)[11:16]} UTC {short(record['playbook'])} by {short(record['by'])}, {count}"
            marks.append({"x": _x((at.timestamp() - start) * STEPS / (end - start)), "text": text})
    return marks[::-1]


def _bands(changes: Values) -> List[Dict[str, str]]:
    """Return the spans in which a change was running on at least one host."""
    bands: List[List[int]] = []
    for place, value in enumerate(changes):
        if value:
            if bands and bands[-1][1] == place - 1:
                bands[-1][1] = place
            else:
                bands.append([place, place])
    # A change that was seen once is as wide as a step.
    return [{"x": _x(max(first - 0.5, 0)), "width": _x(last - first + 1)} for first, last in bands]
