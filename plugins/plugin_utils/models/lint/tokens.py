# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer for protobuf's text format, with the rules and messages of google/protobuf/io/tokenizer.cc in protobuf 21."""

from __future__ import annotations

import re
import unicodedata
from typing import Iterator, List, NamedTuple, Optional, Tuple

SPACE, COMMENT = re.compile(r"[ \t\n\v\f\r]+"), re.compile(r"#[^\n\0]*\n?")
CONTROLS, NON_ASCII = re.compile(r"[\0-\x1f]+"), re.compile(r"[^\0-\x7f]+")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEXADECIMAL, OCTAL = re.compile(r"0[xX]([0-9a-fA-F]*)"), re.compile(r"0([0-9]+)")
DECIMAL = re.compile(r"(?:\.[0-9]+|[0-9]+(\.[0-9]*)?)(?:([eE])[+-]?([0-9]*))?([fF]?)")
# A character or an escape sequence of a string. The group `error` is the character after \ in an invalid sequence.
PIECE = re.compile(
    r"""[^\\\n\0]|\\(?:[abfnrtv\\?'"]|[0-7]{1,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U00[01][0-9a-fA-F]{5}|(?P<error>[xuU]|.|\n|))""",
    re.DOTALL,
)
ESCAPES = {
    "x": "Expected hex digits for escape sequence.",
    "u": "Expected four hex digits for \\u escape sequence.",
    "U": "Expected eight hex digits up to 10ffff for \\U escape sequence",
}
PLAIN_ESCAPES = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v"))
INTEGER, FLOAT, STRING, IDENTIFIER, SYMBOL, END = "integer", "float", "string", "identifier", "symbol", "end"


class Token(NamedTuple):
    """A token, the number of the line on which it starts, and the position of its end."""

    kind: str
    text: str
    line: int
    end: int


class SyntaxProblem(NamedTuple):
    """A message of the parser about a line and a field. For an unknown `word`, `known` contains the known words.

    For fields and values, protobuf itself reports the line of the next token instead of `line`.
    """

    line: int
    message: str
    path: str = ""
    word: str = ""
    known: Tuple[str, ...] = ()
    # An explanation of the message, and the next step, or ""
    note: str = ""
    todo: str = ""

    @property
    def is_field(self) -> bool:
        """True if the unknown word is the name of a field."""
        return "no field named" in self.message


def decoded(raw: bytes) -> str:
    """Return the text of a file. Bytes that are not UTF-8 become surrogates, because comments can contain such bytes."""
    return raw.decode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Return a text that can be encoded, with its surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


