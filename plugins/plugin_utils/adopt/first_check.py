# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The first check of a model that has no check file: a generated request, and the server's current answer to it."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference import questions
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.balancer_check import NOT_IN_JSON
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# {Triton's dtype: numpy's dtype} for the dtypes that JSON can represent
NUMPY = {dtype: name for dtype, name in questions.NUMPY.items() if dtype not in NOT_IN_JSON}
# The tolerance of an answer, as a fraction of its largest value. Another SDK can round differently.
TOLERANCE = 1e-3
# The largest number of values in all inputs of a model together, and also in one output. Larger models get no first check.
MAX_VALUES = 1 << 22
# The largest number of inputs of a model, of dimensions of an input, and of models that get a first check
MAX_INPUTS, MAX_DIMENSIONS, MAX_MODELS = 64, 32, 256


class NoRequest(Exception):
    """A reason why no request can be generated for a model, or why the answer to the request cannot be used."""


def request(config: Optional[Mapping[str, Any]]) -> Tuple[Dict[str, Any], str]:
    """Return {input: array} and the body of the request for a model. The result is the same in every run. Raises NoRequest."""
    import numpy as np

    if not config:
        raise NoRequest("its server does not return its config")
    if (config.get("model_transaction_policy") or {}).get("decoupled") or config.get("sequence_batching"):
        raise NoRequest("it answers in streams or sequences")
    tensors = config.get("input") or []
    if len(tensors) > MAX_INPUTS:
        raise NoRequest(f"it has {len(tensors)} inputs, expected at most {MAX_INPUTS}")
    random = np.random.RandomState(24)
    arrays: Dict[str, Any] = {}
    inputs: List[Dict[str, Any]] = []
    remaining_values = MAX_VALUES
    for tensor in tensors:
        datatype = tensor["data_type"].replace("TYPE_", "").replace("STRING", "BYTES")
        if datatype not in NUMPY:
            raise NoRequest(f"its input {tensor['name']} is {datatype}, whose values JSON cannot represent")
        if tensor.get("optional"):
            continue
        if len(tensor["dims"]) > MAX_DIMENSIONS:
            raise NoRequest(f"its input {tensor['name']} has {len(tensor['dims'])} dimensions, expected at most {MAX_DIMENSIONS}")
        shape = [1] * (int(config.get("max_batch_size") or 0) > 0) + [max(int(size), 1) for size in tensor["dims"]]
        remaining_values -= math.prod(shape)
        if remaining_values < 0:
            raise NoRequest(f"its inputs up to {tensor['name']} have more than {MAX_VALUES} values")
        if datatype == "BYTES":
            array = np.full(shape, b"1")
        elif datatype.startswith("FP"):
            array = random.random_sample(shape).astype(NUMPY[datatype])
        else:
            array = random.randint(0, 2, shape).astype(NUMPY[datatype])
        arrays[tensor["name"]] = array
        data = array.astype(str if datatype == "BYTES" else array.dtype).flatten().tolist()
        inputs.append({"name": tensor["name"], "datatype": datatype, "shape": list(array.shape), "data": data})
    if not arrays:
        raise NoRequest("its config names no input")
    if len({array.shape[0] for array in arrays.values()}) > 1:
        raise NoRequest("its inputs differ in their first dimension")
    return arrays, json.dumps({"inputs": inputs})


def check(model: str, arrays: Mapping[str, Any], answers: List[Any], protocols: List[str]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return (the check file as a document, {file name: array}) from two answers to the same request. Raises NoRequest.

    The check compares the values of an output if they are finite numbers, are equal in both answers, and have as many rows as the
    inputs. For every other output, the check compares the type and the shape.
    """
    import numpy as np

    for status, answer in answers:
        if status != 200:
            raise NoRequest("the answer to a generated request is {}: {}".format(status, " ".join(str(answer).split())[:300]))
        if not isinstance(answer, dict):
            raise NoRequest("the answer to a generated request is not JSON. It may have a number that JSON lacks, such as NaN")
    count = next(iter(arrays.values())).shape[0]
    # The name of a tensor can be any text.
    input_files = {name: f"{host_text.file_name(name)}.npy" for name in arrays}
    files = {input_files[name]: array for name, array in arrays.items()}
    expect: Dict[str, Any] = {}
    for entry, repeated in zip(*(sorted(answer["outputs"], key=lambda output: str(output["name"])) for _status, answer in answers)):
        expectation: Dict[str, Any] = {"dtype": entry["datatype"], "shape": entry["shape"]}
        numbers = entry["datatype"] in NUMPY and entry["datatype"] != "BYTES" and all(value is not None for value in entry["data"])
        if numbers and entry["shape"][:1] == [count] and entry["data"] == repeated["data"]:
            if math.prod(entry["shape"]) != len(entry["data"]) or len(entry["data"]) > MAX_VALUES:
                raise NoRequest(f"its output {entry['name']} has {len(entry['data'])} values for the shape {entry['shape']}")
            array = np.array(entry["data"], NUMPY[entry["datatype"]]).reshape(entry["shape"])
            largest = float(np.abs(array.astype("float64")).max()) if array.size else 0.0
            if array.size and math.isfinite(largest):
                path = f"answer-{host_text.file_name(entry['name'])}.npy"
                files[path] = array
                expectation.update(finite=True, values={"npy": path, "atol": float(f"{largest * TOLERANCE:.3g}")})
        expect[entry["name"]] = expectation
    one_check = {
        "name": "as before adoption",
        "protocols": protocols,
        "inputs": {name: {"npy": path} for name, path in input_files.items()},
        "rows": {"first": 0, "count": int(count), "batch": True},
        "expect": expect,
    }
    return {"model": model, "checks": [one_check]}, files
