"""What the controller hands to a module beside its options: one private option, which is no playbook's to set."""

from __future__ import annotations

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

NAME = "_request"
# Who changes a host: the run, the person at its controller, the host's name in the inventory
HOLDER: Dict[str, Any] = {
    "run": {"type": "str", "default": ""},
    "by": {"type": "str", "default": "unknown"},
    "host": {"type": "str", "default": ""},
}


def received(module: AnsibleModule, fields: Dict[str, Any]) -> Dict[str, Any]:
    """A module's options and these fields of what the controller handed over, in one; what is secret is in no result.

    `fields` is an argument_spec. Ends the module where they are not as it says.
    """
    found = ArgumentSpecValidator(fields).validate(module.params[NAME] or {})
    module.no_log_values.update(found._no_log_values)
    if found.error_messages:
        module.fail_json(msg=f"{NAME}: {'; '.join(found.error_messages)}: it is the controller's to fill in")
    return {**{name: value for name, value in module.params.items() if name != NAME}, **found.validated_parameters}
