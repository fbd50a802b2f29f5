#!/usr/bin/python
"""Module inference_check: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_check
short_description: Prove a Triton server by real inference
description:
  - Sends the requests of check files to a Triton server over HTTP and gRPC and compares names, dtype, shape, finiteness,
    values and labels of the answers with what the files expect.
  - The requests leave from a short-lived container of the release image on the host, which carries tritonclient. Neither
    an open firewall nor a client on the host is needed, and nothing is left behind.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  image:
    description: ID or name of the image to run the client from; it has python3, numpy and tritonclient.
    type: str
    required: true
  models:
    description: Models to check. Each needs a check file of its name. Default is every model that is placed on the host.
    type: list
    elements: str
  address:
    description: Address of the server, as the host sees it.
    type: str
    default: 127.0.0.1
  http_port:
    description: HTTP port of the server.
    type: int
    default: 8000
  grpc_port:
    description: GRPC port of the server.
    type: int
    default: 8001
  timeout:
    description: Seconds that one request may take.
    type: int
    default: 30
  host_index:
    description: Place of the host in the fleet, by which checks that spread choose their rows.
    type: int
    default: 0
  checks_dir:
    description: Directory of check files on the controller; default is the collection's own.
    type: path
  golden_dir:
    description: Directory of golden data on the controller; default is the collection's own.
    type: path
  library:
    description: Source of the check library. Filled in on the controller.
    type: str
  document:
    description: The checks with their data. Filled in on the controller.
    type: dict
attributes:
  check_mode:
    support: full
    description: Asks the server as always; nothing is changed by it.
"""

EXAMPLES = r"""
- name: Prove what this host serves
  npufleet.triton.inference_check:
    image: npufleet/triton:24.01
    models: [digits]
"""

RETURN = r"""
checks:
  description: One result for each request, in the order in which they were sent.
  returned: when the checks ran
  type: list
  elements: dict
  contains:
    name: {description: "Model, protocol and request.", type: str}
    ok: {description: Whether the answer was the expected one., type: bool}
    why: {description: "Every reason why not, empty when it was.", type: str}
    ms: {description: "Milliseconds as the client sees them, null without an answer.", type: float}
passed:
  description: How many checks passed.
  returned: when the checks ran
  type: int
"""

import json

from ansible.module_utils.basic import AnsibleModule

SHOWN = 20


def script(library: str, document: object) -> str:
    """The library as a program that finds its document in a variable of its own."""
    return f"DOCUMENT = {json.dumps(document)!r}\n{library.replace('from __future__ import annotations', '', 1)}"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "models": {"type": "list", "elements": "str"},
            "address": {"type": "str", "default": "127.0.0.1"},
            "http_port": {"type": "int", "default": 8000},
            "grpc_port": {"type": "int", "default": 8001},
            "timeout": {"type": "int", "default": 30},
            "host_index": {"type": "int", "default": 0},
            "checks_dir": {"type": "path"},
            "golden_dir": {"type": "path"},
            "library": {"type": "str"},
            "document": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    document = {
        **wanted["document"],
        "timeout": wanted["timeout"],
        "server": {key: wanted[key] for key in ("address", "http_port", "grpc_port")},
    }
    host = document["host"]
    command = ["docker", "run", "--rm", "--interactive", "--network", "host", "--entrypoint", "python3", wanted["image"], "-"]
    code, out, err = module.run_command(command, data=script(wanted["library"], document))
    try:
        results = json.loads(out)["checks"]
    except (ValueError, KeyError):
        words = " ".join((err or out).split())[-400:]
        module.fail_json(msg=f"{host}: the client in image {wanted['image']} ended with {code} and no result: {words}")
    failed = [one for one in results if not one["ok"]]
    passed = len(results) - len(failed)
    if failed or not results:
        lines = "".join(f"\n  - {one['name']}: {one['why']}" for one in failed[:SHOWN])
        more = f"\n  and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
        msg = f"{host}: {passed} of {len(results)} checks passed{lines}{more}"
        module.fail_json(msg=msg, checks=results, passed=passed)
    module.exit_json(changed=False, checks=results, passed=passed)


if __name__ == "__main__":
    main()
