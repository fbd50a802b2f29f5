# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Removal of secrets from text and JSON data: given values in every encoding, and values that look like a secret.

In case of doubt, a value is removed.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Match, Pattern, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.secret import LOGIN, MIN_LENGTH, WORDS, looks_secret

MARK = "<redacted>"
# Names of maps of HTTP headers. All their values are removed, because the name of a header does not show if its value is secret.
HEADERS_NAME = re.compile(r"headers$", re.IGNORECASE)
_FLAG = re.compile(r"--?(?:[\w-]{0,64}" + WORDS + r"[\w-]{0,64}|(?:http|grpc)-restricted-(?:api|protocol))", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"([\w.-]{0,64}?" + WORDS + r"[\w.-]{0,64}=)(.+)", re.IGNORECASE | re.DOTALL)
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----"
_QUOTED = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''


def _pattern(text: str, flags: int = 0) -> Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.MULTILINE | flags)


# In each pattern the group `secret` is removed and the group `keep` is kept. Bounded lengths keep the time of a search linear.
# Private keys have several lines. If the first line of a key is missing, all text before its last line is removed.
KEYS: List[Pattern[str]] = [
    _pattern(r"(?P<keep>)(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:" + _END + r"|\Z))", re.DOTALL),
    _pattern(r"(?P<keep>)(?P<secret>\A.{0,8000}?" + _END + ")", re.DOTALL),
]
RESTRICTED = _pattern(r"(?P<keep>restricted-(?:api|protocol)[=\s\"',]{1,8}[^\s\"'=]{1,200}=)(?P<secret>[^\s\"']+)")
# Signatures and credentials in the query of an address, for example of a presigned address of an object store
SIGNED = _pattern(
    r"(?P<keep>(?:[?&;]|u0026)(?:x-(?:amz|goog|ms)-)?(?:sig|signature|credential|security-token|awsaccesskeyid|key)=)"
    r"(?P<secret>[^&\s\"'#<>\\]+)"
)
WEBHOOK = _pattern(
    r"(?P<keep>\bhttps?://(?:hooks\.[\w.-]{1,200}/|api\.telegram\.org/bot"
    r"|[\w.:-]{1,250}/(?:[\w.-]{1,60}/){0,4}?(?:webhooks?|webhookb2|hooks)/))(?P<secret>[^\s\"'<>\\]+)"
)
# A login in an address that another address contains in percent-encoded form
ENCODED = _pattern(r"(?P<keep>\b[a-z][a-z0-9+.-]{0,20}%3a%2f%2f)(?P<secret>[^\s\"'<>/?#&]{1,400}?)(?=%40)")
PATTERNS: List[Pattern[str]] = [
    LOGIN,
    ENCODED,
    RESTRICTED,
    SIGNED,
    WEBHOOK,
    _pattern(r"(?P<keep>\b(?:(?:proxy-)?authorization|(?:set-)?cookie)\\?[\"']?\s*[:=]\s*\\?[\"']?)(?P<secret>[^\"'\r\n\\]+)"),
    _pattern(r"(?P<keep>\bbearer\s+)(?P<secret>[A-Za-z0-9._~+/-]{8,}={0,2})"),
    _pattern(r"(?P<keep>\"(?:auth|identitytoken|registrytoken)\"\s*:\s*\")(?P<secret>[^\"\n]+)"),
    _pattern(r"(?P<keep>)(?P<secret>\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*)"),
    # The next patterns match values after the name of a secret: "NAME=value" in quotes, name: "value", the rest of a line that
    # begins with the name, and one word after the name.
    _pattern(r"(?P<keep>\"[\w.-]{0,64}?" + WORDS + r"[\w.-]{0,64}=)(?P<secret>(?:[^\"\\\n]|\\.)+)(?=\")"),
    _pattern(r"(?P<keep>" + WORDS + r"[\w.-]{0,64}\\?[\"']?\s*[:=]\s*)(?P<secret>" + _QUOTED + ")"),
    _pattern(
        r"^(?P<keep>[ \t]*(?:export[ \t]+|-[ \t]+)?[\"']?[\w.-]{0,64}?" + WORDS + r"[\w.-]{0,64}[\"']?[ \t]*[:=](?!:)[ \t]*)"
        r"(?P<secret>(?![\"']?" + MARK + r")[^\s\"'].*)$"
    ),
    _pattern(r"(?P<keep>" + WORDS + r"[\w.-]{0,64}\\?[\"']?[ \t]*[:=](?!:)[ \t]*\\?[\"']?)(?P<secret>[^\s\"'&})\]\\]+)"),
    _pattern(r"(?P<keep>(?<!\S)--?[\w-]{0,64}?" + WORDS + r"[\w-]{0,64}[ \t]+)(?P<secret>(?!-)[^\s\"']+)"),
]
# A name in YAML whose value begins on the next line
BLOCK = re.compile(r"(?:- +)*[\"']?([\w.-]{1,100})[\"']? *:(?: +[|>][-+0-9]{0,2})?(?: +#.*)?")
# Every line that matches a pattern contains one of these words. A search for the words is much faster than the patterns, so the
# patterns are tried only on lines with one of the words.
NEEDLES = (
    "pass", "pwd", "secret", "token", "credential", "key", "vault_", "://", "auth", "cookie", "bearer", "restricted-", "eyj",
    "webhook", "connection", "sig", "%3a",
)  # fmt: skip


