"""What may be a secret, and how it is shown: names of secrets, logins in addresses, and values that are compared as digests.

A digest is an HMAC under a key that is made for one look at one host and kept nowhere. It says whether what was found is what is
wanted, and a reader of the result cannot try out guesses against it, as a plain or a salted hash of a short password would let him.
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
# Docker's config.json
EXACT_NAMES = ("auth", "identitytoken", "registrytoken")
# The second form is a password with characters that belong quoted there; what begins like a port is one
_LOGIN = (
    r"(?P<keep>\b[a-z][a-z0-9+.-]{0,20}://)"
    r"(?P<secret>[^/\s\"'?#]{1,400}|[^/\s:@\"'?#]{1,200}:(?!\d{1,5}[/?#])[^\s\"'<>]{1,400})"
)
LOGIN = re.compile(_LOGIN + "(?=@)", re.IGNORECASE)
LOGIN_AT = re.compile(_LOGIN + "@", re.IGNORECASE)
_QUERY = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s?\"'<>]*\?([^\s\"'<>]+)", re.IGNORECASE)
# Between scheme and path, however many slashes there are; where the text is an address it may have spaces
_HEAD = r"(?:[a-z][a-z0-9+.-]{0,20}:[/\\]{2,9}|(?:https?|ftps?):[/\\])"
_AUTHORITY = re.compile(r"\b" + _HEAD + r"[^/\\?#\s@]{0,400}@", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*" + _HEAD + r"[^/\\?#@]{0,400}@", re.IGNORECASE)
# user:password@host without a scheme; an image may have its digest there
_SCHEMELESS = re.compile(r"(?<![\w/:.@-])[^\s/@:]{1,200}:[^\s/@]{1,400}@(?!sha(?:256|512):)[\w\[]", re.IGNORECASE)
# Of a store that Triton reads, the address of its server comes behind the scheme of the store
_STORE = re.compile(r"^\s*(?:s3|gs|as)://(?=https?://)", re.IGNORECASE)
# How often an address is decoded: a login may be written as %40, and that as %2540
DECODED = 3

DIGITS = 12
# A shorter value would be found inside of ordinary words everywhere
SHORTEST = 6
# Numbers, sizes and switches, which nobody takes for a secret
SMALL = re.compile(r"|-?\d{1,4}(?:[.,:]\d{1,4}){0,15}|\d{1,9}[kmgt]i?b?|true|false|yes|no|on|off|none", re.IGNORECASE)
PATHS = re.compile(r"(?:/[\w.+-]+)+/?(?::(?:/[\w.+-]+)+/?){0,9}")
PLACE = re.compile(r"(?:^|_)(?:path|dir|directory|file|home|root)$", re.IGNORECASE)
# Options of tritonserver that have no room for a secret, and what their values look like
CLEAR_OPTIONS = (
    "model-repository", "model-store", "model-control-mode", "load-model", "log-format", "backend-directory", "repoagent-directory",
    "cache-directory", "http-address", "grpc-address", "metrics-address", "rate-limit", "rate-limit-resource",
)  # fmt: skip
CLEAR_VALUE = re.compile(r"[\w.*:/-]{1,300}")
# ... and those whose value is `settings=value`
SETTINGS = re.compile(r"[\w-]+-config|host-policy|(?:http|grpc)-restricted-(?:api|protocol)")
HEAD = re.compile(r"[\w-]{1,60}(?:[,:][\w-]{1,60}){0,9}")
OPTION = re.compile(r"(--[\w-]{1,64})(?:=(.*))?", re.DOTALL)
# Lines of a unit in which a value is no secret
UNIT_LINE = re.compile(r"|#.*|\[\w+\]|(?:Limit\w+|Wants|After|EnvironmentFile)=[^@]*")


def looks_secret(name: str) -> bool:
    """Whether a value of this name is one to take out."""
    return SECRET_NAME.search(name) is not None or name.lower() in EXACT_NAMES


def without_login(text: str, instead: str = "") -> str:
    """A text without the logins in its addresses."""
    return LOGIN_AT.sub(lambda found: found["keep"] + instead, text)


def has_login(text: str, schemeless: bool = True) -> bool:
    """Return True where an address in the text has a login: a user, a password or a token before an @, whatever its form.

    With `schemeless` user:password@host counts too.
    """
    if "@" not in text and "%" not in text:
        return False
    for _time in range(DECODED):
        plain = _STORE.sub("", text)
        patterns = (LOGIN_AT, _AUTHORITY, _ADDRESS, *([_SCHEMELESS] if schemeless else []))
        if any(entry.search(plain) if entry is not _ADDRESS else entry.match(plain) for entry in patterns):
            return True
        if "%" not in text:
            return False
        # Here, as few texts have any
        from urllib.parse import unquote

        text = unquote(text)
    return False


def masked(text: str) -> str:
    """Return a text as it may be shown: without the logins in its addresses, or nothing of it where one cannot be told apart."""
    shown = without_login(text, "***@")
    return "***" if has_login(shown.replace("***@", ""), schemeless=False) else shown


def of_addresses(value: Any) -> List[str]:
    """What addresses at any depth keep to themselves: a login with its @, and a signature or token behind the question mark.

    For an option of a module that is not logged: no other option is shown with it then.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sorted({address for inner in value for address in of_addresses(inner)})
    if not isinstance(value, str):
        return []
    found = [match["secret"] + "@" for match in LOGIN_AT.finditer(value)] + _QUERY.findall(value)
    return [entry for entry in found if len(entry) >= SHORTEST]


