"""Python programs as another Python than this one reads them: that of the release's image.

`ast` knows the syntax up to this Python's own. What 3.12 added is rewritten where this Python is older, and looked for where the
image's is: `type` statements and type parameters (PEP 695), and f-strings that hold their own quotes, backslashes or comments (PEP
701).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from typing import Iterator, NamedTuple, Optional, Tuple

Version = Tuple[int, int]
NEW_SYNTAX: Version = (3, 12)
PREFIX = re.compile(r"(?<![A-Za-z0-9_])([rRfFbBuU]{0,2})(\"\"\"|'''|\"|')")
NAME = r"[^\W\d]\w*"
TYPE = re.compile(rf"^([ \t]*)type[ \t]+({NAME})[ \t]*(?=[\[=])", re.MULTILINE)
GENERIC = re.compile(rf"\b(?:def|class)[ \t]+{NAME}[ \t]*(?=\[)|^[ \t]*{NAME} = (?=\[)", re.MULTILINE)
ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
# Where a string ends in its text, or a field of an f-string begins or ends
_MARKS = re.compile(r"\\.|\{\{|[\"'{}#\n]", re.DOTALL)


class Program(NamedTuple):
    """A program that parses. One that was rewritten for this Python lacks its type parameters and the fields of its f-strings."""

    tree: ast.Module
    rewritten: bool


def parsed(raw: bytes, image: Optional[Version] = None) -> Program:
    """Return the program as the Python of the image reads it; without one, as this Python or a newer one does. Raises ERRORS."""
    rewritten = False
    here = sys.version_info[:2]
    with warnings.catch_warnings():
        # What Python thinks of an escape in somebody's string is no finding.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(raw, feature_version=image if image and image < here else here)
            # What only the compiler refuses, such as `return` outside of a function
            compile(tree, "model.py", "exec", dont_inherit=True)
        except SyntaxError:
            # A newer Python may read it.
            if here >= NEW_SYNTAX or (image or NEW_SYNTAX) < NEW_SYNTAX:
                raise
            older, rewritten = _older(_text(raw)), True
            try:
                tree = ast.parse(older)
                compile(tree, "model.py", "exec", dont_inherit=True)
            except ERRORS:
                older = ""
            if not older:
                raise
    if image and image < NEW_SYNTAX <= here:
        line = next(_new_strings(_text(raw)), 0)
        if line:
            raise SyntaxError("f-string with its own quotes, a backslash or a comment inside", ("model.py", line, 0, ""))
    return Program(tree, rewritten)


def _text(raw: bytes) -> str:
    """Return the text of a program in its own encoding. Raises SyntaxError."""
    encoding, _lines = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return raw.decode(encoding, "replace")


def _older(text: str) -> str:
    """Return a program without what 3.12 added, line for line."""
    plain = "".join(part for part, _line, _new in _parts(text))
    plain = TYPE.sub(r"\1\2 = ", plain)
    for match in reversed(list(GENERIC.finditer(plain))):
        end = _closing(plain, match.end())
        plain = plain[: match.end()] + plain[end:] if end else plain
    # A `type` statement with parameters has its own = behind them.
    return re.sub(r" = [ \t]*=", " =", plain)


def _closing(text: str, at: int) -> int:
    """Return where the bracket that opens here is closed, on the same line; 0 for nowhere."""
    depth = 0
    for index in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[index], 0)
        if not depth:
            return index + 1
        if text[index] == "\n":
            break
    return 0


def _new_strings(text: str) -> Iterator[int]:
    """Yield the lines of f-strings that no Python before 3.12 reads."""
    return (line for _part, line, new in _parts(text) if new)


def _parts(text: str) -> Iterator[Tuple[str, int, bool]]:
    """Yield the parts of a program as (text, line, whether it is an f-string of 3.12), each f-string as an empty string."""
    at, start, line = 0, 0, 1
    while at < len(text):
        if text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        match = PREFIX.match(text, at)
        if match is None:
            at += 1
            continue
        end, new = _string_end(text, match.end(), match.group(2), "f" in match.group(1).lower(), "r" in match.group(1).lower())
        if "f" in match.group(1).lower():
            yield text[start:at], line, False
            line += text.count("\n", start, at)
            lines = text.count("\n", at, end)
            yield (f'"""{chr(10) * lines}"""' if lines else '""'), line, new
            line += lines
            start = end
        at = end
    yield text[start:], line, False


def _string_end(text: str, at: int, quote: str, fields: bool, raw: bool) -> Tuple[int, bool]:
    """Return (where a string ends whose text begins here, whether it needs 3.12)."""
    depth, new = 0, False
    while at < len(text):
        if not depth and text.startswith(quote, at):
            return at + len(quote), new
        if depth:
            inner = PREFIX.match(text, at)
            if inner:
                new |= inner.group(2)[0] == quote[0] and len(quote) == 1
                at, more = _string_end(
                    text, inner.end(), inner.group(2), "f" in inner.group(1).lower(), "r" in inner.group(1).lower()
                )
                new |= more
                continue
            new |= text[at] in "\\#"
            depth += {"{": 1, "(": 0, "}": -1}.get(text[at], 0)
            at += 1
            continue
        if (text[at] == "\\" and not (raw and not fields)) or (fields and text.startswith(("{{", "}}"), at)):
            at += 2
        elif fields and text[at] == "{":
            depth, at = 1, at + 1
        else:
            at += 1
    return at, new
