"""What the controller hands to a module beside its options: one private option, which is no playbook's to set."""

from __future__ import annotations

from typing import Any, Dict

NAME = "_request"
# Who changes a host: the run, the person at its controller, the host's name in the inventory
HOLDER: Dict[str, Any] = {
    "run": {"type": "str", "default": ""},
    "by": {"type": "str", "default": "unknown"},
    "host": {"type": "str", "default": ""},
}


def option(fields: Dict[str, Any]) -> Dict[str, Any]:
    """The private option with these fields, for an argument_spec; those that nobody hands over have their defaults."""
    return {NAME: {"type": "dict", "options": fields, "apply_defaults": True, "no_log": False}}


def merged(params: Dict[str, Any]) -> Dict[str, Any]:
    """A module's options and what the controller handed over, in one."""
    return {**{name: value for name, value in params.items() if name != NAME}, **params[NAME]}
