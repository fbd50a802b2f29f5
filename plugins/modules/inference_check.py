#!/usr/bin/python
"""Module inference_check: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_check
short_description: Prove a Triton server by real inference
description:
  - Sends the requests of check files to a Triton server over HTTP, gRPC, gRPC's stream and its raw stub, and compares names,
    dtype, shape, finiteness, values, texts and labels of the answers with what the files expect, or errors where those have to
    come.
  - The requests leave from a short-lived container of the release image on the host, which carries numpy and tritonclient.
    Neither an open firewall nor a client on the host is needed, and nothing is left behind.
  - Where everything passes and the host's probe said last that something did not, the probe asks anew.
  - What a task does not say is as the inventory has it, in the variables of the role C(inference_check) and the server's ports.
  - Check files and their data are read on the controller. A file that is not right is refused before anything is sent,
    with every finding, its file and its field.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  image:
    description:
      - ID or name of an image that is on the host and has python3, numpy and tritonclient. It is never pulled.
      - Default is the variable C(inference_check_image).
    type: str
  models:
    description: Models to check. Default is every model of the variable C(triton_models) that is placed on the host.
    type: list
    elements: str
  require_checks:
    description:
      - Whether a model without a check file counts as a failed check. A model that nobody asked anything is not proven.
      - One whose check file has loads alone is a failed check where O(latency) leaves those out, whatever is said here.
    type: bool
    default: true
  server:
    description: Where the server listens, as the host sees it.
    type: dict
    suboptions:
      address:
        description: Address or name. Where none is given, the one that C(triton_server_listen_address) publishes it on.
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
        description: Port of the metrics, by which checks of every instance see which have answered.
        type: int
        default: 8002
      http_tls:
        description:
          - Ask over HTTPS, which a proxy before Triton offers. Default is plain HTTP. Files are the controller's.
        type: dict
        suboptions:
          ca:
            description: The authority that the server's certificate is verified by, a PEM file.
            type: str
            required: true
          cert:
            description: Certificate of this client, a PEM file.
            type: str
          key:
            description: Its key, a PEM file. It is in no command line and in no environment.
            type: str
      grpc_tls:
        description: Ask over gRPC with TLS, as Triton itself offers it. Default is without. Files are the controller's.
        type: dict
        suboptions:
          ca:
            description: The authority that the server's certificate is verified by, a PEM file.
            type: str
            required: true
          cert:
            description: Certificate of this client, a PEM file.
            type: str
          key:
            description: Its key, a PEM file. It is in no command line and in no environment.
            type: str
      headers:
        description:
          - Headers of every request, such as the key of a restricted API. Over gRPC each is sent twice, under its name and as
            C(triton-grpc-protocol-<name>), which is where Triton looks for such a key.
          - The key that the role C(triton_server) made is sent without being named here; a header of its name goes before it.
        type: dict
  timeout:
    description:
      - Seconds that one request may take. A model that lets one pass is not asked again over that protocol, and a server that
        shows no sign of life within 5 seconds is not waited for.
    type: int
    default: 30
  latency:
    description: Whether checks with C(latency) are asked. Each keeps the server busy for as long as it says.
    type: bool
    default: true
  keep:
    description:
      - Ask nothing, but keep the checks with their data in a file on the host, for its probe. Nobody but root can read it.
    type: dict
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      digest:
        description: Digest over what the checks follow from, which is kept with them. C(host_state) tells it for concern C(probe).
        type: str
        required: true
  host_index:
    description: Place of the host in the fleet, by which checks that spread choose their rows.
    type: int
    default: 0
  checks_dir:
    description:
      - Directories on the controller with one check file C(<model>.yml) for each model. The first that has the file wins; the
        collection's own C(files/checks) comes last.
    type: list
    elements: path
    default: []
  golden_dir:
    description:
      - Directories on the controller with the data that check files name. The first that has a file wins; the collection's own
        C(files/golden) comes last.
    type: list
    elements: path
    default: []
  results_dir:
    description:
      - Directory on the controller into which the results are written as C(<host>.json), also when checks fail and also in check
        mode. A result of an earlier run is removed first, so that none outlives a host that cannot be reached.
      - Default is not to write any.
    type: path
attributes:
  check_mode:
    support: full
    description: Asks the server as always; nothing is changed by it. With O(keep) it says whether the file would change.
notes:
  - The form of a check file is shown in the examples.
  - Without C(rows) every array goes as it is, as one request. That is how models with C(max_batch_size 0) are asked.
  - With C(spread) in C(rows), C(argmax) and C(label) hold several blocks of C(count) labels, and each host and protocol takes the
    next block.
  - C(stream) is gRPC's stream, C(raw) the generated gRPC stub with bytes in C(raw_input_contents), as clients in other languages
    are.
  - Responses of one stream are joined along their first dimension in the order in which they came, and judged as one.
  - A stream that fails is expected with C(error), and C(expect) judges what came before. A server that tells no status there, as
    Triton 24.01 does not, is judged by its words alone.
  - A cancelled stream has no more responses by gRPC's own rules. That its model let go of it shows where C(times) is more than the
    model has room for, as each has to begin to answer.
  - A load of C(latency) is made by threads of one Python process. It tells milliseconds apart, not what lies below one, and
    no more than about 1,500 requests in a second; C(client_cores) near 1 says that the client was the limit. For more,
    take C(perf_analyzer).
  - Triton does not tell which instance answered. C(instances) reads the counter C(rbln_requests_total) of the backend C(rbln), so
    models of other backends cannot be proven this way.
"""

