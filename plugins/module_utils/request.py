# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The two ways to run a module of this collection: from the library on a host, or as a file that Ansible copies to the host.

The library calls the function `run` of the module. In a copied file, Ansible calls `main`.
In both cases, the controller also passes parameters (the request) in the private option NAME, which playbooks do not set.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Collection, Dict, List, NoReturn, Protocol, Sequence

NAME = "_request"
MODULES = "ansible_collections.npufleet.triton.plugins.modules."
# Secrets are masked in all fields of a result except CONTROL and NAMES. CONTROL: fields that playbooks evaluate. In results of this
# collection, "ansible_facts" contains only the Python interpreter that Ansible has found. NAMES: fields of nested maps with names.
CONTROL = (
    "actual", "ansible_facts", "data", "desired", "files", "forgotten", "found", "held", "held_by", "id", "lacks", "maintenance",
    "mark", "moves", "plan", "python", "raw", "seen", "settled", "taken_over",
)  # fmt: skip
NAMES = ("name", "model", "protocol", "step", "at")
# The masks of Ansible: MASK replaces a secret in a longer text, and MASKED replaces a text that is equal to a secret.
MASK, MASKED = "********", "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
# Options that identify the holder of a lease: the ID of the run, the user who started it, and the host's name in the inventory
HOLDER_OPTIONS: Dict[str, Any] = {
    "run": {"type": "str", "default": ""},
    "by": {"type": "str", "default": "unknown"},
    "host": {"type": "str", "default": ""},
}


class Module(Protocol):
    """The part of Ansible's AnsibleModule that the modules use."""

    params: Dict[str, Any]
    check_mode: bool
    _diff: bool

    def warn(self, warning: str) -> None:
        """Add a warning to the result."""

    def exit_json(self, **kwargs: Any) -> NoReturn:
        """End the module successfully with this result."""

    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
        """End the module as failed."""


def mask_result(result: Mapping[str, Any], secrets: Collection[str]) -> Dict[str, Any]:
    """Return a result with secrets masked in its texts, except in the fields that playbooks evaluate.

    These fields are not masked, because a password can be equal to a word that a playbook evaluates, such as `driver`.
    """
    longest_first = sorted(filter(None, map(str, secrets)), key=len, reverse=True)
    if not longest_first:
        return dict(result)
    return {key: value if key in CONTROL else _mask_value(value, longest_first) for key, value in result.items()}


def _mask_value(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        if value in secrets:
            return MASKED
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, Mapping):
        return {key: entry if key in NAMES else _mask_value(entry, secrets) for key, entry in value.items()}
    return [_mask_value(entry, secrets) for entry in value] if isinstance(value, (list, tuple)) else value


class LibraryModule:
    """A replacement for AnsibleModule in modules that run from the library of the host.

    The controller validates the options and the request before the call (plugin_utils/library.py), and masks secrets in the result.
    """

    def __init__(self, parameters: Mapping[str, Any], check_mode: bool, diff: bool) -> None:
        self.params: Dict[str, Any] = dict(parameters)
        self.check_mode, self._diff = check_mode, diff
        self._warnings: List[str] = []

    def warn(self, warning: str) -> None:
        self._warnings.append(warning)

    def exit_json(self, **kwargs: Any) -> NoReturn:
        self._end(0, kwargs)

    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
        self._end(1, {"failed": True, "msg": msg, **kwargs})

    def _end(self, code: int, result: Dict[str, Any]) -> NoReturn:
        warned = {"warnings": [*self._warnings, *result.get("warnings", [])]} if self._warnings else {}
        # Ansible reads the result from the output of the program.
        sys.stdout.write("\n" + json.dumps({**result, **warned}) + "\n")
        sys.stdout.flush()
        raise SystemExit(code)


def ansible_module(options: Dict[str, Any]) -> Module:
    """Return the AnsibleModule of a module that Ansible has copied to the host."""
    from ansible.module_utils.basic import AnsibleModule

    class CopiedModule(AnsibleModule):
        """An AnsibleModule that does not mask the fields that playbooks evaluate."""

        def warn(self, warning: str, **more: Any) -> None:
            super().warn(mask_result({"msg": warning}, self.no_log_values)["msg"], **more)

        def exit_json(self, **kwargs: Any) -> NoReturn:
            super().exit_json(**self._mask_result(kwargs))
            raise SystemExit(0)

        def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
            super().fail_json(**self._mask_result({"msg": msg, **kwargs}))
            raise SystemExit(1)

        def _mask_result(self, result: Dict[str, Any]) -> Dict[str, Any]:
            if not self.no_log_values:
                return result
            masked = mask_result(result, self.no_log_values)
            self.no_log_values.clear()
            # Without this field, Ansible would add the options, which can be secret.
            return {**masked, "invocation": {}}

    module: Module = CopiedModule(argument_spec={**options, NAME: {"type": "dict"}}, supports_check_mode=True)
    return module


def run_module(name: str, parameters: Mapping[str, Any], check_mode: bool, diff: bool) -> None:
    """Run a module of the library for modules/library_call.py. The module prints its result and exits."""
    os.chdir("/")
    importlib.import_module(MODULES + name).run(LibraryModule(parameters, check_mode, diff))


def merge_request(module: Module, fields: Dict[str, Any]) -> Dict[str, Any]:
    """Return the options of a module and the fields of its request as one map. Secrets in the request are masked in results.

    `fields` is the argument_spec of the request. The module fails if the request does not match.
    """
    request = module.params[NAME] or {}
    if not isinstance(module, LibraryModule):
        request = _validated(module, request, fields)
    return {**{name: value for name, value in module.params.items() if name != NAME}, **request}


def _validated(module: Any, request: Dict[str, Any], fields: Dict[str, Any]) -> Dict[str, Any]:
    """Return the request with converted types and defaults. The module fails if the request is invalid."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    validation = ArgumentSpecValidator(fields).validate(request)
    module.no_log_values.update(validation._no_log_values)
    if validation.error_messages:
        reasons = "; ".join(validation.error_messages)
        module.fail_json(msg=f"{NAME}: {reasons}: only the controller sets it. Call the module as npufleet.triton.<name>")
    return validation.validated_parameters
