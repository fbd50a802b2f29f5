# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The controller's side of the library, the copy of this collection's code on a host (module_utils/programs/library.py).

This module returns the version and the archive of the library, and the parameters of a call. The controller validates the options
of each module, so that the library on the host needs no part of Ansible.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Set, Tuple

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library as host_library
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, files_of

MAIN = archive.PREFIX + "commands"


@functools.cache
def version() -> str:
    """Return the version of the library: a digest of all its files."""
    digest = hashlib.sha256()
    for path, source in sorted(_host_sources().items()):
        digest.update(f"{path}\0{source}\0".encode())
    return digest.hexdigest()[:16]


def packed(directory: str) -> bytes:
    """Return the archive of the library. The first call stores it in `directory`, which all processes of a run share."""
    path = Path(directory, f"library-{version()}")
    if not path.exists():
        draft = Path(f"{path}.{os.getpid()}")
        draft.write_bytes(archive.pack_program(_host_sources(), MAIN))
        draft.replace(path)
    return path.read_bytes()


def _host_sources() -> Dict[str, str]:
    """Return {path in the archive: source} of the code that runs on hosts."""
    files = {
        f"ansible_collections/npufleet/triton/plugins/{directory}/{path}": source.decode()
        for directory in ("module_utils", "modules")
        for path, source in files_of(os.path.join(COLLECTION, "plugins", directory)).items()
        if path.endswith(".py")
    }
    programs = {name: archive.digest(entry) for name, entry in host_library.ENTRIES.items()}
    return {**files, host_library.PROGRAMS: json.dumps(programs)}


class Parameters(NamedTuple):
    """The validated options of a module, and the secrets in these options, which no result may show."""

    values: Dict[str, Any]
    secrets: Set[str]


@functools.cache
def module(name: str) -> ModuleType:
    """Return a module of this collection, imported on the controller."""
    return importlib.import_module(f"ansible_collections.npufleet.triton.plugins.modules.{name}")


def parameters(name: str, options: Mapping[str, Any]) -> Parameters:
    """Return the parameters for a call of the module `name`. Raises Refusal with every error of its options."""
    options_of_module, fields = module(name).OPTIONS, getattr(module(name), "REQUEST", None)
    spec = options_of_module if fields is None else {**options_of_module, request.NAME: {"type": "dict"}}
    values = _validated(name, spec, options)
    secrets = set(_secrets(spec, values))
    if fields is not None:
        values[request.NAME] = _validated(name, fields, values[request.NAME] or {})
        secrets |= set(_secrets(fields, values[request.NAME]))
    return Parameters(values, secrets)


class _NotCopied(Dict[str, Any]):
    """A map that the validator does not copy, because it can contain megabytes of files and needs no conversion."""

    def __deepcopy__(self, _memo: Any) -> Dict[str, Any]:
        return self


def _validated(name: str, spec: Mapping[str, Any], options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the options, converted to their types and with default values. Raises Refusal."""
    reasons = [
        f"{name}: {option} is {path}, expected a path without ~ and $. Write the whole path."
        for option, path in _paths(spec, options)
        if "~" in path or "$" in path
    ]
    maps = {name: value for name, value in options.items() if isinstance(value, dict) and "options" not in spec.get(name, {})}
    validation = ArgumentSpecValidator(spec).validate({**options, **{name: _NotCopied(value) for name, value in maps.items()}})
    reasons += [f"{name}: {error}" for error in validation.error_messages]
    if reasons:
        raise Refusal(reasons)
    return {**validation.validated_parameters, **maps}


def _secrets(spec: Mapping[str, Any], values: Any) -> Iterator[str]:
    """Yield the texts in the values of the secret options (`no_log`)."""
    for name, option in spec.items():
        value = values.get(name) if isinstance(values, Mapping) else None
        if option.get("no_log"):
            yield from _texts(value)
        for entry in value if isinstance(value, list) else [value]:
            yield from _secrets(option.get("options", {}), entry)


def _texts(value: Any) -> Iterator[str]:
    """Yield each text and number of a value."""
    if isinstance(value, (Mapping, list, tuple)):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(entry)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
        yield str(value)


def _paths(spec: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    """Yield the name and the value of each option that is a path, including suboptions."""
    for name, option in spec.items():
        value = options.get(name)
        values = value if isinstance(value, list) else [value]
        if "path" in (option["type"], option.get("elements")):
            yield from ((name, entry) for entry in values if isinstance(entry, str))
        for entry in values:
            if isinstance(entry, Mapping) and "options" in option:
                yield from _paths(option["options"], entry)