EXAMPLES = r"""
- name: Prove every model that is placed on this host
  npufleet.triton.inference_check:
    image: npufleet/triton:24.01

- name: Prove one model with the checks of this site, and keep the answers
  npufleet.triton.inference_check:
    image: "{{ npufleet_image }}"
    models: [resnet50]
    server:
      http_port: 9000
      grpc_port: 9001
    checks_dir: ["{{ inventory_dir }}/checks"]
    golden_dir: ["{{ inventory_dir }}/golden"]
    results_dir: "{{ inventory_dir }}/results"

# A check file, such as files/checks/digits.yml:
#
# model: digits
# golden: digits                    # directory of the data, default is the model's name
# checks:
#   - name: digit
#     protocols: [http, grpc]       # any of http, grpc, stream, raw
#     inputs: {INPUT__0: {npy: images.npy}}
#     rows: {first: 0, count: 10}   # ten requests of one row; `batch: true` for one request of ten; none: arrays as they are
#     expect:
#       OUTPUT__0:                  # any of these
#         dtype: FP32
#         shape: [1, 10]
#         finite: true
#         argmax: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
#         values: {npy: scores.npy, atol: 0.01, rtol: 0}   # or {numbers: [[0.1, 0.9]]}, {file: answer.bin}
#       RESULT: {text: ["one", "둘"]}                      # exactly these
#       SCORES: {class_count: 5, label: [tabby]}           # classes by the server: how many, and the best one of each row
#
# Where an input comes from:
#
# {npy: images.npy}                                        # numbers, bytes (kind S) or texts (kind U); BF16 as float32 and a dtype
# {numbers: [[1, 2]], dtype: INT32}                        # right here, in nested lists
# {text: ["one", "둘"]}                                    # BYTES, an element for each text; nested lists for more dimensions
# {file: [sound.wav]}                                      # BYTES, the bytes of each file; `dtype: UINT8` for a row of them each
# {image: [[tabby.jpg]]}                                   # the same, of JPEG or PNG only, and shown in the report
# {image: [tabby.jpg], dtype: FP32, shape: [3, 224, 224]}  # its pixels as ImageNet's models take them, by Pillow here
# {raw: values.bin, dtype: FP16, shape: [2, 8]}            # values as they lie in a file, little endian
# {generated: {seed: 1}, dtype: FP32, shape: [4, 16]}      # made up, the same in every run; `low` and `high` are limits
#
# What else a check may say:
#
# error: {status: INVALID_ARGUMENT, contains: some words}  # it has to be refused; gRPC's names, also over HTTP
# timeout: 2                                               # seconds for one answer, instead of the module's
# ms: 50                                                   # milliseconds that one answer may take
# latency: {clients: 4, seconds: 3, p50_ms: 8, p95_ms: 10, p99_ms: 12, infer_per_s: 300}  # a load, or with `requests: 200`
# instances: true                                          # repeat the requests until every instance has answered
# responses: 5                                             # over a stream: so many, 0 too
# cancel: {after: 3, times: 20}                            # over a stream: cancel after so many, start anew, so many times
"""

