"""Proof by inference: sends the requests of check documents to a Triton server and judges the answers.

Self-contained, because its source travels to a container of the release image, where numpy and tritonclient are, and runs
there: `main` takes a document and writes the result as the last line of standard output.

Document: {"host", "host_index", "server": {"address", "http_port", "grpc_port"}, "timeout": seconds,
           "checks": [{"model", "checks": [check of a check file, with arrays as `pack` makes them]}]}
Result:   {"host", "checks": [{"name", "model", "protocol", "ok", "why", "ms", ...}]}, or {"error"} where the image lacks a client.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

PROTOCOLS = ("http", "grpc")
# Rows up to this many values are returned with their result, so that a report can draw them.
DRAWN_VALUES = 784
# Longest side of the picture of an input; a larger one is thinned out.
PICTURE_SIDE = 64
# Seconds in which a server has to say that it lives, however long its models may take.
SIGN_OF_LIFE = 5.0
# Kinds of numpy's dtypes that can be compared as numbers
NUMBERS = "fiub"


class Request(NamedTuple):
    """One request of a check. Rows count in the arrays; places from the check's first row, as the labels do."""

    name: str
    protocol: str
    rows: List[int]
    places: List[int]


class Output(NamedTuple):
    """One output of an answer; `array` is None where the bytes are not what dtype and shape promise."""

    dtype: str
    shape: List[int]
    array: Any


def requests(model: str, check: Mapping[str, Any], host_index: int) -> Iterator[Request]:
    """The requests of one check of a model.

    With `spread` each host and protocol takes the next block of `count` rows, so that a fleet asks more of the golden
    data; `total` says how many rows there are to take from.
    """
    rows = check["rows"]
    count = rows["count"]
    for number, protocol in enumerate(check["protocols"]):
        start = 0
        if rows.get("spread"):
            blocks = rows["total"] // count
            start = (host_index * len(check["protocols"]) + number) % blocks * count
        name = "{}/{}/{}".format(model, protocol, check["name"])
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

    array, count = output.array, len(request.rows)
    if "dtype" in wanted and output.dtype != wanted["dtype"]:
        yield "dtype is {}, wanted {}".format(output.dtype, wanted["dtype"])
    shape_is_wrong = "shape" in wanted and output.shape != list(wanted["shape"])
    if shape_is_wrong:
        yield "shape is {}, wanted {}".format(output.shape, list(wanted["shape"]))
    looked_into = {"finite", "argmax", "values"} & {key for key, value in wanted.items() if value is not False}
    if not looked_into:
        return
    if array is None:
        yield f"the data does not fit {output.dtype} of shape {output.shape}"
        return
    if array.dtype.kind not in NUMBERS:
        yield f"holds {output.dtype}, wanted numbers to judge {', '.join(sorted(looked_into))} by"
        return
    if wanted.get("finite") and not np.isfinite(array).all():
        yield f"{int((~np.isfinite(array)).sum())} of {array.size} values are not finite, wanted all"
    if not _has_rows(array, count):
        if not shape_is_wrong and looked_into != {"finite"}:
            yield f"shape is {output.shape}, wanted {count} row{'s' * (count > 1)}"
        return
    if "argmax" in wanted:
        found, labels = labels_of(array), [wanted["argmax"][place] for place in request.places]
        if found != labels:
            yield f"label is {_one(found)}, wanted {_one(labels)}"
    if "values" in wanted:
        golden = np.stack([wanted["values"]["rows"][row] for row in request.rows])
        if golden.shape != array.shape:
            if not shape_is_wrong:
                yield f"shape is {output.shape}, the golden values' is {list(golden.shape)}"
            return
        yield from _judge_values(array, golden, wanted["values"])


def _judge_values(array: Any, golden: Any, wanted: Mapping[str, Any]) -> Iterator[str]:
    import numpy as np

    found, golden = array.astype(np.float64), golden.astype(np.float64)
    allowed = float(wanted.get("atol", 0)) + float(wanted.get("rtol", 0)) * np.abs(golden)
    with np.errstate(invalid="ignore"):
        over = np.abs(found - golden) - allowed
        good = (found == golden) | (over <= 0)
    if not good.all():
        worst = np.unravel_index(np.where(good, -np.inf, np.where(np.isnan(over), np.inf, over)).argmax(), over.shape)
        wanted_is = f"{golden[worst]:.6g} +- {allowed[worst]:.3g}"
        yield f"{int((~good).sum())} of {good.size} values are off, the worst is {found[worst]:.6g}, wanted {wanted_is}"


def _has_rows(array: Any, count: int) -> bool:
    return bool(array.ndim and array.size and array.shape[0] == count)


def labels_of(array: Any) -> List[int]:
    """The place of the largest value in each row."""
    return [int(label) for label in array.reshape(len(array), -1).argmax(axis=1)]


