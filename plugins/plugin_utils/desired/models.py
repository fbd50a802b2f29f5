# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired models in the store of a host: digests and files of every model that is placed on the host."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

FACTS = ("source", "release", "files", "versions", "cached", "shape")


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return digests and files of the models, without the contents of the files."""
    return {
        "root": variables["npufleet_root"],
        "incoming": variables["npufleet_incoming"],
        "verify": bool(variables["model_repository_verify"]),
        "models": {name: {key: manifest[key] for key in FACTS} for name, manifest in context.manifests.items()},
    }
