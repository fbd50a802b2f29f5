#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_check
short_description: Prove with inference requests that a Triton server works
description:
  - Sends the requests of check files to a Triton server over HTTP and gRPC, and compares the answers with the check files.
  - The requests are sent on the host, from a short-lived container of the release image, which has numpy and tritonclient. Nothing
    is left on the host.
  - The probe is a timer on the host that sends the checks regularly. If all checks pass, but the last run of the probe failed, the
    probe runs again, so that its result is up to date.
  - Default values come from the variables of the role C(inference_check) and from the ports of the server.
  - The controller reads check files and their data. If a check file is invalid, no request is sent, and the task fails with all
    findings, each with its file and field.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  image:
    description: >-
      ID or name of an image on the host with python3, numpy and tritonclient. Default is the variable C(inference_check_image).
    type: str
  models:
    description: Models to check. Default is every model of the variable C(triton_models) that is placed on the host.
    type: list
    elements: str
  require_checks:
    description:
      - If true, a model without a check file counts as a failed check, because no request proves that the model works.
      - With O(latency=false), a model whose check file only has load tests always counts as a failed check.
    type: bool
    default: true
  server:
    description: Address and ports of the server, as seen from the host.
    type: dict
    suboptions:
      address:
        description: Address or name. The default is derived from the variable C(triton_server_listen_address).
        type: str
        default: 127.0.0.1
      http_port:
        description: Port of the HTTP service.
        type: int
        default: 8000
      grpc_port:
        description: Port of the gRPC service.
        type: int
        default: 8001
      metrics_port:
        description: Port of the metrics, which show the instances that answered.
        type: int
        default: 8002
      metrics_url:
        description: URL of the metrics, if the server does not publish them at O(server.address) and O(server.metrics_port).
        type: str
      http_tls:
        description: Use HTTPS, which a proxy in front of Triton provides. Default is HTTP. The PEM files are on the controller.
        type: dict
        suboptions: &tls
          ca:
            description: PEM file of the authority that has signed the certificate of the server.
            type: str
            required: true
          cert:
            description: PEM file with the certificate of this client.
            type: str
          key:
            description: PEM file with the key of this client. No command line and no environment contains the key.
            type: str
      grpc_tls:
        description: Use gRPC with TLS, which Triton itself provides. Default is without TLS. The PEM files are on the controller.
        type: dict
        suboptions: *tls
      headers:
        description:
          - Headers of every request, such as the key of a restricted API. Over gRPC, each header is also sent as
            C(triton-grpc-protocol-<name>), the name under which Triton expects such a key.
          - The key that the role C(triton_server) has generated is always sent, unless a header of the same name is set here.
        type: dict
  timeout:
    description:
      - Seconds that one request may take. After a timeout, the model gets no more requests over the same protocol.
      - If the server does not report within 5 seconds that it is live, no request is sent.
    type: int
    default: 30
  latency:
    description: Run the load tests, which are the checks with the key C(latency).
    type: bool
    default: true
  keep:
    description: Send no request. Write the checks with their data for the probe into a file on the host that only root can read.
    type: dict
    suboptions:
      path:
        description: Path of the file.
        type: path
        required: true
      digest:
        description: Digest of all inputs of the checks. M(npufleet.triton.host_state) returns this digest for the concern C(probe).
        type: str
        required: true
  accepted:
    description:
      - Run the checks that M(npufleet.triton.server_change) stored on the host when it kept the current releases. Without stored
        checks, the check files are used. RV(msg) names the kind of checks that ran.
      - Use this option after a failed change has restored older releases, because older releases can fail newer checks.
      - Stored checks use ports and key of the actual container, and its address unless the inventory or the task sets one. Headers
        and TLS files come from the inventory.
    type: bool
    default: false
  host_index:
    description: Position of the host in the fleet. Checks with C(spread) use it to select their rows.
    type: int
    default: 0
  checks_dir:
    description:
      - Directories on the controller with one check file C(<model>.yml) for each model. The first directory that has the file is
        used, and C(files/checks) of the collection comes last.
    type: list
    elements: path
    default: []
  golden_dir:
    description:
      - Directories on the controller with the data that check files name. The first directory that has a file is used, and
        C(files/golden) of the collection comes last.
    type: list
    elements: path
    default: []
  results_dir:
    description:
      - Directory on the controller for the results, C(<host>.json). By default, no results are written.
      - The results are also written if checks fail, and in check mode. Earlier results are removed before the checks.
    type: path
attributes:
  check_mode:
    support: full
    description: Sends the requests as usual, because they change nothing. With O(keep), reports whether the file would change.
