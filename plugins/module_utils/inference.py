"""Proof by inference: sends the requests of check documents to a Triton server and judges the answers.

Self-contained, because its source travels to a container of the release image, where numpy and tritonclient are, and runs
there: `main` takes a document and writes the result as the last line of standard output.

Document: {"host", "host_index", "server": {"address", "http_port", "grpc_port", "metrics_port"}, "timeout": seconds,
           "checks": [{"model", "checks": [check of a check file, with arrays as `pack` makes them]}]}
          `server` may have "http_url" and "grpc_url" (host:port) instead, "http_tls" and "grpc_tls" ({"ca", "cert", "key"}:
          paths, or the PEM itself) and "headers"; `latency: false` leaves loads out, "unproven" are results that stand, and
          "unasked" models that nobody has to prove.
Result:   {"host", "unasked", "checks": [{"name", "model", "check", "protocol", "ok", "why", "ms", ...}]}, or {"error"} where the
          image lacks a client.
"""

from __future__ import annotations

import base64
import importlib
import io
import itertools
import json
import math
import os
import queue
import re
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

# Rows up to this many values are returned with their result, so that a report can draw them.
DRAWN_VALUES = 784
# Longest side of the picture of an input; a larger one is thinned out.
PICTURE_SIDE = 64
# How files of pictures begin: JPEG, PNG
PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
# Characters of a text that a reason or a report shows
SHOWN_TEXT = 80
# Seconds in which a server has to say that it lives, however long its models may take.
SIGN_OF_LIFE = 5.0
# Kinds of numpy's dtypes that can be compared as numbers, and those of bytes
NUMBERS = "fiub"
BYTES = "OS"
# A dtype of Triton as numpy has it. BF16 is float32 in memory and loses half of its bits on the way.
NUMPY = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32", "BYTES": "object",
}  # fmt: skip
# Status of an error as gRPC names it, and what Triton answers over HTTP
STATUS = {
    "INVALID_ARGUMENT": "400", "NOT_FOUND": "404", "INTERNAL": "500", "UNIMPLEMENTED": "501", "UNAVAILABLE": "503",
    "DEADLINE_EXCEEDED": "",
}  # fmt: skip
# How tritonclient begins what it says of an HTTP status without Triton's JSON, as proxies send it
CLIENTS_WORDS = ("client received an empty response", "an exception occurred in the client", "Parse error at offset")
PORTS = "Triton's ports are 8000 for HTTP and 8001 for gRPC by default"
# Bytes that a request has at most: gRPC's messages end there, and so do HTTP's lengths in Triton, a signed 32-bit number
LARGEST_REQUEST = 2**31 - 1
# The counter by which the backend `rbln` tells what each instance of a model answered
ANSWERED = "rbln_requests_total"
# Most requests that are in flight at once, to reach every instance or as a load
WIDEST = 64
# Metadata by which Triton's gRPC takes the key of a restricted API
RESTRICTED = "triton-grpc-protocol-"
# Percentiles that a load is judged by
PERCENTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
# Cores of a client that measures itself and no longer the server: Python runs one thread at a time.
SATURATED = 0.9


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


# Judging an answer


def judge(answer: Mapping[str, Output], request: Request, expect: Mapping[str, Any]) -> List[str]:
    """Every reason why these outputs are not the expected ones: what was found, what was wanted."""
    why = []
    for name, wanted in expect.items():
        if name in answer:
            why += [f"{name}: {reason}" for reason in _judge_output(answer[name], request, wanted)]
        else:
            why.append("output {} is missing, found {}".format(name, ", ".join(sorted(answer)) or "no output"))
    return why


def _judge_output(output: Output, request: Request, wanted: Mapping[str, Any]) -> Iterator[str]:
    import numpy as np

    array = output.array
    if "dtype" in wanted and output.dtype != wanted["dtype"]:
        yield "dtype is {}, wanted {}".format(output.dtype, wanted["dtype"])
    shape_is_wrong = "shape" in wanted and output.shape != list(wanted["shape"])
    if shape_is_wrong:
        yield "shape is {}, wanted {}".format(output.shape, list(wanted["shape"]))
    if array is None:
        yield f"the data does not fit {output.dtype} of shape {output.shape}"
        return
    looked_into = {"finite", "argmax", "values", "label", "class_count"} & wanted.keys()
    if not looked_into:
        return
    golden = wanted["values"]["rows"].take(request.rows) if "values" in wanted else None
    of_bytes = {"label", "class_count"} | ({"values"} if golden is not None and golden.dtype.kind in BYTES else set())
    for kinds, what, keys in ((NUMBERS, "numbers", looked_into - of_bytes), (BYTES, "bytes", looked_into & of_bytes)):
        if keys and array.dtype.kind not in kinds:
            yield f"holds {output.dtype}, wanted {what} to judge {', '.join(sorted(keys))} by"
            return
    if not array.size:
        # Whatever is said of all of its values would be true.
        yield f"is empty, its shape is {output.shape}: wanted values to judge {', '.join(sorted(looked_into))} by"
        return
    if "finite" in wanted and not np.isfinite(array).all():
        yield f"{int((~np.isfinite(array)).sum())} of {array.size} values are not finite, wanted all"
    if looked_into & {"label", "class_count"}:
        yield from _judge_classes(array, request, wanted)
        return
    if request.rows is not None and not _has_rows(array, len(request.rows)):
        if not shape_is_wrong and looked_into != {"finite"}:
            yield f"shape is {output.shape}, wanted {_count(request.rows, 'row')}"
        return
    if "argmax" in wanted:
        labels = _of_places(wanted["argmax"], request)
        if not _has_rows(array, len(labels)):
            yield f"shape is {output.shape}, wanted {_count(labels, 'row')}"
        elif _without_label(array):
            yield f"{_without_label(array)}, wanted label {_one(labels)}"
        elif labels_of(array) != labels:
            yield f"label is {_one(labels_of(array))}, wanted {_one(labels)}"
    if golden is None:
        return
    if golden.shape != array.shape:
        if not shape_is_wrong:
            yield f"shape is {output.shape}, the golden values' is {list(golden.shape)}"
    elif golden.dtype.kind in BYTES:
        yield from _judge_bytes(array, golden)
    else:
        yield from _judge_values(array, golden, wanted["values"])


def _without_label(array: Any) -> str:
    """Why a row of these has no largest value at one place, empty where each has: numpy would name the first place all the same."""
    import numpy as np

    for number, row in enumerate(array.reshape(len(array), -1)):
        undefined, largest = int(np.isnan(row).sum()), int((row == row.max()).sum())
        if row.size == 1:
            return "a row holds one value, which is always the largest"
        if undefined:
            return f"{undefined} of {row.size} values of row {number} are nan"
        if largest > 1:
            return f"the largest value of row {number}, {_number(row.max())}, is at {largest} of {row.size} places"
    return ""


