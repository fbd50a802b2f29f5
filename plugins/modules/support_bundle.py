#!/usr/bin/python
"""Module support_bundle: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle
short_description: Collect what a support ticket needs from a host, without its secrets
description:
  - Packs the vendor tool's answers, kernel log, journals, the engine's and the container's state, the server's index, configs,
    statistics and metrics, the store's listing and the differences from what is wanted into one archive on the controller.
  - It changes nothing. The SDK is asked for its calls and for one compiled file in a short-lived container of the running image,
    which has neither network nor cards.
  - An item that cannot be got becomes a line in C(errors.txt) of the archive, on a bare host too.
  - Secrets are taken out on the host, before anything is written. The known ones are those that the host's variables hold under
    the name of a secret; more is found by its form. What was searched for is in C(redaction.txt).
  - The archive has mode 0600 and is verified by its digest after its way to the controller. Nothing is left on the host.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  concerns:
    description:
      - What to collect beside the host itself, out of C(driver), C(engine), C(image), C(models), C(server), C(monitoring).
      - Default is every concern of the groups that the host is in.
    type: list
    elements: str
  dest:
    description: Directory on the controller for C(<host>-<UTC time>.tar.gz). Default is the variable C(npufleet_support_dir).
    type: path
  lines:
    description: Last lines of each log. Default is the variable C(npufleet_support_lines).
    type: int
    default: 2000
  size:
    description: Bytes that an item may have; of a longer one its end is kept.
    type: int
    default: 2097152
  timeout:
    description: Seconds that an item may take.
    type: int
    default: 10
  total_timeout:
    description: Seconds after which no further item is begun.
    type: int
    default: 180
  container:
    description: Name of the server's container. Default is the variable C(triton_server_name).
    type: str
    default: triton
  address:
    description: Where the server listens, as the host sees it. Default follows from C(triton_server_listen_address).
    type: str
    default: 127.0.0.1
  http_port:
    description: Port of Triton's HTTP service. Default is the variable C(npufleet_http_port).
    type: int
    default: 8000
  metrics_port:
    description: Port of Triton's metrics. Default is the variable C(npufleet_metrics_port).
    type: int
    default: 8002
  prometheus_port:
    description: Port of Prometheus. Default is the variable C(monitoring_prometheus_port).
    type: int
    default: 9090
attributes:
  check_mode:
    support: full
    description: Names the items and collects nothing.
"""

EXAMPLES = r"""
- name: Collect what a ticket needs
  npufleet.triton.support_bundle:
    dest: "{{ inventory_dir }}/tickets"
  register: bundle

- name: Say where it is
  ansible.builtin.debug:
    msg: "{{ bundle.msg }}"
"""

RETURN = r"""
msg:
  description: Where the bundle is, and how much is in it.
  returned: success
  type: str
path:
  description: The bundle on the controller.
  returned: success, not in check mode
  type: str
files:
  description: The files that are in it, in check mode those that would be tried.
  returned: success
  type: list
  elements: str
errors:
  description: What could not be got, one sentence each.
  returned: success, not in check mode
  type: list
  elements: str
redacted:
  description: How many places were taken out.
  returned: success, not in check mode
  type: int
sha256:
  description: Digest of the archive.
  returned: success, not in check mode
  type: str
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import time
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.plan import sentence
from ansible_collections.npufleet.triton.plugins.module_utils.redact import Redactor
from ansible_collections.npufleet.triton.plugins.module_utils.secret import SHORTEST
from ansible_collections.npufleet.triton.plugins.module_utils.support.collect import collect, items
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Limits
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys

OPTIONS: Dict[str, Any] = {
    "concerns": {"type": "list", "elements": "str"},
    "dest": {"type": "path"},
    "lines": {"type": "int", "default": 2000},
    "size": {"type": "int", "default": 2097152},
    "timeout": {"type": "int", "default": 10},
    "total_timeout": {"type": "int", "default": 180},
    "container": {"type": "str", "default": "triton"},
    "address": {"type": "str", "default": "127.0.0.1"},
    "http_port": {"type": "int", "default": 8000},
    "metrics_port": {"type": "int", "default": 8002},
    "prometheus_port": {"type": "int", "default": 9090},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
REQUEST: Dict[str, Any] = {
    "host": {"type": "str"},
    # UTC time that names the bundle
    "stamp": {"type": "str"},
    # Where the host puts the archive until it is fetched
    "archive": {"type": "path"},
    # What the controller knows of the host, such as its release row
    "about": {"type": "dict", "default": {}},
    # What is wanted, by concern, as for host_state
    "desired": {"type": "dict", "default": {}},
    # What could not be got on the controller
    "errors": {"type": "list", "elements": "str", "default": []},
    # Names of the variables whose values are searched for
    "names": {"type": "list", "elements": "str", "default": []},
    # Values to take out wherever they stand
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": True},
}


def redaction(names: List[str], redactor: Redactor) -> str:
    """What redaction.txt says."""
    listed = "".join(f"  {name}\n" for name in names) or "  none\n"
    return f"""{redactor.count} places were taken out and read <redacted>.

