"""What is asked of a model, and what comes back: requests, arrays, outputs."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypedDict

# Characters of a text that a reason or a report shows
SHOWN_TEXT = 80
# Kinds of numpy's dtypes that can be compared as numbers, and those of bytes
NUMBERS = "fiub"
BYTES = "OS"
# A dtype of Triton as numpy has it. BF16 is float32 in memory and loses half of its bits on the way.
NUMPY = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32", "BYTES": "object",
}  # fmt: skip
# Bytes that a request has at most: gRPC's messages end there, and so do HTTP's lengths in Triton, a signed 32-bit number
LARGEST_REQUEST = 2**31 - 1


class Request(NamedTuple):
    """One request of a check. Rows count in the arrays; places from the check's first row, as the labels do.

    Both are None where the arrays go as they are, as one request.
    """

    name: str
    protocol: str
    rows: Optional[List[int]]
    places: Optional[List[int]]


class Output(NamedTuple):
    """One output of an answer; `array` is None where the bytes are not what dtype and shape promise."""

    dtype: str
    shape: List[int]
    array: Any


class Question(NamedTuple):
    """What is sent: arrays by name with their Triton dtypes; `classes` asks for the best n of an output; no `outputs` is all."""

    model: str
    inputs: Mapping[str, Tuple[str, Any]]
    classes: Mapping[str, int] = {}
    outputs: Sequence[str] = ()
    version: str = ""


class Result(TypedDict, total=False):
    """What came of one request, or of a group of them that is judged as a whole."""

    # <model>/<protocol>/<check>, and a row's number
    name: str
    model: str
    check: str
    protocol: Optional[str]
    ok: bool
    # Every reason why not, empty where it is
    why: str
    # As the client sees it; None without an answer
    ms: Optional[float]
    # Nothing answered at all
    unanswered: bool
    # Labels or texts, one or a list of them
    expected: Any
    got: Any
    label: Any
    # Of a row that can be drawn: its values, and its pixels
    image: List[int]
    picture: Dict[str, Any]
    # How many instances have answered, and what a load measured
    instances: int
    latency: Dict[str, Any]


class TooLarge(ValueError):
    """A question that no request can hold: nothing was sent."""


class Answer(NamedTuple):
    """What came: outputs of all responses joined, how many they were, milliseconds to the last, and the error that ended it."""

    outputs: Dict[str, Output]
    responses: int
    ms: float
    error: Optional[Exception]


class Rows(NamedTuple):
    """An array on this side of the way: `places` says where each row that was sent along is; None is all, as it is."""

    places: Optional[Dict[int, int]]
    array: Any

    def take(self, rows: Optional[Sequence[int]]) -> Any:
        """The array of these rows, in their order."""
        if rows is None or self.places is None:
            return self.array
        return self.array[[self.places[row] for row in rows]]


def requests(model: str, check: Mapping[str, Any], host_index: int) -> Iterator[Request]:
    """The requests of one check of a model. Without `rows` it is one for each protocol, of whole arrays.

    With `spread` each host and protocol takes the next block of `count` rows, so that a fleet asks more of the golden
    data; `total` says how many rows there are to take from.
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
        places = list(range(start, start + count))
        if rows.get("batch"):
            yield Request(name, protocol, [rows["first"] + place for place in places], places)
        else:
            for place in places:
                yield Request(f"{name} {place - start}", protocol, [rows["first"] + place], [place])


def shown(data: Any, most: Optional[int] = SHOWN_TEXT) -> str:
    """Bytes as a person reads them, cut to a length."""
    text = bytes(data).decode("utf-8", "backslashreplace") if not isinstance(data, str) else data
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def triton_dtype(array: Any) -> str:
    """The dtype that an array is sent as. Raises ValueError for one that Triton has no name for."""
    kind = "BYTES" if array.dtype.kind in BYTES else next((entry for entry, name in NUMPY.items() if name == array.dtype.name), "")
    if not kind:
        raise ValueError(f"{array.dtype} has no counterpart in Triton")
    return kind


def fits(question: Question) -> None:
    """Raises TooLarge for a question that no request holds; of BYTES the length counts that stands before each."""
    size = 0
    for dtype, array in question.inputs.values():
        size += (
            sum(len(element) + 4 for element in array.flat)
            if dtype == "BYTES"
            else array.size * array.itemsize // (1 + (dtype == "BF16"))
        )
    if size > LARGEST_REQUEST:
        raise TooLarge(
            f"found {size / 2**30:.1f} GiB of inputs, wanted less than 2 GiB, where a request of HTTP or gRPC ends: "
            "send fewer rows at once, or give them to Triton as shared memory by a client of its host"
        )


def joined(responses: Sequence[Mapping[str, Output]]) -> Dict[str, Output]:
    """The outputs of all responses, one below the other along their first dimension in the order in which they came."""
    import numpy as np

    found: Dict[str, Output] = {}
    for name in dict.fromkeys(name for response in responses for name in response):
        parts = [response[name] for response in responses if name in response]
        found[name] = parts[0]
        if len(parts) > 1:
            dtype = " and ".join(sorted({part.dtype for part in parts}))
            try:
                array = np.concatenate([part.array for part in parts])
                found[name] = Output(dtype, list(array.shape), array)
            except (ValueError, TypeError):
                found[name] = Output(dtype, parts[0].shape, None)
    return found
