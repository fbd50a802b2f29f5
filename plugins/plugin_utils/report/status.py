# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The status document of a fleet, for other programs and for the report."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence


def document(when: str, before: Sequence[Any], fleet: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return {"when": time, "hosts": entries}. A host that was not read in this run keeps its entry of the document `before`."""
    names = {entry["host"] for entry in entries}
    unread = [entry for entry in before if isinstance(entry, Mapping) and entry.get("host") in fleet and entry["host"] not in names]
    return {"when": when, "hosts": [*unread, *entries]}


def text(status: Mapping[str, Any]) -> str:
    """Return the document as JSON with a line for each host. For a large fleet, indentation would take seconds."""
    hosts = ",\n".join(json.dumps(entry, sort_keys=True) for entry in status["hosts"])
    return f'{{"hosts": [\n{hosts}\n], "when": {json.dumps(status["when"])}}}\n'


def host_entry(when: str, name: str, result: Optional[Mapping[str, Any]], release: Any) -> Dict[str, Any]:
    """Return the entry of a host. `result` is its result of host_state, or None if no task has read the host."""
    known_result = result or {"failed": True, "msg": f"{name} was not read"}
    maintenance = known_result.get("maintenance")
    default_state = "drift" if known_result.get("plan") else "in sync"
    state = next((state for state in ("unreachable", "failed", "maintenance") if known_result.get(state)), default_state)
    report: List[str] = list(known_result.get("report") or [] if "report" in known_result else [known_result.get("msg", "")])
    if state == "maintenance" and maintenance:
        report = ["in maintenance: {reason} ({by}, {since})".format(**{"reason": "", "by": "", "since": "", **maintenance})]
    models = ((known_result.get("desired") or {}).get("models") or {}).get("models") or {}
    return {
        "host": name,
        "when": when,
        "release": release,
        "untested": known_result.get("untested"),
        "state": state,
        "maintenance": maintenance,
        "plan": known_result.get("plan") or [],
        "report": report,
        "models": {model: {key: entry[key] for key in ("source", "release")} for model, entry in models.items()},
        "actual": known_result.get("actual") or {},
    }