def _judge_values(array: Any, golden: Any, wanted: Mapping[str, Any]) -> Iterator[str]:
    import numpy as np

    if array.dtype.kind in "iub" and golden.dtype.kind in "iub" and not (wanted.get("atol") or wanted.get("rtol")):
        # Whole numbers to their last digit, which a float of 64 bits does not hold
        good, over = array == golden, np.abs(array.astype(np.float64) - golden.astype(np.float64))
        found, allowed = array, np.zeros(array.shape)
    else:
        found, golden = array.astype(np.float64), golden.astype(np.float64)
        with np.errstate(invalid="ignore"):
            allowed = float(wanted.get("atol", 0)) + float(wanted.get("rtol", 0)) * np.abs(golden)
            over = np.abs(found - golden) - allowed
            good = (found == golden) | (over <= 0)
    if not good.all():
        worst = np.unravel_index(np.where(good, -np.inf, np.where(np.isnan(over), np.inf, over)).argmax(), over.shape)
        wanted_is = f"{_number(golden[worst])} +- {allowed[worst]:.3g}"
        yield f"{int((~good).sum())} of {good.size} values are off, the worst is {_number(found[worst])}, wanted {wanted_is}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if value.dtype.kind == "f" else str(value)


def _judge_bytes(array: Any, golden: Any) -> Iterator[str]:
    differing = [place for place, pair in enumerate(zip(array.flat, golden.flat)) if bytes(pair[0]) != bytes(pair[1])]
    if differing:
        first = differing[0]
        found, wanted = shown(array.flat[first]), shown(golden.flat[first])
        yield f"{len(differing)} of {array.size} texts are off, the first, at {first}, is {found!r}, wanted {wanted!r}"


def _judge_classes(array: Any, request: Request, wanted: Mapping[str, Any]) -> Iterator[str]:
    labels = _of_places(wanted["label"], request) if "label" in wanted else None
    try:
        found = classes_of(array)
    except ValueError as error:
        yield str(error)
        return
    rows = 1 if request.rows is None and labels is None else len(labels if labels is not None else request.rows or [])
    if len(found) != rows:
        yield f"shape is {list(array.shape)}, wanted classes of {rows} row{'s' * (rows > 1)}"
        return
    undefined = sum(math.isnan(score) for row in found for score, _index, _label in row)
    if undefined:
        yield f"{undefined} of {array.size} scores are nan"
    if "class_count" in wanted and len(found[0]) != wanted["class_count"]:
        yield f"holds {_count(found[0], 'class', 'classes')} for a row, wanted {wanted['class_count']}"
    tied = [number for number, row in enumerate(found) if len(row) > 1 and row[0][0] == row[1][0]]
    if labels is not None and tied:
        yield f"the best score of row {tied[0]}, {found[tied[0]][0][0]:g}, is of more than one class, wanted label {_one(labels)}"
    elif labels is not None and _first_labels(found) != labels:
        yield f"label is {_one(_first_labels(found))}, wanted {_one(labels)}"


def classes_of(array: Any) -> List[List[Tuple[float, int, str]]]:
    """[row][place]: (score, index, label) of an output for which classes were asked, which is bytes of shape [(rows,) classes]."""
    found: List[List[Tuple[float, int, str]]] = []
    for row in array.reshape(-1, array.shape[-1]) if array.ndim and array.size else []:
        found.append([])
        for one in row:
            score, _, rest = shown(one, None).partition(":")
            index, _, label = rest.partition(":")
            try:
                found[-1].append((float(score), int(index), label.strip()))
            except ValueError:
                raise ValueError(f"holds {shown(one)!r}, wanted a class as score:index:label") from None
    return found


def _first_labels(classes: Sequence[Sequence[Tuple[float, int, str]]]) -> List[str]:
    return [row[0][2] for row in classes]


def _of_places(labels: Sequence[Any], request: Request) -> List[Any]:
    return list(labels) if request.places is None else [labels[place] for place in request.places]


def _has_rows(array: Any, count: int) -> bool:
    return bool(array.ndim and array.size and array.shape[0] == count)


def labels_of(array: Any) -> List[int]:
    """The place of the largest value in each row."""
    return [int(label) for label in array.reshape(len(array), -1).argmax(axis=1)]


def _one(labels: Sequence[Any]) -> Any:
    return labels[0] if len(labels) == 1 else list(labels)


def _count(things: Sequence[Any], name: str, names: str = "") -> str:
    return f"{len(things)} {name if len(things) == 1 else names or name + 's'}"


def shown(data: Any, most: Optional[int] = SHOWN_TEXT) -> str:
    """Bytes as a person reads them, cut to a length."""
    text = bytes(data).decode("utf-8", "backslashreplace") if not isinstance(data, str) else data
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def judge_error(error: Exception, wanted: Mapping[str, Any], protocol: str) -> List[str]:
    """Every reason why an error is not the expected one. Over a stream some servers tell no status: the text alone counts."""
    why = []
    status = "DEADLINE_EXCEEDED" if timed_out(error) else status_of(error)
    late = status == "DEADLINE_EXCEEDED" != wanted.get("status")
    if late or _unanswered(error, protocol):
        said = " ".join(f"{key} {one!r}" for key, one in sorted(wanted.items()))
        return ["{}, wanted an error: {}".format("no answer in time" if late else f"no answer: {reason(error)}", said)]
    if "status" in wanted and status and status not in (wanted["status"], STATUS[wanted["status"]]):
        why.append(f"the error's status is {status}, wanted {wanted['status']}")
    if "contains" in wanted and wanted["contains"] not in reason(error):
        why.append(f"the error is {reason(error)!r}, wanted one that contains {wanted['contains']!r}")
    return why


def _unanswered(error: Exception, protocol: str) -> bool:
    """Whether an error is the client's own, and no answer of the server: a connection that broke off, an answer that is none."""
    if timed_out(error):
        return False
    if protocol == "stream":
        return not callable(getattr(error, "status", None))
    return not status_of(error) or reason(error).startswith(CLIENTS_WORDS)


def drawable(inputs: Mapping[str, Any], request: Request) -> Optional[List[int]]:
    """The one input row of a request as whole numbers, None where there is nothing to draw."""
    import numpy as np

    rows = list(inputs.values())
    if request.rows is None or len(request.rows) != 1 or len(rows) != 1:
        return None
    if rows[0].size > DRAWN_VALUES or rows[0].dtype.kind not in "fiu":
        return None
    return [round(float(value)) for value in rows[0].flatten()] if np.isfinite(rows[0]).all() else None