def _one(labels: List[int]) -> Any:
    return labels[0] if len(labels) == 1 else labels


def drawable(inputs: Mapping[str, Any], request: Request) -> Optional[List[int]]:
    """The one input row of a request as whole numbers, None where there is nothing to draw."""
    import numpy as np

    rows = list(inputs.values())
    if len(request.rows) != 1 or len(rows) != 1 or rows[0].size > DRAWN_VALUES or rows[0].dtype.kind not in "fiu":
        return None
    return [round(float(value)) for value in rows[0].flatten()] if np.isfinite(rows[0]).all() else None


def picture(inputs: Mapping[str, Any], request: Request) -> Optional[Dict[str, Any]]:
    """The one input row of a request where it is an image: {"width", "height", "channels", "pixels": bytes as base64}.

    An image is a matrix, one of three channels that come first or last, or a square of drawable length.
    """
    import numpy as np

    rows = list(inputs.values())
    if len(request.rows) != 1 or len(rows) != 1 or rows[0].dtype.kind not in NUMBERS or not rows[0].size:
        return None
    row = np.squeeze(rows[0][0])
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


def describe(answer: Mapping[str, Output], request: Request, expect: Mapping[str, Any]) -> Dict[str, Any]:
    """What was expected and found as labels, one number where one row was sent: {"expected", "got", "label"}, or less."""
    for name, wanted in expect.items():
        if "argmax" not in wanted:
            continue
        found: Dict[str, Any] = {"expected": _one([wanted["argmax"][place] for place in request.places])}
        array = answer[name].array if name in answer else None
        if array is not None and array.dtype.kind in NUMBERS and _has_rows(array, len(request.rows)):
            found["got"] = _one(labels_of(array))
            if len(request.rows) == 1:
                found["label"] = found["got"]
        return found
    return {}


# Asking a server


class Service:
    """One protocol of a server."""

    def __init__(self, protocol: str, server: Mapping[str, Any], timeout: float) -> None:
        self.protocol = protocol
        self.timeout = timeout
        self.url = "{}:{}".format(server["address"], server[f"{protocol}_port"])
        self.options: Dict[str, Any] = {}
        # Both the client and the parts of it that its `http` and `grpc` extras bring have to be there.
        try:
            library = importlib.import_module(f"tritonclient.{protocol}")
        except (ImportError, RuntimeError) as error:
            raise ImportError(reason(error)) from None
        if protocol == "http":
            self.client = library.InferenceServerClient(self.url, connection_timeout=timeout, network_timeout=timeout)
            short = min(timeout, SIGN_OF_LIFE)
            prober = library.InferenceServerClient(self.url, connection_timeout=short, network_timeout=short)
            self.probe = prober.is_server_live
        else:
            self.client = library.InferenceServerClient(self.url)
            self.options = {"client_timeout": timeout}
            self.probe = lambda: self.client.is_server_live(client_timeout=min(timeout, SIGN_OF_LIFE))
        self.library = library

    def silent(self) -> str:
        """Why no request to this service is worth its wait, empty where something answers."""
        try:
            self.probe()
        except Exception as error:
            # Health may be a restricted API, which says so with the status of a server that is not there.
            if of_connection(error) and "restricted" not in str(error):
                return f"no Triton answers {self.protocol} at {self.url}: {reason(error)}"
        return ""

    def infer(self, model: str, inputs: Mapping[str, Any]) -> Tuple[Dict[str, Output], float]:
        """(outputs by name, milliseconds) of one request."""
        from tritonclient.utils import np_to_triton_dtype

        tensors = []
        for name, array in inputs.items():
            tensor = self.library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        began = time.monotonic()
        result = self.client.infer(model, tensors, **self.options)
        taken = (time.monotonic() - began) * 1000
        response = result.get_response()
        answer = {}
        for one in response.get("outputs", []) if isinstance(response, dict) else response.outputs:
            if isinstance(one, dict):
                name, dtype, shape = one["name"], one["datatype"], one["shape"]
            else:
                name, dtype, shape = one.name, one.datatype, one.shape
            try:
                array = result.as_numpy(name)
            except Exception:
                array = None
            answer[name] = Output(dtype, [int(size) for size in shape], array)
        return answer, taken

    def index(self, model: str) -> str:
        """What the server's index says of a model that it does not serve, empty where it does not tell."""
        try:
            found = self.client.get_model_repository_index(**({} if self.protocol == "http" else {"as_json": True}))
        except Exception:
            return ""
        entries = found.get("models", []) if isinstance(found, dict) else found
        said = ["{} {}".format(one.get("state", ""), one.get("reason", "")) for one in entries if one["name"] == model]
        ready = sorted({one["name"] for one in entries if one.get("state") == "READY"})
        return _line("; ".join(said)) or "it serves {}".format(", ".join(ready) or "no model")


