"""Triton's schema of config.pbtxt: what a config says, which Triton knows each field, and the line on which it stands.

The schema is the newest one, so that a config for a newer Triton is read, and the finding is about the release that lacks a field.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.lint.finding import ERROR, Finding
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

FILE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))),
    "files",
    "schemas",
    "model_config.json",
)
ROOT = "inference.ModelConfig"
_KEPT: List[Tuple[Any, Mapping[str, str]]] = []


class Place(NamedTuple):
    """A field in a text: its path such as input[0].dims, its line, the schema's name for it, None for one that it lacks."""

    path: str
    line: int
    name: Optional[str]
    value: str


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
    """(config.pbtxt as ModelConfig, findings); of a text that is none, None and every reason why.

    `path` is the file. A field that no Triton knows is told with all others of its kind.
    """
    kind, _since = load()
    from google.protobuf import text_format

    def finding(line: Optional[int], field: str, found: str, wanted: str, do: str) -> Finding:
        return Finding(name, path, line, field, found, wanted, do + ", Triton would refuse this file", ERROR, "syntax")

    try:
        return text_format.Parse(text, kind()), []
    except text_format.ParseError as error:
        first = error
    try:
        config = text_format.Parse(text, kind(), allow_unknown_field=True)
        strange = [one for one in places(text) if one.name is None]
    except text_format.ParseError as error:
        config, strange, first = None, [], error
    if not strange:
        words = str(first).partition(" : ")[2] or str(first)
        return None, [finding(first.GetLine(), "", " ".join(words.split()), "text of Triton's ModelConfig", "correct the line")]
    return config, [
        finding(one.line, one.path, "a field that no Triton knows", "one of ModelConfig", "correct its name or take it out")
        for one in strange
    ]


def unknown(text: str, triton: str) -> List[Tuple[Place, str, str]]:
    """(where, what, the first Triton that knows it) of fields and values that this Triton does not know."""
    late = {name: first for name, first in load()[1].items() if _number(first) > _number(triton)}
    # The text is walked only where a word of it could be one of them.
    if not any(name.rpartition(".")[2] in text for name in late):
        return []
    found: List[Tuple[Place, str, str]] = []
    for one in places(text):
        name = one.name if one.name in late else one.value
        # What stands inside an unknown field needs no finding of its own.
        inner = tuple(f"{other.path}{mark}" for other, _name, _first in found for mark in ".[")
        if name in late and not one.path.startswith(inner):
            found.append((one, name, short(late[name])))
    return found


def _number(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def short(version: str) -> str:
    """A Triton's version as people say it."""
    return ".".join(version.split(".")[:2])


def places(text: str) -> List[Place]:
    """Every field of a text that the parser could read, in its order."""
    kind, _since = load()
    from google.protobuf import text_format

    found: List[Place] = []
    _message(text_format.Tokenizer(text.split("\n")), kind.DESCRIPTOR, "", "", found)
    return found


def _message(tokens: Any, known: Any, prefix: str, end: str, found: List[Place]) -> None:
    """The fields up to `end`. `known` is the message's descriptor, None inside of one that the schema lacks."""
    counts: Dict[str, int] = {}
    while not tokens.AtEnd() and tokens.token != end:
        word, line = tokens.token, tokens.ParseError("").GetLine()
        tokens.NextToken()
        field = known.fields_by_name.get(word) if known is not None else None
        repeated = field is not None and field.label == field.LABEL_REPEATED
        tokens.TryConsume(":")
        many = tokens.TryConsume("[")
        while not (many and tokens.token == "]"):
            index = counts[word] = counts.get(word, -1) + 1
            path = f"{prefix}{word}[{index}]" if repeated else prefix + word
            at = tokens.ParseError("").GetLine() if many else line
            opened = next((close for mark, close in (("{", "}"), ("<", ">")) if tokens.TryConsume(mark)), "")
            name = _name(field) if field is not None else None
            if repeated and not index:
                found.append(Place(prefix + word, line, name, ""))
            if opened:
                found.append(Place(path, at, name, ""))
                before = len(found)
                _message(tokens, field.message_type if field is not None else None, path + ".", opened, found)
                tokens.TryConsume(opened)
                key = next((one.value for one in found[before:] if one.path == path + ".key"), "")
                if key and field is not None and field.message_type.GetOptions().map_entry:
                    # An entry of a map is known by its key, wherever it stands.
                    found.append(Place(f"{prefix}{word}[{key}]", at, name, ""))
            else:
                found.append(Place(path, at, name, _scalar(tokens, field)))
            if not (many and tokens.TryConsume(",")):
                break
        if many:
            tokens.TryConsume("]")
        tokens.TryConsume(",") or tokens.TryConsume(";")


def _scalar(tokens: Any, field: Any) -> str:
    """One value; a value of an enum with the name of the enum before it, as the schema's table has it."""
    if tokens.token[:1] in "\"'":
        return str(tokens.ConsumeString())
    tokens.TryConsume("-")
    word = str(tokens.token)
    tokens.NextToken()
    return f"{_name(field.enum_type)}.{word}" if field is not None and field.enum_type is not None else word


def _name(of: Any) -> str:
    return str(of.full_name.partition(".")[2])


def read(path: str, name: str) -> Tuple[Any, str, List[Finding]]:
    """(config, text, findings) of a file; `name` is the model's."""
    try:
        with open(path, encoding="utf-8") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        why = f"a file that cannot be read ({error})"
        return None, "", [Finding(name, path, None, "", why, "a config.pbtxt of text", "correct it", ERROR, "syntax")]
    config, findings = parse(text, name, path)
    return config, text, findings
