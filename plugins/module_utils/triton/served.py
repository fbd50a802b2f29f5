# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The models that a server serves: from its index, and from the release digest in the config of each loaded model."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import URL_UNSAFE, http_json, is_url_safe
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import plain

RELEASE = "npufleet_release"
# Time limit in seconds of all requests together: the index, and the config of each model
TIMEOUT_SECONDS = 60.0
# The number of a version in the index
VERSION = re.compile(r"[0-9]{1,19}")
# Largest length of a state, and of Triton's reason for the state
MAX_STATE, MAX_REASON = 40, 2000
# Shapes of the config of a release, and of an ensemble's config
RELEASE_CONFIG = {"parameters": {RELEASE: {"string_value": str}}}
ENSEMBLE = {"ensemble_scheduling": {"step": [{"model_name": str}]}}


def query(server: Mapping[str, Any], method: str, resource: str) -> Tuple[int, Any]:
    """Send one request with the server's key, and return (status, data of the response)."""
    return http_json(server["address"], server["http_port"], method, resource, headers=keys.headers(server.get("key")))


def read_served(server: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return {model: {version: {"state", "reason", "release"}}}, or None if the server does not answer in time.

    `state` and `reason` come from Triton. `release` is the digest of the loaded release, or None.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    status, index = query(server, "POST", "/v2/repository/index")
    if status != 200 or not isinstance(index, list):
        return None
    served: Dict[str, Any] = {}
    for model in index:
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            continue
        name, version, reason = model["name"], str(model.get("version", "")), str(model.get("reason", ""))[:MAX_REASON]
        if not VERSION.fullmatch(version) or not isinstance(model.get("state"), str):
            reason = reason or "it could not be read"
            served.setdefault(name, {})["-"] = {"state": "UNAVAILABLE", "reason": reason, "release": None}
            continue
        release = None
        if time.monotonic() >= deadline:
            return None
        if model["state"] == "READY" and is_url_safe(name):
            status, config = query(server, "GET", f"/v2/models/{name}/versions/{version}/config")
            if status == 200 and not shapes.mismatch(config, RELEASE_CONFIG):
                release = config["parameters"][RELEASE]["string_value"]
        elif model["state"] == "READY":
            reason = URL_UNSAFE
        served.setdefault(name, {})[version] = {"state": model["state"][:MAX_STATE], "reason": reason, "release": release}
    return served


def versions_in(versions: Mapping[str, Any], *states: str) -> List[str]:
    """Return the versions of a model that are in one of these states of Triton, such as READY."""
    return [number for number, version in versions.items() if version["state"] in states]


def load_failures(versions: Mapping[str, Any]) -> List[str]:
    """Return Triton's reasons for the versions that failed to load. Versions that were unloaded on request are left out."""
    reasons = [version["reason"] for version in versions.values() if version["state"] == "UNAVAILABLE"]
    return [reason for reason in reasons if reason not in ("", "unloaded")]


def describe_versions(versions: Mapping[str, Any]) -> Optional[str]:
    """Return the versions of a model as text: READY versions with their releases, other versions with Triton's reasons."""
    texts = []
    for version, entry in sorted(versions.items()):
        details = plain(entry["reason"])
        if entry["state"] == "READY":
            details = (entry["release"] or "no release")[:12] + (f" ({URL_UNSAFE})" if entry["reason"] == URL_UNSAFE else "")
        texts.append("version {} {} {}".format(version, entry["state"], details).strip())
    return ", ".join(texts) or None


def in_sync(versions: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Return True if exactly the desired versions are READY with the desired release, and no other version is loaded.

    A model that Triton itself reads from an object store has no release. It is in sync if one version is READY.
    """
    if model["release"] is None:
        return bool(versions_in(versions, "READY"))
    ready = {number for number in versions_in(versions, "READY") if versions[number]["release"] == model["release"]}
    return ready == set(model["versions"]) and ready.issuperset(versions_in(versions, "READY", "LOADING"))


def version_of(metadata: Any) -> Optional[str]:
    """Return Triton's version from a server's metadata, or None if the metadata has none."""
    return None if shapes.mismatch(metadata, {"version": str}) else str(metadata["version"])


def steps_of(config: Any) -> List[str]:
    """Return the models that an ensemble calls, from its config. For any other config, return an empty list."""
    if shapes.mismatch(config, ENSEMBLE):
        return []
    return [step["model_name"] for step in config["ensemble_scheduling"]["step"]]


def served_without_release(served: Mapping[str, Any]) -> List[str]:
    """Return the READY models without a release. The server reads them from another source, such as an object store."""
    found = []
    for name, versions in served.items():
        ready = versions_in(versions, "READY")
        if ready and not any(versions[number]["release"] for number in ready):
            found.append(name)
    return sorted(found)
