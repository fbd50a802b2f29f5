# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The data that the report page shows: the status and the check results of each host."""

from __future__ import annotations

import html
import json
import os
import re
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import system
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short

Row = Dict[str, Any]

# Numbers of this size or larger are not shown. No count of bytes or milliseconds is so large.
MAX_NUMBER = 1e18
# Older status entries and check results are shown as stale.
MAX_AGE_HOURS = 24
# States of a host, the most severe first, and their levels
LEVELS = {
    **dict.fromkeys(("unreachable", "failed", "wrong answers", "not proven", "drift"), "wrong"),
    **dict.fromkeys(("maintenance", "not read", "not checked"), "unknown"),
    **dict.fromkeys(("in sync", "proven"), "good"),
}
# (heading, kind) of the columns before and after the columns of the models
FIRST_COLUMNS = (("Host", "host"), ("State", "state"))
LAST_COLUMNS = (("Cards", "cards"), ("Driver", "version"), ("Triton", "version"), ("SDK", "version"), ("Seen", "seen"))
# The form of a picture. Other values are not shown.
PICTURE_URI = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]{1,40000}={0,2}")


def read(hosts: Sequence[str], status_file: str, results_dir: str) -> Tuple[Dict[str, Row], Dict[str, Row]]:
    """Return {host: status} and {host: check results} for these hosts. Hosts without an entry are left out."""
    statuses = {entry["host"]: entry for entry in _dicts(_json(status_file).get("hosts")) if entry.get("host") in hosts}
    results = {host: _json(os.path.join(results_dir, f"{host}.json")) for host in hosts}
    return statuses, {host: result for host, result in results.items() if result}


def _json(path: str) -> Dict[str, Any]:
    """Return the JSON object in a file, or {} if the file is missing or invalid."""
    try:
        with open(path, encoding="utf-8") as source:
            content = json.load(source)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def view(
    hosts: Sequence[str],
    checked_hosts: Sequence[str],
    statuses: Mapping[str, Row],
    results: Mapping[str, Row],
    now: float,
    charts: Optional[Mapping[str, Any]] = None,
    rollouts: Sequence[Row] = (),
) -> Dict[str, Any]:
    """Return the data of the page.

    If at least one host has a status, hosts without a status are shown as not read. Likewise, hosts without check results are shown
    as not checked if at least one host has check results.

    `now` is in seconds since 1970. `charts` is the result of charts.view(). `rollouts` has an entry for each of the last rollouts
    (record.cards).
    """
    rows = [
        _row(
            host,
            statuses.get(host, {} if statuses else None),
            results.get(host, {} if results and host in checked_hosts else None),
            now,
        )
        for host in dict.fromkeys(hosts)
    ]
    rows.sort(key=lambda row: (row["rank"], natural(row["host"])))
    for position, row in enumerate(rows):
        row["position"] = position
    _place_pictures(rows)
    models = sorted({model for row in rows for model in row["models"]})
    levels = [row["level"] for row in rows]
    missing = [name for name, entries in (("status", statuses), ("check", results)) if not entries]
    return {
        "made": system.timestamp(now),
        "charts": charts,
        "stale_hours": MAX_AGE_HOURS,
        "missing": missing,
        "models": models,
        "columns": [*FIRST_COLUMNS, *((model.split("\n")[0], "model") for model in models), *LAST_COLUMNS],
        "hosts": rows,
        "counts": {
            "all": len(rows),
            **{level: levels.count(level) for level in ("wrong", "unknown", "good")},
            "right": sum(row["right"] for row in rows),
            "checks": sum(row["checks"] for row in rows),
            "stale": sum(row["stale"] for row in rows),
        },
        "rollouts": list(rollouts),
        "releases": sorted({row["release"] for row in rows if row["release"]}),
    }


