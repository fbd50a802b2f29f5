"""Triton's schema of config.pbtxt: what a config says, which Triton knows each field, and the line on which it stands.

The schema is the newest one, so that a config for a newer Triton is read, and the finding is about the release that lacks a field.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import text as texts
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ENDS, ERROR, HANGS, REFUSES_TEXT, Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import meant
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.tokens import decoded, printable
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

FILE = os.path.join(
    COLLECTION,
    "files",
    "schemas",
    "model_config.json",
)
ROOT = "inference.ModelConfig"
_KEPT: List[Tuple[Any, Mapping[str, str]]] = []


def load() -> Tuple[Any, Mapping[str, str]]:
    """(the class ModelConfig, {message.field: the first Triton that knows it} of what the oldest does not know)."""
    if not _KEPT:
        try:
            from google.protobuf import descriptor_pool, message_factory
        except ImportError:
            raise Refusal(["the controller has no protobuf: `pip install -r requirements.txt`"]) from None
        with open(FILE, encoding="utf-8") as source:
            document = json.load(source)
        # A pool of its own: tritonclient may have registered another version of the same file.
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(base64.b64decode("".join(document["descriptor"])))
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(ROOT))
        _KEPT.append((kind, document["since"]))
    return _KEPT[0]


def parse(text: str, name: str, path: str) -> Tuple[Any, List[Finding]]:
    """(config.pbtxt as ModelConfig, findings); None instead of a config where the text cannot be read to its end.

    `path` is the file. The first finding is what Triton reports; after it come those that can be told apart from it.
    """
    kind, _since = load()
    parsed = texts.parse(text, kind())
    findings = []
    for problem in parsed.problems:
        wanted, do = "text of Triton's ModelConfig", problem.do or "correct the line"
        if problem.known:
            wanted = "one of its fields" if "no field named" in problem.message else f"one of {', '.join(problem.known)}"
            do = meant(problem.word, problem.known, "correct the name, or take it out")
        found = printable(f"{problem.note} ({problem.message})" if problem.note else problem.message)
        findings.append(Finding(name, path, problem.line, problem.path, found, wanted, do, ERROR, "syntax", REFUSES_TEXT))
    # What a value that nobody knows stands for is not known to the other rules either.
    unread = any(problem.known and "no field named" not in problem.message for problem in parsed.problems)
    return parsed.message if parsed.complete and not unread else None, findings


def unknown(text: str, triton: str) -> List[Tuple[texts.Place, str, str]]:
    """(where, what, the first Triton that knows it) of fields and values that this Triton does not know."""
    late = {name: first for name, first in load()[1].items() if number(first) > number(triton)}
    # The text is walked only where a word of it could be one of them.
    if not any(name.rpartition(".")[2] in text for name in late):
        return []
    found: List[Tuple[texts.Place, str, str]] = []
    for place in places(text):
        name = place.name if place.name in late else place.value
        # What stands inside an unknown field needs no finding of its own.
        inner = tuple(f"{other.path}{mark}" for other, _name, _first in found for mark in ".[")
        if name in late and not place.path.startswith(inner):
            found.append((place, name, short(late[name])))
    return found


def number(version: str) -> Tuple[int, ...]:
    """A Triton's version as one that can be compared."""
    return tuple(int(part) for part in version.split(".")[:3])


def short(version: str) -> str:
    """A Triton's version as people say it."""
    return ".".join(version.split(".")[:2])


def places(text: str) -> List[texts.Place]:
    """Every field of a text up to where it can be read, in its order."""
    kind, _since = load()
    return texts.parse(text, kind()).places


def word(message: Any, field: str) -> str:
    """The name of an enum's value in a message; of a number that has none, the number."""
    number = getattr(message, field)
    entry = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return str(entry.name if entry else number)


def read(path: str, name: str, raw: Optional[bytes] = None) -> Tuple[Any, str, List[Finding]]:
    """(config, text, findings) of a file, whose content `raw` may be read already; `name` is the model's."""
    if raw is None and os.path.isdir(path):
        found = [Finding(name, path, None, "", "a directory", "a file", "write the config as a file", ERROR, "syntax", ENDS)]
        return None, "", found
    if raw is None and not os.path.isfile(path):
        found = [
            Finding(name, path, None, "", "a name that is no file", "a file", "write the config as one", ERROR, "syntax", HANGS)
        ]
        return None, "", found
    try:
        if raw is None:
            with open(path, "rb") as source:
                raw = source.read()
    except OSError as error:
        why = f"a file that cannot be read ({error.strerror})"
        return None, "", [Finding(name, path, None, "", why, "a config.pbtxt of text", "correct it", ERROR, "syntax", REFUSES_TEXT)]
    text = decoded(raw)
    config, findings = parse(text, name, path)
    return config, printable(text), findings
