# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The inference request with which a load balancer checks its servers.

By default, it is the first request of the check files that can be sent over HTTP as JSON.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.inference import packing, questions
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import CheckFile
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import directories, found_in

# Maximum size of a request in bytes. The request and its headers have to fit into one buffer of HAProxy.
MAX_BODY_BYTES = 8000
# Data types that JSON requests to Triton cannot have
NOT_IN_JSON = ("FP16", "BF16")


class Request(NamedTuple):
    """A request to a model."""

    model: str
    body: str


def request(variables: Mapping[str, Any], models: Sequence[str]) -> Request:
    """Return the request of a balancer whose servers have these models. Raises Refusal."""
    set_model, body = str(variables["load_balancer_check_model"]), str(variables["load_balancer_check_body"])
    if set_model and set_model not in models:
        names = ", ".join(models) or "none"
        raise Refusal(f"load_balancer_check_model is {set_model}, expected a model of the pool: {names}. Correct it")
    if body:
        if not models:
            raise Refusal("load_balancer_check_body is set, but the hosts of the pool have no model. Add one to triton_models")
        return Request(set_model or models[0], _compact(body))
    for model in [set_model] if set_model else models:
        json_body = _request_of_check_file(variables, model)
        if json_body is not None:
            return Request(model, json_body)
    names = set_model or ", ".join(models) or "none"
    raise Refusal(
        f"the check files of the pool's models ({names}) have no request for the health check of the load balancer, expected "
        f"one over HTTP with at most {MAX_BODY_BYTES} bytes of JSON. Set load_balancer_check_model and load_balancer_check_body"
    )


def _compact(body: str) -> str:
    """Return a JSON text in its shortest form, in ASCII. Raises Refusal."""
    try:
        content = json.loads(body)
    except ValueError as error:
        raise Refusal(f"load_balancer_check_body is not JSON: {error}. Write the request as Triton's HTTP API expects it") from None
    text = json.dumps(content, separators=(",", ":"))
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list):
        raise Refusal(
            "load_balancer_check_body has no list `inputs`, expected one. Write the request as Triton's HTTP API expects it"
        )
    if len(text) > MAX_BODY_BYTES:
        raise Refusal(
            f"load_balancer_check_body has {len(text)} bytes, expected at most {MAX_BODY_BYTES}. Choose a smaller request"
        )
    return text


def _pool_directories(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the directories of checks and golden data of the first host of the pool.

    The balancer host itself can lack these variables, because an inventory can set them only for the NPU hosts.
    """
    hosts = (variables.get("groups") or {}).get(variables["load_balancer_pool"]) or []
    facts = variables["hostvars"][hosts[0]] if hosts else {}
    names = ("inference_check_checks_dir", "inference_check_golden_dir")
    return {name: facts.get(name) or variables[name] for name in names}


def _request_of_check_file(variables: Mapping[str, Any], model: str) -> Optional[str]:
    """Return the first JSON request in the check file of a model, or None. Raises Refusal for a file with errors."""
    checks_dirs, golden_dirs = directories(_pool_directories(variables))
    path = found_in(checks_dirs, f"{model}.yml")
    if path is None:
        return None
    file = CheckFile(model, path, golden_dirs)
    content = file.read(0)
    if file.errors:
        raise Refusal(file.errors)
    bodies = (_body(model, check) for check in content["checks"] if not {"error", "latency"} & set(check))
    return next((body for body in bodies if body is not None), None)


def _body(model: str, check: Mapping[str, Any]) -> Optional[str]:
    """Return the first HTTP request of a check as JSON, or None if there is no such request or if it is too large."""
    http_request = next((entry for entry in questions.requests(model, check, 0) if entry.protocol == "http"), None)
    if http_request is None:
        return None
    try:
        inputs = list(_inputs(check["inputs"], http_request.rows))
    except ValueError:
        return None
    text = json.dumps({"inputs": inputs}, separators=(",", ":"))
    return text if len(text) <= MAX_BODY_BYTES else None


def _inputs(packed: Mapping[str, Mapping[str, Any]], rows: Optional[List[int]]) -> Iterator[Dict[str, Any]]:
    """Yield the inputs of a request as Triton's HTTP API expects them. Raises ValueError for values that JSON cannot have."""
    for name, entry in packed.items():
        array = packing.unpack(entry).take(rows)
        dtype = entry["dtype"] or questions.triton_dtype(array)
        if dtype in NOT_IN_JSON or array.size > MAX_BODY_BYTES:
            raise ValueError(f"{dtype} cannot be sent as JSON")
        data = [bytes(element).decode() for element in array.flat] if dtype == "BYTES" else array.flatten().tolist()
        # This raises ValueError for NaN and infinity, which JSON lacks.
        json.dumps(data, allow_nan=False)
        yield {"name": name, "shape": list(array.shape), "datatype": dtype, "data": data}
