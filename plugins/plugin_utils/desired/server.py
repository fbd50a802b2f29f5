# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired server of a host: its container, its API key, and the models that it has to serve."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import CREDENTIALS_HOME, OBJECT_STORE_MODEL
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.container import sealed_container
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton.keys import HOME
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import container, device_access, server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

# The environment variable with the path of the file that has Triton's keys to object stores
CREDENTIALS_VARIABLE = "TRITON_CLOUD_CREDENTIAL_PATH"
# The facts of a model that the host needs to read the state of the server and to change the server. `steps` are the models that an
# ensemble calls. `cached` is True if Triton caches the responses of the model.
MODEL_FACTS = ("versions", "release", "source", "steps", "memory", "switch", "cached")


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the container and the models of the server. Raises Refusal."""
    image = context.image()
    reasons = server_key.reasons(variables)
    if reasons:
        raise Refusal(reasons)
    cloud_keys = credentials(variables["triton_server_cloud_credentials"])
    key = server_key.desired(variables)
    # The container reads these paths of the host: the file with keys to object stores, and the directory with its API key.
    key_paths = [*([cloud_keys["path"]] if cloud_keys else []), *([HOME] if key else [])]
    binds = device_access.mounts(variables, list(map(container.volume, variables["triton_server_volumes"])))
    command = container.command(variables, sorted([*context.manifests, *context.cloud_models]), image.get("options") or [])
    ports = container.ports(variables)
    models = {name: {key: manifest[key] for key in MODEL_FACTS} for name, manifest in context.manifests.items()}
    return {
        "name": variables["triton_server_name"],
        "image": {"reference": image["reference"], "content": image["content"]},
        "credentials": cloud_keys,
        "key": key,
        "key_fingerprint": server_key.digest(variables),
        "grpc": container.accepts_grpc(variables),
        "container": {
            "image": image["id"],
            "command": server_key.command(variables, command),
            "environment": {
                **device_access.environment(variables),
                **{key: str(value) for key, value in variables["triton_server_environment"].items()},
                **({CREDENTIALS_VARIABLE: cloud_keys["path"]} if cloud_keys else {}),
            },
            "log": {"driver": variables["triton_server_log_driver"], "options": dict(variables["triton_server_log_options"])},
            "ports": ports,
            "restart": variables["triton_server_restart_policy"],
            "shm_size": container.size_of(variables, "triton_server_shm_size"),
            "stop_timeout": int(variables["triton_server_stop_timeout"]),
            "ulimits": container.ulimits(variables),
            "volumes": sorted([*binds, *(f"{path}:{path}:ro" for path in key_paths)]),
            **container.ENGINE_DEFAULTS,
            **device_access.limits(variables),
            "cpuset": variables["triton_server_cpuset"],
            "memory": container.size_of(variables, "triton_server_memory") if variables["triton_server_memory"] else 0,
        },
        "sources": container.mount_sources(variables),
        "driver_files": container.driver_files(variables),
        "access": device_access.access_query(variables, binds),
        "key_readers": device_access.key_readers(variables),
        "cards": container.cards(variables),
        # Without a listen address, an entry is only the port.
        "published_ports": [f"{address}:{port.split('/')[0]}".lstrip(":") for port, address in sorted(ports.items())],
        "address": container.address(variables),
        "http_port": int(variables["npufleet_http_port"]),
        "mode": variables["triton_server_model_control_mode"],
        "root": variables["npufleet_root"],
        "cache": container.cache(variables),
        # Triton itself reads some models from an object store. The files of these models are not compared.
        "models": {**models, **{name: dict(OBJECT_STORE_MODEL) for name in context.cloud_models}},
    }


def sealed(state: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """Return the desired server with digests instead of secrets. The host computes the digests with the key in `digest_key`."""
    return {**state, "container": sealed_container(state["container"], key), "digest_key": key}


def credentials(keys: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """Return {"path", "sha256"} of the host's file with Triton's keys to object stores, or None if there are no keys.

    The name of the file depends on the keys, so changed keys get a new file. The environment of the container has the path of the
    file, so the host replaces the container. The previous file is kept for a restore of the previous container.
    """
    if not keys:
        return None
    digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()
    return {"path": f"{CREDENTIALS_HOME}/cloud-{digest[:12]}.json", "sha256": digest}