class Tokenizer:
    """A tokenizer that stays one token ahead of its parser and continues after errors."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.line = 1
        self.problems: List[SyntaxProblem] = []
        self.token = Token(SYMBOL, "", 1, -1)
        self.next()

    def report(self, message: str, note: str = "", todo: str = "") -> None:
        """Record a message about the current line."""
        self.problems.append(SyntaxProblem(self.line, message, note=note, todo=todo))

    def next(self) -> None:
        while True:
            blank = SPACE.match(self.text, self.position) or COMMENT.match(self.text, self.position)
            controls = CONTROLS.match(self.text, self.position)
            non_ascii = NON_ASCII.match(self.text, self.position)
            if blank:
                self._skip(blank.end())
            elif controls:
                self.report("Invalid control characters encountered in text.", todo="Remove them")
                self._skip(controls.end())
            elif non_ascii:
                # protobuf makes a token of each of these bytes. This parser skips them, so that it can read the rest.
                byte = non_ascii.group().encode("utf-8", "surrogateescape")[0]
                todo = "Remove it, or write an ASCII character"
                self.report(f"Interpreting non ascii codepoint {byte}.", _character_name(non_ascii.group()[0]), todo)
                self._skip(non_ascii.end())
            else:
                break
        start, line = self.position, self.line
        kind = self._read()
        self.token = Token(kind, self.text[start : self.position], line, self.position)

    def _skip(self, end: int) -> None:
        self.line += self.text.count("\n", self.position, end)
        self.position = end

    def _read(self) -> str:
        """Read one token and return its kind."""
        if self.position >= len(self.text):
            return END
        first, second = self.text[self.position], self.text[self.position + 1 : self.position + 2]
        word = WORD.match(self.text, self.position)
        if word:
            self.position = word.end()
            return IDENTIFIER
        if first in "\"'":
            self._string(first)
            return STRING
        if "0" <= first <= "9" or (first == "." and "0" <= second <= "9"):
            if first == "." and self.token.kind == IDENTIFIER and self.token.end == self.position:
                self.report("Need space between identifier and decimal point.")
            return self._number()
        self.position += 1
        return SYMBOL

    def _string(self, mark: str) -> None:
        self.position += 1
        while self.text[self.position : self.position + 1] != mark:
            piece = PIECE.match(self.text, self.position)
            if piece is None:
                newline = self.text.startswith("\n", self.position)
                message = "String literals cannot cross line boundaries." if newline else "Unexpected end of string."
                self.report(message, todo=f"Close the string with {mark}, or double the backslash before its end")
                return
            error = piece.group("error")
            if error is not None:
                todo = f"Write \\\\{error} for a backslash, or remove it" if error.isprintable() else "Remove the backslash"
                self.report(ESCAPES.get(error, "Invalid escape sequence in string literal."), f"\\{error} in a string", todo)
                # The character after the backslash can end the string.
                self.position += 2 if error in ESCAPES else 1
                continue
            self.position = piece.end()
        self.position += 1

    def _number(self) -> str:
        match = HEXADECIMAL.match(self.text, self.position) or OCTAL.match(self.text, self.position)
        real = False
        if match:
            if not match.group(1):
                self.report('"0x" must be followed by hex digits.')
            elif match.re is OCTAL and not set(match.group(1)) <= set("01234567"):
                self.report("Numbers starting with leading zero must be in octal.")
        else:
            match = DECIMAL.match(self.text, self.position)
            if match is None:
                raise AssertionError(f"no number at {self.position}")
            fraction, exponent, digits, suffix = match.groups()
            real = match.group().startswith(".") or bool(fraction or exponent or suffix)
            if exponent and not digits:
                self.report('"e" must be followed by exponent.')
        start, self.position = self.position, match.end()
        following = WORD.match(self.text, self.position)
        if following:
            # protobuf starts another token here. This parser adds the word to the number, so that it can read the rest.
            self.position = following.end()
            number = self.text[start : self.position]
            value = integer_of(number)
            todo = "Correct the number" if value is None else f"Write {value}"
            self.report("Need space between number and identifier.", number, todo)
        elif self.text.startswith(".", self.position):
            again = "Already saw decimal point or exponent; can't have another one."
            self.report(again if real else "Hex and octal numbers must be integers.")
        return FLOAT if real else INTEGER


def integer_of(text: str) -> Optional[int]:
    """Return the value of an integer token, or None for an invalid token, which the tokenizer has reported."""
    try:
        return int(text, 8 if re.fullmatch("0[0-7]+", text) else 0)
    except ValueError:
        return None


def unescaped(token: str) -> bytes:
    """Return the bytes of a string token."""
    return b"".join(_pieces(token.encode("utf-8", "surrogateescape")[1:].removesuffix(token[0].encode()))) if token else b""


def _pieces(raw: bytes) -> Iterator[bytes]:
    pattern = rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))|([^\\]+)"
    for match in re.finditer(pattern, raw, re.DOTALL):
        octal, hexadecimal, short, long, other, plain = match.groups()
        if plain is not None:
            yield plain
        elif octal or hexadecimal:
            yield bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)])
        elif short or long:
            yield chr(min(int(short or long, 16), 0x10FFFF)).encode("utf-8", "surrogatepass")
        else:
            yield bytes([PLAIN_ESCAPES.get(other[0], other[0])]) if other else b""


def _character_name(letter: str) -> str:
    """Return the name of a character, because the character itself is often invisible."""
    if "\ud800" <= letter <= "\udfff":
        return "bytes that are no UTF-8"
    name = unicodedata.name(letter, f"character {ord(letter)}").lower()
    name = "a byte order mark (BOM)" if letter == "\ufeff" else name
    return f"{name} (U+{ord(letter):04X})"
