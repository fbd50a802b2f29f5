# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Images of an engine, and a digest of their content that is the same in every engine."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine

# Fields of an image's configuration that affect a container. Other fields, such as the parent, differ between engines.
CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell", "StopSignal", "User", "Volumes",
    "WorkingDir",
)  # fmt: skip
# The fields of `docker image inspect` that this project reads
IMAGE = {
    "Id?": str,
    "RootFS?": ({"Layers?": ([str], shapes.NULL)}, shapes.NULL),
    "Config?": ({"Env?": ([str], shapes.NULL), "Labels?": (dict, shapes.NULL)}, shapes.NULL),
}


def content_digest(inspected: Mapping[str, Any]) -> Optional[str]:
    """Return the SHA-256 of an image's unpacked layers and configuration, or None if the layers are unknown.

    Two hosts that loaded the same archive can have different image IDs. In Docker's own store, the ID is the digest of the
    configuration. In the store of containerd, the default of new installations of Docker 29, the ID is the digest of the manifest.
    """
    layers = (inspected.get("RootFS") or {}).get("Layers")
    if not layers:
        return None
    config = inspected.get("Config") or {}
    settings: Dict[str, Any] = {name: config[name] for name in CONFIG if config.get(name)}
    content = {"layers": layers, "config": settings, "platform": [inspected.get("Os"), inspected.get("Architecture")]}
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def inspect_image(engine: Engine, name: str) -> Optional[Dict[str, Any]]:
    """Return `docker image inspect` of an image, or None if the image does not exist. Raises OSError without a valid response."""
    found: Optional[Dict[str, Any]] = engine.get(f"/images/{name}/json")
    flaw = None if found is None else shapes.mismatch(found, IMAGE)
    if flaw:
        raise OSError(f"the engine returned an unknown format for image {name} ({flaw}): see `docker image inspect {name}`")
    return found