def picture(inputs: Mapping[str, Any], request: Request) -> Optional[Dict[str, Any]]:
    """The one input row of a request where it is an image: {"width", "height", "channels", "pixels": bytes as base64}.

    An image is a matrix, one of three channels that come first or last, a square of drawable length, or the bytes of a
    JPEG or PNG file where Pillow can read them.
    """
    import numpy as np

    rows = list(inputs.values())
    if len(request.rows or [0]) != 1 or len(rows) != 1 or not rows[0].size:
        return None
    if rows[0].dtype.kind in BYTES or (rows[0].dtype == np.uint8 and rows[0].ravel()[:8].tobytes().startswith(PICTURES)):
        row = _decoded(rows[0])
    elif request.rows is None or rows[0].dtype.kind not in NUMBERS:
        row = None
    else:
        row = np.squeeze(rows[0][0])
    if row is None:
        return None
    if row.ndim == 1 and 64 <= row.size <= DRAWN_VALUES and round(row.size**0.5) ** 2 == row.size:
        row = row.reshape(round(row.size**0.5), -1)
    if row.ndim == 3 and row.shape[0] == 3:
        row = np.moveaxis(row, 0, 2)
    if row.ndim == 2:
        row = row[:, :, None]
    if row.ndim != 3 or row.shape[2] not in (1, 3) or min(row.shape[:2]) < 4 or max(row.shape[:2]) > 4 * min(row.shape[:2]):
        return None
    step = -(-max(row.shape[:2]) // PICTURE_SIDE)
    levels = row[::step, ::step]
    if levels.dtype != np.uint8:
        # What was normalised, or counts to sixteen, spans its own values.
        levels = levels.astype(np.float64)
        if not np.isfinite(levels).all():
            return None
        levels = levels - levels.min()
        levels = (levels * (255 / (levels.max() or 1))).round().astype(np.uint8)
    height, width, channels = (int(size) for size in levels.shape)
    pixels = base64.b64encode(np.ascontiguousarray(levels).tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "pixels": pixels}


def _decoded(array: Any) -> Any:
    """Pixels [height, width, 3] of the one picture that an array holds as the bytes of its file, None where it holds none."""
    import numpy as np

    data = array.tobytes() if array.dtype == np.uint8 else bytes(array.flat[0])
    if (array.dtype.kind in BYTES and array.size != 1) or not data.startswith(PICTURES):
        return None
    try:
        image = importlib.import_module("PIL.Image").open(io.BytesIO(data))
        image.draft("RGB", (PICTURE_SIDE, PICTURE_SIDE))
        image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        return np.asarray(image.convert("RGB"))
    except Exception:
        # A picture that cannot be drawn is no fault of the answer: it may be corrupt on purpose.
        return None


def describe(answer: Mapping[str, Output], request: Request, expect: Mapping[str, Any]) -> Dict[str, Any]:
    """What was expected and found, {"expected", "got", "label"} or less: labels, one where one row was sent, or texts in a line."""
    for name, wanted in expect.items():
        kind = next((key for key in ("argmax", "label", "text") if key in wanted), None)
        if not kind:
            continue
        array = answer[name].array if name in answer else None
        if kind == "text":
            golden = wanted["values"]["rows"].take(request.rows)
            found = {"expected": shown(" | ".join(shown(one) for one in golden.flat))}
            if array is not None and array.dtype.kind in BYTES:
                found["got"] = shown(" | ".join(shown(one) for one in array.flat))
            return found
        labels = _of_places(wanted[kind], request)
        found = {"expected": _one(labels)}
        got: List[Any] = []
        if array is not None and array.dtype.kind in NUMBERS and kind == "argmax" and _has_rows(array, len(labels)):
            got = labels_of(array)
        elif array is not None and array.dtype.kind in BYTES and kind == "label":
            try:
                got = _first_labels(classes_of(array))
            except ValueError:
                got = []
        if got:
            found["got"] = _one(got)
            if len(labels) == 1 and len(got) == 1:
                found["label"] = found["got"]
        return found
    return {}


# Asking a server


def triton_dtype(array: Any) -> str:
    """The dtype that an array is sent as. Raises ValueError for one that Triton has no name for."""
    kind = "BYTES" if array.dtype.kind in BYTES else next((one for one, name in NUMPY.items() if name == array.dtype.name), "")
    if not kind:
        raise ValueError(f"{array.dtype} has no counterpart in Triton")
    return kind


class Service:
    """One protocol of a server. `tls` names files: {"ca", "cert", "key"}, or says `insecure`; None is without TLS.

    `headers` go with every request; over gRPC each once more as the key of a restricted API.
    """

    protocol = ""
    library = "tritonclient.grpc"

    def __init__(
        self, url: str, timeout: float, tls: Optional[Mapping[str, Any]] = None, headers: Optional[Mapping[str, str]] = None
    ) -> None:
        self.timeout = timeout
        self.url = url
        self.tls = tls
        self.headers = self.headed(headers or {})
        # What a call of tritonclient takes besides
        self.extra: Dict[str, Any] = {"headers": self.headers} if self.headers else {}
        # Both the client and the parts of it that its `http` and `grpc` extras bring have to be there.
        try:
            self.client_library = importlib.import_module(self.library)
        except (ImportError, RuntimeError) as error:
            raise ImportError(reason(error)) from None
        self.connect()

    @staticmethod
    def headed(headers: Mapping[str, str]) -> Dict[str, str]:
        """The headers as this protocol sends them."""
        lower = {name.lower(): value for name, value in headers.items()}
        return {**lower, **{RESTRICTED + name: value for name, value in lower.items()}}

    def connect(self) -> None:
        """Make what the other methods use; nothing is sent yet."""
        raise NotImplementedError

    def live(self, timeout: float) -> Any:
        """Ask the server whether it lives."""
        raise NotImplementedError

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        """The responses to a question as they come. Raises what the client raises."""
        raise NotImplementedError

    def index(self) -> List[Dict[str, Any]]:
        """[{"name", "version", "state", "reason"}] of the server's models."""
        raise NotImplementedError

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        """{"inputs": [{"name", "datatype", "shape"}], "outputs": the same}; shapes with the batch dimension, -1 is any."""
        raise NotImplementedError

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        """The model's config as the server has it."""
        raise NotImplementedError

    def silent(self) -> str:
        """Why no request to this service is worth its wait, empty where something answers."""
        try:
            self.live(min(self.timeout, SIGN_OF_LIFE))
        except Exception as error:
            # Health may be a restricted API, which says so with the status of a server that is not there.
            if of_connection(error) and "restricted" not in str(error):
                words = self.told(error)
                # So Triton's HTTP ends what it cannot read.
                words += f", as of a port that does not speak gRPC; {PORTS}" if words.endswith("Socket closed") else ""
                return f"no Triton answers {self.protocol} at {self.url}: {words}"
        return ""

    def infer(self, question: Question, timeout: Optional[float] = None) -> Answer:
        """Everything that comes back for a question, with the error that ended it."""
        began = time.monotonic()
        responses: List[Dict[str, Output]] = []
        failure: Optional[Exception] = None
        try:
            responses.extend(self.answers(question, timeout or self.timeout))
        except Exception as error:
            failure = error
        return Answer(joined(responses), len(responses), (time.monotonic() - began) * 1000, failure)

    def told(self, error: Exception) -> str:
        """An error as one line, with what helps against it where the words alone do not say."""
        words = reason(error)
        kind = "HTTP" if self.protocol == "http" else "gRPC"
        if type(error).__name__ == "HTTPParseError" or "Failed parsing HTTP/2" in words or "http1" in words:
            return f"what listens there does not speak {kind}; {PORTS}"
        if words.startswith(CLIENTS_WORDS):
            return f"what listens there answers without Triton's JSON, as a proxy or Triton's page of metrics does; {PORTS}"
        if "decoupled" in words and self.protocol != "stream":
            return f"{words}; the model answers in streams, which are gRPC's alone: ask with the protocol stream"
        if "http-max-input-size" in words:
            return f"{words}; or ask by gRPC, which takes up to 2 GiB"
        return words

    def said_of(self, model: str, version: str = "") -> str:
        """What the server's index says of a model, or of one version, that it does not serve; empty where it does not tell."""
        try:
            entries = self.index()
        except Exception:
            return ""
        ready_versions = [str(one.get("version") or "") for one in entries if one["name"] == model and one.get("state") == "READY"]
        if version and ready_versions and version not in ready_versions:
            return (
                f"{model} has no version {version} that is ready, wanted one of {', '.join(sorted(ready_versions, key=_natural))}"
            )
        said = ["{} {}".format(one.get("state", ""), one.get("reason", "")) for one in entries if one["name"] == model]
        ready = sorted({one["name"] for one in entries if one.get("state") == "READY"})
        return _line("; ".join(said)) or "it serves {}".format(", ".join(ready) or "no model")

    def _asked(self, question: Question) -> Tuple[List[Any], Optional[List[Any]]]:
        """A question as the client library's (inputs, outputs)."""
        inputs = []
        fits(question)
        for name, (dtype, array) in question.inputs.items():
            inputs.append(self.client_library.InferInput(name, list(array.shape), dtype))
            inputs[-1].set_data_from_numpy(array)
        names = list(dict.fromkeys([*question.outputs, *question.classes]))
        library = self.client_library
        return inputs, [library.InferRequestedOutput(name, class_count=question.classes.get(name, 0)) for name in names] or None


class Http(Service):
    """HTTP, by tritonclient. A client has its timeout for good, so there is one for each."""

    protocol = "http"
    library = "tritonclient.http"

    @staticmethod
    def headed(headers: Mapping[str, str]) -> Dict[str, str]:
        return dict(headers)

    def connect(self) -> None:
        self.clients: Dict[float, Any] = {}
        gevent = sys.modules.get("gevent")
        hub = gevent.get_hub() if gevent else None
        if hub is not None and KeyboardInterrupt not in hub.NOT_ERROR:
            # It would print the interrupt before it passes it on to the one who tells it.
            hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)
        self.client(self.timeout)

    def client(self, timeout: float) -> Any:
        """The client whose requests take so long at most."""
        if timeout not in self.clients:
            options: Dict[str, Any] = {"connection_timeout": timeout, "network_timeout": timeout}
            if self.tls is not None:
                context = tls_context(self.tls)
                insecure = bool(self.tls.get("insecure"))
                options.update(ssl=True, ssl_context_factory=lambda *_any, **_more: context, insecure=insecure)
            self.clients[timeout] = self.client_library.InferenceServerClient(self.url, **options)
        return self.clients[timeout]

    def live(self, timeout: float) -> Any:
        return self.client(timeout).is_server_live(**self.extra)

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        # The client's own timeout begins anew with each piece that it sends or reads, and knows nothing of what it sends again.
        deadline = getattr(sys.modules.get("gevent"), "Timeout", None)
        limit = deadline.start_new(timeout, TimeoutError(f"no answer within {timeout:g} s")) if deadline else None
        try:
            inputs, outputs = self._asked(question)
            found = self.client(timeout).infer(question.model, inputs, question.version, outputs, **self.extra)
        except TimeoutError:
            # Its connection is in the middle of a request.
            self.clients.pop(timeout, None)
            raise
        finally:
            if limit is not None:
                limit.close()
        yield outputs_of(found)

    def index(self) -> List[Dict[str, Any]]:
        return list(self.client(self.timeout).get_model_repository_index(**self.extra))

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        return dict(self.client(self.timeout).get_model_metadata(model, version, **self.extra))

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        return dict(self.client(self.timeout).get_model_config(model, version, **self.extra))


