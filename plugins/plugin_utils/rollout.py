"""What a rollout is about to do, in words, and how long it took the last time. Controller only, without Ansible."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from ansible_collections.npufleet.triton.plugins.plugin_utils import outputs

MIB = 1 << 20
PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


class Turn(NamedTuple):
    """One host's part: the concerns that it changes, and the bytes that it lacks of models; None where nobody knows how many."""

    host: str
    concerns: Sequence[str]
    bytes: Optional[int]


class Took(NamedTuple):
    """What a host's last turn took, in seconds, and what it changed."""

    seconds: float
    concerns: Sequence[str]


def batches(hosts: Sequence[str], serial: Union[int, str, Sequence[Union[int, str]]]) -> List[List[str]]:
    """The hosts as Ansible's `serial` divides them: each entry once, the last again and again; less than one host is one."""
    entries = [serial] if isinstance(serial, (int, str)) else list(serial)
    left, found = list(hosts), []
    while left:
        entry = str(entries.pop(0) if len(entries) > 1 else entries[0]) if entries else ""
        percent = PERCENT.fullmatch(entry)
        size = int(float(percent[1]) / 100 * len(hosts)) or 1 if percent else int(entry or 0)
        # Without a number, all at once
        size = size if size > 0 else len(left)
        found.append(left[:size])
        left = left[size:]
    return found


def words(ahead: Sequence[Sequence[Turn]], before: Mapping[str, Took], all_of: int) -> str:
    """What lies ahead, batch by batch, the next one first; `all_of` is how many hosts the whole rollout changes."""
    turns = [turn for batch in ahead for turn in batch]
    names = "; then ".join(", ".join(turn.host for turn in batch) for batch in ahead)
    changed = ", ".join(dict.fromkeys(concern for turn in turns for concern in turn.concerns))
    whole = len(turns) == all_of
    what = f"changes {len(turns)} host{'s' * (len(turns) != 1)}" if whole else f"goes on with {len(turns)} of {all_of} hosts"
    known = sum(turn.bytes or 0 for turn in turns)
    bytes_ahead = f"{known / MIB:.1f} MiB to bring" if known else "nothing to bring"
    if any(turn.bytes is None for turn in turns):
        bytes_ahead = f"{known / MIB:.1f} MiB and files of unknown size to bring" if known else "files of unknown size to bring"
    return f"the rollout {what}: {names} ({changed or 'models'}; {bytes_ahead}); {_estimate(ahead, before)}"


def _estimate(ahead: Sequence[Sequence[Turn]], before: Mapping[str, Took]) -> str:
    """The hosts of a batch take as long as the slowest, one batch after the other."""
    seconds, unknown = 0.0, []
    for batch in ahead:
        slowest = 0.0
        for turn in batch:
            last = before.get(turn.host)
            if last and set(turn.concerns) <= set(last.concerns):
                slowest = max(slowest, last.seconds)
            else:
                unknown.append(turn.host)
        seconds += slowest
    if unknown:
        known = f"about {seconds:.0f} s and " if seconds else ""
        return f"{known}as long as it takes on {', '.join(unknown)}, which had no such change yet"
    return f"about {seconds:.0f} s, as it took the last time"


# The record of the turns before


def read(path: str) -> Dict[str, Took]:
    """{host: its last turn}; nothing where there is no record, or none that can be used."""
    found: Dict[str, Took] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError), open(path, encoding="utf-8") as source:
        for host, took in json.load(source).items():
            found[host] = Took(float(took["seconds"]), [str(concern) for concern in took["concerns"]])
    return found


def write(path: str, turns: Mapping[str, Took]) -> None:
    """Add turns to the record."""
    content: Dict[str, Any] = {host: took._asdict() for host, took in {**read(path), **turns}.items()}
    outputs.write(path, json.dumps(content, indent=1, sort_keys=True))
