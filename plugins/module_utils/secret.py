# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Detection of secrets by their names, detection of logins in addresses, and digests that replace secrets ("sealed" values).

A digest is an HMAC with a key that is used for one query of one host only. The actual and the desired value are equal if their
digests are equal. From a plain hash, an attacker could find a short password by guessing. With an HMAC, guessing needs the key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Iterable, List, Sequence

WORDS = (
    r"(?:passw(?:or)?d|passphrase|(?<![a-z])pass(?![a-z])|pwd(?![a-z])|secret|token(?!s|iz)|credential"
    r"|(?:api|access|private|secret|account)[_-]?key|(?<=[a-z0-9])(?<!public)(?<!primary)(?<!foreign)[_-]key(?![a-z])"
    r"|connection[_-]?string|webhook|(?<![a-z])vault_)"
)
SECRET_NAME = re.compile(WORDS, re.IGNORECASE)
# Names of secrets in Docker's config.json. These words count only as whole names: many harmless names contain one of them.
EXACT_NAMES = ("auth", "identitytoken", "registrytoken")
# The second alternative of the group `secret` also matches passwords with characters that should be percent-encoded. It does not
# match a port that is followed by a path.
_LOGIN = (
    r"(?P<keep>\b[a-z][a-z0-9+.-]{0,20}://)"
    r"(?P<secret>[^/\s\"'?#]{1,400}|[^/\s:@\"'?#]{1,200}:(?!\d{1,5}[/?#])[^\s\"'<>]{1,400})"
)
LOGIN = re.compile(_LOGIN + "(?=@)", re.IGNORECASE)
LOGIN_AT = re.compile(_LOGIN + "@", re.IGNORECASE)
_QUERY = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s?\"'<>]*\?([^\s\"'<>]+)", re.IGNORECASE)
# _AUTHORITY matches a login between scheme and path, after one or more slashes. _ADDRESS also matches a login with spaces, but
# only if the text begins with the address.
_HEAD = r"(?:[a-z][a-z0-9+.-]{0,20}:[/\\]{2,9}|(?:https?|ftps?):[/\\])"
_AUTHORITY = re.compile(r"\b" + _HEAD + r"[^/\\?#\s@]{0,400}@", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*" + _HEAD + r"[^/\\?#@]{0,400}@", re.IGNORECASE)
# user:password@host without a scheme. The @ before an image's digest is no login.
_SCHEMELESS = re.compile(r"(?<![\w/:.@-])[^\s/@:]{1,200}:[^\s/@]{1,400}@(?!sha(?:256|512):)[\w\[]", re.IGNORECASE)
# The scheme of an object store that Triton accepts in front of the http or https address of the store
_STORE = re.compile(r"^\s*(?:s3|gs|as)://(?=https?://)", re.IGNORECASE)
# Number of forms of a text that are searched for an @: the text itself, the decoded text (@ was %40), and the text decoded twice
# (@ was %2540)
MAX_DECODINGS = 3

# Number of hexadecimal digits of a digest
DIGEST_DIGITS = 12
# Smallest length of a secret that is masked in texts. Shorter values also occur in ordinary words.
MIN_LENGTH = 6
# Values that are not secret: numbers, sizes and switches
SMALL = re.compile(r"|-?\d{1,4}(?:[.,:]\d{1,4}){0,15}|\d{1,9}[kmgt]i?b?|true|false|yes|no|on|off|none", re.IGNORECASE)
PATHS = re.compile(r"(?:/[\w.+-]+)+/?(?::(?:/[\w.+-]+)+/?){0,9}")
PATH_NAME = re.compile(r"(?:^|_)(?:path|dir|directory|file|home|root)$", re.IGNORECASE)
# Options of tritonserver whose values are not secret if they match CLEAR_VALUE
CLEAR_OPTIONS = (
    "model-repository", "model-store", "model-control-mode", "load-model", "log-format", "backend-directory", "repoagent-directory",
    "cache-directory", "http-address", "grpc-address", "metrics-address", "rate-limit", "rate-limit-resource",
)  # fmt: skip
CLEAR_VALUE = re.compile(r"[\w.*:/-]{1,300}")
# Options of tritonserver whose value has the form `setting=value` (SETTINGS), and the pattern of `setting` (SETTING)
SETTINGS = re.compile(r"[\w-]+-config|host-policy|(?:http|grpc)-restricted-(?:api|protocol)")
SETTING = re.compile(r"[\w-]{1,60}(?:[,:][\w-]{1,60}){0,9}")
OPTION = re.compile(r"(--[\w-]{1,64})(?:=(.*))?", re.DOTALL)
# Lines of a systemd unit that cannot contain a secret
UNIT_LINE = re.compile(r"|#.*|\[\w+\]|(?:Limit\w+|Wants|After|EnvironmentFile)=[^@]*")


def looks_secret(name: str) -> bool:
    """Return True if a value with this name may be secret."""
    return SECRET_NAME.search(name) is not None or name.lower() in EXACT_NAMES


def is_path(name: str, value: str) -> bool:
    """Return True if a value is a path by its name and its form, and so is not secret."""
    return PATH_NAME.search(name) is not None and PATHS.fullmatch(value) is not None


def replace_logins(text: str, replacement: str = "") -> str:
    """Return the text with the login of each address replaced, including the @."""
    return LOGIN_AT.sub(lambda found: found["keep"] + replacement, text)


def has_login(text: str, schemeless: bool = True) -> bool:
    """Return True if an address in the text has a login. With `schemeless`, user:password@host counts as an address, too."""
    if "@" not in text and "%" not in text:
        return False
    for _time in range(MAX_DECODINGS):
        plain = _STORE.sub("", text)
        patterns = (LOGIN_AT, _AUTHORITY, _ADDRESS, *([_SCHEMELESS] if schemeless else []))
        if any(entry.search(plain) if entry is not _ADDRESS else entry.match(plain) for entry in patterns):
            return True
        if "%" not in text:
            return False
        # This import is slow, and few texts need it.
        from urllib.parse import unquote

        text = unquote(text)
    return False


def mask_logins(text: str) -> str:
    """Return the text with its logins masked, or only a mask if a login remains."""
    shown = replace_logins(text, "***@")
    return "***" if has_login(shown.replace("***@", ""), schemeless=False) else shown


def address_secrets(value: Any) -> List[str]:
    """Return the secrets of the addresses in a value: logins with their @, and queries, which can contain a signature or token.

    A caller puts these secrets into a no_log option of a module, so that Ansible masks them in all options of this module.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sorted({address for inner in value for address in address_secrets(inner)})
    if not isinstance(value, str):
        return []
    found = [match["secret"] + "@" for match in LOGIN_AT.finditer(value)] + _QUERY.findall(value)
    return [entry for entry in found if len(entry) >= MIN_LENGTH]


def new_key() -> str:
    """Return a key for the digests of one query."""
    import secrets

    return secrets.token_hex(16)


def seal(value: str, key: str) -> str:
    """Return the digest of a value under a key."""
    return "digest:" + hmac.new(key.encode(), value.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:DIGEST_DIGITS]


def seal_values(values: Any, key: str, clear: Sequence[str] = (), name: str = "") -> Any:
    """Return nested values in which each value that may be secret is sealed.

    A value with a name in `clear` stays readable, unless it contains an @, because it can then contain a login.
    """
    if isinstance(values, Mapping):
        return {field: seal_values(values[field], key, clear, str(field)) for field in values}
    if isinstance(values, (list, tuple)):
        return [seal_values(entry, key, clear, name) for entry in values]
    if values is None or isinstance(values, bool):
        return values
    value = str(values)
    if not value or is_path(name, value):
        return values
    shown = not isinstance(values, str) or SMALL.fullmatch(value) or (name in clear and "@" not in value)
    return values if shown and not looks_secret(name) else seal(value, key)


def seal_command(words: Sequence[str], key: str) -> List[str]:
    """Return a command line in which each value that may be secret is sealed. Names of options remain readable."""
    shown: List[str] = []
    option = ""
    for position, word in enumerate(words):
        match = OPTION.fullmatch(word)
        if match:
            shown.append(word if match[2] is None else f"{match[1]}={_seal_option(match[1], match[2], key)}")
            option = match[1] if match[2] is None else ""
        else:
            program = position == 0 and CLEAR_VALUE.fullmatch(word)
            clear = program or word == "tritonserver" or re.fullmatch("-[a-z]", word)
            shown.append(word if clear else _seal_option(option, word, key))
            option = ""
    return shown


def _seal_option(option: str, value: str, key: str) -> str:
    """Return the value of an option, sealed if it may be secret; `option` is empty for a positional argument."""
    name = option.lstrip("-")
    if looks_secret(name):
        return seal(value, key)
    is_clear = name in CLEAR_OPTIONS and CLEAR_VALUE.fullmatch(value)
    if is_clear or value.isdigit() or SMALL.fullmatch(value) or PATHS.fullmatch(value):
        return value
    head, equals, tail = value.partition("=")
    if SETTINGS.fullmatch(name) and equals and SETTING.fullmatch(head):
        harmless = not looks_secret(head) and "restricted" not in name
        return f"{head}={tail if harmless and (tail.isdigit() or SMALL.fullmatch(tail)) else seal(tail, key)}"
    return seal(value, key)


def seal_unit(text: str, key: str) -> str:
    """Return a systemd unit with the values of all lines sealed, except for lines that match UNIT_LINE."""

    def seal_line(line: str) -> str:
        if UNIT_LINE.fullmatch(line):
            return line
        name, equals, value = line.partition("=")
        return f"{name}={seal(value, key)}" if equals and re.fullmatch(r"\w{1,60}", name) else seal(line, key)

    return "".join(seal_line(entry.rstrip("\n")) + "\n" * entry.endswith("\n") for entry in text.splitlines(keepends=True))


def remove_values(text: str, raw: Iterable[str], shown: Iterable[str]) -> str:
    """Return a text in which the `raw` values are masked, except the values in `shown`.

    For example, the errors of a server repeat its options, which can contain a password.
    """
    hidden = set()
    for value in set(raw) - set(shown):
        hidden |= {value, value.partition("=")[2], value.rpartition("=")[2]}
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) >= MIN_LENGTH:
            text = text.replace(value, "***")
    return text
