"""The one image of a release: its content is pinned in a lock file, and a registry or an archive brings it to every host."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.contract import NOTHING, NPU_HOSTS, Given
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item

CONCERN = "image"
GROUP = NPU_HOSTS
# Label with what was installed, as `name==version`, proven at the build.
CONTENTS = "io.npufleet.contents"
# How it comes to the hosts, each by the entry of the lock that pins it there
ARCHIVE, REGISTRY = "archive", "registry"


def desired(variables: Mapping[str, Any], given: Given = NOTHING) -> Dict[str, Any]:
    """Reference, pinned ID, content, options and how it comes here; the ID is None while no image of this recipe has been built."""
    recipe = variables["triton_image_recipe"]
    digest = recipe_digest(recipe, variables["triton_image_backends"], variables.get("triton_image_instructions"))
    lock = (variables["npufleet_lock"] or {}).get(variables["rbln_release"]) or {}
    lock = lock if lock.get("recipe") == digest else {}
    repository = variables["triton_image_delivery_repository"]
    ways = {ARCHIVE: lock.get("archive"), REGISTRY: in_repository(lock.get("repo_digest"), repository)}
    by, publish = REGISTRY if repository else ARCHIVE, False
    if lock.get("id") and not ways[by]:
        # The host that brings it to the others may get it by the way of before
        publish = variables["npufleet_build_host"] == variables["inventory_hostname"]
        by = next((way for way in sorted(ways) if publish and ways[way]), by)
    return {
        "reference": "{}:{}-{}".format(variables["triton_image_name"], variables["rbln_release"], digest[:12]),
        "recipe": digest,
        "id": lock.get("id"),
        # Equal on every engine, which the ID is not; a lock of before has none
        "content": lock.get("content"),
        "by": by,
        "archive": ways[ARCHIVE],
        "repo_digest": ways[REGISTRY],
        # What this host has to do for the others to get it: None, or where it has to be afterwards
        "publish": (f"it in {repository}" if repository else "its archive on the controller") if publish else None,
        # Which of the options that not every Triton has this one said that it has, when it was proven
        "options": list(lock.get("options") or []),
    }


def in_repository(repo_digest: Optional[str], repository: str) -> Optional[str]:
    """A digest in the repository that the inventory names; where it names none, in any."""
    return repo_digest if repo_digest and (not repository or repo_digest.startswith(repository + "@")) else None


def recipe_digest(recipe: Mapping[str, Any], backends: str, instructions: Optional[str] = None) -> str:
    """SHA-256 over all that goes into the image: what is installed, by which instructions, and every file of the backends."""
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


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """The image behind the reference, None without one; `engine` tells whether there was anyone to ask."""
    try:
        found = images.named(Engine(), wanted["reference"])
    except OSError:
        return {"engine": False, "id": None, "content": None}
    labels = (found["Config"].get("Labels") or {}) if found else {}
    content = images.content_digest(found) if found else None
    return {"engine": True, "id": found["Id"] if found else None, "content": content, "contents": labels.get(CONTENTS, "").split()}


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Not built yet, not on this host yet or another one under its name, or not where the other hosts get it."""
    if wanted["id"] is None:
        return [item(CONCERN, wanted["reference"], actual["id"], "an image of this recipe", "build")]
    # Of two engines with stores of other kinds the same image has two IDs
    kind = "content" if wanted["content"] else "id"
    plan = []
    if actual[kind] != wanted[kind]:
        plan.append(item(CONCERN, wanted["reference"], actual[kind], wanted[kind], "deliver"))
    if wanted["publish"]:
        plan.append(item(CONCERN, wanted["reference"], None, wanted["publish"], "publish"))
    return plan
