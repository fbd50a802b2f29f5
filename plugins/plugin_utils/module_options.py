"""Options of a module that the library of a host calls (module_utils/request.py): Ansible checks them here, and not on the host.

Who gives options that are not as the module says has it sent, to be refused by it as ever.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Set

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.npufleet.triton.plugins.module_utils import request

MODULES = "ansible_collections.npufleet.triton.plugins.modules."
# With these in it, a path is another one on the host
OF_THE_HOST = ("~", "$")


class Checked(NamedTuple):
    """Options with their defaults, and what of them no result may show."""

    options: Dict[str, Any]
    secrets: Set[str]


@cache
def found(module: str) -> ModuleType:
    """A module of this collection, as the controller has it."""
    return importlib.import_module(MODULES + module)


def checked(module: str, given: Mapping[str, Any]) -> Optional[Checked]:
    """What a module is called with; None where only the host can say what that is."""
    spec, fields = found(module).OPTIONS, getattr(found(module), "REQUEST", None)
    if any(sign in path for path in _paths(spec, given) for sign in OF_THE_HOST):
        return None
    options = ArgumentSpecValidator(spec).validate(dict(given))
    if options.error_messages:
        return None
    merged, secrets = dict(options.validated_parameters), set(options._no_log_values)
    if fields is not None:
        handed = ArgumentSpecValidator(fields).validate(merged[request.NAME] or {})
        if handed.error_messages:
            return None
        merged[request.NAME] = handed.validated_parameters
        secrets |= handed._no_log_values
    return Checked(merged, secrets)


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