def _row(host: str, status: Optional[Row], result: Optional[Row], now: float) -> Row:
    """Return the row of a host. `status` and `result` are {} if only other hosts have one, and None if no host has one."""
    actual = _value(status, "actual")
    plan, checks = _dicts(_value(status, "plan")), _dicts(_value(result, "checks"))
    wrong = [check for check in checks if check.get("ok") is not True]
    states = _states(status, result, plan, checks, wrong)
    reasons = []
    if _value(status, "state") in ("unreachable", "failed", "maintenance"):
        reasons += [str(line) for line in _list(_value(status, "report"))]
    if result and not checks:
        reasons.append(str(result.get("msg") or "no model was checked"))
    reasons += ["{}: {}".format(check.get("name"), check.get("why") or "the answer was wrong") for check in wrong]
    steps = [
        {
            "what": "{} {}".format(item.get("concern"), item.get("name")),
            "actual": short(item.get("current")),
            "desired": short(item.get("desired")),
            "action": str(item.get("action")),
        }
        for item in plan
    ]
    times: List[Row] = []
    for what, entry in (("read", status), ("checked", result)):
        at = system.seconds_since_1970(str(_value(entry, "when")))
        if at is not None:
            times.append({"what": what, "when": system.timestamp(at), "stale": now - at > MAX_AGE_HOURS * 3600})
    cards = _cards(actual)
    row: Row = {
        "host": host,
        "rank": list(LEVELS).index(states[0]["word"]) if states else len(LEVELS),
        "level": states[0]["level"] if states else "unknown",
        "states": states,
        "reasons": list(dict.fromkeys(reasons)),
        "plan": steps,
        "release": _text(status, "release"),
        "untested": _text(status, "untested"),
        "versions": _versions(actual),
        "cards": cards,
        "sick": sum(card["status"] != "normal" for card in cards),
        "image": _text(actual, "image", "id"),
        "models": _models(actual, _mapping(_value(status, "models")), plan, checks),
        "answers": _answers(checks),
        "checks": len(checks),
        "right": len(checks) - len(wrong),
        "times": times,
        "stale": any(time["stale"] for time in times),
        "seen": min((time["when"] for time in times), default=""),
    }
    # Below the state of the host, the page shows only the first of these lines.
    lines = row["reasons"] + ["{what} is {actual}, expected {desired}".format(**step) for step in steps]
    row["first"], row["more"] = (lines[0] if lines else ""), max(len(lines) - 1, 0)
    return row


def _states(
    status: Optional[Row], result: Optional[Row], plan: Sequence[Row], checks: Sequence[Row], wrong: Sequence[Row]
) -> List[Dict[str, str]]:
    """Return the states that follow from the status and the check results, the most severe first."""
    counts: Dict[str, str] = {}
    if status is not None:
        word = status.get("state") or "not read"
        counts[word if word in LEVELS else "failed"] = f"{len(plan)}" if word == "drift" else ""
    if result is not None:
        if not result:
            counts["not checked"] = ""
        elif not checks:
            counts["not proven"] = ""
        elif wrong:
            counts["wrong answers"] = f"{len(wrong)} of {len(checks)}"
        else:
            counts["proven"] = f"{len(checks)} of {len(checks)}"
    if {"unreachable", "not proven"} <= set(counts):
        # An unreachable host is also not proven, so only the state `unreachable` is shown.
        del counts["not proven"]
    return [{"word": word, "level": LEVELS[word], "count": counts[word]} for word in LEVELS if word in counts]


def _versions(actual: Any) -> Dict[str, str]:
    contents = _list(_value(actual, "image", "contents"))
    package = _text(actual, "driver", "package", "version")
    module = _text(actual, "driver", "module")
    firmware = sorted({card["firmware"] for card in _cards(actual) if card["firmware"]})
    versions = {
        "driver": module,
        "driver package": package if package != module else "",
        "firmware": ", ".join(firmware),
        "kernel": _text(actual, "driver", "kernel"),
        "engine": _text(actual, "engine", "running", "version"),
        "Triton": _text(actual, "server", "version"),
        "SDK": next((str(content).split("==", 1)[1] for content in contents if str(content).startswith("rebel-compiler==")), ""),
        "server": _text(actual, "server", "state"),
    }
    return {what: version for what, version in versions.items() if version}


def _cards(actual: Any) -> List[Dict[str, str]]:
    cards = []
    for device in _list(_value(actual, "driver", "tool", "devices")):
        used, total = _value(device, "memory_used"), _value(device, "memory_total")
        memory = f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB" if _is_number(used) and _is_number(total) else ""
        words = {key: _text(device, key) for key in ("device", "name", "status", "firmware", "bus_id")}
        cards.append({**words, "memory": memory})
    return cards


