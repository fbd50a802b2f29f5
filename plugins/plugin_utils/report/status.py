# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The status document of a fleet, for other programs and for the report. Controller only."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence


def document(when: str, before: Sequence[Any], fleet: Sequence[str], read: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Return {"when": time, "hosts": entries}. A host that was not read in this run keeps its entry of `before`.

    `read` has the result of host_state (`state`) and the `release` of each host that was read.
    """
    kept = [entry for entry in before if isinstance(entry, Mapping) and entry.get("host") in fleet and entry["host"] not in read]
    return {"when": when, "hosts": [*kept, *(_host(when, name, known) for name, known in read.items())]}


def _host(when: str, name: str, known: Mapping[str, Any]) -> Dict[str, Any]:
    found = known["state"] or {"failed": True, "msg": f"{name} was not read"}
    mark = found.get("maintenance")
    state = _state(found)
    report: List[str] = list(found.get("report") or [] if "report" in found else [found.get("msg", "")])
    if state == "maintenance" and mark:
        report = ["in maintenance: {reason} ({by}, {since})".format(**{"reason": "", "by": "", "since": "", **mark})]
    models = ((found.get("desired") or {}).get("models") or {}).get("models") or {}
    return {
        "host": name,
        "when": when,
        "release": known["release"],
        "untested": found.get("untested"),
        "state": state,
        "maintenance": mark,
        "plan": found.get("plan") or [],
        "report": report,
        "models": {model: {key: entry[key] for key in ("source", "release")} for model, entry in models.items()},
        "actual": found.get("actual") or {},
    }


def _state(found: Mapping[str, Any]) -> str:
    states = [state for state in ("unreachable", "failed", "maintenance") if found.get(state)]
    return states[0] if states else "drift" if found.get("plan") else "in sync"
