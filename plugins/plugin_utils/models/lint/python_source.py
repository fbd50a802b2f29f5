# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A parser for programs of the image's Python, whose version can differ from the version of the Python that runs the linter.

`ast` knows the syntax up to the version of the linter's Python. Python 3.12 added type parameters (PEP 695), and f-strings that
contain their own quotes, backslashes or comments (PEP 701). If the linter's Python is older than 3.12, the parser removes this new
syntax from the program. If the image's Python is older than 3.12, the new syntax is an error.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from typing import Iterator, Match, Optional, Tuple

Version = Tuple[int, int]
NEW_SYNTAX: Version = (3, 12)
PREFIX = re.compile(r"(?<![A-Za-z0-9_])([rRfFbBuU]{0,2})(\"\"\"|'''|\"|')")
NAME = r"[^\W\d]\w*"
TYPE = re.compile(rf"^([ \t]*)type[ \t]+({NAME})[ \t]*(?=[\[=])", re.MULTILINE)
GENERIC = re.compile(rf"\b(?:def|class)[ \t]+{NAME}[ \t]*(?=\[)|^[ \t]*{NAME} = (?=\[)", re.MULTILINE)
ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


def parsed(raw: bytes, image: Optional[Version] = None) -> Tuple[ast.Module, bool]:
    """Return (the program as the image's Python would parse it, True if the program is rewritten). Raises one of ERRORS.

    Without the version `image`, accept the syntax of the linter's Python and of Python 3.12. A rewritten program has lost its type
    parameters and the contents of its f-strings.
    """
    rewritten = False
    running = sys.version_info[:2]
    with warnings.catch_warnings():
        # Python's warnings about escapes in strings are not findings of the linter.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(raw, feature_version=image if image and image < running else running)
            # The compiler finds further errors, such as `return` outside a function.
            compile(tree, "model.py", "exec", dont_inherit=True)
        except SyntaxError as error:
            # If the image's Python knows no newer syntax than the linter's Python, the error is final.
            if running >= NEW_SYNTAX or (image or NEW_SYNTAX) < NEW_SYNTAX:
                raise
            rewritten = True
            try:
                tree = ast.parse(_without_new_syntax(_text(raw)))
                compile(tree, "model.py", "exec", dont_inherit=True)
            except ERRORS:
                raise error from None
    if image and image < NEW_SYNTAX <= running:
        line = next((line for _part, line, new in _text_and_strings(_text(raw)) if new), 0)
        if line:
            raise SyntaxError("f-string with its own quotes, a backslash or a comment inside", ("model.py", line, 0, ""))
    return tree, rewritten


def _text(raw: bytes) -> str:
    """Return the text of a program in its own encoding. Raises SyntaxError."""
    encoding, _lines = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return raw.decode(encoding, "replace")


def _without_new_syntax(text: str) -> str:
    """Return a program without the new syntax of Python 3.12, but with the same line numbers."""
    plain = "".join(part for part, _line, _new in _text_and_strings(text))
    plain = TYPE.sub(r"\1\2 = ", plain)
    for match in reversed(list(GENERIC.finditer(plain))):
        end = _closing(plain, match.end())
        plain = plain[: match.end()] + plain[end:] if end else plain
    # A `type` statement with parameters now has two =.
    return re.sub(r" = [ \t]*=", " =", plain)


def _closing(text: str, at: int) -> int:
    """Return the position after the bracket that closes the bracket at `at`, or 0 if the closing bracket is on another line."""
    depth = 0
    for index in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[index], 0)
        if not depth:
            return index + 1
        if text[index] == "\n":
            break
    return 0


def _text_and_strings(text: str) -> Iterator[Tuple[str, int, bool]]:
    """Yield (text, line, whether it is an f-string that needs Python 3.12) for each part of a program.

    F-strings are replaced by empty strings.
    """
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
        end, new = _string_end(text, match)
        if "f" in match.group(1).lower():
            yield text[start:at], line, False
            line += text.count("\n", start, at)
            lines = text.count("\n", at, end)
            yield (f'"""{chr(10) * lines}"""' if lines else '""'), line, new
            line += lines
            start = end
        at = end
    yield text[start:], line, False


def _string_end(text: str, start: Match[str]) -> Tuple[int, bool]:
    """Return (the end of a string, whether it needs Python 3.12). `start` matches the string's prefix and opening quote."""
    at, quote, prefix = start.end(), start.group(2), start.group(1).lower()
    fields, raw = "f" in prefix, "r" in prefix
    depth, new = 0, False
    while at < len(text):
        if not depth and text.startswith(quote, at):
            return at + len(quote), new
        if depth:
            inner = PREFIX.match(text, at)
            if inner:
                new |= inner.group(2)[0] == quote[0] and len(quote) == 1
                at, inner_new = _string_end(text, inner)
                new |= inner_new
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