notes:
  - The examples show the format of a check file. C(docs/checks.md) of the collection explains it.
  - Without C(rows), one request contains each array unchanged. Use this for models with C(max_batch_size 0).
  - If C(rows) has the key C(spread), the fields C(argmax) and C(label) have the labels of several blocks. A block has C(count)
    rows. Each combination of host and protocol sends the next block.
  - C(raw) uses the generated gRPC code and sends bytes in C(raw_input_contents), like clients in other languages.
  - The responses of a gRPC stream (C(stream)) are joined along their first dimension, and compared as one answer. If the check has
    C(error), its C(expect) covers the responses before the error. Triton 24.01 sends no status for an error of a stream, so only
    the text of the error is compared.
  - To prove that a model stops after the cancellation of a stream, set C(times) higher than the number of requests that the model
    can process at once. If the model did not stop, later requests would get no response.
  - Triton does not report which instance has answered. C(instances) reads the counter C(rbln_requests_total) of the backend
    C(rbln), so it does not work for models of other backends.
"""

EXAMPLES = r"""
- name: Prove one model with the checks of this site, and write the answers
  npufleet.triton.inference_check:
    image: "{{ npufleet_image }}"
    models: [resnet50]
    checks_dir: ["{{ inventory_dir }}/checks"]
    golden_dir: ["{{ inventory_dir }}/golden"]
    results_dir: "{{ inventory_dir }}/results"

# A check file, such as files/checks/digits.yml:
#
# model: digits
# golden: digits                    # directory of the data, default is the name of the model
# checks:
#   - name: digit
#     protocols: [http, grpc]       # any of http, grpc, stream, raw
#     inputs: {INPUT__0: {npy: images.npy}}
#     rows: {first: 0, count: 10}   # ten requests of one row; with `batch: true` one request of ten rows
#     expect:
#       OUTPUT__0:                  # any of these
#         dtype: FP32
#         shape: [1, 10]
#         finite: true
#         argmax: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
#         values: {npy: scores.npy, atol: 0.01, rtol: 0}   # or {numbers: [[0.1, 0.9]]}, {file: answer.bin}
#       RESULT: {text: ["one", "둘"]}                      # exactly these texts
#       SCORES: {class_count: 5, label: [tabby]}           # classes that Triton returns: their number, and the best of each row
#
# Sources of an input:
#
# {npy: images.npy}                                        # numbers, bytes (kind S) or texts (kind U); float32 with `dtype: BF16`
# {numbers: [[1, 2]], dtype: INT32}                        # values in nested lists
# {text: ["one", "둘"]}                                    # BYTES, one element for each text; nested lists for more dimensions
# {file: [sound.wav]}                                      # BYTES, the bytes of each file; `dtype: UINT8` makes each file a row
# {image: [[tabby.jpg]]}                                   # like `file`, for JPEG or PNG, and shown in the report
# {image: [tabby.jpg], dtype: FP32, shape: [3, 224, 224]}  # pixels as ImageNet models expect them, decoded on the controller
# {raw: values.bin, dtype: FP16, shape: [2, 8]}            # values of a binary file, little endian
# {generated: {seed: 1}, dtype: FP32, shape: [4, 16]}      # generated values, equal in every run; `low` and `high` are limits
#
# Further keys of a check:
#
# error: {status: INVALID_ARGUMENT, contains: some words}  # the request has to fail; `status` is a gRPC name, also for HTTP
# timeout: 2                                               # seconds for one answer, instead of the option `timeout`
# ms: 50                                                   # milliseconds that one answer may take
# latency: {clients: 4, seconds: 3, p50_ms: 8, p95_ms: 10, p99_ms: 12, infer_per_s: 300}  # a load test; or `requests: 200`
# instances: true                                          # repeat the requests until every instance has answered
# responses: 5                                             # number of responses of a stream, can be 0
# cancel: {after: 3, times: 20}                            # cancel a stream after 3 responses and start it again, 20 times
"""

RETURN = r"""
proven:
  description: Whether every check passed.
  returned: when the checks could be read
  type: bool
msg:
  description: Number of passed checks, and the reasons of the first twenty failed checks.
  returned: always
  type: str
passed:
  description: Number of checks that passed.
  returned: when the checks could be read
  type: int
accepted:
  description: Whether checks that are stored on the host were run.
  returned: with O(accepted)
  type: bool
checks:
  description:
    - One result for each request, in the order in which they were sent.
    - C(name) consists of model, protocol and request. C(model), C(check) and C(protocol) have the single names.
    - C(ok) is true if the answer was as expected. Otherwise, C(why) has all reasons.
    - C(ms) is the time of the answer in milliseconds. Without an answer, C(ms) is null and C(unanswered) is true.
    - C(expected) and C(got) are the expected and the actual label, a list of labels for a batch, or the texts in one line.
    - C(label) is the actual label of a single row. The file in O(results_dir) has the row itself as C(image).
    - C(instances) is the number of instances of the model, if the check has C(instances).
    - C(latency) has the measurements of a load test, C(clients), C(requests), C(seconds), C(p50_ms), C(p95_ms), C(p99_ms),
      C(max_ms), C(infer_per_s), and C(client_cores), the CPU cores that the client used.
  returned: when the checks could be read
  type: list
  elements: dict
