#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_requests
short_description: Read the requests that a Triton server has counted
description:
  - Reads the successful, failed and waiting requests of each model since the start of the server from Triton's metrics.
  - If the server does not answer, the module returns no models, and does not fail.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.reader
options:
  address:
    description: Address of the server on the host. The variables of the host set the default.
    type: str
  port:
    description: Port of Triton's metrics. Default is the variable C(npufleet_metrics_port).
    type: int
"""

EXAMPLES = r"""
- name: Read the requests that the server has counted
  npufleet.triton.triton_requests:
  register: requests
"""

RETURN = r"""
now:
  description: The time of day of the host in seconds since 1970.
  returned: success
  type: float
models:
  description: >-
    For each model the number of successful requests (C(success)), of failed requests by the reason that Triton gives (C(failed)),
    and of waiting requests (C(pending)).
  returned: success
  type: dict
"""

import time
from typing import Any, Dict

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api, metrics

OPTIONS: Dict[str, Any] = {"address": {"type": "str"}, "port": {"type": "int"}}
# Largest size of the metrics page, and largest number of models in the result
MAX_PAGE_BYTES = 1 << 24
MAX_MODELS = 1000
SUCCESS = "nv_inference_request_success"
FAILURE = "nv_inference_request_failure"
PENDING = "nv_inference_pending_request_count"


def requests(page: str) -> Dict[str, Dict[str, Any]]:
    """Return the requests of each model, summed over its versions. Raises ValueError if the page has too many lines or models."""
    models: Dict[str, Dict[str, Any]] = {}
    for name, labels, value in metrics.samples(page, "nv_inference_"):
        model = labels.get("model", "")[:300]
        # This also skips the value NaN, because every comparison with NaN is false.
        if name not in (SUCCESS, FAILURE, PENDING) or not model or not 0 <= value < 1e18:
            continue
        entry = models.setdefault(model, {"success": 0, "failed": {}, "pending": 0})
        if name == FAILURE:
            reason = "".join(sign for sign in labels.get("reason", "") if sign.isalnum())[:40] or "OTHER"
            entry["failed"][reason] = entry["failed"].get(reason, 0) + value
        else:
            entry["success" if name == SUCCESS else "pending"] += value
    if len(models) > MAX_MODELS:
        raise ValueError(f"the metrics have {len(models)} models, expected at most {MAX_MODELS}")
    return models


def run(module: request.Module) -> None:
    if module.params["address"] is None or module.params["port"] is None:
        module.fail_json(msg="triton_requests starts on the controller. Call it as npufleet.triton.triton_requests.")
    try:
        status, page = http_api.http_bytes(module.params["address"], module.params["port"], "GET", "/metrics", size=MAX_PAGE_BYTES)
        models = requests(page.decode("utf-8", "replace")) if status == 200 else {}
    except OSError:
        models = {}
    except ValueError as error:
        module.fail_json(msg=f"Triton on port {module.params['port']}: {error}")
    module.exit_json(changed=False, now=time.time(), models=models)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
