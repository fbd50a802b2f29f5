# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `image`: the image of the Triton release on a host, compared with the image that the lock file records."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item

CONCERN = "image"
# The label of an image that lists its packages as `name==version`
CONTENTS = "io.npufleet.contents"


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"engine": True if an engine answers, "id": ID of the image, "content": its digest, "contents": its packages}."""
    try:
        found = images.inspect_image(Engine(), desired["reference"])
    except OSError:
        return {"engine": False, "id": None, "content": None}
    if not found:
        return {"engine": True, "id": None, "content": None, "contents": []}
    contents = (found["Config"].get("Labels") or {}).get(CONTENTS, "").split()
    return {"engine": True, "id": found["Id"], "content": images.content_digest(found), "contents": contents}


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences: the image has to be built, delivered to the host, or published to the registry."""
    if desired["id"] is None:
        return [item(CONCERN, desired["reference"], actual["id"], "an image of this recipe", "build")]
    # The content is compared if possible, because the ID of an image depends on the image store of the engine.
    kind = "content" if desired["content"] else "id"
    plan = []
    if actual[kind] != desired[kind]:
        plan.append(item(CONCERN, desired["reference"], actual[kind], desired[kind], "deliver"))
    if desired["publish"]:
        plan.append(item(CONCERN, desired["reference"], None, desired["publish"], "publish"))
    return plan
