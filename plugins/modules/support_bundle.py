#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle
short_description: Collect data for a support ticket from a host, without its secrets
description:
  - Writes an archive with mode 0600 on the controller. The archive has the output of the vendor tool, the kernel log, journals, the
    state of engine and container, the server's model index, configs, statistics and metrics, a listing of the model store, and the
    differences from the desired state.
  - The module changes nothing on the host. A short-lived container of the server's image, without network and cards, lists the
    functions of the SDK and inspects one compiled file.
  - An item that cannot be collected becomes a line in C(errors.txt) of the archive. So the module also works on a host without
    driver, engine or server.
  - Secrets are removed on the host before anything is written. C(redaction.txt) lists the kinds of removed texts.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  concerns:
    description: >-
      Concerns to collect, from C(driver), C(engine), C(image), C(models), C(server) and C(monitoring). Default is every concern of
      the host.
    type: list
    elements: str
  dest:
    description: Directory on the controller for C(<host>-<UTC time>.tar.gz). Default is the variable C(npufleet_support_dir).
    type: path
  lines:
    description: Number of lines from the end of each log. Default is the variable C(npufleet_support_lines).
    type: int
    default: 2000
  size:
    description: Largest size of an item in bytes. The archive has only the end of a larger item.
    type: int
    default: 2097152
  timeout:
    description: Time limit for the collection of one item in seconds.
    type: int
    default: 10
  total_timeout:
    description: Seconds after which no further item is collected.
    type: int
    default: 180
  container:
    description: Name of the container of the server. Default is the variable C(triton_server_name).
    type: str
    default: triton
  address:
    description: Address of the server, as seen from the host. The default is derived from C(triton_server_listen_address).
    type: str
    default: 127.0.0.1
  http_port:
    description: Port of Triton's HTTP service. Default is the variable C(npufleet_http_port).
    type: int
    default: 8000
  metrics_address:
    description: Address of the metrics, as seen from the host. The default is O(address).
    type: str
    default: ""
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
    description: Returns the names of the items and collects nothing.
"""

EXAMPLES = r"""
- name: Collect the data for a ticket
  npufleet.triton.support_bundle:
    dest: "{{ inventory_dir }}/tickets"
"""

RETURN = r"""
msg:
  description: Path of the bundle, and number of its items.
  returned: success
  type: str
path:
  description: Path of the bundle on the controller.
  returned: success, not in check mode
  type: str
files:
  description: Files of the bundle. In check mode, the names of the items that would be collected.
  returned: success
  type: list
  elements: str
errors:
  description: Items that could not be collected, one sentence each.
  returned: success, not in check mode
  type: list
  elements: str
redacted:
  description: Number of places at which a secret was removed.
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
from ansible_collections.npufleet.triton.plugins.module_utils.secret import MIN_LENGTH
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
    "metrics_address": {"type": "str", "default": ""},
    "metrics_port": {"type": "int", "default": 8002},
    "prometheus_port": {"type": "int", "default": 9090},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
REQUEST: Dict[str, Any] = {
    "host": {"type": "str", "required": True},
    # UTC time in the name of the bundle
    "stamp": {"type": "str", "required": True},
    # Path of the archive on the host until it is fetched
    "archive": {"type": "path"},
    # Facts about the host that the controller knows, such as its release row
    "about": {"type": "dict", "default": {}},
    # Desired state by concern, as for host_state
    "desired": {"type": "dict", "default": {}},
    # Items that the controller could not collect
    "errors": {"type": "list", "elements": "str", "default": []},
    # Names of the variables whose values are removed
    "names": {"type": "list", "elements": "str", "default": []},
    # Values to remove from every text
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": True},
}


def redaction(names: List[str], redactor: Redactor) -> str:
    """Return the text of redaction.txt."""
    name_lines = "".join(f"  {name}\n" for name in names) or "  none\n"
    return f"""Secrets at {redactor.count} places were replaced by <redacted>.

These variables of the host have a secret, or a URL with a login. Each secret and login of {MIN_LENGTH} characters or more was
removed, in each of these forms: plain text, base64, hexadecimal, and the quoted forms of URLs, JSON and HTML.
{name_lines}
Texts with the form of a secret were also removed: values of a name like password, secret, token, api_key or credential;
logins in URLs; headers Authorization and Cookie; registry logins; private keys. If such a value consists of letters and
digits, it was removed everywhere.

Read the bundle before you send it. A secret that has neither such a name nor such a form is not recognized.
"""