RETURN = r"""
proven:
  description: Whether every check passed.
  returned: when the checks could be read
  type: bool
msg:
  description: How many checks passed, and the first twenty that did not with their reasons.
  returned: always
  type: str
passed:
  description: How many checks passed.
  returned: when the checks could be read
  type: int
checks:
  description: One result for each request, in the order in which they were sent.
  returned: when the checks could be read
  type: list
  elements: dict
  contains:
    name: {description: "Model, protocol and request.", type: str}
    model: {description: The model., type: str}
    protocol: {description: "V(http), V(grpc), V(stream) or V(raw).", type: str}
    ok: {description: Whether the answer was the expected one., type: bool}
    why: {description: "Every reason why not, empty when it was.", type: str}
    ms: {description: "Milliseconds as the client sees them, null without an answer.", type: float}
    expected: {description: "The label wanted, or one for each row of a batch; texts in one line.", type: raw}
    got: {description: "The label found, or one for each row of a batch; texts in one line.", type: raw}
    label: {description: "The label found for a single row. The file of O(results_dir) has the row itself as C(image).", type: raw}
    instances: {description: "How many instances have answered, where every one had to.", type: int}
    latency:
      description:
        - What a load measured, C(clients), C(requests), C(seconds), C(p50_ms), C(p95_ms), C(p99_ms), C(max_ms), C(infer_per_s),
          and C(client_cores), which the client itself used.
      type: dict
    check: {description: "The check's name in its file.", type: str}
    unreachable: {description: "True where nothing answered at all.", type: bool}
"""

import hashlib
import json
import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys

# The action plugin reads the task's arguments by the same specification.
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
    "host_index": {"type": "int", "default": 0},
    "checks_dir": {"type": "list", "elements": "path", "default": []},
    "golden_dir": {"type": "list", "elements": "path", "default": []},
    "results_dir": {"type": "path"},
}
REQUEST: Dict[str, Any] = {
    # The program that asks, an archive of Python as base64
    "program": {"type": "str"},
    # The checks with their data
    "document": {"type": "dict"},
    # The key of the server's restricted APIs, `name` of its header and `path` of its file on the host, where checks need it
    "key": {"type": "dict", "no_log": False},
}


def keep(module: request.Module, document: Mapping[str, Any], program: str) -> bool:
    """Whether the file of the probe had to be written: a line with its digests, then what the client takes on standard input."""
    path, digest = module.params["keep"]["path"], module.params["keep"]["digest"]
    body = check_client.standard_input(document, program)
    head = {"checks": digest, "document": hashlib.sha256(body).hexdigest()}
    whole = json.dumps(head, sort_keys=True).encode() + b"\n" + body
    try:
        with open(path, "rb") as source:
            same = source.read() == whole and os.fstat(source.fileno()).st_mode & 0o777 == 0o600
    except OSError:
        same = False
    if not same and not module.check_mode:
        draft = path + ".draft"
        try:
            if os.path.lexists(draft):
                os.remove(draft)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                target.write(whole)
            os.replace(draft, path)
        except OSError as error:
            module.fail_json(msg=f"{document['host']}: the checks of the probe cannot be kept in {path}: {error}")
    return not same


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    wanted = request.merge_request(module, REQUEST)
    if not wanted["program"] or not wanted["document"]:
        module.fail_json(msg="inference_check reads check files on the controller: call it as npufleet.triton.inference_check")
    server = {name: value for name, value in wanted["server"].items() if value is not None}
    document = {"server": server, "timeout": wanted["timeout"], "latency": wanted["latency"], **wanted["document"]}
    if wanted["keep"]:
        changed = keep(module, document, wanted["program"])
        words = "new" if changed else "as they were"
        module.exit_json(changed=changed, msg=f"{document['host']}: the probe's checks are {words}")
    host = document["host"]
    try:
        result = check_client.prove(wanted["image"], document, wanted["program"], keys.headers(wanted["key"]))
    except check_client.ClientError as error:
        module.fail_json(msg=f"{host}: {error}")
    if not result["proven"]:
        module.fail_json(**result)
    trouble = probe.renew(probe.moment()) if result["checks"] and not module.check_mode else None
    if trouble:
        module.warn(f"{host}: {trouble}")
    module.exit_json(changed=False, **result)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
