"""What a host says is data: the one place that makes it so, before it is shown, written down or named. Controller only.

No template, no path, no line of a file: whatever takes text of a host into one of these takes it from here.
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

# What a terminal obeys, what ends a line elsewhere than here, and what turns the order of letters round
UNSEEN = re.compile("\r\n|[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Deeper than any answer of a module; a reader of data that nests further ends with its stack
DEEPEST = 64
# Larger numbers are none that this project counts, and no float holds them
WIDEST = 64
NAME = 120
# Characters of an answer, and what each of its values counts beside its text
LONGEST, VALUE = 1 << 26, 8
DIGEST = re.compile("[0-9a-f]{64}")
# Text that is neither a template nor the header of one, however it is read
PLAIN = re.compile(r"[\w ./:,;@+=*~&()-]*", re.ASCII)
# What may go wrong with an answer that is not of the shape that it should have
MISFITS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Template(str):
    """A text that Ansible evaluates. Any other text may come from a host and is written as it is."""


class NoData(ValueError):
    """Text of a host that cannot be what it was said to be: found, wanted."""


class Misunderstood(Exception):
    """An answer that is not of the shape that it should have, in one message."""


def received(found: Any, deep: int = DEEPEST) -> Any:
    """An answer as data: no character that is not seen, no number beyond counting, no nesting beyond reading."""
    if isinstance(found, str):
        return UNSEEN.sub(_seen, found)
    if isinstance(found, int):
        return found if found.bit_length() <= WIDEST else f"a number of {found.bit_length()} bits"
    if deep == 0:
        raise NoData(f"found an answer that nests more than {DEEPEST} deep")
    if isinstance(found, dict):
        return {received(key, deep - 1): received(value, deep - 1) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return type(found)(received(entry, deep - 1) for entry in found)
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        # Warnings and errors, as Ansible hands them on
        fields = (field.name for field in dataclasses.fields(found))
        return dataclasses.replace(found, **{name: told(received(getattr(found, name), deep - 1)) for name in fields})
    return found


def bounded(host: str, module: str, found: Any) -> None:
    """Raise Misunderstood for an answer of a module, text or data, that is larger than any answer is."""
    left, parts = LONGEST, [found]
    while parts and left >= 0:
        part = parts.pop()
        left -= VALUE + (len(part) if isinstance(part, str) else 0)
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, (list, tuple)):
            parts += part
    if left < 0:
        raise Misunderstood(
            f"{host}: the answer of {module} has more than {LONGEST >> 20} MiB, expected less: nothing of it was taken. "
            "Find out who changed that host"
        )


def _seen(match: Match[str]) -> str:
    entry = match.group()
    return "\n" if entry == "\r\n" else "\\" + (f"x{ord(entry):02x}" if ord(entry) < 256 else f"u{ord(entry):04x}")


def told(found: Any) -> Any:
    """What is shown as it is: no line of it begins where Ansible's own lines begin."""
    if isinstance(found, list):
        return [told(entry) for entry in found]
    return re.sub(r"\n(?=[^\s])", "\n  ", found) if isinstance(found, str) else found


def line(text: Any) -> str:
    """Text as one line."""
    return " ".join(str(received(str(text))).split())


def comment(text: Any) -> str:
    """Text as a comment of a YAML file."""
    return f"# {line(text)}\n"


def file_name(text: str) -> str:
    """Any text as the name of one file: most names are their own, and no two texts share one."""
    raw = text.encode("utf-8", "surrogatepass")
    name = re.sub(r"^\.", "%2E", urllib.parse.quote(raw, safe=" +,=@")) or "%"
    return name if len(name) <= NAME else f"{name[: NAME - 17]}-{hashlib.sha256(raw).hexdigest()[:16]}"


def below(directory: str, path: str) -> str:
    """A file of this relative path below a directory."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts) or not path.isprintable():
        raise NoData(f"found the path {line(path)[:200]!r}, wanted one of a file below the model's directory")
    return os.path.join(directory, *parts)


def digest(text: Any) -> str:
    """A SHA-256 digest in hexadecimal."""
    if not (isinstance(text, str) and DIGEST.fullmatch(text)):
        raise NoData(f"found {line(text)[:80]!r}, wanted a SHA-256 digest")
    return text


def complete(found: Mapping[str, Any], *names: str) -> None:
    """Raise NoData for an answer without these parts: a host that has said nothing must not be taken for one that is as wanted."""
    silent = [name for name in names if name not in found]
    if silent:
        raise NoData(f"found no {' and no '.join(silent)}, wanted a whole answer")


class _Plain(yaml.SafeDumper):
    """As yamllint likes it."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


class _Variables(_Plain):
    """For a file that Ansible evaluates: text is marked as no template, but where it could not be one."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str" if PLAIN.fullmatch(value) else "!unsafe", value)


_Variables.add_representer(str, _text)
_Variables.add_representer(Template, lambda dumper, value: dumper.represent_str(str(value)))


def variables(found: Dict[str, Any]) -> str:
    """Variables as YAML for Ansible, in which nothing is evaluated but what is a Template."""
    return str(yaml.dump(found, Dumper=_Variables, sort_keys=False, width=130, allow_unicode=True))


def document(found: Dict[str, Any]) -> str:
    """YAML that nothing evaluates."""
    return str(yaml.dump(found, Dumper=_Plain, sort_keys=False, allow_unicode=True))


@contextmanager
def understood(host: str) -> Iterator[None]:
    """Turns what an answer of another shape raises into one refusal of the host."""
    try:
        yield
    except MISFITS as error:
        why = line(error)[:300] if isinstance(error, NoData) else f"{type(error).__name__}: {line(error)[:300]}"
        raise Misunderstood(
            f"{host} gave an answer that cannot be used ({why}): nothing of it was taken; find out who changed that host"
        ) from error
