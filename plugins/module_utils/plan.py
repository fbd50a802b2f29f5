"""The plan: what is, what is wanted, and what would be done about it, one item a difference.

Everything that looks at differences (status, check mode, the rollout, the proof after a change) looks at these items.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Literal, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils.secret import mask_logins


class Item(TypedDict):
    """One difference: `current` None means that it is not there, `desired` None that it should not be."""

    concern: str
    name: str
    current: Any
    desired: Any
    action: str


# Actions that no run can take: somebody has to look at the hardware.
INSPECT = "inspect"
LINE = 300


class Refusal(Exception):
    """Input that cannot be wanted: every reason found, each saying what was found, what is wanted, what to do."""

    def __init__(self, reasons: List[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def item(concern: str, name: str, current: Any, desired: Any, action: str) -> Item:
    """One difference."""
    return {"concern": concern, "name": name, "current": current, "desired": desired, "action": action}


def short(value: Any, most: int = LINE) -> str:
    """A value as a person reads it in one line of at most so many characters."""
    if value is None:
        return "nothing"
    line = " ".join((value if isinstance(value, str) else json.dumps(value, sort_keys=True)).split())
    # A login in an address, such as a proxy's, is nobody's business.
    line = mask_logins(line)
    return line if len(line) <= most else line[: most - 3] + "..."


def sentence(entry: Item, most: int = LINE) -> str:
    """One difference as a sentence: found, wanted, what is done about it."""
    found, wanted = short(entry["current"], most), short(entry["desired"], most)
    return f"{entry['concern']} {entry['name']}: found {found}, wanted {wanted} ({entry['action']})"


def as_diff(plan: List[Item]) -> Dict[str, str]:
    """The plan in the form that `--diff` prints."""

    def side(key: Literal["current", "desired"]) -> str:
        return "".join(
            "{} {}: {}\n".format(difference["concern"], difference["name"], short(difference[key])) for difference in plan
        )

    return {"before_header": "found", "after_header": "wanted", "before": side("current"), "after": side("desired")}
