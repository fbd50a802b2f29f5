"""The library that hosts keep (module_utils/programs/library.py), on the controller: its version, its archive, and its calls.

Ansible checks the options of a call here, and not on the host. Who gives options that are not as the module says has it sent, to
be refused by it as ever.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
from types import ModuleType
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Set

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.plugin_utils.paths import COLLECTION

MAIN = archive.PREFIX + "change.commands"
ROOMS = ("module_utils", "modules")
OWN = "ansible_collections/npufleet/triton/plugins/"
MODULES = "ansible_collections.npufleet.triton.plugins.modules."
# With these in it, a path is another one on the host
OF_THE_HOST = ("~", "$")


@functools.cache
def version() -> str:
    """A digest over each file that it is made of."""
    whole = hashlib.sha256()
    for path, source in sorted(_own().items()):
        whole.update(f"{path}\0{source}\0".encode())
    return whole.hexdigest()[:16]


def packed(place: str) -> bytes:
    """The archive of it, made once for all processes of a run, which share this place. Needed for a host that lacks it alone."""
    path = os.path.join(place, f"library-{version()}")
    if not os.path.exists(path):
        with open(f"{path}.{os.getpid()}", "wb") as sink:
            sink.write(archive.packed(_own(), MAIN))
        os.replace(f"{path}.{os.getpid()}", path)
    with open(path, "rb") as source:
        return source.read()


def _own() -> Dict[str, str]:
    """{path in the archive: source} of what runs on hosts."""
    files = {}
    for room in ROOMS:
        for directory, names, found in os.walk(os.path.join(COLLECTION, "plugins", room)):
            names[:] = [name for name in names if name != "__pycache__"]
            for name in (name for name in found if name.endswith(".py")):
                path = os.path.join(directory, name)
                with open(path, encoding="utf-8") as source:
                    files[OWN + os.path.relpath(path, os.path.join(COLLECTION, "plugins"))] = source.read()
    return files


class Checked(NamedTuple):
    """Options with their defaults, and what of them no result may show."""

    options: Dict[str, Any]
    secrets: Set[str]


@functools.cache
def module(name: str) -> ModuleType:
    """A module of this collection, as the controller has it."""
    return importlib.import_module(MODULES + name)


def checked(name: str, given: Mapping[str, Any]) -> Optional[Checked]:
    """What a module is called with; None where only the host can say what that is."""
    spec, fields = module(name).OPTIONS, getattr(module(name), "REQUEST", None)
    if any(sign in path for path in _paths(spec, given) for sign in OF_THE_HOST):
        return None
    options = _validated(spec, given)
    if options is None or fields is None:
        return options
    handed = _validated(fields, options.options[request.NAME] or {})
    if handed is None:
        return None
    return Checked({**options.options, request.NAME: handed.options}, options.secrets | handed.secrets)


class _AsItIs(Dict[str, Any]):
    """A map that is not copied: files of models take longer than all else, and of a map without options nothing is converted."""

    def __deepcopy__(self, _memo: Any) -> Dict[str, Any]:
        return self


def _validated(spec: Mapping[str, Any], given: Mapping[str, Any]) -> Optional[Checked]:
    maps = {name: value for name, value in given.items() if isinstance(value, dict) and "options" not in spec.get(name, {})}
    found = ArgumentSpecValidator(spec).validate({**given, **{name: _AsItIs(value) for name, value in maps.items()}})
    if found.error_messages:
        return None
    return Checked({**found.validated_parameters, **maps}, set(found._no_log_values))


def _paths(spec: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """The paths among these options, and among those in them."""
    for name, option in spec.items():
        value = given.get(name)
        values = value if isinstance(value, list) else [value]
        if "path" in (option["type"], option.get("elements")):
            yield from (str(entry) for entry in values)
        for entry in values:
            if isinstance(entry, Mapping) and "options" in option:
                yield from _paths(option["options"], entry)
