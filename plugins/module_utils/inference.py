"""Proof by inference: sends the requests of check documents to a Triton server and judges the answers.

Self-contained, because it also runs as a script (`python3 -`) inside a container of the release image, where numpy and
tritonclient are: one JSON document on standard input after the line `===`, one JSON document on standard output.

Document in:  {"host", "host_index", "server": {"address", "http_port", "grpc_port"}, "timeout": seconds,
               "checks": [check file with every array in place, see `load` of the action plugin]}
Document out: {"host", "checks": [{"name", "model", "protocol", "ok", "why", "ms", ...}]}
"""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, Tuple

PROTOCOLS = ("http", "grpc")
# Rows up to this many values are returned with their result, so that a report can draw them.
DRAWN_VALUES = 784


def expand(document: Mapping[str, Any], host_index: int) -> Iterator[Tuple[str, str, List[int], List[int], Mapping[str, Any]]]:
    """(name, protocol, rows, places, check) of every request of a check document.

    Rows count from the start of the arrays, places from the check's first row: `argmax` is indexed by place. With
    `spread` each host and protocol takes the next block of `count` rows, so that a fleet asks more of the golden data.
    """
    for check in document["checks"]:
        rows = check["rows"]
        count = rows["count"]
        for number, protocol in enumerate(check["protocols"]):
            offset = 0
            if rows.get("spread"):
                blocks = rows["total"] // count
                offset = (host_index * len(check["protocols"]) + number) % blocks * count
            base = "{}/{}/{}".format(document["model"], protocol, check["name"])
            places = list(range(offset, offset + count))
            if rows.get("batch"):
                yield base, protocol, [rows["first"] + place for place in places], places, check
            else:
                for place in places:
                    yield f"{base} {place - offset}", protocol, [rows["first"] + place], [place], check


def judge(answers: Mapping[str, Any], rows: List[int], places: List[int], check: Mapping[str, Any]) -> List[str]:
    """Every reason why these outputs are not the expected ones: what was found, what was wanted."""
    import numpy as np

    why = []
    for name, wanted in check["expect"].items():
        if name not in answers:
            why.append("output {} is missing, found {}".format(name, ", ".join(sorted(answers)) or "none"))
            continue
        kind, array = answers[name]
        if "dtype" in wanted and kind != wanted["dtype"]:
            why.append("{}: dtype is {}, wanted {}".format(name, kind, wanted["dtype"]))
        if "shape" in wanted and list(array.shape) != list(wanted["shape"]):
            why.append("{}: shape is {}, wanted {}".format(name, list(array.shape), list(wanted["shape"])))
            continue
        if wanted.get("finite") and not np.isfinite(array).all():
            why.append(f"{name}: {int((~np.isfinite(array)).sum())} of {array.size} values are not finite")
        if "argmax" in wanted:
            found = [int(one) for one in array.reshape(len(rows), -1).argmax(axis=1)]
            labels = [wanted["argmax"][place] for place in places]
            if found != labels:
                why.append(f"{name}: label is {_one(found)}, wanted {_one(labels)}")
        if "values" in wanted:
            golden = np.stack([wanted["values"]["rows"][row] for row in rows]).reshape(array.shape)
            limit = float(wanted["values"].get("atol", 0)) + float(wanted["values"].get("rtol", 0)) * np.abs(golden)
            difference = np.abs(array.astype(np.float64) - golden)
            if not (difference <= limit).all():
                why.append(f"{name}: values differ by up to {np.nanmax(difference):.4g}, wanted at most {limit.max():.4g}")
    return why


def _one(labels: List[int]) -> Any:
    return labels[0] if len(labels) == 1 else labels


class Client:
    """One protocol's client of a server, made on first use."""

    def __init__(self, protocol: str, server: Mapping[str, Any], timeout: float) -> None:
        self.timeout = timeout
        if protocol == "http":
            import tritonclient.http as library

            url = "{}:{}".format(server["address"], server["http_port"])
            self.client = library.InferenceServerClient(url, connection_timeout=timeout, network_timeout=timeout)
            self.options: Dict[str, Any] = {}
        else:
            import tritonclient.grpc as library

            self.client = library.InferenceServerClient("{}:{}".format(server["address"], server["grpc_port"]))
            self.options = {"client_timeout": timeout}
        self.library = library

    def infer(self, model: str, inputs: Mapping[str, Any]) -> Tuple[Dict[str, Any], float]:
        """({output: (dtype, array)}, milliseconds) of one request."""
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
        outputs = response["outputs"] if isinstance(response, dict) else response.outputs
        answers = {}
        for one in outputs:
            name, kind = (one["name"], one["datatype"]) if isinstance(one, dict) else (one.name, one.datatype)
            answers[name] = (kind, result.as_numpy(name))
        return answers, taken


