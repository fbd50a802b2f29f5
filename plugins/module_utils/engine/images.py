"""What an image is, whichever way an engine keeps it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine

# What of an image's configuration decides how a container of it runs. The rest differs between builders and engines: who built it,
# from which parent, and fields of containers that older engines repeat there
CONFIG = (
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "Labels",
    "OnBuild",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
)
# What an engine says of an image, as far as anything is made of it
IMAGE = {
    "Id?": str,
    "RootFS?": ({"Layers?": ([str], shapes.NULL)}, shapes.NULL),
    "Config?": ({"Env?": ([str], shapes.NULL), "Labels?": (dict, shapes.NULL)}, shapes.NULL),
}


def content_digest(inspected: Mapping[str, Any]) -> Optional[str]:
    """SHA-256 over what an inspected image holds: its layers, unpacked, and its configuration; None where the layers are not told.

    An image's ID is not that: it is the digest of its configuration in an engine's own store, and of its manifest in containerd's
    (fresh installations of Docker 29), so it differs between two hosts that loaded the same archive.
    """
    layers = (inspected.get("RootFS") or {}).get("Layers")
    if not layers:
        return None
    config = inspected.get("Config") or {}
    held: Dict[str, Any] = {name: config[name] for name in CONFIG if config.get(name)}
    whole = {"layers": layers, "config": held, "platform": [inspected.get("Os"), inspected.get("Architecture")]}
    return "sha256:" + hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def named(engine: Engine, name: str) -> Optional[Dict[str, Any]]:
    """`docker image inspect` of a name or an ID, None where there is none. Raises OSError without an engine."""
    found: Optional[Dict[str, Any]] = engine.get(f"/images/{name}/json")
    flaw = None if found is None else shapes.mismatch(found, IMAGE)
    if flaw:
        raise OSError(f"the engine describes image {name} in a shape that is not known ({flaw}): see `docker image inspect {name}`")
    return found