def _models(actual: Any, desired: Mapping[str, Any], plan: Sequence[Row], checks: Sequence[Row]) -> Dict[str, Row]:
    """Return {model: cell} for a host.

    A cell has the level and the word of its state, the median time in ms, the served versions, and the release in the store.
    """
    served = _mapping(_value(actual, "server", "served"))
    linked = _mapping(_value(actual, "models", "served"))
    planned = {str(item.get("name")) for item in plan if item.get("concern") == "models"}
    checked_models = {str(check.get("model")) for check in checks if check.get("model")}
    cells = {}
    for model in sorted({*served, *linked, *checked_models, *desired}):
        model_checks = [check for check in checks if check.get("model") == model]
        right = [check for check in model_checks if check.get("ok") is True]
        # Only the source of the desired release is known.
        release, source = _value(desired, model, "release"), _text(desired, model, "source")
        versions = [
            {
                "version": str(version),
                **{key: _text(entry, key) for key in ("state", "reason", "release")},
                "source": source if release is not None and release == _value(entry, "release") else "",
            }
            for version, entry in sorted(_mapping(served.get(model)).items(), key=lambda entry: natural(entry[0]))
        ]
        ready = any(version["state"] == "READY" for version in versions)
        times = [float(check["ms"]) for check in right if _is_number(check.get("ms"))]
        if model_checks:
            level, word = ("good" if len(right) == len(model_checks) else "wrong"), f"{len(right)} of {len(model_checks)}"
        else:
            level, word = ("unknown", "not checked") if ready else ("wrong", "not served")
        if model_checks and actual and not ready:
            level = "wrong"
        if model in planned and level == "good":
            level = "drift"
        cells[model] = {
            "level": level,
            "word": word,
            "ms": f"{median(times):.1f}" if times else "",
            "versions": versions,
            "link": _text(linked, model, "release"),
        }
    return cells


def _answers(checks: Sequence[Row]) -> List[Row]:
    """Return the answers by model and protocol, in the order of the requests."""
    groups: Dict[Tuple[str, str], List[Row]] = {}
    for check in checks:
        model, protocol = _text(check, "model"), _text(check, "protocol")
        name, start = _text(check, "name"), f"{model}/{protocol}/"
        answer = {
            "name": name[len(start) :] if name.startswith(start) else name,
            "ok": check.get("ok") is True,
            "why": _text(check, "why"),
            "ms": f"{check['ms']:.1f}" if _is_number(check.get("ms")) else "",
            "expected": short(check["expected"]) if "expected" in check else "",
            "got": short(check["got"]) if "got" in check else "",
            "picture": check["picture"] if PICTURE_URI.fullmatch(str(check.get("picture"))) else "",
        }
        groups.setdefault((model, protocol), []).append(answer)
    return [
        {
            "model": model,
            "protocol": protocol,
            "right": sum(entry["ok"] for entry in answers),
            "answers": answers,
        }
        for (model, protocol), answers in groups.items()
    ]


def _place_pictures(rows: Sequence[Row]) -> None:
    """Give each picture a number. Keep the picture only in the first answer that has it. Other answers have only the number."""
    numbers: Dict[str, int] = {}
    for answer in (answer for row in rows for group in row["answers"] for answer in group["answers"] if answer["picture"]):
        first = answer["picture"] not in numbers
        answer["number"] = numbers.setdefault(answer["picture"], len(numbers))
        answer["picture"] = answer["picture"] if first else ""


def natural(name: str) -> List[Tuple[int, str]]:
    """Return a sort key that puts npu2 before npu10. A number can have any number of digits."""
    parts = (part.lstrip("0") if part.isdigit() else part for part in re.split(r"([0-9]+)", name) if part)
    return [(len(part), part) if part.isdigit() or not part else (-1, part) for part in parts]


def escaped(data: Any) -> Any:
    """Return a value with all texts and keys in it escaped for HTML."""
    if isinstance(data, str):
        return html.escape(data)
    if isinstance(data, Mapping):
        return {escaped(key): escaped(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [escaped(entry) for entry in data]
    return data


def _value(value: Any, *keys: str) -> Any:
    """Return the value below these keys, or None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _dicts(value: Any) -> List[Row]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any, *keys: str) -> str:
    """Return the value below these keys as a short text, or "" if a key is missing."""
    part = _value(value, *keys)
    return "" if part is None else short(part)


def _is_number(value: Any) -> bool:
    """Return True for a number that can be shown: finite and below MAX_NUMBER."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
