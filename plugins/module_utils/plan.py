# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The plan of a host: one item for each difference between actual and desired state, with the action that ends the difference.

Status, check mode, the rollout and the proof after a change use these items.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Literal, TypedDict, Union

from ansible_collections.npufleet.triton.plugins.module_utils.secret import mask_logins


class Item(TypedDict):
    """A difference. `current` is None if the named thing is missing. `desired` is None if the thing must not exist."""

    concern: str
    name: str
    current: Any
    desired: Any
    action: str


# The action of a difference that only an operator can end
INSPECT = "inspect"
# Default length limit of a value in a message
MAX_LENGTH = 300


class Refusal(Exception):
    """An error with the reasons why an input is refused."""

    def __init__(self, reasons: Union[str, List[str]]) -> None:
        self.reasons = [reasons] if isinstance(reasons, str) else reasons
        super().__init__("; ".join(self.reasons))


def item(concern: str, name: str, current: Any, desired: Any, action: str) -> Item:
    """Return an item of a plan."""
    return {"concern": concern, "name": name, "current": current, "desired": desired, "action": action}


def short(value: Any, most: int = MAX_LENGTH) -> str:
    """Return a value as one line of at most `most` characters."""
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    # The address of a proxy, for example, can contain a login.
    line = mask_logins(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 3] + "..."


def count_of(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun, such as `1 host` or `2 hosts`. `plural` is the ending of the plural."""
    return f"{number} {noun}{plural * (number != 1)}"


def sentence(entry: Item, most: int = MAX_LENGTH) -> str:
    """Return a difference as a sentence."""
    actual = "missing" if entry["current"] is None else short(entry["current"], most)
    desired = short(entry["desired"], most)
    return f"{entry['concern']} {entry['name']} is {actual}, expected {desired} ({entry['action']})"


def as_diff(plan: List[Item]) -> Dict[str, str]:
    """Return the plan in the form that Ansible shows with `--diff`."""

    def side(key: Literal["current", "desired"]) -> str:
        return "".join(f"{entry['concern']} {entry['name']}: {short(entry[key])}\n" for entry in plan)

    return {"before_header": "actual", "after_header": "desired", "before": side("current"), "after": side("desired")}
