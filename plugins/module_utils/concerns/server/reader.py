# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The actual state of the server: its container, its served models, its keys, and missing mounts and devices."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import (
    connection,
    container,
    credentials,
    device_access,
    log_reader,
)
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import query, read_served, version_of

# The label of an image that names the release row for which the image was built. A release row is a row of files/releases.yml.
RELEASE_ROW = "io.npufleet.release"


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the facts of the container, the served models, and the flaws of the server's files and devices."""
    actual = _read_container(desired)
    actual["absent"] = [path for path in desired["sources"] if not os.path.exists(path)]
    actual["driver_files"] = driver_files.find(desired["driver_files"]) if desired["driver_files"] else {"binds": [], "missing": []}
    actual["access"] = device_access.find(desired["access"])
    if desired.get("credentials"):
        actual["credentials"] = credentials.credentials_flaw(desired["credentials"], **desired["key_readers"])
    if desired.get("key"):
        flaw = keys.flaw(desired["key"]["path"], desired["key_fingerprint"], **desired["key_readers"])
        actual.update({"key": flaw} if flaw["flaw"] else {})
    return actual


def _read_container(desired: Mapping[str, Any]) -> Dict[str, Any]:
    engine = Engine()
    try:
        inspect = engine.container(desired["name"])
        pinned = images.inspect_image(engine, desired["image"]["reference"])
        image = (images.inspect_image(engine, inspect["Image"]) if inspect else None) or {}
        # A killed run leaves the previous container under this name.
        previous = engine.container(desired["name"] + "-previous")
    except OSError:
        return {"engine": False, "container": None, "served": None}
    actual: Dict[str, Any] = {"engine": True, "container": None, "served": None, "previous": previous is not None}
    # The ID that this engine gives to the image that the lock file names
    actual["image"] = pinned["Id"] if pinned else None
    if not inspect:
        return actual
    facts = container.container_facts(inspect, image)
    if desired["image"]["content"] and images.content_digest(image) == desired["image"]["content"]:
        # The content of the image is the desired one, so a different ID does not count as a difference.
        facts["image"] = desired["container"]["image"]
    # The same facts with digests in place of secrets
    sealed = container.sealed_container(facts, desired["digest_key"])
    config, state = image.get("Config") or {}, inspect["State"]
    running = state["Status"] == "running"
    actual.update(
        container=sealed,
        release=(config.get("Labels") or {}).get(RELEASE_ROW),
        inherited=secret.seal_values(container.environment(config), desired["digest_key"]),
        state="running" if running else "{} ({})".format(state["Status"], state["ExitCode"]),
        # The number of restarts by the engine itself since the last start by an operator or a run
        restarts=inspect.get("RestartCount") or 0,
    )
    if running:
        actual["hung"] = log_reader.hanging_loads(desired["root"], state.get("StartedAt") or "", state.get("Pid") or 0)
        actual_server = connection.of_container(desired, inspect)
        actual["served"] = read_served(actual_server)
        if actual["served"] is None:
            actual["http_port"] = actual_server["http_port"]
            actual.update({"key_refused": True} if query(actual_server, "POST", "/v2/repository/index")[0] == 403 else {})
        status, server = query(actual_server, "GET", "/v2")
        actual["version"] = version_of(server) if status == 200 else None
    if not running or actual["served"] is None:
        actual.update(log_reader.read_log(engine, desired, inspect))
        secrets, digests = ([*fact["environment"].values(), *fact["command"]] for fact in (facts, sealed))
        actual["log"] = secret.remove_values(str(actual["log"]), secrets, digests)
    return actual
