# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Validation of the fields of a check file: maps, lists, texts and numbers, with one message for each error."""

from __future__ import annotations

import json
from typing import Any, List, Mapping, Optional, Sequence

# The most characters of a value in a message, and the largest value of a field that is a count
SHOWN, MOST = 1000, 1000000


class Fields:
    """The fields of one check file. `errors` has the errors of the fields that were checked so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.errors: List[str] = []

    def error(self, field: str, actual: Any, expected: str) -> None:
        """Record the error of a field, unless it is recorded already."""
        shown = actual if isinstance(actual, str) else json.dumps(actual, default=str)
        shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
        line = f"{self.path}: {field} is {shown}, expected {expected}"
        if line not in self.errors:
            self.errors.append(line)

    def as_map(self, value: Any, keys: Optional[Mapping[str, bool]], field: str) -> Mapping[str, Any]:
        """Return a map, or {} for an error. `keys` is {key: True if required}. None allows any keys, but not an empty map."""
        if not isinstance(value, dict) or not (value or keys):
            self.error(field or "the file", value, "a map that is not empty")
            return {}
        prefix = f"{field}." if field else ""
        for key in sorted(str(key) for key in value if keys is not None and key not in keys):
            self.error(prefix + key, "an unknown key", f"one of {', '.join(keys or ())}")
        if keys is None:
            for key in value:
                self.as_text(key, f"{field}.{key}")
        for key, required in (keys or {}).items():
            if required and key not in value:
                self.error(prefix + key, "missing", "a value")
        return value

    def as_list(self, value: Any, field: str) -> Sequence[Any]:
        """Return a list that is not empty, or [] for an error."""
        if not isinstance(value, list) or not value:
            self.error(field, value, "a list that is not empty")
            return []
        return value

    def as_text(self, value: Any, field: str) -> str:
        """Return a text that is not blank, or "" for an error."""
        if not isinstance(value, str) or not value.strip():
            self.error(field, value, "a text (quote values that YAML reads as numbers)")
            return ""
        return value

    def check_boolean(self, entry: Mapping[str, Any], key: str, field: str) -> None:
        """Check an optional value of a map, which must be true or false."""
        if not isinstance(entry.get(key, False), bool):
            self.error(f"{field}.{key}", entry[key], "true or false")

    def check_whole(self, entry: Mapping[str, Any], key: str, least: int, field: str) -> None:
        """Check an optional value of a map, which must be a whole number from `least` to MOST."""
        if key in entry and (not is_whole(entry[key]) or entry[key] < least):
            self.error(f"{field}.{key}", entry[key], f"a whole number of at least {least}")
        elif key in entry and entry[key] > MOST:
            self.error(f"{field}.{key}", entry[key], f"at most {MOST}")


def is_whole(value: Any) -> bool:
    """Return True for a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return True for a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
