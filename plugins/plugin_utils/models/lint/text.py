# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A parser of protobuf's text format, with the rules and the messages of the C++ parser that Triton uses.

Triton parses config.pbtxt with `TextFormat::ParseFromString`. Python's parser accepts other texts and reports other lines.
Therefore this parser follows google/protobuf/text_format.cc and io/tokenizer.cc of protobuf 21, the version in Triton's images.
This parser continues after an error, if possible, so that one run reports all errors.
"""

from __future__ import annotations

import math
import re
import struct
from contextlib import suppress
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.tokens import (
    END,
    FLOAT,
    IDENTIFIER,
    INTEGER,
    STRING,
    SyntaxProblem,
    Tokenizer,
    integer_of,
    unescaped,
)

LARGEST_FLOAT = 3.4028234663852886e38
TRUE, FALSE = ("true", "True", "t"), ("false", "False", "f")
CLOSING = {"{": "}", "<": ">"}
UNKNOWN = "a field that no Triton knows"


class SourceField(NamedTuple):
    """A field in a text: its path such as input[0].dims, its line, and its name in the schema (None for an unknown field).

    `value` is the text of a scalar. For a value of an enum, `value` is the name of the value in the schema.
    """

    path: str
    line: int
    name: Optional[str]
    value: str


class Parsed(NamedTuple):
    """The result of the parser. `complete` is True if the parser has read the whole text."""

    message: Any
    fields: List[SourceField]
    problems: List[SyntaxProblem]
    complete: bool


class _Stop(Exception):
    """An error after which the rest of the text cannot be read."""


def parse(text: str, message: Any) -> Parsed:
    """Parse a text into the empty `message`."""
    parser = _Parser(text)
    counts: Dict[str, int] = {}
    complete = False
    with suppress(_Stop):
        while parser.token.kind != END:
            parser.field(message, message.DESCRIPTOR, "", counts)
        complete = True
    return Parsed(message, parser.fields, parser.problems, complete)


class _Parser(Tokenizer):
    """A parser of fields. Each method starts at the current token."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.fields: List[SourceField] = []

    def fatal_error(self, message: str) -> _Stop:
        """Record an error, and return the exception to raise."""
        self.problems.append(SyntaxProblem(self.token.line, message))
        return _Stop()

    def skip_wrong_token(self, text: str, message: str, note: str, todo: str) -> bool:
        """Report and skip the current token if it is `text`, which is wrong here. Return False for another token."""
        if self.token.text != text:
            return False
        self.problems.append(SyntaxProblem(self.token.line, message, note=note, todo=todo))
        self.next()
        return True

    def skip_token(self, *texts: str) -> str:
        """Skip and return the current token if it is one of `texts`. Return "" for another token."""
        text = self.token.text
        if text not in texts or self.token.kind == END:
            return ""
        self.next()
        return text

    def require_token(self, text: str) -> None:
        """Skip the current token `text`. Raises _Stop for another token."""
        if not self.skip_token(text):
            raise self.fatal_error(f'Expected "{text}", found "{self.token.text}".')

    def identifier(self) -> str:
        if self.token.kind != IDENTIFIER:
            raise self.fatal_error(f"Expected identifier, got: {self.token.text}")
        word = self.token.text
        self.next()
        return word

    def field(self, message: Any, descriptor: Any, prefix: str, counts: Dict[str, int]) -> None:
        """Read one field. Inside an unknown field, `message` and `descriptor` are None."""
        while self.token.text == "/" and self.text[self.token.end : self.token.end + 1] == "/":
            # Skip the rest of the line.
            self.position = (self.text + "\n").find("\n", self.position)
            self.skip_wrong_token("/", "Expected identifier, got: /", "// starts no comment here", "Write # instead")
            if self.token.text in ("", *CLOSING.values()):
                return
        line = self.token.line
        owner = descriptor.full_name if descriptor is not None else prefix.rstrip(".")
        if self.skip_token("["):
            word = self.identifier()
            while self.skip_token("."):
                word += "." + self.identifier()
            self.require_token("]")
            self.unknown(f'Extension "{word}" is not defined or is not an extension of "{owner}".', prefix + word, word, line)
            return
        word = self.identifier()
        field = descriptor.fields_by_name.get(word) if descriptor is not None else None
        if field is None:
            known_words = tuple(descriptor.fields_by_name) if descriptor is not None else ()
            self.unknown(f'Message type "{owner}" has no field named "{word}".', prefix + word, word, line, known_words)
            return
        repeated, nested = is_repeated(field), field.message_type is not None
        if not repeated:
            self.report_duplicate(message, field, line, word in counts)
        if nested:
            self.skip_token(":")
        elif not self.skip_wrong_token("=", 'Expected ":", found "=".', "", "Write : instead"):
            self.require_token(":")
        is_list = repeated and self.skip_token("[")
        while not (is_list and self.skip_token("]")):
            index = counts[word] = counts.get(word, -1) + 1
            path = f"{prefix}{word}[{index}]" if repeated else prefix + word
            value_line = self.token.line if is_list else line
            if repeated and not index:
                self.fields.append(SourceField(prefix + word, line, name_of(field), ""))
            if nested:
                self.nested(message, field, path, f"{prefix}{word}", value_line)
            else:
                self.fields.append(SourceField(path, value_line, name_of(field), self.scalar(message, field, path)))
            if not is_list or self.skip_token("]"):
                break
            self.require_token(",")
            if self.skip_wrong_token("]", _no_value(field, "]"), "a comma after the last entry of a list", "Remove it"):
                break
        self.skip_token(";", ",")

    def report_duplicate(self, message: Any, field: Any, line: int, again: bool) -> None:
        """Report a field that is set for the second time, or that is in a oneof of which another field is already set."""
        choice = field.containing_oneof
        # The key and the value of a map's entry count as set even if they are empty.
        if _is_set(message, field) or (again and field.containing_type.GetOptions().map_entry):
            self.problems.append(SyntaxProblem(line, f'Non-repeated field "{field.name}" is specified multiple times.'))
        elif choice is not None and message.WhichOneof(choice.name):
            other = f'field "{message.WhichOneof(choice.name)}", another member of oneof "{choice.name}".'
            self.problems.append(SyntaxProblem(line, f'Field "{field.name}" is specified along with {other}'))

    def nested(self, message: Any, field: Any, path: str, name: str, line: int) -> None:
        """Read one message, the value of a field. `path` contains the index of the message. `name` is `path` without the index."""
        # Programs that read no config import this module without protobuf.
        from google.protobuf import message_factory

        end = self.open_message()
        self.fields.append(SourceField(path, line, name_of(field), ""))
        entry = field.message_type.GetOptions().map_entry
        if entry:
            inner = message_factory.GetMessageClass(field.message_type)()
        elif is_repeated(field):
            inner = getattr(message, field.name).add()
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
        counts: Dict[str, int] = {}
        while self.token.text not in CLOSING.values():
            self.field(inner, field.message_type, path + ".", counts)
        self.require_token(end)
        if entry:
            # The path of a map's entry contains its key.
            self.fields.append(SourceField(f"{name}[{inner.key}]", line, name_of(field), ""))
            values = getattr(message, field.name)
            if field.message_type.fields_by_name["value"].message_type is not None:
                values[inner.key].CopyFrom(inner.value)
            else:
                values[inner.key] = inner.value

    def open_message(self) -> str:
        """Skip the opening bracket of a message. Return the closing bracket."""
        end = CLOSING.get(self.token.text, "")
        if not end:
            raise self.fatal_error(f'Expected "{{", found "{self.token.text}".')
        self.next()
        return end

    def scalar(self, message: Any, field: Any, path: str) -> str:
        """Read one value into the message. Return the text of the value."""
        kind, start = field.cpp_type, self.token
        written = start.text
        value: Any
        if kind == field.CPPTYPE_STRING:
            raw = self.string()
            written = raw.decode("utf-8", "surrogateescape")
            value = raw.decode("utf-8", "replace")
        elif kind == field.CPPTYPE_BOOL:
            value = self.boolean(field, path)
        elif kind == field.CPPTYPE_ENUM:
            value, written = self.enum(field, path)
        elif kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            value = self.real_number()
        else:
            self.skip_wrong_token("+", "Expected integer, got: +", "", "Write the number without +")
            minus = self.skip_token("-") if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) else ""
            bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
            signed = kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
            value = self.integer(2 ** (bits - signed) - 1 + bool(minus)) * (-1 if minus else 1)
            written = str(value)
        if value is not None:
            if is_repeated(field):
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        return written

    def string(self) -> bytes:
        """Read consecutive strings and return their concatenation."""
        if self.token.kind != STRING:
            raise self.fatal_error(f"Expected string, got: {self.token.text}")
        raw = b""
        while self.token.kind == STRING:
            raw += unescaped(self.token.text)
            self.next()
        return raw

    def integer(self, largest: int) -> int:
        text = self.token.text
        if self.token.kind != INTEGER:
            raise self.fatal_error(f"Expected integer, got: {text}")
        value = integer_of(text)
        if value is None or value > largest:
            raise self.fatal_error(f"Integer out of range ({text})")
        self.next()
        return value

    def boolean(self, field: Any, path: str) -> Optional[bool]:
        if self.token.kind == INTEGER:
            return bool(self.integer(1))
        line, word = self.token.line, self.identifier()
        if word in TRUE + FALSE:
            return word in TRUE
        message = f'Invalid value for boolean field "{field.name}". Value: "{word}".'
        self.problems.append(SyntaxProblem(line, message, path, word, ("true", "false"), word))
        return None

    def enum(self, field: Any, path: str) -> Tuple[Optional[int], str]:
        """Read a value of an enum. As in C++, any number is accepted."""
        words, line = field.enum_type.values_by_name, self.token.line
        if self.token.kind == IDENTIFIER:
            word = self.identifier()
            if word not in words:
                message = f'Unknown enumeration value of "{word}" for field "{field.name}".'
                self.problems.append(SyntaxProblem(line, message, path, word, tuple(words), word))
                return None, word
            number = int(words[word].number)
        elif self.token.text == "-" or self.token.kind == INTEGER:
            minus = bool(self.skip_token("-"))
            number = self.integer(2**31 - 1 + minus) * (-1 if minus else 1)
            value = field.enum_type.values_by_number.get(number)
            word = str(value.name if value else number)
        else:
            raise self.fatal_error(f"Expected integer or identifier, got: {self.token.text}")
        return number, f"{name_of(field.enum_type)}.{word}"

    def real_number(self) -> float:
        sign = -1.0 if self.skip_token("-") else 1.0
        kind, text = self.token.kind, self.token.text
        if kind == INTEGER:
            if re.match("0[xX0-9]", text):
                raise self.fatal_error(f"Expect a decimal number, got: {text}")
            value = float(text)
        elif kind == FLOAT:
            value = float(re.match(r"[0-9.]+(?:[eE][+-]?[0-9]+)?", text).group())  # type: ignore[union-attr]
        elif kind == IDENTIFIER and text.lower() in ("inf", "infinity", "nan"):
            value = float(text)
        else:
            raise self.fatal_error(f"Expected double, got: {text.lower() if kind == IDENTIFIER else text}")
        self.next()
        return sign * (value if value <= LARGEST_FLOAT or math.isnan(value) else float("inf"))

    def unknown(self, message: str, path: str, word: str, line: int, known_words: Tuple[str, ...] = ()) -> None:
        """Report an unknown field, and skip its value with the fields in it."""
        self.problems.append(SyntaxProblem(line, message, path, word, known_words, UNKNOWN))
        colon = self.skip_token(":")
        self.fields.append(SourceField(path, line, None, self.token.text))
        if colon and self.token.text not in CLOSING:
            self.skipped_value(path)
        else:
            self.skipped_message(path)
        self.skip_token(";", ",")

    def skipped_message(self, path: str) -> None:
        end = self.open_message()
        while self.token.text not in CLOSING.values():
            self.field(None, None, path + ".", {})
        self.require_token(end)

    def skipped_value(self, path: str) -> None:
        if self.token.kind == STRING:
            self.string()
        elif self.skip_token("["):
            while not self.skip_token("]"):
                if self.token.text in CLOSING:
                    self.skipped_message(path)
                else:
                    self.skipped_value(path)
                if self.skip_token("]"):
                    break
                self.require_token(",")
        else:
            self.skip_token("-")
            if self.token.kind not in (INTEGER, FLOAT, IDENTIFIER):
                raise self.fatal_error(f"Cannot skip field value, unexpected token: {self.token.text}")
            self.next()


def is_repeated(field: Any) -> bool:
    """Return True if a field can be repeated. Old versions of protobuf have only `label`, protobuf 7 only `is_repeated`."""
    flag = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if flag is None else flag)


def name_of(descriptor: Any) -> str:
    """Return the full name of a field, message or enum without its package."""
    return str(descriptor.full_name.partition(".")[2])


def _is_set(message: Any, field: Any) -> bool:
    """Return True if C++ counts a field as set. A field without presence is set if its value is not the default."""
    if field.has_presence:
        return bool(message.HasField(field.name))
    value = getattr(message, field.name)
    if isinstance(value, float):
        return struct.pack("<f", value) != bytes(4)
    return bool(value)


def _no_value(field: Any, text: str) -> str:
    """Return the parser's message about a token where a value of this field is expected."""
    if field.message_type is not None:
        return f'Expected "{{", found "{text}".'
    kinds = {
        field.CPPTYPE_STRING: "string",
        field.CPPTYPE_BOOL: "identifier",
        field.CPPTYPE_ENUM: "integer or identifier",
        field.CPPTYPE_FLOAT: "double",
        field.CPPTYPE_DOUBLE: "double",
    }
    return f"Expected {kinds.get(field.cpp_type, 'integer')}, got: {text}"
