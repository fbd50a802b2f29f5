# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Judge answers: return all reasons why an answer is wrong, and a summary of the answer for reports."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference import errors
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    BYTES,
    NUMBERS,
    Output,
    Request,
    Result,
    shown,
)


def judge(answer: Mapping[str, Output], request: Request, expect: Mapping[str, Any]) -> List[str]:
    """Return all reasons why the outputs are wrong."""
    reasons = []
    for name, expected in expect.items():
        if name in answer:
            reasons += [f"{name}: {difference}" for difference in _judge_output(answer[name], request, expected)]
        else:
            reasons.append("output {} is missing, found {}".format(name, ", ".join(sorted(answer)) or "no output"))
    return reasons


def _judge_output(output: Output, request: Request, expected: Mapping[str, Any]) -> Iterator[str]:
    import numpy as np

    array = output.array
    if "dtype" in expected and output.dtype != expected["dtype"]:
        yield "dtype is {}, expected {}".format(output.dtype, expected["dtype"])
    shape_is_wrong = "shape" in expected and output.shape != list(expected["shape"])
    if shape_is_wrong:
        yield "shape is {}, expected {}".format(output.shape, list(expected["shape"]))
    if array is None:
        yield f"the data does not fit {output.dtype} of shape {output.shape}"
        return
    value_checks = {"finite", "argmax", "values", "label", "class_count"} & expected.keys()
    if not value_checks:
        return
    golden = expected["values"]["rows"].take(request.rows) if "values" in expected else None
    bytes_checks = {"label", "class_count"} | ({"values"} if golden is not None and golden.dtype.kind in BYTES else set())
    for kinds, what, keys in ((NUMBERS, "numbers", value_checks - bytes_checks), (BYTES, "bytes", value_checks & bytes_checks)):
        if keys and array.dtype.kind not in kinds:
            yield f"dtype is {output.dtype}, expected {what}, which the check of {', '.join(sorted(keys))} needs"
            return
    if not array.size:
        # A check of all values would pass for an empty array.
        yield f"shape is {output.shape}, expected at least one value, which the check of {', '.join(sorted(value_checks))} needs"
        return
    if "finite" in expected and not np.isfinite(array).all():
        yield f"{int((~np.isfinite(array)).sum())} of {array.size} values are not finite, expected none"
    if value_checks & {"label", "class_count"}:
        yield from _judge_classes(array, request, expected)
        return
    if request.rows is not None and not _has_rows(array, len(request.rows)):
        if not shape_is_wrong and value_checks != {"finite"}:
            yield f"shape is {output.shape}, expected {_count(request.rows, 'row')}"
        return
    if "argmax" in expected:
        labels = _labels_of_request(expected["argmax"], request)
        if not _has_rows(array, len(labels)):
            yield f"shape is {output.shape}, expected {_count(labels, 'row')}"
        elif _without_label(array):
            yield f"{_without_label(array)}, expected label {_single_or_list(labels)}"
        elif labels_of(array) != labels:
            yield f"label is {_single_or_list(labels_of(array))}, expected {_single_or_list(labels)}"
    if golden is None:
        return
    if golden.shape != array.shape:
        if not shape_is_wrong:
            yield f"shape is {output.shape}, but the golden values have the shape {list(golden.shape)}"
    elif golden.dtype.kind in BYTES:
        yield from _judge_bytes(array, golden)
    else:
        yield from _judge_values(array, golden, expected["values"])


def _without_label(array: Any) -> str:
    """Return why a row has no unique largest value, or an empty text if each row has one.

    This is checked because argmax returns one of several largest values without an error.
    """
    import numpy as np

    for number, row in enumerate(array.reshape(len(array), -1)):
        undefined, largest = int(np.isnan(row).sum()), int((row == row.max()).sum())
        if row.size == 1:
            return "a row holds one value, which is always the largest"
        if undefined:
            return f"{undefined} of {row.size} values of row {number} are nan"
        if largest > 1:
            return f"{largest} of {row.size} values of row {number} equal the largest value {_number(row.max())}"
    return ""


def _judge_values(array: Any, golden: Any, expected: Mapping[str, Any]) -> Iterator[str]:
    import numpy as np

    if array.dtype.kind in "iub" and golden.dtype.kind in "iub" and not (expected.get("atol") or expected.get("rtol")):
        # Whole numbers are compared without conversion, because a 64-bit float cannot represent all of them.
        is_close, excess = array == golden, np.abs(array.astype(np.float64) - golden.astype(np.float64))
        actual, allowed = array, np.zeros(array.shape)
    else:
        actual, golden = array.astype(np.float64), golden.astype(np.float64)
        with np.errstate(invalid="ignore"):
            allowed = float(expected.get("atol", 0)) + float(expected.get("rtol", 0)) * np.abs(golden)
            excess = np.abs(actual - golden) - allowed
            is_close = (actual == golden) | (excess <= 0)
    if not is_close.all():
        worst = np.unravel_index(np.where(is_close, -np.inf, np.where(np.isnan(excess), np.inf, excess)).argmax(), excess.shape)
        tolerance = f"{_number(golden[worst])} +- {allowed[worst]:.3g}"
        count = int((~is_close).sum())
        yield f"{count} of {is_close.size} values are off, the worst is {_number(actual[worst])}, expected {tolerance}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if value.dtype.kind == "f" else str(value)


def _judge_bytes(array: Any, golden: Any) -> Iterator[str]:
    differing = [index for index, pair in enumerate(zip(array.flat, golden.flat)) if bytes(pair[0]) != bytes(pair[1])]
    if differing:
        first = differing[0]
        actual, expected = shown(array.flat[first]), shown(golden.flat[first])
        yield f"{len(differing)} of {array.size} texts are off, the first is {actual!r} at index {first}, expected {expected!r}"