class Grpc(Service):
    """gRPC, by tritonclient."""

    protocol = "grpc"

    def connect(self) -> None:
        self.client = self.new_client()

    def new_client(self) -> Any:
        """A client of this server."""
        options: Dict[str, Any] = {}
        if self.tls is not None:
            options = {
                "ssl": True,
                "root_certificates": self.tls.get("ca"),
                "private_key": self.tls.get("key"),
                "certificate_chain": self.tls.get("cert"),
            }
        return self.client_library.InferenceServerClient(self.url, **options)

    def live(self, timeout: float) -> Any:
        return self.client.is_server_live(client_timeout=timeout, **self.extra)

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        inputs, outputs = self._asked(question)
        answer = self.client.infer(question.model, inputs, question.version, outputs, client_timeout=timeout, **self.extra)
        yield outputs_of(answer)

    def index(self) -> List[Dict[str, Any]]:
        return list(self.client.get_model_repository_index(as_json=True, **self.extra).get("models", []))

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.client.get_model_metadata(model, version, as_json=True, client_timeout=self.timeout, **self.extra)
        # Whole numbers of 64 bits are texts in protobuf's JSON.
        for one in [*found.get("inputs", []), *found.get("outputs", [])]:
            one["shape"] = [int(size) for size in one.get("shape", [])]
        return dict(found)

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.client.get_model_config(model, version, as_json=True, client_timeout=self.timeout, **self.extra)
        return dict(found["config"])


