"""Manifests and configs for the tests that look at the files of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import reasons
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import Manifest, manifests


def manifest_of(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Manifest:
    """Return the manifest of a model, as it is the only one on the host. Raises Refusal with all reasons."""
    found, errors = manifests(variables, [entry])
    if errors:
        raise Refusal(errors)
    return found[entry["name"]]


def parse_config(text: str, path: str) -> Any:
    """Return the text of a config.pbtxt as Triton's ModelConfig. Raises Refusal if Triton would not parse it."""
    config, _fields, findings = schema.parse(text, Path(path).parent.name, path)
    if findings:
        raise Refusal(reasons(findings))
    return config
