"""How a module of this collection is asked: by Ansible, which has sent it, or by the host's library, which has it already.

Either way the controller hands over things beside its options: one private option, which is no playbook's to set.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Mapping, NoReturn, Protocol

NAME = "_request"
# Who changes a host: the run, the person at its controller, the host's name in the inventory
HOLDER: Dict[str, Any] = {
    "run": {"type": "str", "default": ""},
    "by": {"type": "str", "default": "unknown"},
    "host": {"type": "str", "default": ""},
}


class Module(Protocol):
    """What the modules have of Ansible's AnsibleModule."""

    params: Dict[str, Any]
    check_mode: bool
    _diff: bool

    def warn(self, warning: str) -> None:
        """A warning beside the result."""

    def exit_json(self, **kwargs: Any) -> NoReturn:
        """End with this result."""

    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
        """End as failed."""


class Called:
    """A module that the library calls. Ansible's own takes twice as long to import as all else.

    The controller has checked the options and what it hands over (plugin_utils/library.py), and keeps secrets out of the
    result.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.params: Dict[str, Any] = told["options"]
        self.check_mode, self._diff = bool(told["check_mode"]), bool(told["diff"])
        self._warnings: List[str] = []

    def warn(self, warning: str) -> None:
        self._warnings.append(warning)

    def exit_json(self, **kwargs: Any) -> NoReturn:
        self._end(0, kwargs)

    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn:
        self._end(1, {"failed": True, "msg": msg, **kwargs})

    def _end(self, code: int, result: Dict[str, Any]) -> NoReturn:
        warned = {"warnings": [*self._warnings, *result.get("warnings", [])]} if self._warnings else {}
        # A program: what it prints is for the controller
        sys.stdout.write("\n" + json.dumps({**result, **warned}) + "\n")
        sys.stdout.flush()
        raise SystemExit(code)


def sent(options: Dict[str, Any]) -> Module:
    """A module that Ansible has sent, with its argument_spec."""
    from ansible.module_utils.basic import AnsibleModule

    return AnsibleModule(argument_spec=options, supports_check_mode=True)


def received(module: Module, fields: Dict[str, Any]) -> Dict[str, Any]:
    """A module's options and these fields of what the controller handed over, in one; what is secret is in no result.

    `fields` is an argument_spec. Ends the module where they are not as it says.
    """
    handed = module.params[NAME] or {}
    if not isinstance(module, Called):
        handed = _checked(module, handed, fields)
    return {**{name: value for name, value in module.params.items() if name != NAME}, **handed}


def _checked(module: Any, handed: Dict[str, Any], fields: Dict[str, Any]) -> Dict[str, Any]:
    """As Ansible's AnsibleModule does it with options."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    found = ArgumentSpecValidator(fields).validate(handed)
    module.no_log_values.update(found._no_log_values)
    if found.error_messages:
        module.fail_json(msg=f"{NAME}: {'; '.join(found.error_messages)}: it is the controller's to fill in")
    return found.validated_parameters
