# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""JSON of servers, tools and host files: parsed within limits, and compared with an expected shape.

No other code parses such JSON.

A shape is a type, a compiled pattern that all of a text matches, [shape] for a list, a tuple of alternative shapes,
{"field": shape} for an object (a field whose name ends with `?` is optional, other fields are ignored), or {pattern: shape} for an
object whose names match the pattern.
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

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
# Limit of the characters of a name or value in a message
SHOWN = 60
# Limits of untrusted JSON: bytes (default), nested levels, digits of a number
SIZE, DEPTH, DIGITS = 1 << 24, 64, 20


class FileContent(NamedTuple):
    """The content of a file, or the reason why it cannot be used (`flaw`)."""

    content: Any
    flaw: Optional[str]
    exists: bool


def read(path: str, shape: Shape, size: int = SIZE) -> FileContent:
    """Return the content of a JSON file, with a flaw if it is too large or does not match the shape."""
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
    """Return why a file cannot be read (None if it does not exist), and if it exists."""
    if not isinstance(error, FileNotFoundError):
        return f"it cannot be read ({error.strerror})", True
    return ("it is a broken link", True) if os.path.islink(path) else (None, False)


def parse(raw: Union[str, bytes], size: int = SIZE) -> Any:
    """Return the data of untrusted JSON. Raises ValueError for invalid JSON and for values beyond the limits of this module."""
    if len(raw) > size:
        raise ValueError(f"it has more than {size} bytes")
    try:
        # json.loads would guess the encoding of bytes.
        text = raw.decode() if isinstance(raw, bytes) else raw
        data = json.loads(text, parse_constant=_reject_constant, parse_int=_whole, parse_float=_finite, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [data] if isinstance(data, (dict, list)) else []
    for _level in range(DEPTH + 1):
        if not level:
            return data
        parts = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in parts if isinstance(part, (dict, list))]
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it has more than {DEPTH} levels"


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def _whole(digits: str) -> int:
    # Python needs seconds to convert very long numbers.
    if len(digits) > DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:SHOWN]} is not a finite number")
    return number


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return an object of these names and values. Raises ValueError for a duplicate name."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _value in pairs]
        raise ValueError(f"it has {_shown(next(name for name in names if names.count(name) > 1))} twice")
    return data


def parse_as(raw: Union[str, bytes], shape: Shape, size: int = SIZE) -> Any:
    """Return the data of untrusted JSON. Raises ValueError if it is invalid or does not match the shape."""
    data = parse(raw, size)
    flaw = mismatch(data, shape)
    if flaw:
        raise ValueError(flaw)
    return data


def mismatch(value: Any, shape: Shape) -> Optional[str]:
    """Return the first difference of a value from its shape, None if it matches."""
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
        of_type = [alternative for alternative in shape if _type(alternative) is type(value)]
        if of_type:
            yield from _mismatches(value, of_type[0], where)
        else:
            yield _wrong_type(value, [_type(alternative) for alternative in shape], where)
    # isinstance() would take true for 1.
    elif type(value) is not shape:  # pylint: disable=unidiomatic-typecheck
        yield _wrong_type(value, (shape,), where)


def _type(shape: Shape) -> type:
    """Return the type of the values that match a shape."""
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
    return line if len(line) <= SHOWN else line[: SHOWN - 4] + '..."'


def read_lines(path: str, shape: Shape) -> Tuple[List[Any], Optional[str], bool]:
    """Return the valid values of a file with one JSON value per line, the flaws of the other lines, and if the file exists."""
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
