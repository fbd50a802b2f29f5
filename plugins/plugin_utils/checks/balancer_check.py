# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The inference request with which a load balancer checks its servers. Controller only.

If the inventory sets no request, this is the first request in a check file that HTTP can send as JSON.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import inference
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import CheckFile
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import directories, found_in

# Maximum size of a request in bytes. The request and its headers have to fit into one buffer of HAProxy.
MAX_BODY = 8000
# Data types that JSON requests to Triton cannot have
NOT_IN_JSON = ("FP16", "BF16")


class Request(NamedTuple):
    """A request to a model."""

    model: str
    body: str


def request(variables: Mapping[str, Any], models: Sequence[str]) -> Request:
    """Return the request of a balancer whose servers have these models. Raises Refusal."""
    chosen, body = str(variables["load_balancer_check_model"]), str(variables["load_balancer_check_body"])
    if chosen and chosen not in models:
        names = ", ".join(models) or "none"
        raise Refusal([f"load_balancer_check_model is {chosen}, expected a model of the pool: {names}. Correct it"])
    if body:
        if not models:
            raise Refusal(["load_balancer_check_body is set, but the hosts of the pool have no model. Add one to triton_models"])
        return Request(chosen or models[0], _compact(body))
    for model in [chosen] if chosen else models:
        found = _of_check_file(variables, model)
        if found is not None:
            return Request(model, found)
    names = chosen or ", ".join(models) or "none"
    raise Refusal(
        [
            f"no check file of the pool's models ({names}) has a request that HTTP sends as JSON of at most {MAX_BODY} bytes, "
            "expected one for the health check of the load balancer. Set load_balancer_check_model and load_balancer_check_body"
        ]
    )


def _compact(body: str) -> str:
    """Return a JSON text in its shortest form, in ASCII. Raises Refusal."""
    try:
        content = json.loads(body)
    except ValueError as error:
        raise Refusal(
            [f"load_balancer_check_body is not JSON: {error}. Write the request as Triton's HTTP API expects it"]
        ) from None
    text = json.dumps(content, separators=(",", ":"))
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list):
        raise Refusal(
            ["load_balancer_check_body has no list `inputs`, expected one. Write the request as Triton's HTTP API expects it"]
        )
    if len(text) > MAX_BODY:
        raise Refusal([f"load_balancer_check_body has {len(text)} bytes, expected at most {MAX_BODY}. Choose a smaller request"])
    return text


def _of_pool(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the directories of the first host of the pool, because a site may set them for the NPU hosts only."""
    hosts = (variables.get("groups") or {}).get(variables["load_balancer_pool"]) or []
    facts = variables["hostvars"][hosts[0]] if hosts else {}
    names = ("inference_check_checks_dir", "inference_check_golden_dir")
    return {name: facts.get(name) or variables[name] for name in names}


def _of_check_file(variables: Mapping[str, Any], model: str) -> Optional[str]:
    """Return the first JSON request in the check file of a model, None if it has none. Raises Refusal for a file with errors."""
    checks_dirs, golden_dirs = directories(_of_pool(variables))
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
    """Return the first HTTP request of a check as JSON, None if the check has no such request or the request is too large."""
    sent = next((entry for entry in inference.requests(model, check, 0) if entry.protocol == "http"), None)
    if sent is None:
        return None
    try:
        inputs = list(_inputs(check["inputs"], sent.rows))
    except ValueError:
        return None
    text = json.dumps({"inputs": inputs}, separators=(",", ":"))
    return text if len(text) <= MAX_BODY else None


def _inputs(packed: Mapping[str, Mapping[str, Any]], rows: Optional[List[int]]) -> Iterator[Dict[str, Any]]:
    """Yield the inputs of a request as Triton's HTTP API expects them. Raises ValueError for values that JSON cannot have."""
    for name, entry in packed.items():
        array = inference.unpack(entry).take(rows)
        dtype = entry["dtype"] or inference.triton_dtype(array)
        if dtype in NOT_IN_JSON or array.size > MAX_BODY:
            raise ValueError(f"{dtype} cannot be sent as JSON")
        data = [bytes(element).decode() for element in array.flat] if dtype == "BYTES" else array.flatten().tolist()
        # NaN and infinity are no JSON.
        json.dumps(data, allow_nan=False)
        yield {"name": name, "shape": list(array.shape), "datatype": dtype, "data": data}