Searched for, in plain text, base64, hexadecimal and the quotings of URLs, JSON and HTML: the values of {SHORTEST} characters
and more that these variables of the host hold as a secret or as a login in a URL:
{listed}
Taken out by their form: values of a name like password, secret, token, api_key or credential; logins in URLs; headers
Authorization and Cookie; registry logins; private keys. Such a value, if made of letters and digits, was then searched
for everywhere.

Look through the bundle before you send it: a secret of no such name and no such form is not known as one.
"""


def readme(params: Mapping[str, Any], found: Mapping[str, Any], errors: List[str]) -> str:
    """What README.txt says, made of what is clean already: sentences are cut, and half of a secret would not be known as one."""
    plans = [found[name]["plan"] for name in sorted(found) if name.startswith("state/")]
    reports = [sentence(item) for plan in plans for item in plan]
    differences = "".join(f"  - {line}\n" for line in reports) or "  none found\n"
    return (
        "Support bundle of {}, {}\n\n".format(params["host"], params["stamp"])
        + as_json(params["about"])
        + f"\nDifferences from what is wanted:\n{differences}\n"
        + "".join(f"{name}\n" for name in sorted(found))
        + f"\nerrors.txt: {len(errors)} items that could not be got; redaction.txt: what was taken out.\n"
    )


def as_json(data: Any) -> str:
    """Data as a person reads it."""
    return json.dumps(data, indent=2, default=str) + "\n"


def pack(root: str, members: Mapping[str, str]) -> bytes:
    """A .tar.gz of texts below one directory, for its owner alone."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as archive:
        for name in sorted(members):
            raw = members[name].encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size, member.mode, member.mtime = len(raw), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(raw))
    return packed.getvalue()


def bundle(params: Mapping[str, Any]) -> Dict[str, Any]:
    """{"archive", "files", "errors", "redacted"}; every text of the archive went through the one redactor."""
    limits = Limits(params["timeout"], params["size"], params["lines"])
    found, errors = collect(list(items(params, limits)), limits, time.monotonic() + params["total_timeout"])
    errors = [*params["errors"], *errors]
    # What the host itself made no controller knows
    own = keys.headers(((params["desired"] or {}).get("server") or {}).get("key")).values()
    redactor = Redactor([*params["secrets"], *own])
    for content in (*found.values(), params["about"], errors):
        redactor.learn(content)
    # The one gate: nothing below it sees what is not clean
    found = {name: redactor.clean(content) for name, content in found.items()}
    about, errors = redactor.clean(params["about"]), redactor.clean(errors)
    members = {name: content if isinstance(content, str) else as_json(content) for name, content in found.items()}
    for name, text in members.items():
        if len(text) > 2 * limits.size:
            members[name] = text[: 2 * limits.size] + "\n[the rest is left out]\n"
    members["README.txt"] = readme({**params, "about": about}, found, errors)
    members["errors.txt"] = "".join(" ".join(error.split()) + "\n" for error in errors)
    members["redaction.txt"] = redaction(params["names"], redactor)
    root = "{}-{}".format(params["host"], params["stamp"])
    return {"archive": pack(root, members), "files": sorted(members), "errors": errors, "redacted": redactor.count}


def put(path: str, raw: bytes) -> None:
    """Write the archive for the owner of its directory, who fetches it, and for nobody else."""
    # The connecting user owns it, and may put a link in its place
    place = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = os.fstat(place)
        handle = os.open(os.path.basename(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=place)
    finally:
        os.close(place)
    with os.fdopen(handle, "wb") as target:
        target.write(raw)
        if os.geteuid() == 0:
            os.fchown(target.fileno(), owner.st_uid, owner.st_gid)


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    if not params["host"] or not params["stamp"] or params["concerns"] is None:
        module.fail_json(msg="support_bundle begins on the controller: call it as npufleet.triton.support_bundle")
    if module.check_mode:
        names = [item.name for item in items(params, Limits(params["timeout"], params["size"], params["lines"]))]
        module.exit_json(changed=False, files=names, msg="{}: would collect {} items".format(params["host"], len(names)))
    done = bundle(params)
    raw = done.pop("archive")
    try:
        put(params["archive"], raw)
    except OSError as error:
        module.fail_json(msg="{}: the bundle cannot be put down on the host: {}".format(params["host"], error))
    module.exit_json(changed=False, sha256=hashlib.sha256(raw).hexdigest(), **done)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
