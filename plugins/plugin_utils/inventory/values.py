"""Values of variables as argument_specs.yml has them: each takes the type that it says, nested ones too, or is refused.

Controller only. Ansible's own check of a role looks and converts nothing, and lets pass what would be misread: it splits a text at
its commas where a list belongs, writes a list out where a text belongs, and counts `true` as a number.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.module_utils.secret import has_login
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import bounds, logins

# Of each type: what a person calls it, and what to do about a value of another one
WANTED = {
    "str": ("text", "write it as one, in quotes"),
    "path": ("a path", "write it as one, in quotes"),
    "int": ("a whole number", "correct it"),
    "bool": ("true or false", "correct it"),
    "list": ("a list", "write it as [one, two], on a command line inside of JSON"),
    "dict": ("a map", "write it as {key: value}, on a command line inside of JSON"),
}
# Bits of a number and characters of a text that a message shows in full
LONG, SHOWN = 128, 60
TEXT = {"type": "str"}
TEXTS = {"type": "list", "elements": "str"}
# Comparisons of a kernel's version, or of that and its build, joined by commas
KERNELS = {
    "type": "str",
    "pattern": re.compile(r"((==|>=|<=)\d+(\.\d+)*(-\d+(\.\d+)*)?(,(?!$)|$))+"),
    "form": "a rule such as ==6.8.0,<=6.8.0-138",
}
# YAML makes a date of one without quotes
DATE = {
    "type": "str",
    "pattern": re.compile(r"\d{4}-\d\d-\d\d"),
    "form": 'a date in quotes, such as "2026-08-18"',
    "required": True,
}
TRITON = {"type": "str", "pattern": re.compile(r"\d\d\.\d\d"), "form": "a release of Triton such as 26.07"}


def _map(required: str, **more: Mapping[str, Any]) -> Dict[str, Any]:
    """The spec of a map that has to have these texts, and may have more."""
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
# What argument_specs.yml cannot say: of a map with names of a site's own, what each value is. `told_as` is the variable to correct.
MAPS: Dict[Tuple[str, ...], Dict[str, Any]] = {
    ("triton_models", "artefacts"): {
        "values": _map("", url=TEXT, file=TEXT, sha256=TEXT, path=TEXT, size={"type": "int"}, record={"type": "raw"})
    },
    ("npufleet_extra_releases",): {"values": ROW},
    ("npufleet_release_rows",): {"values": ROW, "told_as": "npufleet_extra_releases"},
    ("docker_engine_unit_limits",): {"values": {"type": "dict", "values": TEXT}},
    ("triton_server_environment",): {"values": TEXT},
    ("triton_server_log_options",): {"values": TEXT},
    ("inference_check_headers",): {"values": TEXT},
}


def complete(specs: Dict[str, Mapping[str, Any]]) -> Dict[str, Mapping[str, Any]]:
    """Return the specs by variable, with what MAPS says of them and with the bounds of their values."""
    for names, more in MAPS.items():
        options: Any = specs
        for name in names[:-1]:
            options = options[name]["options"]
        options[names[-1]] = {**options[names[-1]], **more}
    return {name: bounds.bounded(name, spec) for name, spec in specs.items()}


def fitted(name: str, value: Any, spec: Mapping[str, Any]) -> Any:
    """The value of a variable in its type. Raises Refusal with everything that is wrong with it."""
    reasons: List[str] = []
    made = _fit(spec.get("told_as", name), value, spec, reasons)
    if reasons:
        raise Refusal(reasons)
    return made


def _fit(where: str, value: Any, spec: Mapping[str, Any], reasons: List[str]) -> Any:
    kind = spec.get("type", "str")
    login = _login(where, value, kind, spec)
    if login:
        reasons.append(login)
        return value
    if kind == "raw":
        return value
    # Those of a list are its elements' own
    choices = spec.get("choices") if kind != "list" else None
    if isinstance(value, bool) and choices:
        # YAML takes a bare `no` for false
        value = next((choice for choice in choices if choice in (("yes", "on") if value else ("no", "off"))), value)
    made = CASTS[kind](value)
    wanted, todo = WANTED[kind]
    if made is None or (choices and made not in choices):
        if choices:
            wanted, todo = " or ".join(map(str, choices)), "correct it"
        elif isinstance(value, float) and kind in ("str", "path"):
            todo = "quote it, or YAML makes 26.10 the number 26.1"
        reasons.append(f"{where}: found {_found(value, kind, spec)}, wanted {wanted}: {todo}")
    elif "pattern" in spec and not spec["pattern"].fullmatch(made):
        reasons.append(f"{where}: found {_found(value, kind, spec)}, wanted {spec['form']}: correct it")
    elif "bound" in spec and not spec["bound"].fits(made):
        reasons.append(f"{where} is {_outside(made, spec)}, expected {spec['bound'].expected}. {spec['bound'].todo}.")
    elif kind == "list":
        element = spec.get("element") or bounds.element(spec)
        return [_fit(f"{where}[{_label(entry, number)}]", entry, element, reasons) for number, entry in enumerate(made)]
    elif kind == "dict" and "options" in spec:
        return _fit_options(where, made, spec["options"], reasons)
    elif kind == "dict" and "values" in spec:
        for key in (str(key) for key in made if "key" in spec and not spec["key"].fits(str(key))):
            reasons.append(f"{where} has the key {_line(key)}, expected {spec['key'].expected}. {spec['key'].todo}.")
        return {str(key): _fit(f"{where}[{_line(str(key))}]", entry, spec["values"], reasons) for key, entry in made.items()}
    return made


def _login(where: str, value: Any, kind: str, spec: Mapping[str, Any]) -> str:
    """Return why a value with a login is refused; what is in lists and maps of known parts is looked at there."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and not ("@" in value or "%" in value)):
        # Most values, at a look
        return ""
    bound = spec.get("bound")
    if spec.get("no_log") or (bound and bound.secret) or "variable" not in spec:
        return ""
    parts = isinstance(value, (list, tuple, Mapping)) and (kind == "list" or "options" in spec or "values" in spec)
    return "" if parts else logins.refusal(where, spec["variable"], value)


