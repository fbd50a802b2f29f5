# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Conversion of variables and their parts to the types that argument_specs.yml declares.

Ansible's own check of role arguments converts nothing. It also accepts wrong values: a text instead of a list (split at commas), a
list instead of a text, and `true` instead of a number.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.module_utils.secret import has_login
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import bounds, logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, own_yaml

# {type: (its name in messages, how to correct a value of another type)}
EXPECTED = {
    "str": ("text", "Write it in quotes"),
    "path": ("a path", "Write it in quotes"),
    "int": ("a whole number", "Correct it"),
    "bool": ("true or false", "Correct it"),
    "list": ("a list", "Write it as [one, two], on a command line inside JSON"),
    "dict": ("a map", "Write it as {key: value}, on a command line inside JSON"),
}
# The maximum number of bits of a number, and of characters of a text, that a message shows
MAX_SHOWN_BITS, MAX_SHOWN_TEXT = 128, 60
TEXT = {"type": "str"}
TEXTS = {"type": "list", "elements": "str"}
# Comparisons of a kernel's version, with or without its build, joined by commas
KERNELS = {
    "type": "str",
    "pattern": re.compile(r"((==|>=|<=)\d+(\.\d+)*(-\d+(\.\d+)*)?(,(?!$)|$))+"),
    "form": "a rule such as ==6.8.0,<=6.8.0-138",
}
# Without quotes, YAML would parse the text as a date.
DATE = {
    "type": "str",
    "pattern": re.compile(r"\d{4}-\d\d-\d\d"),
    "form": 'a date in quotes, such as "2026-08-18"',
    "required": True,
}
TRITON = {"type": "str", "pattern": re.compile(r"\d\d\.\d\d"), "form": "a release of Triton such as 26.07"}