"""

import hashlib
import json
import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys

# The action plugin validates the arguments of the task with this specification, too.
OPTIONS: Dict[str, Any] = {
    "image": {"type": "str"},
    "models": {"type": "list", "elements": "str"},
    "require_checks": {"type": "bool", "default": True},
    "server": {
        "type": "dict",
        "options": {
            "address": {"type": "str", "default": "127.0.0.1"},
            "http_port": {"type": "int", "default": 8000},
            "grpc_port": {"type": "int", "default": 8001},
            "metrics_port": {"type": "int", "default": 8002},
            "metrics_url": {"type": "str"},
            "http_tls": {
                "type": "dict",
                "options": {
                    "ca": {"type": "str", "required": True},
                    "cert": {"type": "str"},
                    "key": {"type": "str", "no_log": True},
                },
            },
            "grpc_tls": {
                "type": "dict",
                "options": {
                    "ca": {"type": "str", "required": True},
                    "cert": {"type": "str"},
                    "key": {"type": "str", "no_log": True},
                },
            },
            "headers": {"type": "dict", "no_log": True},
        },
        "apply_defaults": True,
    },
    "timeout": {"type": "int", "default": 30},
    "latency": {"type": "bool", "default": True},
    "keep": {
        "type": "dict",
        "options": {"path": {"type": "path", "required": True}, "digest": {"type": "str", "required": True}},
    },
    "accepted": {"type": "bool", "default": False},
    "host_index": {"type": "int", "default": 0},
    "checks_dir": {"type": "list", "elements": "path", "default": []},
    "golden_dir": {"type": "list", "elements": "path", "default": []},
    "results_dir": {"type": "path"},
}
REQUEST: Dict[str, Any] = {
    # The program of the client, a Python archive in Base64
    "program": {"type": "str", "required": True},
    # The checks with their data
    "document": {"type": "dict", "required": True},
    # The key of restricted APIs, if checks need it: `name` of its header, and `path` of its file on the host
    "key": {"type": "dict", "no_log": False},
    # The project directory of the host
    "root": {"type": "str", "default": ""},
    # Name of the server's container
    "container": {"type": "str", "default": ""},
    # True if the address of the server does not depend on the container, such as the address of a proxy
    "fixed_address": {"type": "bool", "default": False},
}
# With `accepted`, the message contains one of these two texts, which names the kind of checks that ran.
STORED_CHECKS = "checks that the host stored when it accepted its current releases"
INVENTORY_CHECKS = "checks of the inventory, because the host has stored none for its current releases"


def keep(module: request.Module, document: Mapping[str, Any], program: str) -> bool:
    """Write the file of the probe: a line with digests, then the standard input of the client. Return True if the file differed."""
    path, digest = module.params["keep"]["path"], module.params["keep"]["digest"]
    body = check_client.standard_input(document, program)
    header = {"checks": digest, "document": hashlib.sha256(body).hexdigest()}
    content = json.dumps(header, sort_keys=True).encode() + b"\n" + body
    try:
        with open(path, "rb") as source:
            unchanged = source.read() == content and os.fstat(source.fileno()).st_mode & 0o777 == 0o600
    except OSError:
        unchanged = False
    if not unchanged and not module.check_mode:
        draft = path + ".draft"
        try:
            if os.path.lexists(draft):
                os.remove(draft)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                target.write(content)
            os.replace(draft, path)
        except OSError as error:
            module.fail_json(msg=f"{document['host']}: the checks of the probe cannot be kept in {path}: {error}")
    return not unchanged


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    server = {name: value for name, value in params["server"].items() if value is not None}
    document = {"server": server, "timeout": params["timeout"], "latency": params["latency"], **params["document"]}
    if params["keep"]:
        changed = keep(module, document, params["program"])
        state = "written" if changed else "unchanged"
        module.exit_json(changed=changed, msg=f"{document['host']}: the checks of the probe are {state}")
    host = document["host"]
    checks: Dict[str, Any] = {name: params[name] for name in ("image", "program")}
    checks["document"] = {**document, "key": params["key"]}
    result_fields: Dict[str, bool] = {}
    if params["accepted"]:
        # Only calls with `accepted` need this import.
        from ansible_collections.npufleet.triton.plugins.module_utils.change import accepted_checks

        stored = accepted_checks.read(params["root"])
        result_fields["accepted"] = stored is not None
        try:
            if stored:
                checks = accepted_checks.for_actual_server(stored, checks, params["container"], params["fixed_address"])
        except OSError as error:
            module.fail_json(msg=f"{host}: the engine does not answer ({error})", **result_fields)
    key = checks["document"].pop("key")
    try:
        result = check_client.prove(checks["image"], checks["document"], checks["program"], keys.headers(key))
    except check_client.ClientError as error:
        module.fail_json(msg=f"{host}: {error}", **result_fields)
    if params["accepted"]:
        count, *failures = result["msg"].split("\n")
        source = STORED_CHECKS if result_fields["accepted"] else INVENTORY_CHECKS
        result["msg"] = "\n".join([f"{count} ({source})", *failures])
    result.update(result_fields)
    if not result["proven"]:
        module.fail_json(**result)
    warning = probe.renew() if result["checks"] and not module.check_mode else None
    if warning:
        module.warn(f"{host}: {warning}")
    module.exit_json(changed=False, **result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
