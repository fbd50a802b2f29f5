# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The data types of requests to a model and of its answers."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypedDict

# Largest number of characters of a text in a reason or report
SHOWN_TEXT = 80
# numpy's kinds of dtypes that can be compared as numbers (NUMBERS) or as bytes (BYTES)
NUMBERS = "fiub"
BYTES = "OS"
# {Triton's dtype: numpy's dtype}. BF16 is float32 in memory, and only the upper half of each number is sent.
NUMPY = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32", "BYTES": "object",
}  # fmt: skip
# Largest size of a request in bytes. gRPC and Triton's HTTP code store lengths as signed 32-bit numbers.
LARGEST_REQUEST = 2**31 - 1


class Request(NamedTuple):
    """A request of a check. `rows` are row numbers in the arrays. `indexes` are positions in the check's list of labels.

    `rows` and `indexes` are None if the request sends the whole arrays.
    """

    name: str
    protocol: str
    rows: Optional[List[int]]
    indexes: Optional[List[int]]


class Output(NamedTuple):
    """An output of an answer. `array` is None if the bytes do not match dtype and shape."""

    dtype: str
    shape: List[int]
    array: Any


class Question(NamedTuple):
    """The content of a request. `inputs` is {input: (dtype, array)}.

    `classes` is {output: number of requested classes}. `outputs` are the requested outputs, empty for all outputs.
    """

    model: str
    inputs: Mapping[str, Tuple[str, Any]]
    classes: Mapping[str, int] = {}
    outputs: Sequence[str] = ()
    version: str = ""


class Result(TypedDict, total=False):
    """The result of a request, or of a group of requests."""

    # <model>/<protocol>/<check>, followed by the row number if each row has its own request
    name: str
    model: str
    check: str
    protocol: Optional[str]
    ok: bool
    # All reasons of a failure
    why: str
    # Milliseconds, measured by the client, or None without an answer
    ms: Optional[float]
    # True if the request was not sent, or if the model did not answer it
    unanswered: bool
    expected: Any  # expected labels or texts, single or as a list
    got: Any  # actual labels or texts
    label: Any  # actual label of a single row
    image: List[int]  # values of a small input, from which the report draws an image
    picture: Dict[str, Any]  # pixels of an input that is a picture
    instances: int  # number of instances of the model
    latency: Dict[str, Any]  # measurements of a load test


class TooLarge(ValueError):
    """The error of a request that was not sent, because it is too large."""


class Answer(NamedTuple):
    """The joined outputs of all responses, the number of responses, the milliseconds until the end, and the error, if any."""

    outputs: Dict[str, Output]
    responses: int
    ms: float
    error: Optional[Exception]


class Rows(NamedTuple):
    """Rows of an array in a check. `indexes` is {row number: index in `array`}, or None if `array` has all rows."""

    indexes: Optional[Dict[int, int]]
    array: Any

    def take(self, rows: Optional[Sequence[int]]) -> Any:
        """Return an array of these rows, in the given order."""
        if rows is None or self.indexes is None:
            return self.array
        return self.array[[self.indexes[row] for row in rows]]


def requests(model: str, check: Mapping[str, Any], host_index: int) -> Iterator[Request]:
    """Yield the requests of a check. Without `rows`, each protocol gets one request with the whole arrays.

    With `spread`, each pair of host and protocol gets its own block of `count` rows out of `total`. So a fleet covers more rows.
    """
    rows = check.get("rows")
    for number, protocol in enumerate(check["protocols"]):
        name = "{}/{}/{}".format(model, protocol, check["name"])
        if not rows:
            yield Request(name, protocol, None, None)
            continue
        count, start = rows["count"], 0
        if rows.get("spread"):
            blocks = rows["total"] // count
            start = (host_index * len(check["protocols"]) + number) % blocks * count
        indexes = list(range(start, start + count))
        if rows.get("batch"):
            yield Request(name, protocol, [rows["first"] + index for index in indexes], indexes)
        else:
            for index in indexes:
                yield Request(f"{name} {index - start}", protocol, [rows["first"] + index], [index])


def shown(data: Any, limit: Optional[int] = SHOWN_TEXT) -> str:
    """Return bytes as text, truncated to a limit."""
    text = bytes(data).decode("utf-8", "backslashreplace") if not isinstance(data, str) else data
    return text if limit is None or len(text) <= limit else text[: limit - 3] + "..."


def triton_dtype(array: Any) -> str:
    """Return the Triton dtype of an array. Raises ValueError if Triton has no such dtype."""
    kind = "BYTES" if array.dtype.kind in BYTES else next((entry for entry, name in NUMPY.items() if name == array.dtype.name), "")
    if not kind:
        raise ValueError(f"{array.dtype} has no counterpart in Triton")
    return kind


def refuse_too_large(question: Question) -> None:
    """Raise TooLarge if a request is too large. Each element of BYTES also needs four bytes for its length."""
    size = 0
    for dtype, array in question.inputs.values():
        size += (
            sum(len(element) + 4 for element in array.flat)
            if dtype == "BYTES"
            else array.size * array.itemsize // (1 + (dtype == "BF16"))
        )
    if size > LARGEST_REQUEST:
        raise TooLarge(
            f"the inputs have {size / 2**30:.1f} GiB, expected less than 2 GiB, the limit of HTTP and gRPC: "
            "send fewer rows at once, or pass them as shared memory with a client on the host of Triton"
        )


def join_outputs(responses: Sequence[Mapping[str, Output]]) -> Dict[str, Output]:
    """Return the outputs of all responses, concatenated along the first dimension in the order of arrival."""
    import numpy as np

    joined: Dict[str, Output] = {}
    for name in dict.fromkeys(name for response in responses for name in response):
        parts = [response[name] for response in responses if name in response]
        joined[name] = parts[0]
        if len(parts) > 1:
            dtype = " and ".join(sorted({part.dtype for part in parts}))
            try:
                array = np.concatenate([part.array for part in parts])
                joined[name] = Output(dtype, list(array.shape), array)
            except (ValueError, TypeError):
                joined[name] = Output(dtype, parts[0].shape, None)
    return joined