def new_key() -> str:
    """A key for one look."""
    import secrets

    return secrets.token_hex(16)


def seal(value: str, key: str) -> str:
    """A value as a digest under this key."""
    return "digest:" + hmac.new(key.encode(), value.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:DIGITS]


def settings(values: Any, key: str, clear: Sequence[str] = (), name: str = "") -> Any:
    """Named values with each that may be secret sealed, at any depth; those of the names `clear` only where a login is in them."""
    if isinstance(values, Mapping):
        return {number: settings(values[number], key, clear, str(number)) for number in values}
    if isinstance(values, (list, tuple)):
        return [settings(number, key, clear, name) for number in values]
    if values is None or isinstance(values, bool):
        return values
    value = str(values)
    if not value or (PLACE.search(name) and PATHS.fullmatch(value)):
        return values
    shown = not isinstance(values, str) or SMALL.fullmatch(value) or (name in clear and "@" not in value)
    return values if shown and not looks_secret(name) else seal(value, key)


def command(words: Sequence[str], key: str) -> List[str]:
    """A command line with every value that may be secret sealed: options stay to be read, with what is known of theirs."""
    shown: List[str] = []
    option = ""
    for place, word in enumerate(words):
        given = OPTION.fullmatch(word)
        if given:
            shown.append(word if given[2] is None else f"{given[1]}={_of_option(given[1], given[2], key)}")
            option = given[1] if given[2] is None else ""
        else:
            program = place == 0 and CLEAR_VALUE.fullmatch(word)
            clear = program or word == "tritonserver" or re.fullmatch("-[a-z]", word)
            shown.append(word if clear else _of_option(option, word, key))
            option = ""
    return shown


def _of_option(option: str, value: str, key: str) -> str:
    """The value of an option, `option` empty for a word that belongs to none."""
    name = option.lstrip("-")
    if looks_secret(name):
        return seal(value, key)
    if name in CLEAR_OPTIONS and CLEAR_VALUE.fullmatch(value):
        return value
    if value.isdigit() or SMALL.fullmatch(value) or PATHS.fullmatch(value):
        return value
    head, equals, tail = value.partition("=")
    if SETTINGS.fullmatch(name) and equals and HEAD.fullmatch(head):
        harmless = not looks_secret(head) and "restricted" not in name
        return f"{head}={tail if harmless and (tail.isdigit() or SMALL.fullmatch(tail)) else seal(tail, key)}"
    return seal(value, key)


def unit(text: str, key: str) -> str:
    """A unit file, of which no more than limits and order is shown as it is."""

    def line(word: str) -> str:
        if UNIT_LINE.fullmatch(word):
            return word
        name, equals, value = word.partition("=")
        return f"{name}={seal(value, key)}" if equals and re.fullmatch(r"\w{1,60}", name) else seal(word, key)

    return "".join(line(entry.rstrip("\n")) + "\n" * entry.endswith("\n") for entry in text.splitlines(keepends=True))


def without(text: str, raw: Iterable[str], shown: Iterable[str]) -> str:
    """A text without those of these raw values that are not shown, such as an option that a server repeats in its complaint."""
    known = set()
    for value in set(raw) - set(shown):
        known |= {value, value.partition("=")[2], value.rpartition("=")[2]}
    for value in sorted(known, key=len, reverse=True):
        if len(value) >= SHORTEST:
            text = text.replace(value, "***")
    return text