class Stream(Grpc):
    """gRPC's stream, over which a request may have any number of responses. A client has one stream, so each has its client."""

    protocol = "stream"

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        """Closing it before its end cancels the request."""
        inputs, outputs = self._asked(question)
        arrived: queue.Queue[Tuple[Any, Any]] = queue.Queue()
        until = time.monotonic() + timeout
        ended = False
        client = self.new_client()
        try:
            # With the header newer servers tell an error's status; older ones pass it over.
            headers = {**self.headers, "triton_grpc_error": "true"}
            client.start_stream(lambda result, error: arrived.put((result, error)), stream_timeout=timeout, headers=headers)
            client.async_stream_infer(
                question.model, inputs, question.version, outputs, enable_empty_final_response=True
            )  # fmt: skip
            while True:
                try:
                    # The stream ends by itself at its timeout, and says so: a moment later is soon enough.
                    result, error = arrived.get(timeout=max(until - time.monotonic(), 0) + 1)
                except queue.Empty:
                    raise TimeoutError(f"no response within {timeout:g} s") from None
                if error is not None:
                    raise error
                response = result.get_response()
                ended = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    yield outputs_of(result)
                if ended:
                    return
        finally:
            client.stop_stream(cancel_requests=not ended)
            client.close()


class Raw(Service):
    """gRPC by the generated stub, without tritonclient's own types: what a client in any other language sends."""

    protocol = "raw"

    def connect(self) -> None:
        self.grpc = importlib.import_module("grpc")
        self.messages = importlib.import_module("tritonclient.grpc.service_pb2")
        stub = importlib.import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub
        # Any length of a message, as tritonclient has it
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        if self.tls is None:
            channel = self.grpc.insecure_channel(self.url, options=options)
        else:
            parts = [_content(self.tls.get(name)) for name in ("ca", "key", "cert")]
            channel = self.grpc.secure_channel(self.url, self.grpc.ssl_channel_credentials(*parts), options=options)
        self.stub = stub(channel)

    def call(self, method: str, timeout: float, /, **fields: Any) -> Any:
        """One call of the stub. Raises the error of tritonclient for that of grpc."""
        from tritonclient.utils import InferenceServerException

        request = getattr(self.messages, f"{method}Request")(**fields)
        try:
            extra = {"metadata": list(self.headers.items())} if self.headers else {}
            return getattr(self.stub, method)(request, timeout=timeout, **extra)
        except self.grpc.RpcError as error:
            raise InferenceServerException(error.details() or "", str(error.code())) from None

    def live(self, timeout: float) -> Any:
        return self.call("ServerLive", timeout)

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        fits(question)
        request = self.messages.ModelInferRequest
        inputs = [
            request.InferInputTensor(name=name, datatype=dtype, shape=array.shape)
            for name, (dtype, array) in question.inputs.items()
        ]
        names = dict.fromkeys([*question.outputs, *question.classes])
        outputs = [request.InferRequestedOutputTensor(name=name) for name in names]
        for output in outputs:
            if question.classes.get(output.name):
                output.parameters["classification"].int64_param = question.classes[output.name]
        contents = [encoded(dtype, array) for dtype, array in question.inputs.values()]
        response = self.call(
            "ModelInfer",
            timeout,
            model_name=question.model,
            model_version=question.version,
            inputs=inputs,
            outputs=outputs,
            raw_input_contents=contents,
        )
        found = {}
        for number, one in enumerate(response.outputs):
            shape = [int(size) for size in one.shape]
            data = response.raw_output_contents[number] if number < len(response.raw_output_contents) else None
            found[one.name] = Output(one.datatype, shape, None if data is None else decoded(one.datatype, shape, data))
        yield found

    def index(self) -> List[Dict[str, Any]]:
        models = self.call("RepositoryIndex", self.timeout).models
        return [{"name": one.name, "version": one.version, "state": one.state, "reason": one.reason} for one in models]

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.call("ModelMetadata", self.timeout, name=model, version=version)
        return {
            kind: [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in getattr(found, kind)]
            for kind in ("inputs", "outputs")
        }

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.call("ModelConfig", self.timeout, name=model, version=version).config
        return {"output": [{"name": one.name, "label_filename": one.label_filename} for one in found.output]}


SERVICES: Dict[str, Callable[..., Service]] = {one.protocol: one for one in (Http, Grpc, Stream, Raw)}
PROTOCOLS = tuple(SERVICES)


def _content(path: Optional[str]) -> Optional[bytes]:
    if not path:
        return None
    with open(path, "rb") as source:
        return source.read()