def _fit_options(
    where: str, value: Mapping[Any, Any], options: Mapping[str, Mapping[str, Any]], reasons: List[str]
) -> Dict[str, Any]:
    """A map with keys that are known. One without a value counts as left out."""
    for key in (part for part in value if part not in options):
        near = difflib.get_close_matches(str(key), options, n=1)
        hint = f"did you mean {near[0]}?" if near else "take it out"
        reasons.append(f"{where}.{key}: found a key that nothing reads, wanted {', '.join(options)}: {hint}")
    lacking = [name for name, option in options.items() if option.get("required") and value.get(name) is None]
    reasons += [f"{where}.{name}: found nothing, wanted {WANTED[options[name]['type']][0]}: add it" for name in lacking]
    return {
        name: _fit(f"{where}.{name}", value[name], option, reasons)
        for name, option in options.items()
        if value.get(name) is not None
    }


def _label(element: Any, number: int) -> Any:
    """How an element of a list is told from the others."""
    name = element.get("name") if isinstance(element, Mapping) else None
    return _line(name) if isinstance(name, str) and name else number


def _found(value: Any, kind: str, spec: Mapping[str, Any]) -> str:
    """What was found, as far as it is anybody's business: where a list or a map belongs, a text may hold anything."""
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple, Mapping)):
        return "a map" if isinstance(value, Mapping) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if kind in ("list", "dict") or spec.get("no_log"):
        return "a number" if isinstance(value, (int, float)) else "text"
    if isinstance(value, (int, float)):
        return _digits(value)
    # What only YAML has, such as a date
    return _line(str(value))


def _outside(value: Any, spec: Mapping[str, Any]) -> str:
    """Return a value that does not fit its bound, as far as anybody may see it."""
    if isinstance(value, (list, tuple, Mapping)):
        return f"a {'map' if isinstance(value, Mapping) else 'list'} of {len(value)} entries"
    if spec.get("no_log") or spec["bound"].secret:
        return "another text" if isinstance(value, str) else "another number"
    return _line(value) if isinstance(value, str) else _digits(value)


def _digits(value: float) -> str:
    """Return a number as a message shows it; Python itself refuses to write a long one."""
    long = isinstance(value, int) and value.bit_length() > LONG
    return f"a number of {int(value).bit_length()} bits" if long else short(value, 60)


def _line(text: str) -> str:
    """Return the beginning of a text in one line of characters that a terminal shows."""
    if text and len(text) <= SHOWN and text.isprintable() and "@" not in text and "%" not in text:
        return text
    if has_login(text):
        return "a text with a login"
    if bounds.CONTROL.search(text):
        return short(ascii(text[:SHOWN]), SHOWN)
    return short(text, SHOWN) or '""'


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


def _switch(value: Any) -> Optional[bool]:
    try:
        return bool(boolean(value))
    except TypeError:
        return None


# Each returns None for a value that is not of its type
CASTS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "path": _text,
    "int": _number,
    "bool": _switch,
    "list": lambda value: value if isinstance(value, (list, tuple)) else None,
    "dict": lambda value: value if isinstance(value, Mapping) else None,
}
