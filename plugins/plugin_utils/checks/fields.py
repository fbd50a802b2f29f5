# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Validation of the fields of a check file: maps, lists, texts and numbers, with one message for each error."""

from __future__ import annotations

import json
from typing import Any, List, Mapping, Optional, Sequence

# The most characters of a value in a message, and the largest whole number in a field
MAX_VALUE_LENGTH, MAX_COUNT = 1000, 1000000


class Fields:
    """The fields of one check file. Each function adds its errors to `errors`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.errors: List[str] = []

    def error(self, field: str, actual: Any, expected: str) -> None:
        """Record the error of a field, unless it is recorded already."""
        text = actual if isinstance(actual, str) else json.dumps(actual, default=str)
        text = text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."
        line = f"{self.path}: {field} is {text}, expected {expected}"
        if line not in self.errors:
            self.errors.append(line)

    def as_map(self, value: Any, keys: Optional[Mapping[str, bool]], field: str) -> Mapping[str, Any]:
        """Return a map, or {} for an error. `keys` is {key: True if required}, or None for any keys in a map that is not empty."""
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

    def check_positive(self, entry: Mapping[str, Any], key: str, maximum: float, field: str) -> None:
        """Check an optional value of a map, which must be a number above 0 and at most `maximum`."""
        if key in entry and not (is_number(entry[key]) and entry[key] > 0):
            self.error(f"{field}.{key}", entry[key], "a number above 0")
        elif key in entry and entry[key] > maximum:
            self.error(f"{field}.{key}", entry[key], f"at most {maximum}")

    def check_whole(self, entry: Mapping[str, Any], key: str, minimum: int, field: str) -> None:
        """Check an optional value of a map, which must be a whole number from `minimum` to MAX_COUNT."""
        if key in entry and (not is_whole(entry[key]) or entry[key] < minimum):
            self.error(f"{field}.{key}", entry[key], f"a whole number of at least {minimum}")
        elif key in entry and entry[key] > MAX_COUNT:
            self.error(f"{field}.{key}", entry[key], f"at most {MAX_COUNT}")


def is_whole(value: Any) -> bool:
    """Return True for a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return True for a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
