# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The differences that the concerns `metrics`, `probe` and `watchdog` share. Each is a systemd unit that runs a program."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library

# {part of a program that a timer starts: its description}
TIMER_PARTS = {"service": "unit file", "timer": "timer file", "config": "configuration", "program": "program"}


def installed_digest(name: str) -> Optional[str]:
    """Return the digest of a program in the current library, or None if the host has no such program."""
    return (shapes.read(library.programs_file(), {name: str}).content or {}).get(name)


def flaws(parts: Mapping[str, str], desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[str]:
    """Return the flaws of `parts` ({name: description}). If no part has a flaw, return the flaws in the state of the unit."""
    found = [
        f"{'no' if actual[name] is None else 'another'} {description}"
        for name, description in parts.items()
        if actual[name] != desired[name]
    ]
    if found:
        return found
    return ([] if actual["enabled"] else ["disabled"]) + ([] if actual["active"] == "active" else [actual["active"]])


def to_install(concern: str, unit: str, found: List[str], action: str) -> List[Item]:
    """Return at most one item for the flaws in `found`, because the role installs all parts together."""
    return [item(concern, unit, ", ".join(found), "enabled and active, as in the inventory", action)] if found else []


def to_remove(concern: str, unit: str, parts: Mapping[str, str], actual: Mapping[str, Any], action: str) -> List[Item]:
    """Return at most one item for the installed parts. The code of the program stays, because it is a part of the library."""
    installed = [description for name, description in parts.items() if name != "program" and actual[name] is not None]
    return [item(concern, unit, "installed: " + ", ".join(installed), None, action)] if installed else []