def tls_context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """A context for HTTPS: the server is verified by `ca`, or by what the system trusts."""
    context = ssl.create_default_context(cafile=tls.get("ca"))
    if tls.get("insecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.get("cert"):
        context.load_cert_chain(tls["cert"], tls.get("key"))
    return context


def fits(question: Question) -> None:
    """Raises TooLarge for a question that no request holds; of BYTES the length counts that stands before each."""
    size = 0
    for dtype, array in question.inputs.values():
        size += (
            sum(len(one) + 4 for one in array.flat) if dtype == "BYTES" else array.size * array.itemsize // (1 + (dtype == "BF16"))
        )
    if size > LARGEST_REQUEST:
        raise TooLarge(
            f"found {size / 2**30:.1f} GiB of inputs, wanted less than 2 GiB, where a request of HTTP or gRPC ends: "
            "send fewer rows at once, or give them to Triton as shared memory by a client of its host"
        )


def encoded(dtype: str, array: Any) -> bytes:
    """An array as the bytes that travel: little endian, row by row; a length of four bytes before each of BYTES."""
    from tritonclient.utils import serialize_bf16_tensor, serialize_byte_tensor

    if dtype in ("BYTES", "BF16"):
        data = (serialize_byte_tensor if dtype == "BYTES" else serialize_bf16_tensor)(array)
        return data.item() if data.size else b""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decoded(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    """The array of such bytes, None where they are not what dtype and shape promise."""
    import numpy as np
    from tritonclient.utils import deserialize_bf16_tensor, deserialize_bytes_tensor

    try:
        if dtype == "BYTES":
            array = deserialize_bytes_tensor(data)
        elif dtype == "BF16":
            array = deserialize_bf16_tensor(data)
        else:
            array = np.frombuffer(data, np.dtype(NUMPY[dtype]).newbyteorder("<"))
        return array.reshape(shape)
    except Exception:
        return None


def outputs_of(result: Any) -> Dict[str, Output]:
    """The outputs of a result of tritonclient."""
    response = result.get_response()
    found = {}
    for one in response.get("outputs", []) if isinstance(response, dict) else response.outputs:
        if isinstance(one, dict):
            name, dtype, shape = one["name"], one["datatype"], one["shape"]
        else:
            name, dtype, shape = one.name, one.datatype, one.shape
        try:
            array = result.as_numpy(name)
        except Exception:
            array = None
        found[name] = Output(dtype, [int(size) for size in shape], array)
    return found


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


# Running a document


class Check(NamedTuple):
    """A check of a document with its arrays unpacked."""

    model: str
    inputs: Dict[str, Tuple[str, Rows]]
    expect: Dict[str, Any]
    error: Optional[Mapping[str, str]]
    responses: Optional[int]
    cancel: Optional[Mapping[str, int]]
    most_ms: Optional[float]
    timeout: Optional[float]
    latency: Optional[Mapping[str, Any]] = None

    def question(self, request: Request) -> Question:
        """What this request asks."""
        arrays = {name: (dtype, rows.take(request.rows)) for name, (dtype, rows) in self.inputs.items()}
        inputs = {name: (dtype or triton_dtype(array), array) for name, (dtype, array) in arrays.items()}
        # The second best of a label shows whether the first is better at all.
        classes = {
            name: wanted.get("class_count", 2) for name, wanted in self.expect.items() if {"class_count", "label"} & wanted.keys()
        }
        return Question(self.model, inputs, classes, list(self.expect) if classes else [])


def prepared(model: str, check: Mapping[str, Any]) -> Check:
    """A check of a document, ready to be asked."""
    inputs = {name: (packed.get("dtype", ""), unpack(packed)) for name, packed in check["inputs"].items()}
    expect = with_rows(check.get("expect") or {})
    rest = [check.get(key) for key in ("error", "responses", "cancel", "ms", "timeout", "latency")]
    return Check(model, inputs, expect, *rest)


def run(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Every request of the document, each with a result.

    A service that does not answer, a model that is unknown and one that lets a request time out are not asked again:
    the requests that would follow carry the same reason.
    """
    services: Dict[str, Service] = {}
    given_up: Dict[Tuple[str, str], str] = {}
    results: List[Dict[str, Any]] = list(document.get("unproven", []))
    for of_model in document["checks"]:
        model = of_model["model"]
        if not any(document.get("latency", True) or not raw.get("latency") for raw in of_model["checks"]):
            results.append(unasked(model))
        for raw in of_model["checks"]:
            if raw.get("latency") and not document.get("latency", True):
                continue
            check = prepared(model, raw)
            asked = list(requests(model, raw, document["host_index"]))
            groups = [(request.name, [request]) for request in asked]
            if raw.get("instances") or raw.get("latency"):
                # One result for each protocol: its requests are repeated.
                by_protocol = {one: [request for request in asked if request.protocol == one] for one in raw["protocols"]}
                groups = [("{}/{}/{}".format(model, one, raw["name"]), group) for one, group in by_protocol.items()]
            for name, group in groups:
                protocol = group[0].protocol
                result = {"name": name, "model": model, "check": raw["name"], "protocol": protocol, "ok": False, "ms": None}
                results.append(result)
                if protocol not in services:
                    services[protocol] = service_of(protocol, document)
                    given_up[protocol, ""] = services[protocol].silent()
                result["why"] = given_up[protocol, ""] or given_up.get((protocol, model), "")
                if result["why"]:
                    result["unanswered"] = True
                if not result["why"] and raw.get("instances"):
                    ask_instances(document, check, group, result)
                elif not result["why"] and raw.get("latency"):
                    ask_latency(document, check, group, result)
                elif not result["why"]:
                    whole, one_model = ask(services[protocol], check, group[0], result)
                    given_up[protocol, ""], given_up[protocol, model] = whole, one_model
                    if whole or one_model:
                        result["unanswered"] = True
    return {"host": document["host"], "unasked": list(document.get("unasked", [])), "checks": results}


def unasked(model: str) -> Dict[str, Any]:
    """The result of a model that no request was for: nothing is known of its answers."""
    why = "nothing was asked: every check of its file is a load, and those are left out here: add one without latency"
    return {"name": f"{model}/checks", "model": model, "check": "checks", "protocol": None, "ok": False, "why": why, "ms": None}


def netloc(address: str, port: Any) -> str:
    """Address and port as URLs have them: an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def service_of(protocol: str, document: Mapping[str, Any]) -> Service:
    """The service of a document's server."""
    server = document["server"]
    kind = "http" if protocol == "http" else "grpc"
    url = server.get(kind + "_url") or netloc(server["address"], server[kind + "_port"])
    return SERVICES[protocol](url, document["timeout"], server.get(kind + "_tls"), server.get("headers"))


def ask(service: Service, check: Check, request: Request, result: Dict[str, Any]) -> Tuple[str, str]:
    """Send one request and complete its result. Returns why to give up on the (whole service, model), empty to go on."""
    try:
        question = check.question(request)
        arrays = {name: array for name, (_dtype, array) in question.inputs.items()}
        for key, seen in (("image", drawable(arrays, request)), ("picture", picture(arrays, request))):
            if seen is not None:
                result[key] = seen
        answer = cancelled(service, question, check) if check.cancel else service.infer(question, check.timeout)
        if answer.error is not None:
            given_up = _failed(service, check, answer, result)
            if given_up is not None:
                return given_up
        result["ms"] = round(answer.ms, 2)
        reasons = judge_answer(check, request, answer)
        result.update(describe(answer.outputs, request, check.expect))
        result["ok"], result["why"] = not reasons, "; ".join(reasons)
    except Exception as error:
        result["why"] = reason(error)
    return "", ""


def _failed(service: Service, check: Check, answer: Answer, result: Dict[str, Any]) -> Optional[Tuple[str, str]]:
    """Complete the result of a request that ended in an error; returns as `ask` does, None where the error was to come."""
    error = answer.error
    assert error is not None
    gone = service.silent() if of_connection(error) else ""
    if gone:
        result["why"] = gone
        return gone, ""
    if check.error is not None:
        return None
    result["why"] = service.told(error)
    if timed_out(error):
        limit = check.timeout or service.timeout
        result["why"] = f"no answer within {limit:g} s"
        if limit >= service.timeout:
            result["why"] += f"; {check.model} is not asked again over {service.protocol}"
            return "", str(result["why"])
    elif not_served(error):
        said = service.said_of(check.model)
        result["why"] += f"; {said}" if said else ""
        return "", str(result["why"])
    elif answer.responses and not check.cancel:
        result["why"] += f"; it came after {answer.responses} response{'s' * (answer.responses > 1)}"
    return "", ""


def judge_answer(check: Check, request: Request, answer: Answer) -> List[str]:
    """Every reason why an answer is not the expected one."""
    why = []
    if check.error is not None and answer.error is None:
        wanted = " ".join(f"{key} {one!r}" for key, one in sorted(check.error.items()))
        why.append(f"it was answered, wanted an error: {wanted}")
    elif check.error is not None and answer.error is not None:
        why += judge_error(answer.error, check.error, request.protocol)
    if check.responses is not None and answer.responses != check.responses:
        why.append(f"{answer.responses} response{'s' * (answer.responses != 1)} came, wanted {check.responses}")
    why += judge(answer.outputs, request, check.expect)
    if check.most_ms is not None and answer.ms > check.most_ms:
        why.append(f"took {answer.ms:.1f} ms, wanted at most {check.most_ms:g} ms")
    return why


def cancelled(service: Service, question: Question, check: Check) -> Answer:
    """Cancel a stream after so many responses, and again as often as the check says: each has to begin to answer.

    A server that went on with the cancelled ones would have no room left. The outputs are those of the last stream.
    """
    assert check.cancel is not None
    after, times = check.cancel["after"], check.cancel.get("times", 2)
    timeout = check.timeout or service.timeout
    began = time.monotonic()
    responses: List[Dict[str, Output]] = []
    failure: Optional[Exception] = None
    for number in range(times):
        stream = service.answers(question, timeout)
        responses = []
        try:
            responses.extend(itertools.islice(stream, after))
        except Exception as error:
            failure = error
        # Closing the generator is what cancels.
        stream.close()  # type: ignore[attr-defined]
        if failure is None and len(responses) < after:
            failure = ValueError(f"it ended after {len(responses)} responses, wanted to cancel it after {after}")
        if failure is not None:
            if number:
                said = f"no answer within {timeout:g} s" if timed_out(failure) else reason(failure)
                failure = ValueError(f"stream {number + 1}, after {number} were cancelled: {said}")
            break
    return Answer(joined(responses), len(responses), (time.monotonic() - began) * 1000, failure)


def ask_instances(document: Mapping[str, Any], check: Check, asked: Sequence[Request], result: Dict[str, Any]) -> None:
    """Repeat requests, ever more at once, until each instance of the model has answered one: its backend counts them.

    Triton itself does not tell which instance answers. Every answer is judged; `ms` is that of the slowest.
    """
    server = document["server"]
    url = server.get("metrics_url") or "http://{}/metrics".format(netloc(server["address"], server.get("metrics_port", 8002)))
    until = time.monotonic() + document["timeout"]

    def one(request: Request) -> Tuple[float, List[str]]:
        # A client for each thread, which tritonclient's HTTP needs
        answer = service_of(request.protocol, document).infer(check.question(request), check.timeout)
        return answer.ms, [reason(answer.error)] if answer.error is not None else judge_answer(check, request, answer)

    try:
        before = answered(url, check.model)
        silent, sent, why, width = sorted(before), 0, [], 2 * len(before)
        if not before:
            why = [f"{url} does not tell which instance of {check.model} answers, wanted {ANSWERED} of the backend rbln"]
        while silent and not why and (not sent or time.monotonic() < until):
            width = min(width, WIDEST)
            with ThreadPoolExecutor(width) as threads:
                for taken, reasons in threads.map(one, list(asked) * width):
                    result["ms"] = max(result["ms"] or 0, round(taken, 2))
                    why += [each for each in reasons if each not in why]
                    sent += 1
            now = answered(url, check.model)
            silent = [instance for instance in silent if now.get(instance, 0) <= before[instance]]
            width *= 2
        why += [f"instance {instance} answered none of {sent} requests" for instance in silent] if before and not why else []
        result["ok"], result["why"], result["instances"] = not why, "; ".join(why), len(before)
    except Exception as error:
        result["why"] = reason(error)


class Load:
    """A load: clients that ask one after the other, each in a thread of its own, as tritonclient's HTTP needs it."""

    def __init__(self, document: Mapping[str, Any], check: Check, asked: Sequence[Request]) -> None:
        assert check.latency is not None
        self.document, self.check, self.asked, self.limits = document, check, asked, check.latency
        self.ms: List[float] = []
        self.why: List[str] = []
        self.seconds = self.cores = self.began = self.cpu = 0.0
        self._numbers = itertools.count()
        self._ready = threading.Barrier(self.limits["clients"], self._begin)

    def _begin(self) -> None:
        self.began, self.cpu = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Until it is over, or a request failed."""
        threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(self.limits["clients"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - self.began
        self.cores = (time.process_time() - self.cpu) / self.seconds if self.began else 0.0

    def _client(self, number: int) -> None:
        try:
            request = self.asked[number % len(self.asked)]
            question = self.check.question(request)
            service = service_of(request.protocol, self.document)
            # The first answer is judged and not counted: it has the connection in it.
            answer = service.infer(question, self.check.timeout)
            self._fail([reason(answer.error)] if answer.error is not None else judge_answer(self.check, request, answer))
            self._ready.wait()
            while self._goes_on():
                answer = service.infer(question, self.check.timeout)
                if answer.error is not None:
                    self._fail([f"request {len(self.ms) + 1} of the load failed: {reason(answer.error)}"])
                    return
                self.ms.append(answer.ms)
        except threading.BrokenBarrierError:
            # Another one has said why
            return
        except Exception as error:
            self._fail([reason(error)])

    def _fail(self, reasons: Sequence[str]) -> None:
        self.why += [one for one in reasons if one not in self.why]
        if reasons:
            self._ready.abort()

    def _goes_on(self) -> bool:
        if self.why:
            return False
        if "requests" in self.limits:
            return next(self._numbers) < self.limits["requests"]
        return time.monotonic() - self.began < self.limits["seconds"]

    def figures(self) -> Dict[str, Any]:
        """What was measured; a batch counts as its rows."""
        ordered = sorted(self.ms)
        rows = len(self.asked[0].rows or [0])
        found = {name: round(percentile(ordered, share), 2) for name, share in PERCENTILES.items()}
        return {
            "clients": self.limits["clients"],
            "requests": len(ordered),
            "seconds": round(self.seconds, 2),
            **found,
            "max_ms": round(ordered[-1], 2),
            "infer_per_s": round(len(ordered) * rows / self.seconds, 1),
            "client_cores": round(self.cores, 2),
        }


def percentile(ordered: Sequence[float], share: int) -> float:
    """The smallest value that so many percent of the values do not exceed: one that was measured, none between two."""
    return ordered[max(math.ceil(len(ordered) * share / 100), 1) - 1]


def ask_latency(document: Mapping[str, Any], check: Check, asked: Sequence[Request], result: Dict[str, Any]) -> None:
    """Ask for a while with several clients at once, and hold what it took against the check's limits. `ms` is the median."""
    load = Load(document, check, asked)
    load.run()
    why = load.why
    if not why and not load.ms:
        why = [f"no request ended within {load.limits.get('seconds', 0):g} s"]
    if load.ms:
        result["latency"] = figures = load.figures()
        result["ms"] = figures["p50_ms"]
        why = why or judge_latency(figures, load.limits)
    result["ok"], result["why"] = not why, "; ".join(why)


def judge_latency(figures: Mapping[str, Any], limits: Mapping[str, Any]) -> List[str]:
    """Every limit that a load missed."""
    of = "{} client{}, {} requests".format(figures["clients"], "s" * (figures["clients"] > 1), figures["requests"])
    why = []
    for name in PERCENTILES:
        if name in limits and figures[name] > limits[name]:
            why.append(f"{name[:-3]} found {figures[name]:g} ms, wanted at most {limits[name]:g} ms, {of}")
    if "infer_per_s" in limits and figures["infer_per_s"] < limits["infer_per_s"]:
        why.append("infer/s found {:g}, wanted at least {:g}, {}".format(figures["infer_per_s"], limits["infer_per_s"], of))
    if why and figures["client_cores"] >= SATURATED:
        why.append(f"the client itself used {figures['client_cores']:g} cores, so its own work is in these figures: ask with fewer")
    return why


def answered(url: str, model: str) -> Dict[str, float]:
    """{instance: requests that it has answered} of a model, from a page of metrics."""
    # Straight to the server: a site's proxy is not for it.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=SIGN_OF_LIFE) as page:
        lines = page.read().decode("utf-8", "replace").splitlines()
    found: Dict[str, float] = {}
    for line in lines:
        match = re.fullmatch(ANSWERED + r"\{(.*)\} (\S+)", line)
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1))) if match else {}
        if match and labels.get("model") == model:
            name = "{} on NPU {}".format(labels.get("instance", "?"), labels.get("npu", "?"))
            # One process for each time that it was loaded
            found[name] = found.get(name, 0.0) + float(match.group(2))
    return found


