"""Triton's schema of config.pbtxt: what a config says, which Triton knows each field, and the line on which it stands.

The schema is the newest one, so that a config for a newer Triton is read, and the finding is about the release that lacks a field.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, REFUSES_TEXT, Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import meant
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.text import decoded, flaws, printable
from ansible_collections.npufleet.triton.plugins.plugin_utils.paths import COLLECTION

FILE = os.path.join(
    COLLECTION,
    "files",
    "schemas",
    "model_config.json",
)
ROOT = "inference.ModelConfig"
_KEPT: List[Tuple[Any, Mapping[str, str]]] = []


class Place(NamedTuple):
    """A field in a text: its path such as input[0].dims, its line, the schema's name for it, None for one that it lacks.

    `known` are the fields that could stand there where this one is none, and the values of an enum of which this is none.
    """

    path: str
    line: int
    name: Optional[str]
    value: str
    known: Tuple[str, ...] = ()


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

    `path` is the file. A field or a value that no Triton knows is told with all others of its kind.
    """
    kind, _since = load()
    from google.protobuf import text_format

    def finding(line: Optional[int], field: str, found: str, wanted: str, do: str) -> Finding:
        return Finding(name, path, line, field, found, wanted, do, ERROR, "syntax", REFUSES_TEXT)

    stricter = [finding(flaw.line, "", flaw.found, flaw.wanted, flaw.do) for flaw in flaws(text)]
    # What is no UTF-8 is told, or stands in a comment.
    text = "".join("?" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    try:
        config = text_format.Parse(text, kind())
        # All names are known then, and the text is walked only for the line of a number
        walked = places(text) if _has_strange_number(config) else []
        return config, stricter + [finding(*holder) for holder in _strange(walked)]
    except text_format.ParseError as error:
        first = error
    try:
        strange = [finding(*holder) for holder in _strange(places(text))]
        config = text_format.Parse(text, kind(), allow_unknown_field=True)
    except text_format.ParseError as error:
        config, first = None, error
        strange = [] if "no value named" not in str(error) else strange
    if strange or stricter:
        return config, stricter + strange
    words = str(first).partition(" : ")[2] or str(first)
    return None, [finding(first.GetLine(), "", " ".join(words.split()), "text of Triton's ModelConfig", "correct the line")]


def _has_strange_number(message: Any) -> bool:
    """Whether an enum has a number that none of its values has, which protobuf reads all the same."""
    for field, value in message.ListFields():
        if field.enum_type is not None:
            numbers = value if _repeated(field) else [value]
            if any(number not in field.enum_type.values_by_number for number in numbers):
                return True
        elif field.message_type is not None:
            # Of a map the values, which are messages or not
            entries = value.values() if field.message_type.GetOptions().map_entry else value if _repeated(field) else [value]
            if any(_has_strange_number(entry) for entry in entries if hasattr(entry, "ListFields")):
                return True
    return False


def _strange(found: Sequence[Place]) -> Iterator[Tuple[int, str, str, str, str]]:
    """(line, field, found, wanted, what to do) of fields and values that no Triton knows."""
    for entry in found:
        if entry.name is None:
            do = meant(entry.path.rpartition(".")[2].partition("[")[0], entry.known, "correct its name or take it out")
            yield entry.line, entry.path, "a field that no Triton knows", "one of ModelConfig", do
        elif entry.known:
            wanted = f"one of {', '.join(entry.known)}"
            yield (
                entry.line,
                entry.path,
                entry.value.rpartition(".")[2],
                wanted,
                meant(entry.value.rpartition(".")[2], entry.known, "change it"),
            )


def unknown(text: str, triton: str) -> List[Tuple[Place, str, str]]:
    """(where, what, the first Triton that knows it) of fields and values that this Triton does not know."""
    late = {name: first for name, first in load()[1].items() if number(first) > number(triton)}
    # The text is walked only where a word of it could be one of them.
    if not any(name.rpartition(".")[2] in text for name in late):
        return []
    found: List[Tuple[Place, str, str]] = []
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


def places(text: str) -> List[Place]:
    """Every field of a text that the parser could read, in its order."""
    kind, _since = load()
    from google.protobuf import text_format

    found: List[Place] = []
    _message(text_format.Tokenizer(text.split("\n")), kind.DESCRIPTOR, "", "", found)
    return found


def _repeated(field: Any) -> bool:
    """Whether a field may come more than once. protobuf 7 has no `label` any more, older ones no `is_repeated`."""
    known = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def _message(tokens: Any, known: Any, prefix: str, end: str, found: List[Place]) -> None:
    """The fields up to `end`. `known` is the message's descriptor, None inside of one that the schema lacks."""
    counts: Dict[str, int] = {}
    while not tokens.AtEnd() and tokens.token != end:
        word, line = tokens.token, tokens.ParseError("").GetLine()
        tokens.NextToken()
        field = known.fields_by_name.get(word) if known is not None else None
        repeated = field is not None and _repeated(field)
        tokens.TryConsume(":")
        many = tokens.TryConsume("[")
        while not (many and tokens.token == "]"):
            index = counts[word] = counts.get(word, -1) + 1
            path = f"{prefix}{word}[{index}]" if repeated else prefix + word
            at = tokens.ParseError("").GetLine() if many else line
            opened = next((close for mark, close in (("{", "}"), ("<", ">")) if tokens.TryConsume(mark)), "")
            name = _name(field) if field is not None else None
            near = tuple(known.fields_by_name) if known is not None and field is None else ()
            if repeated and not index:
                found.append(Place(prefix + word, line, name, ""))
            if opened:
                found.append(Place(path, at, name, "", near))
                before = len(found)
                _message(tokens, field.message_type if field is not None else None, path + ".", opened, found)
                tokens.TryConsume(opened)
                key = next((entry.value for entry in found[before:] if entry.path == path + ".key"), "")
                if key and field is not None and field.message_type.GetOptions().map_entry:
                    # An entry of a map is known by its key, wherever it stands.
                    found.append(Place(f"{prefix}{word}[{key}]", at, name, ""))
            else:
                value = _scalar(tokens, field)
                found.append(Place(path, at, name, value, near or _values(field, value.rpartition(".")[2])))
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


def _values(field: Any, word: str) -> Tuple[str, ...]:
    """The values of an enum of which this word, or number, is none; () for one of them, and where there is no enum."""
    enum = field.enum_type if field is not None else None
    if enum is None or word in enum.values_by_name or (word.isdigit() and int(word) in enum.values_by_number):
        return ()
    return tuple(enum.values_by_name)


def word(message: Any, field: str) -> str:
    """The name of an enum's value in a message; of a number that has none, the number."""
    number = getattr(message, field)
    entry = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return str(entry.name if entry else number)


def _name(of: Any) -> str:
    return str(of.full_name.partition(".")[2])


def read(path: str, name: str, raw: Optional[bytes] = None) -> Tuple[Any, str, List[Finding]]:
    """(config, text, findings) of a file, whose content `raw` may be read already; `name` is the model's."""
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
