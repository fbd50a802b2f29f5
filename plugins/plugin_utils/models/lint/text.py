"""What a config.pbtxt may be made of for Triton's parser, where Python's own is more lenient.

Triton reads the file with the C++ TextFormat of protobuf, whose tokenizer is google/protobuf/io/tokenizer.cc. Comments may hold any
bytes.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Iterator, List, NamedTuple, Tuple

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\v\f\r]+)
    |(?P<comment>\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
    |(?P<open>["'])
    |(?P<slashes>//[^\n]*|/\*)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>[+-]?\.?[0-9](?:[eE][+-](?=[0-9])|[A-Za-z0-9_.])*)
    |(?P<mark>[][{}<>:;,./-])
    |(?P<other>[^][{}<>:;,./\w \t\n\v\f\r\#"'-]+|.)""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_NUMBER = re.compile(
    r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*|(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)"
)
_ESCAPE = re.compile(r"\\(?:[abfnrtv\\?'\"]|[0-7]{1,3}|[xX][0-9a-fA-F]+|u[0-9a-fA-F]{4}|U00[01][0-9a-fA-F]{5}|(?P<wrong>.))")


class Flaw(NamedTuple):
    """Something that Triton's parser does not take: its line, from 1 on, what it is, what is wanted, what to do."""

    line: int
    found: str
    wanted: str
    do: str


def decoded(raw: bytes) -> str:
    """A file's text. Bytes that are no UTF-8 stay what they are, as surrogates: in a comment Triton takes them."""
    return raw.decode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """A text that can be written anywhere: bytes that are no UTF-8 as \\udcXX."""
    return text.encode("utf-8", "backslashreplace").decode()


def flaws(text: str) -> List[Flaw]:
    """Everything that Triton's parser would stumble over, in its order."""
    found: List[Flaw] = []
    # The last token that is no space or comment
    before, line = "", 1
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match.group()
        found += [Flaw(line, *words) for words in _wrong(kind, token)]
        if kind not in ("space", "comment"):
            if token == "]" and before == ",":
                found.append(Flaw(line, "a comma after the last of a list", "commas between two of a list", "take it out"))
            before = token
        line += token.count("\n")
    return found


def _wrong(kind: str, token: str) -> Iterator[Tuple[str, str, str]]:
    """(found, wanted, what to do) of one token."""
    if kind == "number" and not _NUMBER.fullmatch(token):
        plain = token.lstrip("+").replace("_", "")
        do = f"write {_plain(plain)}" if _plain(plain) else "correct it"
        yield token, "a number in plain digits, without +, _ or letters", do
    elif kind == "string":
        for escape in _ESCAPE.finditer(token):
            if escape.group("wrong"):
                do = f"write \\\\{escape.group('wrong')} for a backslash, or take it out"
                yield f"{printable(escape.group())} in a string", "an escape that Triton's parser knows, such as \\n or \\\\", do
        if any("\ud800" <= letter <= "\udfff" for letter in token):
            yield "bytes in a string that are no UTF-8", "text in UTF-8", "save the file as UTF-8"
    elif kind == "open":
        yield "a string without an end on its line", f"a closing {token}", "close it, or double the backslash before its end"
    elif kind == "slashes":
        yield f"{token[:2]}, which starts no comment here", "a comment after #", "write # instead"
    elif kind == "other":
        yield _named(token), "ASCII characters outside of strings and comments", "take it out, or write an ordinary character"


def _plain(number: str) -> str:
    """A number as Triton's parser takes it; "" for what is none."""
    try:
        return str(int(number, 0))
    except ValueError:
        return ""


def _named(token: str) -> str:
    """Characters by their names, as most of these are not to be seen."""
    first = token[0]
    if "\ud800" <= first <= "\udfff":
        return "bytes that are no UTF-8"
    name = unicodedata.name(first, f"character {ord(first)}").lower()
    name = "a byte order mark (BOM)" if first == "\ufeff" else name
    return f"{name} (U+{ord(first):04X})"
