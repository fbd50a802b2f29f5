# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The checks that the current releases of a host passed when their change was accepted.

A rollback proves the restored releases with these checks, because they can fail the checks of the inventory, which may be made for
newer releases. The file does not have the ports and the key of the server, because a later change without checks can change them.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes, store
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import connection
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc

# Only root may read the file, because it contains golden data. No container mounts its directory.
PATH = "/etc/npufleet/accepted_checks.json"
# The first line of the file: the release of each model, and the digest of the other lines
HEAD = {"releases": {re.compile(".+", re.DOTALL): str}, "content": str}
# The client's TLS settings for gRPC. They are stored, because a restored server may need them when the inventory has none.
GRPC_TLS = "grpc_tls"
CHECKS = {"image": str, "program": str, "document": {"host": str, "server": dict, "checks": [dict]}}


def write(root: str, checks: Mapping[str, Any]) -> None:
    """Store the checks that the current releases have passed. Raises OSError and StoreError."""
    document = {name: value for name, value in checks["document"].items() if name != "key"}
    document["server"] = {name: value for name, value in document["server"].items() if name == GRPC_TLS}
    body = json.dumps({**checks, "document": document}, sort_keys=True)
    head = {"releases": _current_releases(root), "content": hashlib.sha256(body.encode()).hexdigest()}
    durable.write(PATH, f"{json.dumps(head, sort_keys=True)}\n{body}", 0o600)


def read(root: str) -> Optional[Dict[str, Any]]:
    """Return the stored checks, or None if they belong to other releases or cannot be used."""
    try:
        with open(PATH, "rb") as source:
            head, body = shapes.parse_as(source.readline(), HEAD), source.read()
        if head["releases"] != _current_releases(root) or head["content"] != hashlib.sha256(body).hexdigest():
            return None
        # The digest shows that the body is unchanged, so json.loads is safe. shapes.parse would refuse infinite numbers.
        checks: Dict[str, Any] = json.loads(body)
    except (OSError, ValueError, store.StoreError):
        return None
    return None if shapes.mismatch(checks, CHECKS) else checks


def for_actual_server(
    accepted: Mapping[str, Any], inventory: Mapping[str, Any], name: str, fixed_address: bool = False
) -> Dict[str, Any]:
    """Return accepted checks with the connection to the container `name`. `inventory` has the checks of the inventory.

    Ports, address and key are those of the container. Headers and certificates are those of the inventory, because they may have
    been renewed. With `fixed_address`, the address is that of the inventory, too. Raises OSError if no engine answers.
    """
    engine = Engine()
    inspect = engine.container(name) or {}
    found, connected = accepted["document"], inventory["document"]
    server = {**connected["server"], **_published(inspect, fixed_address)}
    if bool(server.get(GRPC_TLS)) != bool(found["server"].get(GRPC_TLS)):
        tls = server.pop(GRPC_TLS, None) or found["server"][GRPC_TLS]
        server.update({GRPC_TLS: tls} if connection.secures_grpc(inspect) else {})
    key = connection.api_key(connection.command_of(inspect), keys.FILE) or connected.get("key")
    # If an operator has removed the stored image, use the inventory's image. The client sends the same requests in any image.
    image = accepted["image"] if images.inspect_image(engine, accepted["image"]) else inventory["image"]
    return {**accepted, "image": image, "document": {**found, "host": connected["host"], "server": server, "key": key}}


def _published(inspect: Mapping[str, Any], fixed_address: bool) -> Dict[str, Any]:
    """Return the ports of a container. Without `fixed_address`, also return its address and the URL of its metrics."""
    found = {service: connection.endpoint(inspect, service) for service in connection.DEFAULT_PORTS}
    server: Dict[str, Any] = {f"{service}_port": where[1] for service, where in found.items() if where}
    http, metrics = found["http"], found["metrics"]
    if http and not fixed_address:
        server["address"] = http[0]
        if metrics:
            server["metrics_url"] = f"http://{netloc(*metrics)}/metrics"
    return server


def _current_releases(root: str) -> Dict[str, str]:
    return {name: model["release"] for name, model in store.current_models(root, {}).items()}
