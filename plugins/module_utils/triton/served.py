# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The models that a server serves: from its index, and from the release digest in each config that the server has in memory."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import NAMELESS, can_be_asked, http_json

RELEASE = "npufleet_release"
# Limit of the seconds for all requests together: the index, and the config of each model
SECONDS = 60.0
# The number of a version in the index
VERSION = re.compile(r"[0-9]{1,19}")
# Limits of the characters of a state, and of Triton's reason for the state
STATE, REASON = 40, 2000
# Shapes of a server's metadata, and of an ensemble's config
METADATA = {"version": str}
ENSEMBLE = {"ensemble_scheduling": {"step": [{"model_name": str}]}}


def query(wanted: Mapping[str, Any], method: str, resource: str) -> Tuple[int, Any]:
    """Send one request with the server's key, and return (status, data of the response)."""
    return http_json(wanted["address"], wanted["http_port"], method, resource, headers=keys.headers(wanted.get("key")))


def read_served(wanted: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return {model: {version: {"state", "reason", "release"}}}, None if the server does not answer in time."""
    ends = time.monotonic() + SECONDS
    status, index = query(wanted, "POST", "/v2/repository/index")
    if status != 200 or not isinstance(index, list):
        return None
    served: Dict[str, Any] = {}
    for model in index:
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            continue
        name, version, reason = model["name"], str(model.get("version", "")), str(model.get("reason", ""))[:REASON]
        if not VERSION.fullmatch(version) or not isinstance(model.get("state"), str):
            reason = reason or "it could not be read"
            served.setdefault(name, {})["-"] = {"state": "UNAVAILABLE", "reason": reason, "release": None}
            continue
        release = None
        if time.monotonic() >= ends:
            return None
        if model["state"] == "READY" and can_be_asked(name):
            release = _loaded_release(wanted, name, version)
        elif model["state"] == "READY":
            reason = NAMELESS
        served.setdefault(name, {})[version] = {"state": model["state"][:STATE], "reason": reason, "release": release}
    return served


def version_of(metadata: Any) -> Optional[str]:
    """Return Triton's version from a server's metadata, None if the metadata has none."""
    return None if shapes.mismatch(metadata, METADATA) else str(metadata["version"])


def steps_of(config: Any) -> List[str]:
    """Return the models that an ensemble calls, from its config. For any other config, return an empty list."""
    if shapes.mismatch(config, ENSEMBLE):
        return []
    return [step["model_name"] for step in config["ensemble_scheduling"]["step"]]


def from_elsewhere(served: Mapping[str, Any]) -> List[str]:
    """Return the READY models without a release. The server does not read them from the store, but from an object store, say."""
    ready = {
        name: [version["release"] for version in versions.values() if version["state"] == "READY"]
        for name, versions in served.items()
    }
    return sorted(name for name, releases in ready.items() if releases and not any(releases))


def _loaded_release(wanted: Mapping[str, Any], name: str, version: str) -> Optional[str]:
    """Return the release digest in a model's config as the server has it in memory, None if the config has no digest."""
    status, config = query(wanted, "GET", f"/v2/models/{name}/versions/{version}/config")
    if status != 200 or not isinstance(config, dict):
        return None
    parameters = config.get("parameters")
    found = parameters.get(RELEASE) if isinstance(parameters, dict) else None
    release = found.get("string_value") if isinstance(found, dict) else None
    return release if isinstance(release, str) else None