def _judge_classes(array: Any, request: Request, expected: Mapping[str, Any]) -> Iterator[str]:
    labels = _labels_of_request(expected["label"], request) if "label" in expected else None
    try:
        class_rows = classes_of(array)
    except ValueError as error:
        yield str(error)
        return
    rows = 1 if request.rows is None and labels is None else len(labels if labels is not None else request.rows or [])
    if len(class_rows) != rows:
        yield f"shape is {list(array.shape)}, expected classes of {rows} row{'s' * (rows > 1)}"
        return
    undefined = sum(math.isnan(score) for row in class_rows for score, _index, _label in row)
    if undefined:
        yield f"{undefined} of {array.size} scores are nan"
    if "class_count" in expected and len(class_rows[0]) != expected["class_count"]:
        yield f"holds {_count(class_rows[0], 'class', 'classes')} for a row, expected {expected['class_count']}"
    tied_rows = [number for number, row in enumerate(class_rows) if len(row) > 1 and row[0][0] == row[1][0]]
    if labels is not None and tied_rows:
        best = f"the best score {class_rows[tied_rows[0]][0][0]:g} of row {tied_rows[0]}"
        yield f"more than one class has {best}, expected label {_single_or_list(labels)}"
    elif labels is not None and _first_labels(class_rows) != labels:
        yield f"label is {_single_or_list(_first_labels(class_rows))}, expected {_single_or_list(labels)}"


def classes_of(array: Any) -> List[List[Tuple[float, int, str]]]:
    """Return the classes of each row as (score, index, label), best first. The array has the shape [classes] or [rows, classes]."""
    class_rows: List[List[Tuple[float, int, str]]] = []
    for row in array.reshape(-1, array.shape[-1]) if array.ndim and array.size else []:
        class_rows.append([])
        for value in row:
            score, _colon, rest = shown(value, None).partition(":")
            index, _colon, label = rest.partition(":")
            try:
                class_rows[-1].append((float(score), int(index), label.strip()))
            except ValueError:
                raise ValueError(f"holds {shown(value)!r}, expected a class as score:index:label") from None
    return class_rows


def _first_labels(classes: Sequence[Sequence[Tuple[float, int, str]]]) -> List[str]:
    return [row[0][2] for row in classes]


def _labels_of_request(labels: Sequence[Any], request: Request) -> List[Any]:
    return list(labels) if request.indexes is None else [labels[index] for index in request.indexes]


def _has_rows(array: Any, count: int) -> bool:
    return bool(array.ndim and array.size and array.shape[0] == count)


def labels_of(array: Any) -> List[int]:
    """Return the index of the largest value in each row."""
    return [int(label) for label in array.reshape(len(array), -1).argmax(axis=1)]


def _single_or_list(labels: Sequence[Any]) -> Any:
    return labels[0] if len(labels) == 1 else list(labels)


def _count(elements: Sequence[Any], name: str, names: str = "") -> str:
    return f"{len(elements)} {name if len(elements) == 1 else names or name + 's'}"


def judge_error(error: Exception, expected: Mapping[str, Any], protocol: str) -> List[str]:
    """Return all reasons why an error is not the expected error.

    A missing status is not a reason, because some servers send errors in streams without a status.
    """
    reasons = []
    status = "DEADLINE_EXCEEDED" if errors.timed_out(error) else errors.status_of(error)
    late = status == "DEADLINE_EXCEEDED" != expected.get("status")
    if late or _unanswered(error, protocol):
        fields = " ".join(f"{key} {entry!r}" for key, entry in sorted(expected.items()))
        return ["{}, expected an error: {}".format("no answer in time" if late else f"no answer: {errors.reason(error)}", fields)]
    if "status" in expected and status and status not in (expected["status"], errors.STATUS[expected["status"]]):
        reasons.append(f"the error's status is {status}, expected {expected['status']}")
    if "contains" in expected and expected["contains"] not in errors.reason(error):
        reasons.append(f"the error is {errors.reason(error)!r}, expected one that contains {expected['contains']!r}")
    return reasons


def _unanswered(error: Exception, protocol: str) -> bool:
    """Return True if the client raised the error without an answer of the server, for example after a closed connection."""
    if errors.timed_out(error):
        return False
    if protocol == "stream":
        return not callable(getattr(error, "status", None))
    return not errors.status_of(error) or errors.reason(error).startswith(errors.WITHOUT_JSON)


def describe(answer: Mapping[str, Output], request: Request, expect: Mapping[str, Any]) -> Result:
    """Return the expected and the actual labels or texts as {"expected", "got"}. A single row also has its actual "label"."""
    for name, expected in expect.items():
        kind = next((key for key in ("argmax", "label", "text") if key in expected), None)
        if not kind:
            continue
        array = answer[name].array if name in answer else None
        if kind == "text":
            golden = expected["values"]["rows"].take(request.rows)
            result: Result = {"expected": shown(" | ".join(shown(element) for element in golden.flat))}
            if array is not None and array.dtype.kind in BYTES:
                result["got"] = shown(" | ".join(shown(element) for element in array.flat))
            return result
        labels = _labels_of_request(expected[kind], request)
        result = {"expected": _single_or_list(labels)}
        got: List[Any] = []
        if array is not None and array.dtype.kind in NUMBERS and kind == "argmax" and _has_rows(array, len(labels)):
            got = labels_of(array)
        elif array is not None and array.dtype.kind in BYTES and kind == "label":
            with suppress(ValueError):
                got = _first_labels(classes_of(array))
        if got:
            result["got"] = _single_or_list(got)
            if len(labels) == 1 and len(got) == 1:
                result["label"] = result["got"]
        return result
    return {}
