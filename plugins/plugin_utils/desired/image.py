# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired image of a host: the image that the lock file pins for the release, and the form of its delivery."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import files_of

# Forms of delivery. The lock file can have an entry for each form.
ARCHIVE, REGISTRY = "archive", "registry"


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return reference, ID, content, options and delivery of the image. The ID is None until the image has been built."""
    recipe = variables["triton_image_recipe"]
    digest = recipe_digest(recipe, variables["triton_image_backends"], variables.get("triton_image_instructions"))
    lock = (variables["npufleet_lock"] or {}).get(variables["rbln_release"]) or {}
    lock = lock if lock.get("recipe") == digest else {}
    repository = variables["triton_image_delivery_repository"]
    sources = {ARCHIVE: lock.get("archive"), REGISTRY: in_repository(lock.get("repo_digest"), repository)}
    delivery, publish = REGISTRY if repository else ARCHIVE, False
    if lock.get("id") and not sources[delivery]:
        # The image is not published in this form yet, so the build host publishes it. If only the other form is published, the
        # build host first gets the image in that form.
        publish = variables["npufleet_build_host"] == variables["inventory_hostname"]
        delivery = next((form for form in sorted(sources) if publish and sources[form]), delivery)
    return {
        "reference": "{}:{}-{}".format(variables["triton_image_name"], variables["rbln_release"], digest[:12]),
        "recipe": digest,
        "id": lock.get("id"),
        # Unlike the ID, the digest of the content is the same on every engine. Older lock files lack the digest.
        "content": lock.get("content"),
        "delivery": delivery,
        "archive": sources[ARCHIVE],
        "repo_digest": sources[REGISTRY],
        # Text for messages: where this host publishes the image for other hosts. None if the host does not publish the image.
        "publish": (f"it in {repository}" if repository else "its archive on the controller") if publish else None,
        # Options of this release's tritonserver that other releases lack. The build of the image recorded them.
        "options": list(lock.get("options") or []),
    }


def in_repository(repo_digest: Optional[str], repository: str) -> Optional[str]:
    """Return the digest if it belongs to `repository`, or if the inventory names no repository. Otherwise return None."""
    return repo_digest if repo_digest and (not repository or repo_digest.startswith(repository + "@")) else None


def recipe_digest(recipe: Mapping[str, Any], backends: str, instructions: Optional[str] = None) -> str:
    """Return the SHA-256 of the inputs of the image: packages, instructions, and every file of the backends."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    if instructions:
        with open(instructions, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    for path, content in files_of(backends).items():
        digest.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()
