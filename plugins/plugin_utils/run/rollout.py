"""What a rollout is about to do, in words, and how long it took the last time. Controller only, without Ansible."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import outputs

MIB = 1 << 20
SERIAL = "npufleet_rollout_serial"
# What Ansible's `serial` takes: it counts anything else as "all hosts at once", or ends with a traceback
COUNT = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
PERCENT = re.compile(r"([1-9][0-9]?|100)%", re.ASCII)
# Size of a batch: a number of hosts, or a percentage of the hosts of the rollout
Size = Union[int, str]


class Turn(NamedTuple):
    """One host's part: the concerns that it changes, and the bytes that it lacks of models; None where nobody knows how many."""

    host: str
    concerns: Sequence[str]
    bytes: Optional[int]


class Took(NamedTuple):
    """What a host's last turn took, in seconds, and what it changed."""

    seconds: float
    concerns: Sequence[str]


def sizes(value: Any) -> List[Size]:
    """Return the sizes of batches that a value of npufleet_rollout_serial stands for.

    A text is what `-e` makes of a value: `25%`, `3` or a list in JSON. Raises Refusal with every entry that is no size.
    """
    if isinstance(value, str) and value.strip().startswith("["):
        with suppress(ValueError):
            value = json.loads(value)
    entries = list(value) if isinstance(value, (list, tuple)) else [value]
    found = [_size(entry) for entry in entries]
    wrong = [short(entry, 60) or '""' for entry, size in zip(entries, found) if size is None]
    if wrong or not entries:
        raise Refusal(
            [
                f"{SERIAL} is {', '.join(wrong) or 'an empty list'}, expected numbers of hosts of 1 or more, or percentages from "
                '1% to 100%: correct it, such as [1, "25%", "100%"]'
            ]
        )
    return [size for size in found if size is not None]


def _size(entry: Any) -> Optional[Size]:
    """Return the size of a batch; None where the entry is none."""
    if isinstance(entry, bool) or not isinstance(entry, (int, str)):
        return None
    text = str(entry).strip()
    return text if PERCENT.fullmatch(text) else int(text) if COUNT.fullmatch(text) else None


def agreed(values: Mapping[str, Sequence[Size]]) -> List[Size]:
    """Return the one value of the hosts of a rollout; everything in one batch where there is no host.

    `values` has the sizes by host. Raises Refusal where hosts have different ones.
    """
    hosts: Dict[str, List[str]] = {}
    for host, value in values.items():
        hosts.setdefault(json.dumps(list(value)), []).append(host)
    if len(hosts) > 1:
        told = "; ".join(f"{value} of {', '.join(names)}" for value, names in hosts.items())
        raise Refusal(
            [
                f"{SERIAL} is {told}, expected one value for all hosts that one run changes: give it with -e, or run once for each "
                "with --limit"
            ]
        )
    return list(next(iter(values.values()), ["100%"]))


def batches(hosts: Sequence[str], serial: Sequence[Size]) -> List[List[str]]:
    """Return the hosts as Ansible's `serial` divides them: each size once, the last again and again; no batch is empty."""
    entries, left, found = list(serial), list(hosts), []
    while left:
        entry = entries.pop(0) if len(entries) > 1 else entries[0]
        percent = PERCENT.fullmatch(str(entry))
        size = (int(int(percent[1]) / 100.0 * len(hosts)) or 1) if percent else int(entry)
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