def run(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Every request of the document, each with a result.

    A service that does not answer, a model that is unknown and one that lets a request time out are not asked again:
    the requests that would follow carry the same reason.
    """
    services: Dict[str, Service] = {}
    given_up: Dict[Tuple[str, str], str] = {}
    results: List[Dict[str, Any]] = []
    for one in document["checks"]:
        model = one["model"]
        for check in one["checks"]:
            expect, arrays = with_rows(check["expect"]), {name: _rows(packed) for name, packed in check["inputs"].items()}
            for request in requests(model, check, document["host_index"]):
                protocol = request.protocol
                result = {"name": request.name, "model": model, "protocol": protocol, "ok": False, "why": "", "ms": None}
                results.append(result)
                if protocol not in services:
                    services[protocol] = Service(protocol, document["server"], document["timeout"])
                    given_up[protocol, ""] = services[protocol].silent()
                result["why"] = given_up[protocol, ""] or given_up.get((protocol, model), "")
                if not result["why"]:
                    whole, one_model = ask(services[protocol], model, arrays, request, expect, result)
                    given_up[protocol, ""], given_up[protocol, model] = whole, one_model
    return {"host": document["host"], "checks": results}


def ask(
    service: Service,
    model: str,
    arrays: Mapping[str, Mapping[int, Any]],
    request: Request,
    expect: Mapping[str, Any],
    result: Dict[str, Any],
) -> Tuple[str, str]:
    """Send one request and complete its result. Returns why to give up on the (whole service, model), empty to go on."""
    import numpy as np

    try:
        inputs = {name: np.stack([rows[row] for row in request.rows]) for name, rows in arrays.items()}
        image = drawable(inputs, request)
        if image is not None:
            result["image"] = image
        seen = picture(inputs, request)
        if seen is not None:
            result["picture"] = seen
        answer, taken = service.infer(model, inputs)
        result["ms"] = round(taken, 2)
        result.update(describe(answer, request, expect))
        why = judge(answer, request, expect)
        result["ok"], result["why"] = not why, "; ".join(why)
        return "", ""
    except Exception as error:
        result["why"] = reason(error)
        if of_connection(error):
            gone = service.silent()
            if gone:
                result["why"] = gone
                return gone, ""
        if timed_out(error):
            result["why"] = f"no answer within {service.timeout:g} s; {model} is not asked again over {service.protocol}"
            return "", str(result["why"])
        if status_of(error) in ("404", "NOT_FOUND"):
            said = service.index(model)
            result["why"] += f"; {said}" if said else ""
            return "", str(result["why"])
        return "", ""


def status_of(error: Exception) -> str:
    """Status of an error of tritonclient, such as 404 or NOT_FOUND, empty for any other."""
    status = getattr(error, "status", None)
    return str(status() or "").replace("StatusCode.", "") if callable(status) else ""


def timed_out(error: Exception) -> bool:
    """Whether an answer did not come in time."""
    return isinstance(error, TimeoutError) or status_of(error) == "DEADLINE_EXCEEDED"


def of_connection(error: Exception) -> bool:
    """Whether an error may be the connection's, and not the server's answer."""
    return isinstance(error, OSError) or status_of(error) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def reason(error: Exception) -> str:
    """An error as one line: Triton's own words, or what went wrong on the way to them."""
    message = getattr(error, "message", None)
    if callable(message):
        return _line(str(message())) or status_of(error) or type(error).__name__
    kind = "" if isinstance(error, OSError) else type(error).__name__ + ": "
    return _line(kind + str(error)).strip(": ") or type(error).__name__


def _line(text: str) -> str:
    return " ".join(text.split())


# The way into the container and back


def pack(array: Any, rows: Sequence[int]) -> Dict[str, Any]:
    """These rows of an array as JSON."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array[list(rows)], allow_pickle=False)
    return {"rows": list(rows), "data": base64.b64encode(buffer.getvalue()).decode()}


def _rows(packed: Mapping[str, Any]) -> Dict[int, Any]:
    """{row number: row} of what `pack` made."""
    import numpy as np

    data = np.load(io.BytesIO(base64.b64decode(packed["data"])), allow_pickle=False)
    return dict(zip(packed["rows"], data))


def with_rows(expect: Mapping[str, Any]) -> Dict[str, Any]:
    """Expectations whose golden values are unpacked: {output: {..., "values": {"rows": {number: row}, "atol", "rtol"}}}."""
    unpacked = {}
    for name, wanted in expect.items():
        unpacked[name] = dict(wanted)
        if "values" in wanted:
            unpacked[name]["values"] = {**wanted["values"], "rows": _rows(wanted["values"])}
    return unpacked


def main(document: Mapping[str, Any]) -> None:
    """Run a document and write the result as the last line of standard output; nothing else may write there."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        result = run(document)
    except ImportError as error:
        result = {"error": str(error)}
    out.write(json.dumps(result) + "\n")
    out.flush()
