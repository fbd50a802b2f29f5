# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired image of a host: the image that the lock file pins for the release, and the form of its delivery."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

# Forms of delivery. The lock file may have an entry for each.
ARCHIVE, REGISTRY = "archive", "registry"


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return reference, ID, content, options and delivery of the image. The ID is None until this recipe has been built."""
    recipe = variables["triton_image_recipe"]
    digest = recipe_digest(recipe, variables["triton_image_backends"], variables.get("triton_image_instructions"))
    lock = (variables["npufleet_lock"] or {}).get(variables["rbln_release"]) or {}
    lock = lock if lock.get("recipe") == digest else {}
    repository = variables["triton_image_delivery_repository"]
    ways = {ARCHIVE: lock.get("archive"), REGISTRY: in_repository(lock.get("repo_digest"), repository)}
    by, publish = REGISTRY if repository else ARCHIVE, False
    if lock.get("id") and not ways[by]:
        # The image is not published in this form yet. The build host publishes it, and may get it in the other form.
        publish = variables["npufleet_build_host"] == variables["inventory_hostname"]
        by = next((way for way in sorted(ways) if publish and ways[way]), by)
    return {
        "reference": "{}:{}-{}".format(variables["triton_image_name"], variables["rbln_release"], digest[:12]),
        "recipe": digest,
        "id": lock.get("id"),
        # The digest of the content is the same on every engine, unlike the ID. Older lock files do not have it.
        "content": lock.get("content"),
        "by": by,
        "archive": ways[ARCHIVE],
        "repo_digest": ways[REGISTRY],
        # What this host has to publish for the other hosts, and where; else None
        "publish": (f"it in {repository}" if repository else "its archive on the controller") if publish else None,
        # Options of this Triton that other releases lack, as recorded at the build
        "options": list(lock.get("options") or []),
    }


def in_repository(repo_digest: Optional[str], repository: str) -> Optional[str]:
    """Return the digest if it is in the repository of the inventory, or if the inventory names no repository; else None."""
    return repo_digest if repo_digest and (not repository or repo_digest.startswith(repository + "@")) else None


def recipe_digest(recipe: Mapping[str, Any], backends: str, instructions: Optional[str] = None) -> str:
    """Return the SHA-256 over everything that goes into the image: packages, instructions, and every file of the backends."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    if instructions:
        with open(instructions, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    for directory, names, files in trees.walk(backends, follow=True):
        names[:] = sorted(name for name in names if name != "__pycache__")
        if "__pycache__" in directory:
            continue
        for name in sorted(files):
            path = os.path.join(directory, name)
            digest.update(os.path.relpath(path, backends).encode() + b"\0")
            with open(path, "rb") as source:
                digest.update(hashlib.sha256(source.read()).digest())
    return digest.hexdigest()