def run(document: Mapping[str, Any]) -> Dict[str, Any]:
    """All checks of a document, every one with a result; a protocol that does not answer is asked once, not for each row."""
    import numpy as np

    clients: Dict[str, Any] = {}
    results = []
    for one in document["checks"]:
        for name, protocol, rows, places, check in expand(one, document["host_index"]):
            result: Dict[str, Any] = {"name": name, "model": one["model"], "protocol": protocol, "ok": False, "why": "", "ms": None}
            results.append(result)
            if isinstance(clients.get(protocol), str):
                result["why"] = clients[protocol]
                continue
            inputs = {key: np.stack([array[row] for row in rows]) for key, array in _arrays(check["inputs"]).items()}
            try:
                if protocol not in clients:
                    clients[protocol] = Client(protocol, document["server"], document["timeout"])
                answers, taken = clients[protocol].infer(one["model"], inputs)
            except Exception as error:
                result["why"] = reason(error)
                if unreachable(error):
                    clients[protocol] = "the {} service does not answer: {}".format(protocol, result["why"])
                    result["why"] = clients[protocol]
                continue
            result["ms"] = round(taken, 2)
            why = judge(answers, rows, places, _with_rows(check))
            result["ok"], result["why"] = not why, "; ".join(why)
            _describe(result, answers, inputs, places, check)
    return {"host": document["host"], "checks": results}


def reason(error: Exception) -> str:
    """An error as one line: Triton's own words, or what went wrong on the way to it."""
    words = error.message() if hasattr(error, "message") and callable(error.message) else str(error)
    return " ".join(str(words).split()) or type(error).__name__


def unreachable(error: Exception) -> bool:
    """Whether an error is the connection's, so that the next request would wait in vain too."""
    status = str(error.status()) if hasattr(error, "status") and callable(error.status) else ""
    return isinstance(error, (OSError, TimeoutError)) or ("UNAVAILABLE" in status and "connect" in str(error).lower())


def _describe(
    result: Dict[str, Any], answers: Mapping[str, Any], inputs: Mapping[str, Any], places: List[int], check: Mapping[str, Any]
) -> None:
    """Add what a report draws: the row that was sent, the label found and the one expected."""
    for name, wanted in check["expect"].items():
        if "argmax" in wanted and name in answers and answers[name][1].size:
            found = answers[name][1]
            result["label"] = _one([int(label) for label in found.reshape(len(places), -1).argmax(axis=1)])
            result["expected"] = _one([wanted["argmax"][place] for place in places])
    rows = list(inputs.values())
    if len(places) == 1 and len(rows) == 1 and rows[0].size <= DRAWN_VALUES and rows[0].dtype.kind in "fiu":
        result["image"] = [round(float(value)) for value in rows[0].flatten()]


def pack(array: Any) -> str:
    """An array as text."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def unpack(text: str) -> Any:
    """The array of `pack`."""
    import numpy as np

    return np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


def _arrays(inputs: Mapping[str, Any]) -> Dict[str, Dict[int, Any]]:
    """{input: {row number: row}} out of {"rows": [numbers], "data": packed array of these rows}."""
    return {name: dict(zip(one["rows"], unpack(one["data"]))) for name, one in inputs.items()}


def _with_rows(check: Mapping[str, Any]) -> Dict[str, Any]:
    expect = {}
    for name, wanted in check["expect"].items():
        expect[name] = dict(wanted)
        if "values" in wanted:
            values = wanted["values"]
            expect[name]["values"] = {**values, "rows": dict(zip(values["rows"], unpack(values["data"])))}
    return {**check, "expect": expect}


if __name__ == "__main__":
    # Standard input was this script itself: the document follows as its last line, handed over by the caller.
    json.dump(run(json.loads(DOCUMENT)), sys.stdout)  # type: ignore[name-defined]  # noqa: F821
