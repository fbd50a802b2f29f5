# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The records of rollouts in `rollouts/<UTC time>-<digest of the run>.json` on the controller.

This module runs only on the controller and imports nothing of ansible-core.

A run has one record. The run writes the record with the planned batches before the first host changes, and adds each batch at its
end. So the record of a killed run shows which hosts were not changed. No run reads a record to decide what to do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from itertools import islice
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes, system
from ansible_collections.npufleet.triton.plugins.module_utils.change import rollouts
from ansible_collections.npufleet.triton.plugins.module_utils.plan import count_of, short
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import outputs

DIRECTORY = "rollouts"
# The most records that are kept, the largest size of a record in bytes, the longest text, and the most concerns of a host
MAX_RECORDS, MAX_BYTES, MAX_TEXT, MAX_CONCERNS = 100, 1 << 22, 500, 20
# The most hosts of a rollout in the report
MAX_HOSTS = 200
_TIME = re.compile(r"[0-9TZ:-]{20}", re.ASCII)
NAME = re.compile(rf"{_TIME.pattern}-[0-9a-f]{{12}}\.json", re.ASCII)
LOST = "became unreachable during the change"
_ANY = re.compile(r".{1,300}", re.DOTALL)
_COUNT = (int, shapes.NULL)
_DRAIN = {"in_flight": int, "closed": int}
_VERDICT = {"verdict": str, "text": str, "numbers": {_ANY: (int, float, shapes.NULL)}}
HOST = {
    "release": shapes.TEXT_OR_NULL,
    "concerns": [str],
    "verdict": (_VERDICT, shapes.NULL),
    "in_flight": _COUNT,
    "closed": _COUNT,
    "seconds": (int, float, shapes.NULL),
    "failure": str,
}
SHAPE = {
    "run": str,
    "by": str,
    "playbook": str,
    "commit": shapes.TEXT_OR_NULL,
    "began": _TIME,
    "planned": [[str]],
    # How the rollout pauses after its first batch: `confirm`, seconds, or empty
    "pause": str,
    "batches": [{"ended": str, "hosts": {_ANY: HOST}}],
}


class Owner(NamedTuple):
    """The run of a record: its ID, the user who started it, its playbook, and the directory of its inventory."""

    run: str
    by: str
    playbook: str
    inventory: str = ""


def commit(directory: str) -> Optional[str]:
    """Return the commit of a directory, with `-dirty` if tracked files have changed. Return None outside of a git repository."""
    if not directory:
        return None
    arguments = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    code, output = system.run("git", "-C", directory, *arguments, timeout=10)
    return output if code == 0 and re.fullmatch(r"[0-9a-f]{40,64}(-dirty)?", output) else None


def host_entry(hostvars: Mapping[str, Any], concerns: Sequence[str], now: float, lost: bool = False) -> Dict[str, Any]:
    """Return the entry of a host in a record. `hostvars` has the variables of the host. Values of a wrong type are left out.

    `lost` is True if the host became unreachable during its change.
    """
    drains = _valid_entries(hostvars.get("load_balancer_drained_requests"), _DRAIN)
    failure = LOST if lost else str(hostvars.get("npufleet_failed") or "")
    release = hostvars.get("rbln_release")
    return {
        "release": short(str(release), MAX_TEXT) if release else None,
        "concerns": [short(str(concern), 60) for concern in concerns[:MAX_CONCERNS]],
        "verdict": _verdict(_plain(hostvars.get("load_balancer_verdict"))),
        "in_flight": drains[0]["in_flight"] if drains else None,
        "closed": sum(entry["closed"] for entry in drains) if drains else None,
        "seconds": _seconds(hostvars.get("npufleet_began"), now),
        "failure": short(failure, MAX_TEXT),
    }