def readme(params: Mapping[str, Any], contents: Mapping[str, Any], errors: List[str]) -> str:
    """Return the text of README.txt.

    The caller has to redact `contents` and `errors` first, because this function shortens sentences. A shortened secret would not
    be recognized.
    """
    plans = [contents[name]["plan"] for name in sorted(contents) if name.startswith("state/")]
    reports = [sentence(item) for plan in plans for item in plan]
    differences = "".join(f"  - {line}\n" for line in reports) or "  none found\n"
    return (
        "Support bundle of {}, {}\n\n".format(params["host"], params["stamp"])
        + as_json(params["about"])
        + f"\nDifferences from the desired state:\n{differences}\n"
        + "".join(f"{name}\n" for name in sorted(contents))
        + f"\nerrors.txt: {len(errors)} items that could not be collected; redaction.txt: the kinds of text that were removed.\n"
    )


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, default=str) + "\n"


def pack(root: str, members: Mapping[str, str]) -> bytes:
    """Return a .tar.gz of {name: text} below the directory `root`. Only the owner can read its files."""
    archive = io.BytesIO()
    with gzip.GzipFile(fileobj=archive, mode="wb", mtime=0) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for name in sorted(members):
            raw = members[name].encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size, member.mode, member.mtime = len(raw), 0o600, int(time.time())
            tar.addfile(member, io.BytesIO(raw))
    return archive.getvalue()


def bundle(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the redacted archive as bytes, the names of its files, the errors, and the number of redacted places."""
    limits = Limits(params["timeout"], params["size"], params["lines"])
    contents, errors = collect(list(items(params, limits)), limits, time.monotonic() + params["total_timeout"])
    errors = [*params["errors"], *errors]
    # The host generated the server's key, so the controller could not pass it in `secrets`.
    host_keys = keys.headers(((params["desired"] or {}).get("server") or {}).get("key")).values()
    redactor = Redactor([*params["secrets"], *host_keys])
    for content in (*contents.values(), params["about"], errors):
        redactor.learn(content)
    # From here on, all data are redacted.
    contents = {name: redactor.clean(content) for name, content in contents.items()}
    about, errors = redactor.clean(params["about"]), redactor.clean(errors)
    members = {name: content if isinstance(content, str) else as_json(content) for name, content in contents.items()}
    for name, text in members.items():
        if len(text) > 2 * limits.size:
            members[name] = text[: 2 * limits.size] + "\n[truncated]\n"
    members["README.txt"] = readme({**params, "about": about}, contents, errors)
    members["errors.txt"] = "".join(" ".join(error.split()) + "\n" for error in errors)
    members["redaction.txt"] = redaction(params["names"], redactor)
    root = "{}-{}".format(params["host"], params["stamp"])
    return {"archive": pack(root, members), "files": sorted(members), "errors": errors, "redacted": redactor.count}


def write(path: str, raw: bytes) -> None:
    """Write the archive. Only the owner of the directory, who is the connecting user, can read it."""
    # The connecting user could replace the directory by a link, so a link is not followed.
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = os.fstat(directory)
        handle = os.open(os.path.basename(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    with os.fdopen(handle, "wb") as target:
        target.write(raw)
        if os.geteuid() == 0:
            os.fchown(target.fileno(), owner.st_uid, owner.st_gid)


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    if module.check_mode:
        names = [item.name for item in items(params, Limits(params["timeout"], params["size"], params["lines"]))]
        module.exit_json(changed=False, files=names, msg="{}: would collect {} items".format(params["host"], len(names)))
    result = bundle(params)
    raw = result.pop("archive")
    try:
        write(params["archive"], raw)
    except OSError as error:
        module.fail_json(msg="{}: the bundle cannot be written on the host: {}".format(params["host"], error))
    module.exit_json(changed=False, sha256=hashlib.sha256(raw).hexdigest(), **result)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