def is_headers(name: Any, value: Any) -> bool:
    """Return True if the value is a map of HTTP headers."""
    return isinstance(value, Mapping) and HEADERS_NAME.search(str(name)) is not None


def forms(value: str) -> Set[str]:
    """Return a value in the forms in which it can occur: plain, JSON, URL, HTML, hexadecimal, and quoted for shell and Python."""
    variants = {value, value.strip(), value.replace("'", "'\\''"), repr(value)[1:-1]}
    variants |= {html.escape(value), html.escape(value, quote=False)}
    variants |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {urllib.parse.quote(value, safe=safe) for safe in ("", "/", ":/", "!$&'()*+,;=", "!$&'()*+,;=:/@")}
    quoted |= {urllib.parse.quote_plus(value), "".join(_percent(byte) for byte in value.encode())}
    variants |= quoted | {re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in quoted}
    variants |= {value.encode().hex(), value.encode().hex().upper()}
    variants |= {json.dumps(form)[1:-1] for form in variants}
    return {form for form in variants if len(form) >= MIN_LENGTH}


def _percent(byte: int) -> str:
    """Return a letter or a digit as it is, and any other byte percent-encoded."""
    return chr(byte) if byte < 128 and chr(byte).isalnum() else f"%{byte:02X}"


def base64_cores(value: str) -> Set[str]:
    """Return the base64 forms of a value, without the characters that also depend on the text around the value.

    Base64 encodes three bytes together. So a value has three forms, depending on the number of bytes before it.
    """
    raw = value.encode()
    cores = set()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        first = (shift * 8 + 5) // 6
        core = encoded[first : (shift + len(raw)) * 8 // 6]
        cores |= {core, core.replace("+", "-").replace("/", "_")}
    return {core for core in cores if len(core) >= MIN_LENGTH}


class Redactor:
    """A remover of secrets. Call `learn` with all contents first, so that `clean` removes each found secret from all contents."""

    def __init__(self, values: Iterable[str]) -> None:
        self.count = 0
        self._plain: Set[str] = set()
        self._encoded: Set[str] = set()
        self._ordered: Tuple[List[str], List[str]] = ([], [])
        for value in values:
            self._add(value)

    def _add(self, value: str) -> None:
        if len(value) >= MIN_LENGTH:
            self._plain |= forms(value)
            self._encoded |= base64_cores(value)
            # The longest values are replaced first, because a value can be a part of a longer value.
            self._ordered = (sorted(self._plain, key=len, reverse=True), sorted(self._encoded, key=len, reverse=True))

    def learn(self, content: Any) -> None:
        """Remember values that look like secrets and have letters and digits. `clean` removes these values from all contents."""
        found: Set[str] = set()

        def keep(value: str) -> str:
            word = value.strip("\"'")
            if 8 <= len(word) <= 200 and re.search("[A-Za-z]", word) and re.search("[0-9]", word) and not re.search(r"\s", word):
                found.add(word)
            return MARK

        _Cleaner(keep).content(content)
        for value in found:
            self._add(value)

    def clean(self, content: Any) -> Any:
        """Return text or data without secrets, and add the number of removed values to `count`."""
        cleaner = _Cleaner(lambda _value: MARK, self._without_known)
        content = cleaner.content(content)
        self.count += cleaner.count
        return content

    def _without_known(self, text: str) -> str:
        plain, encoded = self._ordered
        for entry in plain:
            text = text.replace(entry, MARK)
        for entry in encoded:
            if entry in text:
                # The characters around the match belong to the same base64 text, so they are removed, too.
                text = re.sub("[A-Za-z0-9+/_=-]{0,4000}" + re.escape(entry) + "[A-Za-z0-9+/_=-]{0,4000}", MARK, text)
        return text


class _Cleaner:
    """A walk over one content that replaces known values, and then values that look like a secret."""

    def __init__(self, replace: Callable[[str], str], without_known: Callable[[str], str] = lambda text: text) -> None:
        self._replace = replace
        self._without_known = without_known
        self.count = 0

    def content(self, value: Any, secret: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): self.content(inner, secret or looks_secret(str(name)) or is_headers(name, inner))
                for name, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return self._list(value, secret)
        if value is None or isinstance(value, bool) or value == "":
            return value
        if secret:
            self.count += 1
            return self._replace(str(value))
        return self.text(value) if isinstance(value, str) else value

    def _list(self, value: Iterable[Any], secret: bool) -> List[Any]:
        cleaned, after_option = [], False
        for entry in value:
            assignment = _ASSIGNMENT.fullmatch(entry) if isinstance(entry, str) else None
            if assignment and not secret:
                # A list entry NAME=VALUE is an environment variable. Everything after `=` is the value.
                self.count += 1
                cleaned.append(self.text(assignment[1]) + self._replace(assignment[2]))
            else:
                cleaned.append(self.content(entry, secret or after_option))
            after_option = isinstance(entry, str) and _FLAG.fullmatch(entry) is not None
        return cleaned

    def text(self, text: str) -> str:
        before = text.count(MARK)
        text = self._without_known(text)
        if "PRIVATE KEY-----" in text:
            for pattern in KEYS:
                text = pattern.sub(self._substitute, text)
        text = "".join(map(self._line, self._blocks(text.splitlines(keepends=True))))
        self.count += max(text.count(MARK) - before, 0)
        return text

    def _blocks(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines. If the name of a YAML block looks secret, replace each line of the block."""
        block_indent = -1
        for line in lines:
            words = line.strip()
            indent = len(line) - len(line.lstrip(" "))
            if block_indent >= 0 and words and words != MARK:
                if indent > block_indent or (indent == block_indent and words.startswith("- ")):
                    yield line[:indent] + self._replace(words) + line[len(line.rstrip("\r\n")) :]
                    continue
                block_indent = -1
            name = BLOCK.fullmatch(words)
            if name and looks_secret(name[1]):
                # In a list entry, the name is indented by the dash, too. So the next field of this entry ends the block.
                block_indent = indent + len(words) - len(words.lstrip("- "))
            yield line

    def _line(self, line: str) -> str:
        lower_line = line.lower()
        if any(needle in lower_line for needle in NEEDLES):
            for pattern in PATTERNS:
                line = pattern.sub(self._substitute, line)
        return line

    def _substitute(self, match: Match[str]) -> str:
        secret = match["secret"]
        if secret.strip("\"',").lower() in ("", "null", "none", "true", "false", MARK):
            return match[0]
        quote = secret[0] if secret[0] in "\"'" and secret[0] == secret[-1] else ""
        return match["keep"] + quote + self._replace(secret) + quote
