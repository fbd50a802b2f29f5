"""The one image of a release: its ID is pinned in a lock file and equal on every host."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.contract import NOTHING, NPU_HOSTS, Given
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item

CONCERN = "image"
GROUP = NPU_HOSTS
# Label with what was installed, as `name==version`, proven at the build.
CONTENTS = "io.npufleet.contents"


def desired(variables: Mapping[str, Any], given: Given = NOTHING) -> Dict[str, Any]:
    """Reference, pinned ID and options; the ID is None while no image of this recipe has been built."""
    recipe = variables["triton_image_recipe"]
    digest = recipe_digest(recipe, variables["triton_image_backends"], variables.get("triton_image_instructions"))
    lock = (variables["npufleet_lock"] or {}).get(variables["rbln_release"]) or {}
    return {
        "reference": "{}:{}-{}".format(variables["triton_image_name"], variables["rbln_release"], digest[:12]),
        "recipe": digest,
        "id": lock.get("id") if lock.get("recipe") == digest else None,
        "archive": lock.get("archive") if lock.get("recipe") == digest else None,
        # Which of the options that not every Triton has this one said that it has, when it was proven
        "options": list(lock.get("options") or []) if lock.get("recipe") == digest else [],
    }


def recipe_digest(recipe: Mapping[str, Any], backends: str, instructions: Optional[str] = None) -> str:
    """SHA-256 over all that goes into the image: what is installed, by which instructions, and every file of the backends."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    if instructions:
        with open(instructions, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    for directory, names, files in sorted(os.walk(backends)):
        names[:] = sorted(name for name in names if name != "__pycache__")
        if "__pycache__" in directory:
            continue
        for name in sorted(files):
            path = os.path.join(directory, name)
            digest.update(os.path.relpath(path, backends).encode() + b"\0")
            with open(path, "rb") as source:
                digest.update(hashlib.sha256(source.read()).digest())
    return digest.hexdigest()


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """The ID behind the reference, None without image; `engine` tells whether there was anyone to ask."""
    try:
        found = Engine().get("/images/{}/json".format(wanted["reference"]))
    except OSError:
        return {"engine": False, "id": None}
    labels = (found["Config"].get("Labels") or {}) if found else {}
    return {"engine": True, "id": found["Id"] if found else None, "contents": labels.get(CONTENTS, "").split()}


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Not built yet, not on this host yet, or another one under its name."""
    if wanted["id"] is None:
        return [item(CONCERN, wanted["reference"], actual["id"], "an image of this recipe", "build")]
    if actual["id"] != wanted["id"]:
        return [item(CONCERN, wanted["reference"], actual["id"], wanted["id"], "deliver")]
    return []
