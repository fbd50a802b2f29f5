"""JSON from elsewhere: parsed within limits, and compared with the shape that it has to have, in words where it has another one.

Whatever a server, a tool or a file of the host says comes in by `parse`, and nothing else calls Python's parser for it.

A shape is a type, a compiled pattern for text that fits all of it, {"field": shape} for an object (one with `?` behind its
name may be missing, ones that are not named may be there), {pattern: shape} for an object with names that fit, [shape] for
a list, or a tuple of shapes of which one has to fit.
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
# Characters of a name or a value that a message shows
SHOWN = 60
# Bytes of a text, unless its reader expects more, levels of lists and objects in each other, and digits of a number, that JSON from
# elsewhere may have
SIZE, DEPTH, DIGITS = 1 << 24, 64, 20


class Found(NamedTuple):
    """The content of a file; `flaw` says why it cannot be used, `there` whether there is a file at all."""

    content: Any
    flaw: Optional[str]
    there: bool


def read(path: str, shape: Shape, size: int = SIZE) -> Found:
    """A JSON file of this shape, and of at most so many bytes."""
    try:
        with open(path, "rb") as source:
            content = parse(source.read(size + 1), size)
    except FileNotFoundError:
        linked = os.path.islink(path)
        return Found(None, "it is a link that leads nowhere" if linked else None, linked)
    except OSError as error:
        return Found(None, f"it cannot be read ({error.strerror})", True)
    except ValueError as error:
        return Found(None, f"it is no JSON ({error})", True)
    flaw = misfit(content, shape)
    return Found(None if flaw else content, flaw, True)


def parse(raw: Union[str, bytes], size: int = SIZE) -> Any:
    """Return the data of JSON from elsewhere: whole numbers of a processor, finite numbers, objects whose names differ.

    Raises ValueError with what is wrong with it, whatever the text is.
    """
    if len(raw) > size:
        raise ValueError(f"it has more than {size} bytes")
    try:
        # Not as json.loads takes bytes, which guesses other encodings
        text = raw.decode() if isinstance(raw, bytes) else raw
        found = json.loads(
            text, parse_constant=_no_number, parse_int=_whole, parse_float=_finite, object_pairs_hook=_with_names_that_differ
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [found] if isinstance(found, (dict, list)) else []
    for _level in range(DEPTH + 1):
        if not level:
            return found
        parts = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in parts if isinstance(part, (dict, list))]
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it has more than {DEPTH} levels"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _whole(digits: str) -> int:
    # More of them take Python seconds, and nothing that is counted has as many
    if len(digits) > DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:SHOWN]} is no number")
    return number


def _with_names_that_differ(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _value in pairs]
        raise ValueError(f"it has {_shown(next(name for name in names if names.count(name) > 1))} twice")
    return found


def fitted(raw: Union[str, bytes], shape: Shape, size: int = SIZE) -> Any:
    """Return the data of JSON from elsewhere that has this shape. Raises ValueError with what is wrong with it."""
    found = parse(raw, size)
    flaw = misfit(found, shape)
    if flaw:
        raise ValueError(flaw)
    return found


def misfit(value: Any, shape: Shape) -> Optional[str]:
    """Where a value does not fit its shape, what was found there and what is wanted; None where it fits."""
    return next(_misfits(value, shape, ""), None)


def _misfits(value: Any, shape: Shape, where: str) -> Iterator[str]:
    if isinstance(shape, dict):
        yield from _of_object(value, shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield _mismatch(value, (list,), where)
        else:
            for number, part in enumerate(value):
                yield from _misfits(part, shape[0], f"{where}[{number}]")
    elif isinstance(shape, re.Pattern):
        if not isinstance(value, str):
            yield _mismatch(value, (str,), where)
        elif not shape.fullmatch(value):
            yield f"{where or 'it'} is {_shown(value)}, wanted {shape.pattern}"
    elif isinstance(shape, tuple):
        of_kind = [size for size in shape if _kind(size) is type(value)]
        # What is of the right kind is told in full, else what kinds there may be
        if of_kind:
            yield from _misfits(value, of_kind[0], where)
        else:
            yield _mismatch(value, [_kind(size) for size in shape], where)
    # JSON knows true from 1, Python does not
    elif type(value) is not shape:  # pylint: disable=unidiomatic-typecheck
        yield _mismatch(value, (shape,), where)


def _kind(shape: Shape) -> type:
    """The type of what fits a shape."""
    if isinstance(shape, re.Pattern):
        return str
    return shape if isinstance(shape, type) else type(shape)


def _of_object(value: Any, shape: Mapping[Any, Shape], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _mismatch(value, (dict,), where)
        return
    for name, inner in shape.items():
        if isinstance(name, re.Pattern):
            for key, part in value.items():
                if name.fullmatch(key):
                    yield from _misfits(part, inner, f"{where}.{key}".lstrip("."))
                else:
                    yield f"{where or 'it'} has a {_shown(key)}, wanted names as {name.pattern}"
            continue
        key = name.rstrip("?")
        if key in value:
            yield from _misfits(value[key], inner, f"{where}.{key}".lstrip("."))
        elif key == name:
            yield f"{where or 'it'} has no {key}"


def _mismatch(value: Any, types: Sequence[type], where: str) -> str:
    wanted = " or ".join(dict.fromkeys(NAMES[kind] for kind in types))
    return f"{where or 'it'} is {NAMES.get(type(value), type(value).__name__)}, wanted {wanted}"


def _shown(text: str) -> str:
    line = json.dumps(text)
    return line if len(line) <= SHOWN else line[: SHOWN - 4] + '..."'


def lines(path: str, shape: Shape) -> Tuple[List[Any], Optional[str], bool]:
    """A file of one JSON value a line: (those that fit, what is wrong with the others, whether there is a file)."""
    try:
        with open(path, "rb") as source:
            raw = source.read().split(b"\n")
    except FileNotFoundError:
        linked = os.path.islink(path)
        return [], "it is a link that leads nowhere" if linked else None, linked
    except OSError as error:
        return [], f"it cannot be read ({error.strerror})", True
    fitting, wrong = [], []
    for number, line in enumerate(raw, 1):
        if not line.strip():
            continue
        try:
            load = parse(line)
            flaw = misfit(load, shape)
        except ValueError as error:
            load, flaw = None, f"it is no JSON ({error})"
        if flaw:
            wrong.append(f"line {number}: {flaw}")
        else:
            fitting.append(load)
    return fitting, "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "") if wrong else None, True
