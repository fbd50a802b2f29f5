# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The status document of a fleet, for other programs and for the report. Controller only."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence


def document(when: str, before: Sequence[Any], fleet: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return {"when": time, "hosts": entries}. A host that was not read in this run keeps its entry of `before`."""
    names = {entry["host"] for entry in entries}
    kept = [entry for entry in before if isinstance(entry, Mapping) and entry.get("host") in fleet and entry["host"] not in names]
    return {"when": when, "hosts": [*kept, *entries]}


def text(found: Mapping[str, Any]) -> str:
    """Return the document as JSON with a line for each host. An indented document of a large fleet would take seconds."""
    hosts = ",\n".join(json.dumps(entry, sort_keys=True) for entry in found["hosts"])
    return f'{{"hosts": [\n{hosts}\n], "when": {json.dumps(found["when"])}}}\n'


def host_entry(when: str, name: str, result: Optional[Mapping[str, Any]], release: Any) -> Dict[str, Any]:
    """Return the entry of a host, from the result of host_state; None if no task has returned one."""
    found = result or {"failed": True, "msg": f"{name} was not read"}
    mark = found.get("maintenance")
    state = _state(found)
    report: List[str] = list(found.get("report") or [] if "report" in found else [found.get("msg", "")])
    if state == "maintenance" and mark:
        report = ["in maintenance: {reason} ({by}, {since})".format(**{"reason": "", "by": "", "since": "", **mark})]
    models = ((found.get("desired") or {}).get("models") or {}).get("models") or {}
    return {
        "host": name,
        "when": when,
        "release": release,
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
