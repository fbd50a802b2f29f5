# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The batches of a rollout, their announcement, and the file with the durations of previous changes."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, count_of, short
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import outputs

MIB = 1 << 20
SERIAL = "npufleet_rollout_serial"
PAUSE, CONFIRM = "npufleet_rollout_pause", "confirm"
NO_TERMINAL = (
    f"{PAUSE} is confirm and no terminal can confirm the rollout, expected a run in a terminal: run it there, or give "
    f"-e {PAUSE}=600 for a pause of seconds."
)
# An announcement lists the names of at most this many hosts. With more hosts, it has only the first and last name of each batch.
MAX_NAMES = 20
# Valid sizes of batches. With other values, Ansible changes all hosts at once or ends with a traceback.
COUNT = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
PERCENT = re.compile(r"([1-9][0-9]?|100)%", re.ASCII)
SECONDS_FORM, MAX_PAUSE = re.compile(r"[0-9]{1,5}", re.ASCII), 86400
# The size of a batch: a number of hosts, or a percentage of all hosts of the rollout
Size = Union[int, str]


class PlannedHost(NamedTuple):
    """The plan of a host: the concerns that change, and the bytes of models to transfer (None if unknown)."""

    host: str
    concerns: Sequence[str]
    bytes: Optional[int]


class Duration(NamedTuple):
    """The last change of a host: its duration in seconds, and the concerns that it changed."""

    seconds: float
    concerns: Sequence[str]


def parse_serial(value: Any) -> List[Size]:
    """Return the sizes of the batches that a value of npufleet_rollout_serial describes.

    A value that was set with `-e` is a text, such as `25%`, `3` or a list in JSON. Raises Refusal, which lists all invalid entries.
    """
    if isinstance(value, str) and value.strip().startswith("["):
        with suppress(ValueError):
            value = json.loads(value)
    entries = list(value) if isinstance(value, (list, tuple)) else [value]
    sizes = [_size(entry) for entry in entries]
    invalid = [short(entry, 60) or '""' for entry, size in zip(entries, sizes) if size is None]
    if invalid or not entries:
        raise Refusal(
            f"{SERIAL} is {', '.join(invalid) or 'an empty list'}, expected numbers of hosts of 1 or more, or percentages from "
            '1% to 100%: correct it, such as [1, "25%", "100%"]'
        )
    return [size for size in sizes if size is not None]


def _size(entry: Any) -> Optional[Size]:
    """Return the size of a batch, or None if the entry is invalid."""
    if isinstance(entry, bool) or not isinstance(entry, (int, str)):
        return None
    text = str(entry).strip()
    return text if PERCENT.fullmatch(text) else int(text) if COUNT.fullmatch(text) else None


def common_serial(values: Mapping[str, Sequence[Size]]) -> List[Size]:
    """Return the batch sizes of all hosts ({host: sizes}), or ["100%"] if there are no hosts. Raises Refusal if they differ."""
    hosts: Dict[str, List[str]] = {}
    for host, value in values.items():
        hosts.setdefault(json.dumps(list(value)), []).append(host)
    if len(hosts) > 1:
        text = "; ".join(f"{value} of {', '.join(names)}" for value, names in hosts.items())
        raise Refusal(
            f"{SERIAL} is {text}, expected one value for all hosts that one run changes: give it with -e, or run once for each "
            "with --limit"
        )
    return list(next(iter(values.values()), ["100%"]))


def parse_pause(value: Any) -> str:
    """Return the pause that a value of npufleet_rollout_pause describes: seconds, `confirm` or empty. Raises Refusal."""
    text = str(value).strip()
    if text in ("", CONFIRM) or (SECONDS_FORM.fullmatch(text) and int(text) <= MAX_PAUSE):
        return "" if text.isdigit() and int(text) == 0 else text
    raise Refusal(
        f"{PAUSE} is {short(text, 60)}, expected a number of seconds from 0 to {MAX_PAUSE}, or {CONFIRM}: correct it, such as 600"
    )


def longest_pause(values: Iterable[Any]) -> str:
    """Return the pause of a rollout whose hosts have these values: `confirm` if a host has it, otherwise the longest pause."""
    pauses = []
    for value in values:
        with suppress(Refusal):
            pauses.append(parse_pause("" if value is None else value))
    return CONFIRM if CONFIRM in pauses else max(filter(None, pauses), key=int, default="")