def status_of(error: Exception) -> str:
    """Status of an error of tritonclient, such as 404 or NOT_FOUND, empty for any other."""
    status = getattr(error, "status", None)
    return str(status() or "").replace("StatusCode.", "") if callable(status) else ""


def timed_out(error: Exception) -> bool:
    """Whether an answer did not come in time."""
    return isinstance(error, TimeoutError) or status_of(error) == "DEADLINE_EXCEEDED"


def not_served(error: Exception) -> bool:
    """Whether a server says that it does not serve the model, or its version: over HTTP older ones say so with the status 400."""
    words = reason(error)
    return (status_of(error) in ("404", "NOT_FOUND") and not words.startswith(CLIENTS_WORDS)) or "unknown model" in words


def of_connection(error: Exception) -> bool:
    """Whether an error may be the connection's, and not the server's answer."""
    closed = isinstance(error, OSError) or type(error).__name__ in ("HTTPConnectionClosed", "HTTPParseError")
    return closed or status_of(error) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def reason(error: Exception) -> str:
    """An error as one line: Triton's own words, or what went wrong on the way to them."""
    message = getattr(error, "message", None)
    if callable(message):
        return _line(str(message())) or status_of(error) or type(error).__name__
    kind = "" if isinstance(error, (OSError, ValueError)) and str(error) else type(error).__name__ + ": "
    return _line(kind + str(error)).strip(": ") or type(error).__name__


