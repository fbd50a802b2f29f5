"""The two ways in which a module of this collection is called: from the library that a host keeps, or sent by Ansible.

In both cases the controller passes a request beside the options of the module: one private option, which no playbook sets.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Dict, List, Mapping, NoReturn, Protocol

NAME = "_request"
MODULES = "ansible_collections.npufleet.triton.plugins.modules."
# The holder of a lease: the run, the person at its controller, the name of the host in the inventory
HOLDER: Dict[str, Any] = {
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
        """End with this result."""

    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
        """End as failed."""


class LibraryModule:
    """A module that runs from the library of the host, without Ansible's AnsibleModule.

    The controller has validated the options and the request (plugin_utils/library.py), and masks secrets in the result.
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
    """Return the AnsibleModule of a module that Ansible has sent."""
    from ansible.module_utils.basic import AnsibleModule

    return AnsibleModule(argument_spec=options, supports_check_mode=True)


def run_module(name: str, parameters: Mapping[str, Any], check_mode: bool, diff: bool) -> None:
    """Run a module of the library (modules/library_call.py): it prints its result and exits."""
    os.chdir("/")
    importlib.import_module(MODULES + name).run(LibraryModule(parameters, check_mode, diff))


def merge_request(module: Module, fields: Dict[str, Any]) -> Dict[str, Any]:
    """Return the options of a module and these fields of its request as one map; no result shows what of them is secret.

    `fields` is an argument_spec. The module ends as failed if the request does not match it.
    """
    request = module.params[NAME] or {}
    if not isinstance(module, LibraryModule):
        request = _validated(module, request, fields)
    return {**{name: value for name, value in module.params.items() if name != NAME}, **request}


def _validated(module: Any, request: Dict[str, Any], fields: Dict[str, Any]) -> Dict[str, Any]:
    """Return the request with its types and defaults, as AnsibleModule does it with options."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    found = ArgumentSpecValidator(fields).validate(request)
    module.no_log_values.update(found._no_log_values)
    if found.error_messages:
        module.fail_json(msg=f"{NAME}: {'; '.join(found.error_messages)}: only the controller sets it")
    return found.validated_parameters