def batches(hosts: Sequence[str], serial: Sequence[Size]) -> List[List[str]]:
    """Return the batches that Ansible forms with `serial`: each size once, then the last size repeatedly. No batch is empty."""
    entries, unassigned, formed = list(serial), list(hosts), []
    while unassigned:
        entry = entries.pop(0) if len(entries) > 1 else entries[0]
        percent = PERCENT.fullmatch(str(entry))
        size = (int(int(percent[1]) / 100.0 * len(hosts)) or 1) if percent else int(entry)
        formed.append(unassigned[:size])
        unassigned = unassigned[size:]
    return formed


def announcement(
    remaining: Sequence[Sequence[PlannedHost]],
    durations: Mapping[str, Duration],
    total: int,
    path: Optional[str] = None,
    pause: str = "",
) -> str:
    """Return the announcement of the remaining batches, in their order. `total` is the number of hosts of the rollout.

    If there are many hosts, the announcement has only the size, the first host and the last host of each batch. `path` is the file
    with all names, or None if no file was written. `pause` is the pause after the first batch: `confirm`, seconds, or empty.
    """
    hosts = [host for batch in remaining for host in batch]
    names = "; then ".join(_batch([host.host for host in batch], len(hosts) > MAX_NAMES) for batch in remaining)
    changed = ", ".join(dict.fromkeys(concern for host in hosts for concern in host.concerns))
    begins = len(hosts) == total
    action = f"changes {count_of(len(hosts), 'host')}" if begins else f"continues with {len(hosts)} of {total} hosts"
    known_bytes = sum(host.bytes or 0 for host in hosts)
    sizes = [f"{known_bytes / MIB:.1f} MiB"] if known_bytes else []
    sizes += ["files of unknown size"] if any(host.bytes is None for host in hosts) else []
    transfer = " and ".join(sizes) or "nothing"
    waits = "until an operator confirms" if pause == CONFIRM else f"for {pause} s"
    paused = f", and a pause after the first batch {waits}" if pause and len(remaining) > 1 else ""
    listed = f"; all names: {path}" if path else ""
    estimate = _estimate(remaining, durations)
    return f"the rollout {action}: {names} ({changed or 'models'}; {transfer} to copy); {estimate}{paused}{listed}"


def _batch(names: Sequence[str], many: bool) -> str:
    """Return the names of the hosts of a batch. With `many`, return only the number of hosts, the first name and the last name."""
    if not many:
        return ", ".join(names)
    return names[0] if len(names) == 1 else f"{len(names)} hosts from {names[0]} to {names[-1]}"


def _estimate(remaining: Sequence[Sequence[PlannedHost]], durations: Mapping[str, Duration]) -> str:
    """Return the estimated duration as text. A batch takes as long as its slowest host."""
    seconds, unknown = 0.0, []
    for batch in remaining:
        slowest = 0.0
        for host in batch:
            last = durations.get(host.host)
            if last and set(host.concerns) <= set(last.concerns):
                slowest = max(slowest, last.seconds)
            else:
                unknown.append(host.host)
        seconds += slowest
    if unknown:
        known_part = f"about {seconds:.0f} s and " if seconds else ""
        names = ", ".join(unknown) if len(unknown) <= MAX_NAMES else f"{len(unknown)} hosts"
        return f"{known_part}an unknown time for {names}, which had no such change yet"
    return f"about {seconds:.0f} s, as the last time"


def listing(remaining: Sequence[Sequence[PlannedHost]]) -> str:
    """Return the names of all hosts, a batch on each line."""
    return "".join(f"batch {number}: {', '.join(host.host for host in batch)}\n" for number, batch in enumerate(remaining, 1))


def read(path: str) -> Dict[str, Duration]:
    """Return {host: duration of its last change}, or {} if the file is missing or invalid."""
    durations: Dict[str, Duration] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError), open(path, encoding="utf-8") as source:
        for host, entry in json.load(source).items():
            durations[host] = Duration(float(entry["seconds"]), [str(concern) for concern in entry["concerns"]])
    return durations


def write(path: str, durations: Mapping[str, Duration]) -> None:
    """Add durations to the file. Raises OSError."""
    content: Dict[str, Any] = {host: duration._asdict() for host, duration in {**read(path), **durations}.items()}
    outputs.write(path, json.dumps(content, indent=1, sort_keys=True))
