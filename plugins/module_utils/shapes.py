# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The parser for untrusted JSON, which comes from servers, tools and host files. It limits the data and compares it with a shape.

A shape is one of:

- a type
- a compiled pattern, for text that matches the pattern as a whole
- [shape], for a list of any length
- a tuple of alternative shapes
- {"field": shape}, for an object. `?` at the end of a name marks an optional field. Fields without a shape are ignored.
- {pattern: shape}, for an object whose names all match the pattern
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

Shape = Any
NULL = type(None)
NUMBER = (int, float)
TEXT_OR_NULL = (str, NULL)

NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    NULL: "null",
}
# Largest length of a name or value in a message
MAX_SHOWN = 60
# Limits of untrusted JSON: bytes (the default limit), nested levels, digits of a whole number
MAX_SIZE, MAX_DEPTH, MAX_DIGITS = 1 << 24, 64, 20


class FileContent(NamedTuple):
    """The content of a file, or in `flaw` the reason why it cannot be used. For a missing file, `content` and `flaw` are None."""

    content: Any
    flaw: Optional[str]
    exists: bool


def read(path: str, shape: Shape, size: int = MAX_SIZE) -> FileContent:
    """Return the content of a JSON file, or its flaw: unreadable, too large, no JSON, or not of the shape."""
    try:
        with open(path, "rb") as source:
            content = parse(source.read(size + 1), size)
    except OSError as error:
        return FileContent(None, *_unreadable(path, error))
    except ValueError as error:
        return FileContent(None, f"it is not JSON ({error})", True)
    flaw = mismatch(content, shape)
    return FileContent(None if flaw else content, flaw, True)


def _unreadable(path: str, error: OSError) -> Tuple[Optional[str], bool]:
    """Return (reason why a file cannot be read, True if the file exists). For a missing file, the reason is None."""
    if not isinstance(error, FileNotFoundError):
        return f"it cannot be read ({error.strerror})", True
    return ("it is a broken link", True) if os.path.islink(path) else (None, False)


def parse(raw: Union[str, bytes], size: int = MAX_SIZE) -> Any:
    """Return the data of untrusted JSON. Raises ValueError if the JSON is invalid or exceeds a limit of this module."""
    if len(raw) > size:
        raise ValueError(f"it has more than {size} bytes")
    try:
        # The bytes are decoded here, because they must be UTF-8. json.loads would guess their encoding.
        data = json.loads(
            raw.decode() if isinstance(raw, bytes) else raw,
            parse_constant=_parse_finite,
            parse_int=_parse_whole_number,
            parse_float=_parse_finite,
            object_pairs_hook=_unique_names,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [data] if isinstance(data, (dict, list)) else []
    for _level in range(MAX_DEPTH + 1):
        if not level:
            return data
        parts = (part for parent in level for part in (parent.values() if isinstance(parent, dict) else parent))
        level = [part for part in parts if isinstance(part, (dict, list))]
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it has more than {MAX_DEPTH} levels"


def _parse_whole_number(digits: str) -> int:
    # Python needs seconds to convert a very long number, so the number of digits is limited.
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:MAX_SHOWN]} is not a finite number")
    return number


def _unique_names(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return the dict of an object. Raises ValueError if a name occurs twice."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _value in pairs]
        raise ValueError(f"it has {_shown(next(name for name in names if names.count(name) > 1))} twice")
    return data


def parse_as(raw: Union[str, bytes], shape: Shape, size: int = MAX_SIZE) -> Any:
    """Return the data of untrusted JSON. Raises ValueError if it is invalid or does not match the shape."""
    data = parse(raw, size)
    flaw = mismatch(data, shape)
    if flaw:
        raise ValueError(flaw)
    return data


def mismatch(value: Any, shape: Shape) -> Optional[str]:
    """Return the first difference between a value and its shape, or None if the value matches."""
    return next(_mismatches(value, shape, ""), None)


def _mismatches(value: Any, shape: Shape, where: str) -> Iterator[str]:
    if isinstance(shape, dict):
        yield from _object_mismatches(value, shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield _wrong_type(value, (list,), where)
        else:
            for number, part in enumerate(value):
                yield from _mismatches(part, shape[0], f"{where}[{number}]")
    elif isinstance(shape, re.Pattern):
        if not isinstance(value, str):
            yield _wrong_type(value, (str,), where)
        elif not shape.fullmatch(value):
            yield f"{where or 'it'} is {_shown(value)}, expected {shape.pattern}"
    elif isinstance(shape, tuple):
        same_type = [alternative for alternative in shape if _type(alternative) is type(value)]
        if same_type:
            yield from _mismatches(value, same_type[0], where)
        else:
            yield _wrong_type(value, [_type(alternative) for alternative in shape], where)
    # isinstance() would accept true as an int.
    elif type(value) is not shape:  # pylint: disable=unidiomatic-typecheck
        yield _wrong_type(value, (shape,), where)


def _type(shape: Shape) -> type:
    """Return the Python type of the values that match a shape."""
    if isinstance(shape, re.Pattern):
        return str
    return shape if isinstance(shape, type) else type(shape)


def _object_mismatches(value: Any, shape: Mapping[Any, Shape], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _wrong_type(value, (dict,), where)
        return
    for name, inner in shape.items():
        if isinstance(name, re.Pattern):
            for key, part in value.items():
                if name.fullmatch(key):
                    yield from _mismatches(part, inner, f"{where}.{key}".lstrip("."))
                else:
                    yield f"{where or 'it'} has the name {_shown(key)}, expected {name.pattern}"
            continue
        key = name.rstrip("?")
        if key in value:
            yield from _mismatches(value[key], inner, f"{where}.{key}".lstrip("."))
        elif key == name:
            yield f"{where or 'it'} has no {key}"


def _wrong_type(value: Any, types: Sequence[type], where: str) -> str:
    expected = " or ".join(dict.fromkeys(NAMES[kind] for kind in types))
    return f"{where or 'it'} is {NAMES.get(type(value), type(value).__name__)}, expected {expected}"


def _shown(text: str) -> str:
    line = json.dumps(text)
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 4] + '..."'


def read_lines(path: str, shape: Shape) -> Tuple[List[Any], Optional[str], bool]:
    """Read a file with one JSON value per line. Return (valid values, flaws of other lines or None, True if the file exists)."""
    try:
        with open(path, "rb") as source:
            raw = source.read().split(b"\n")
    except OSError as error:
        return ([], *_unreadable(path, error))
    valid, flaws = [], []
    for number, line in enumerate(raw, 1):
        if not line.strip():
            continue
        try:
            value = parse(line)
            flaw = mismatch(value, shape)
        except ValueError as error:
            value, flaw = None, f"it is not JSON ({error})"
        if flaw:
            flaws.append(f"line {number}: {flaw}")
        else:
            valid.append(value)
    return valid, "; ".join(flaws[:3]) + (f" and {len(flaws) - 3} more" if len(flaws) > 3 else "") if flaws else None, True
