# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The directory of this collection, and functions that read files on the controller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees

# Limits of a YAML file: bytes, number of values with all aliases expanded, and depth of nesting
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 1 << 24, 1000000, 64
COLLECTION = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../.."))


def files_of(directory: str) -> Dict[str, bytes]:
    """Return {relative path: content} of all files below a directory. Links are followed. Bytecode is left out."""
    contents = {}
    for parent, names, files in trees.walk(directory, follow=True):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in files:
            path = Path(parent, name)
            contents[os.path.relpath(path, directory)] = path.read_bytes()
    return contents


def yaml_of(path: str) -> Any:
    """Return the content of a YAML file. Raises OSError, UnicodeDecodeError, or yaml.YAMLError if it is invalid or too large."""
    with open(path, "rb") as source:
        content = source.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise yaml.YAMLError(f"it has more than {MAX_BYTES} bytes")
    try:
        # CSafeLoader needs libyaml, and is ten times as fast as SafeLoader.
        document = yaml.load(content.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (RecursionError, OverflowError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        # For example, an impossible date raises ValueError.
        raise yaml.YAMLError(str(error)) from None
    _check_size(document)
    return document


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that reads `!unsafe` as plain text. It is many times faster than Ansible's loader."""


_PlainLoader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def own_yaml(path: str) -> Any:
    """Return the content of a YAML file of this collection. Templates in it are plain text."""
    with open(path, encoding="utf-8") as source:
        return yaml.load(source, _PlainLoader)


def _check_size(document: Any) -> None:
    """Raise yaml.YAMLError if a document has too many values or levels. Aliases can expand to more values than memory holds."""
    pending, count = [(document, 0)], 0
    while pending:
        value, depth = pending.pop()
        entries = list(value.items()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        count += len(entries)
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it has more than {MAX_VALUES} values or {MAX_DEPTH} levels, with its aliases expanded")
        pending += [(entry, depth + 1) for entry in entries if isinstance(entry, (dict, list, tuple))]