def _natural(text: str) -> Tuple[int, str]:
    """Numbers in their own order."""
    return len(text), text


def _line(text: str) -> str:
    return " ".join(text.split())


# The way into the container and back


def pack(array: Any, rows: Optional[Sequence[int]] = None) -> Dict[str, Any]:
    """These rows of an array as JSON, or all of it as it is. Bytes are kept to the last zero, which numpy's own would drop."""
    import numpy as np

    numbers = None if rows is None else list(rows)
    taken = array if numbers is None else array[numbers]
    if taken.dtype.kind == "O":
        data = [base64.b64encode(bytes(one)).decode() for one in taken.flat]
        return {"rows": numbers, "shape": list(taken.shape), "bytes": data}
    buffer = io.BytesIO()
    np.save(buffer, taken, allow_pickle=False)
    return {"rows": numbers, "data": base64.b64encode(buffer.getvalue()).decode()}


def unpack(packed: Mapping[str, Any]) -> Rows:
    """What `pack` made."""
    import numpy as np

    if "bytes" in packed:
        array = np.empty(len(packed["bytes"]), dtype=np.object_)
        array[:] = [base64.b64decode(one) for one in packed["bytes"]]
        array = array.reshape(packed["shape"])
    else:
        array = np.load(io.BytesIO(base64.b64decode(packed["data"])), allow_pickle=False)
    numbers = packed["rows"]
    return Rows(None if numbers is None else {row: place for place, row in enumerate(numbers)}, array)


def with_rows(expect: Mapping[str, Any]) -> Dict[str, Any]:
    """Expectations whose golden values are unpacked: {output: {..., "values": {"rows": Rows, "atol", "rtol"}}}."""
    unpacked = {}
    for name, wanted in expect.items():
        unpacked[name] = dict(wanted)
        if "values" in wanted:
            unpacked[name]["values"] = {**wanted["values"], "rows": unpack(wanted["values"])}
    return unpacked


def with_files(document: Mapping[str, Any], place: str) -> Dict[str, Any]:
    """The document with each PEM of its server in a file below `place`, as clients take them."""
    server = dict(document["server"])
    for kind in ("http_tls", "grpc_tls"):
        parts = dict(server.get(kind) or {})
        for name, given in parts.items():
            if isinstance(given, str) and given.lstrip().startswith("-----BEGIN"):
                parts[name] = os.path.join(place, f"{kind}_{name}.pem")
                with open(os.open(parts[name], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as target:
                    target.write(given)
        if parts:
            server[kind] = parts
    return {**document, "server": server}


def main(document: Mapping[str, Any]) -> None:
    """Run a document and write the result as the last line of standard output; nothing else may write there."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with tempfile.TemporaryDirectory() as place:
            result = run(with_files(document, place))
    except ImportError as error:
        result = {"error": str(error)}
    out.write(json.dumps(result) + "\n")
    out.flush()