def _map(required: str, **more: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the spec of a map. `required` are the names of its required texts, `more` are the specs of its other keys."""
    return {"type": "dict", "options": {**{name: {**TEXT, "required": True} for name in required.split()}, **more}}


ROW = _map(
    "",
    sdk={**_map("package version shape"), "required": True},
    driver={**_map("package version", form={**TEXT, "choices": ["deb", "rpm", "run"], "required": True}), "required": True},
    triton={**_map("version image python tritonclient numpy"), "required": True},
    llm=_map("vllm_rbln vllm image_vllm optimum_rbln torch torch_rbln"),
    cards={**TEXTS, "required": True},
    systems={"type": "dict", "values": KERNELS, "required": True},
    untested_systems=TEXTS,
    untested=TEXT,
    vulnerabilities=_map("", as_of=DATE, bulletins={"type": "dict", "values": TRITON, "required": True}),
)
# Specs of the values of maps whose keys the site chooses. argument_specs.yml cannot express these specs. `shown_as` is the variable
# that the user has to correct.
MAPS: Dict[Tuple[str, ...], Dict[str, Any]] = {
    ("triton_models", "artefacts"): {
        "values": _map("", url=TEXT, file=TEXT, sha256=TEXT, path=TEXT, size={"type": "int"}, record={"type": "raw"})
    },
    ("npufleet_extra_releases",): {"values": ROW},
    ("npufleet_release_rows",): {"values": ROW, "shown_as": "npufleet_extra_releases"},
    ("docker_engine_unit_limits",): {"values": {"type": "dict", "values": TEXT}},
    ("triton_server_environment",): {"values": TEXT},
    ("triton_server_log_options",): {"values": TEXT},
    ("inference_check_headers",): {"values": TEXT},
}


@cache
def inventory_specs() -> Dict[str, Mapping[str, Any]]:
    """Return {variable: its spec} for all roles, with the specs of MAPS and the bounds."""
    specs: Dict[str, Mapping[str, Any]] = {}
    for path in sorted(glob.glob(os.path.join(COLLECTION, "roles", "*", "meta", "argument_specs.yml"))):
        for entry in own_yaml(path)["argument_specs"].values():
            specs.update(entry.get("options") or {})
    for names, extension in MAPS.items():
        options: Any = specs
        for name in names[:-1]:
            options = options[name]["options"]
        options[names[-1]] = {**options[names[-1]], **extension}
    return {name: bounds.bounded(name, spec) for name, spec in specs.items()}


def converted(name: str, value: Any, spec: Mapping[str, Any]) -> Any:
    """Return the value of a variable, converted to its type. Raises Refusal with all errors of the value."""
    reasons: List[str] = []
    result = _convert(spec.get("shown_as", name), value, spec, reasons)
    if reasons:
        raise Refusal(reasons)
    return result


def _convert(location: str, value: Any, spec: Mapping[str, Any], reasons: List[str]) -> Any:
    """Return a value, converted to its type, and append its errors to `reasons`. `location` names the value in messages."""
    kind = spec.get("type", "str")
    login = _login_reason(location, value, kind, spec)
    if login:
        reasons.append(login)
    if login or kind == "raw":
        return value
    # In the spec of a list, `choices` belongs to the elements.
    choices = spec.get("choices") if kind != "list" else None
    if isinstance(value, bool) and choices:
        # YAML parses a bare `no` as false.
        value = next((choice for choice in choices if choice in (("yes", "on") if value else ("no", "off"))), value)
    result = CASTS[kind](value)
    if result is None or (choices and result not in choices):
        expected, todo = EXPECTED[kind]
        if choices:
            expected, todo = " or ".join(map(str, choices)), "Correct it"
        elif isinstance(value, float) and kind in ("str", "path"):
            todo = "Write it in quotes, as YAML makes 26.10 the number 26.1"
        reasons.append(f"{location} is {_shown(value, kind, spec)}, expected {expected}. {todo}.")
    elif "pattern" in spec and not spec["pattern"].fullmatch(result):
        reasons.append(f"{location} is {_shown(value, kind, spec)}, expected {spec['form']}. Correct it.")
    elif "bound" in spec and not spec["bound"].fits(result):
        reasons.append(
            f"{location} is {_out_of_bounds(result, spec)}, expected {spec['bound'].expected}. {spec['bound'].next_step}."
        )
    elif kind == "list":
        return [
            _convert(f"{location}[{_label(entry, number)}]", entry, spec["element"], reasons) for number, entry in enumerate(result)
        ]
    elif kind == "dict" and "options" in spec:
        return _convert_options(location, result, spec["options"], reasons)
    elif kind == "dict" and "values" in spec:
        for key in (str(key) for key in result if not spec["key"].fits(str(key))):
            reasons.append(f"{location} has the key {_line(key)}, expected {spec['key'].expected}. {spec['key'].next_step}.")
        return {
            str(key): _convert(f"{location}[{_line(str(key))}]", entry, spec["values"], reasons) for key, entry in result.items()
        }
    return result


def _login_reason(location: str, value: Any, kind: str, spec: Mapping[str, Any]) -> str:
    """Return the error of a value that contains a login, or "". The parts of lists and maps are checked one by one."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and not ("@" in value or "%" in value)):
        return ""
    if spec.get("no_log") or ("bound" in spec and spec["bound"].secret):
        return ""
    parts = isinstance(value, (list, tuple, Mapping)) and (kind == "list" or "options" in spec or "values" in spec)
    return "" if parts else logins.refusal(location, spec["variable"], value)


def _convert_options(
    location: str, value: Mapping[Any, Any], options: Mapping[str, Mapping[str, Any]], reasons: List[str]
) -> Dict[str, Any]:
    """Return a map with known keys, with each value converted to its type. A key without a value counts as absent."""
    for key in (part for part in value if part not in options):
        similar = difflib.get_close_matches(str(key), options, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else "Remove it."
        reasons.append(f"{location}.{key} is an unknown key, expected one of {', '.join(options)}. {hint}")
    missing = [name for name, option in options.items() if option.get("required") and value.get(name) is None]
    reasons += [f"{location}.{name} is missing, expected {EXPECTED[options[name]['type']][0]}. Add it." for name in missing]
    return {
        name: _convert(f"{location}.{name}", value[name], option, reasons)
        for name, option in options.items()
        if value.get(name) is not None
    }


def _label(element: Any, number: int) -> Any:
    """Return the `name` of an element of a list for messages, or else its number."""
    name = element.get("name") if isinstance(element, Mapping) else None
    return _line(name) if isinstance(name, str) and name else number


def _shown(value: Any, kind: str, spec: Mapping[str, Any]) -> str:
    """Return a value of a wrong type for a message. A text in place of a list or a map is hidden, because it can be a secret."""
    if value is None:
        return "empty"
    if isinstance(value, (list, tuple, Mapping)):
        return "a map" if isinstance(value, Mapping) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if kind in ("list", "dict") or spec.get("no_log"):
        return "a number" if isinstance(value, (int, float)) else "text"
    return _digits(value) if isinstance(value, (int, float)) else _line(str(value))


def _out_of_bounds(value: Any, spec: Mapping[str, Any]) -> str:
    if isinstance(value, (list, tuple, Mapping)):
        return f"a {'map' if isinstance(value, Mapping) else 'list'} of {len(value)} entries"
    if spec.get("no_log") or spec["bound"].secret:
        return "another text" if isinstance(value, str) else "another number"
    return _line(value) if isinstance(value, str) else _digits(value)


def _digits(value: float) -> str:
    """Return a number for a message. Python refuses to convert very long integers to text."""
    long = isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS
    return f"a number of {int(value).bit_length()} bits" if long else short(value, 60)


def _line(text: str) -> str:
    """Return the beginning of a text as one line of printable characters."""
    if text and len(text) <= MAX_SHOWN_TEXT and text.isprintable() and "@" not in text and "%" not in text:
        return text
    if has_login(text):
        return "a text with a login"
    if bounds.CONTROL.search(text):
        return short(ascii(text[:MAX_SHOWN_TEXT]), MAX_SHOWN_TEXT)
    return short(text, MAX_SHOWN_TEXT) or '""'


def _text(value: Any) -> Optional[str]:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> Optional[int]:
    if isinstance(value, bool):
        return None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", value) else None


def _boolean(value: Any) -> Optional[bool]:
    try:
        return bool(boolean(value))
    except TypeError:
        return None


# Each function returns None for a value that is not of its type.
CASTS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "path": _text,
    "int": _number,
    "bool": _boolean,
    "list": lambda value: value if isinstance(value, (list, tuple)) else None,
    "dict": lambda value: value if isinstance(value, Mapping) else None,
}
