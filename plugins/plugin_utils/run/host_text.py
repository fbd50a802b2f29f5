# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Conversion of text from hosts to data that can be shown, written or used as a name.

A host can send any text. Only this module may turn such a text into a template, a path or a line of a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import urllib.parse
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Mapping, Match

import yaml

# Control characters, line ends of other systems, and characters that change the direction of text
INVISIBLE = re.compile("\r\n|[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# The most levels of nesting. Deeper data, which no valid answer has, would exhaust the stack of a parser.
MAX_DEPTH = 64
# The most bits of a number. No real count or size is larger.
MAX_BITS = 64
# The most characters of a file name
MAX_FILE_NAME = 120
# The most characters of an answer, and the number of characters that check_size adds for each value in it
MAX_CHARACTERS, CHARACTERS_PER_VALUE = 1 << 26, 8
DIGEST = re.compile("[0-9a-f]{64}")
# Text that Ansible evaluates neither as a template nor as the header `#jinja2:` of a template
PLAIN = re.compile(r"[\w ./:,;@+=*~&()-]*", re.ASCII)
# Errors that Python raises if code reads an answer of an unexpected shape
SHAPE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Template(str):
    """A text that Ansible evaluates as a template. Other texts can come from a host, so they are written literally."""


class InvalidText(ValueError):
    """An invalid text of a host. The message has the actual and the expected value."""


class InvalidAnswer(Exception):
    """An answer of a host that has an unexpected shape or size."""


def sanitized(data: Any, depth: int = MAX_DEPTH) -> Any:
    """Return an answer as data that has only visible characters, small numbers and limited nesting. Raises InvalidText."""
    if isinstance(data, str):
        return INVISIBLE.sub(_escaped, data)
    if isinstance(data, int):
        return data if data.bit_length() <= MAX_BITS else f"a number of {data.bit_length()} bits"
    if depth == 0:
        raise InvalidText(f"the answer is nested more than {MAX_DEPTH} levels deep")
    if isinstance(data, dict):
        return {sanitized(key, depth - 1): sanitized(entry, depth - 1) for key, entry in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(sanitized(entry, depth - 1) for entry in data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        # Warnings and errors are dataclasses of Ansible.
        fields = (field.name for field in dataclasses.fields(data))
        return dataclasses.replace(data, **{name: indented(sanitized(getattr(data, name), depth - 1)) for name in fields})
    return data


def check_size(host: str, module: str, value: Any) -> None:
    """Raise InvalidAnswer if an answer of a module is larger than any valid answer."""
    remaining, pending = MAX_CHARACTERS, [value]
    while pending and remaining >= 0:
        entry = pending.pop()
        remaining -= CHARACTERS_PER_VALUE + (len(entry) if isinstance(entry, str) else 0)
        if isinstance(entry, dict):
            pending += [*entry, *entry.values()]
        elif isinstance(entry, (list, tuple)):
            pending += entry
    if remaining < 0:
        raise InvalidAnswer(
            f"{host}: the answer of {module} has more than {MAX_CHARACTERS >> 20} MiB, expected less. The answer was not used. "
            "Find out who changed that host"
        )


def _escaped(match: Match[str]) -> str:
    entry = match.group()
    return "\n" if entry == "\r\n" else "\\" + (f"x{ord(entry):02x}" if ord(entry) < 256 else f"u{ord(entry):04x}")


def indented(value: Any) -> Any:
    """Return text with all lines but the first indented, so that no line looks like output of Ansible."""
    if isinstance(value, list):
        return [indented(entry) for entry in value]
    return re.sub(r"\n(?=[^\s])", "\n  ", value) if isinstance(value, str) else value


def line(text: Any) -> str:
    """Return text as one line."""
    return " ".join(str(sanitized(str(text))).split())


def comment(text: Any) -> str:
    """Return text as a comment of a YAML file."""
    return f"# {line(text)}\n"


def file_name(text: str) -> str:
    """Return a file name for any text. Most texts are returned unchanged, and no two texts get the same file name."""
    raw = text.encode("utf-8", "surrogatepass")
    name = re.sub(r"^\.", "%2E", urllib.parse.quote(raw, safe=" +,=@")) or "%"
    return name if len(name) <= MAX_FILE_NAME else f"{name[: MAX_FILE_NAME - 17]}-{hashlib.sha256(raw).hexdigest()[:16]}"


def path_below(directory: str, path: str) -> str:
    """Return the path of a file below a directory. Raises InvalidText for a path that leads out of the directory."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts) or not path.isprintable():
        raise InvalidText(f"the path is {line(path)[:200]!r}, expected a file below the directory of the model")
    return os.path.join(directory, *parts)


def digest(text: Any) -> str:
    """Return a text that is a SHA-256 digest in hexadecimal. Raises InvalidText for any other value."""
    if not (isinstance(text, str) and DIGEST.fullmatch(text)):
        raise InvalidText(f"the digest is {line(text)[:80]!r}, expected a SHA-256 digest")
    return text


def require_keys(value: Mapping[str, Any], *names: str) -> None:
    """Raise InvalidText if an answer lacks one of these keys. Without this check, an empty answer would count as in sync."""
    missing = [name for name in names if name not in value]
    if missing:
        raise InvalidText(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, expected a complete answer")


class _Plain(yaml.SafeDumper):
    """A dumper of YAML that yamllint accepts."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


class _Variables(_Plain):
    """A dumper of YAML for Ansible. It marks each text that could be a template as unsafe."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str" if PLAIN.fullmatch(value) else "!unsafe", value)


_Variables.add_representer(str, _text)
_Variables.add_representer(Template, lambda dumper, value: dumper.represent_str(str(value)))


def variables(value: Dict[str, Any]) -> str:
    """Return variables as YAML for Ansible. Ansible evaluates only texts of type Template."""
    return str(yaml.dump(value, Dumper=_Variables, sort_keys=False, width=130, allow_unicode=True))


def document(value: Dict[str, Any]) -> str:
    """Return data as YAML for readers that evaluate no templates, so no text is marked as unsafe."""
    return str(yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True))


@contextmanager
def rejecting_invalid_answers(host: str) -> Iterator[None]:
    """Convert errors from an answer of an unexpected shape into InvalidAnswer, whose message names the host."""
    try:
        yield
    except SHAPE_ERRORS as error:
        why = line(error)[:300] if isinstance(error, InvalidText) else f"{type(error).__name__}: {line(error)[:300]}"
        raise InvalidAnswer(
            f"{host} gave an answer that cannot be used ({why}). The answer was not used. Find out who changed that host"
        ) from error