def end_on_host(entry: Mapping[str, Any]) -> Dict[str, Any]:
    """Convert the entry of a host in a record to the form that the host stores (module_utils/change/rollouts.py)."""
    verdict = entry["verdict"] and {name: entry["verdict"][name] for name in ("verdict", "text")}
    return {"failure": entry["failure"], "verdict": verdict, "in_flight": entry["in_flight"], "closed": entry["closed"]}


def _verdict(value: Any) -> Optional[Dict[str, Any]]:
    if shapes.mismatch(value, _VERDICT):
        return None
    return {"verdict": short(value["verdict"], MAX_TEXT), "text": short(value["text"], MAX_TEXT), "numbers": value["numbers"]}


def _seconds(began: Any, now: float) -> Optional[float]:
    try:
        return max(0.0, round(now - float(began), 1))
    except (OverflowError, TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Convert a value to plain types. Ansible returns subclasses of these types. Return None for a value that JSON lacks."""
    try:
        return shapes.parse(json.dumps(value))
    except (RecursionError, TypeError, ValueError):
        return None


def _valid_entries(value: Any, shape: shapes.Shape) -> List[Any]:
    """Return the entries of a list that have this shape, as plain types. Return [] if the value is not a list."""
    entries = _plain(value)
    return [entry for entry in entries if not shapes.mismatch(entry, shape)] if isinstance(entries, list) else []


def paths(directory: str) -> List[str]:
    """Return the paths of the records, newest first."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [os.path.join(directory, name) for name in sorted(filter(NAME.fullmatch, names), reverse=True)]


def read(path: str) -> Optional[Dict[str, Any]]:
    """Return a record, or None if it is missing or damaged."""
    loaded = shapes.read(path, SHAPE, MAX_BYTES)
    return None if loaded.flaw or not loaded.exists else loaded.content


def latest(directory: str, most: int = MAX_RECORDS) -> List[Dict[str, Any]]:
    """Return the newest valid records, newest first."""
    return list(islice(filter(None, map(read, paths(directory))), most))


def begin(directory: str, owner: Owner, batches: Sequence[Sequence[str]], pause: str, now: float) -> Dict[str, Any]:
    """Record that a rollout begins, and return the record. A run can have several rollouts. Raises OSError."""
    record = _record_or_new(directory, owner, now)
    # An earlier rollout of this run may have ended early. Its hosts that were not changed are removed, so that `left` does not
    # return them.
    planned = [*record["planned"][: len(record["batches"])], *(list(batch) for batch in batches)]
    record.update(planned=planned, pause=pause)
    _write(directory, record)
    return record


def add(directory: str, owner: Owner, hosts: Mapping[str, Mapping[str, Any]], now: float) -> None:
    """Add a finished batch to the record of the run. Raises OSError."""
    record = _record_or_new(directory, owner, now)
    record["batches"].append({"ended": system.timestamp(now), "hosts": dict(hosts)})
    _write(directory, record)


def left(record: Mapping[str, Any]) -> List[str]:
    """Return the hosts in planned batches whose end is not recorded."""
    return [host for batch in record["planned"][len(record["batches"]) :] for host in batch]


def record_of_run(directory: str, owner: Owner) -> Optional[Dict[str, Any]]:
    """Return the record of the run, or None if the run has no record."""
    records = (read(path) for path in paths(directory) if path.endswith(_file_suffix(owner.run)))
    return next((record for record in records if record and record["run"] == owner.run), None)


def _file_suffix(run: str) -> str:
    """Return the end of a record's file name, which differs even for two runs that begin in the same second."""
    return f"-{hashlib.sha256(run.encode()).hexdigest()[:12]}.json"


def _record_or_new(directory: str, owner: Owner, now: float) -> Dict[str, Any]:
    """Return the record of the run. If the run has no record yet, return a new record that is not written yet."""
    return record_of_run(directory, owner) or {
        "run": owner.run,
        "by": owner.by,
        "playbook": owner.playbook,
        "commit": commit(owner.inventory),
        "began": system.timestamp(now),
        "planned": [],
        "pause": "",
        "batches": [],
    }


def _write(directory: str, record: Mapping[str, Any]) -> None:
    path = os.path.join(directory, record["began"] + _file_suffix(record["run"]))
    outputs.write(path, json.dumps(record, indent=1, sort_keys=True))
    # The new record is kept, even if the clock was set back and this record appears to be the oldest.
    for old in [other for other in paths(directory) if other != path][MAX_RECORDS - 1 :]:
        with suppress(FileNotFoundError):
            os.remove(old)


def table(records: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return a headline for each rollout, a line for each changed host, and a line with the hosts that were not changed."""
    lines = []
    for record in records:
        lines.append(headline(record))
        for number, batch in enumerate(record["batches"], 1):
            lines += [f"  batch {number}: {short(name)}: {sentence(host)}" for name, host in sorted(batch["hosts"].items())]
        if left(record):
            lines.append(f"  not changed: {short(', '.join(left(record)), MAX_TEXT)}")
    return lines or ["no rollout is recorded"]


def headline(record: Mapping[str, Any]) -> str:
    """Return one line about a rollout."""
    hosts = [host for batch in record["batches"] for host in batch["hosts"].values()]
    failed = sum(bool(host["failure"]) for host in hosts)
    parts = [f"{count_of(len(hosts), 'host')} in {count_of(len(record['batches']), 'batch', 'es')}"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{count_of(len(left(record)), 'host')} not changed"] if left(record) else []
    parts += [f"pause {record['pause']}"] if record["pause"] else []
    if record["commit"]:
        parts.append(f"inventory {short(record['commit'][:12])}{'-dirty' * record['commit'].endswith('-dirty')}")
    return f"{short(record['began'])} {short(record['playbook'])} by {short(record['by'])}: {', '.join(parts)}"


def host_table(entries: Any) -> List[str]:
    """Return a line for each rollout in the record of a host (module_utils/change/rollouts.py). Invalid entries are left out."""
    return [
        f"{short(entry['began'])} {short(entry['playbook'])} by {short(entry['by'])}, "
        f"batch {entry['batch']} of {entry['batches']}: {sentence(entry) if entry['ended'] else 'no end is recorded'}"
        for entry in _valid_entries(entries, rollouts.ENTRY)[: rollouts.MAX_ENTRIES]
    ]


def cards(records: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Return the rollouts for the report, each with its failed hosts first.

    `more` is the number of changed hosts that the report does not show. `left` names the hosts that were not changed.
    """
    rollout_cards = []
    for record in records:
        rows = [
            {"host": name, "batch": number, "text": sentence(host), "level": "wrong" if host["failure"] else "good"}
            for number, batch in enumerate(record["batches"], 1)
            for name, host in sorted(batch["hosts"].items())
        ]
        rows.sort(key=lambda row: row["level"] == "good")
        level = "wrong" if rows and rows[0]["level"] == "wrong" else "unknown" if left(record) else "good"
        pending = short(", ".join(left(record)), MAX_TEXT) if left(record) else ""
        more = max(0, len(rows) - MAX_HOSTS)
        rollout_cards.append({"title": headline(record), "level": level, "hosts": rows[:MAX_HOSTS], "more": more, "left": pending})
    return rollout_cards


def sentence(host: Mapping[str, Any]) -> str:
    """Return the result of a rollout for a host, in one line. An entry from the host's own record has no duration."""
    parts = [f"failed: {host['failure']}" if host["failure"] else "changed", ", ".join(host["concerns"])]
    parts += [f"release {host['release']}"] if host["release"] else []
    parts += [f"{host['seconds']:.0f} s"] if host.get("seconds") is not None else []
    parts += [f"{host['in_flight']} requests in flight, {host['closed']} closed"] if host["in_flight"] is not None else []
    parts += [f"{host['verdict']['verdict']}: {host['verdict']['text']}"] if host["verdict"] else []
    return short("; ".join(filter(None, parts)), MAX_TEXT)
