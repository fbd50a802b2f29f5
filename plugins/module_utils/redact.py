"""Takes secrets out of what leaves a host: known values in every form they may take, and what looks like a secret.

Pure: text or JSON data in, the same without secrets out. Too much is taken out rather than too little.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Match, Pattern, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.secret import LOGIN, SHORTEST, WORDS, looks_secret

MARK = "<redacted>"
# A variable of such a name says where a secret is, not what it is
PLACE_NAME = re.compile(r"(?<!webhook)_(file|path|dir|url|user|username|name)$", re.IGNORECASE)
# Every one of these has the name that its reader gave it
HEADERS_NAME = re.compile(r"headers$", re.IGNORECASE)
_FLAG = re.compile(r"--?(?:[\w-]{0,64}" + WORDS + r"[\w-]{0,64}|(?:http|grpc)-restricted-(?:api|protocol))", re.IGNORECASE)
_ASSIGNED = re.compile(r"([\w.-]{0,64}?" + WORDS + r"[\w.-]{0,64}=)(.+)", re.IGNORECASE | re.DOTALL)
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----"
_QUOTED = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
_SCALAR = (str, int, float)


def _pattern(text: str, flags: int = 0) -> Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.MULTILINE | flags)


# Each keeps its group `keep` and takes out its group `secret`. Lengths are bounded, so that a line of a megabyte costs no more
# than its length. Keys first, which have several lines; one whose begin was cut off is taken out from the text's first byte.
KEYS: List[Pattern[str]] = [
    _pattern(r"(?P<keep>)(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:" + _END + r"|\Z))", re.DOTALL),
    _pattern(r"(?P<keep>)(?P<secret>\A.{0,8000}?" + _END + ")", re.DOTALL),
]
RESTRICTED = _pattern(r"(?P<keep>restricted-(?:api|protocol)[=\s\"',]{1,8}[^\s\"'=]{1,200}=)(?P<secret>[^\s\"']+)")
# What signs an address (SAS, presigned), or names who may read it
SIGNED = _pattern(
    r"(?P<keep>(?:[?&;]|u0026)(?:x-(?:amz|goog|ms)-)?(?:sig|signature|credential|security-token|awsaccesskeyid|key)=)"
    r"(?P<secret>[^&\s\"'#<>\\]+)"
)
WEBHOOK = _pattern(
    r"(?P<keep>\bhttps?://(?:hooks\.[\w.-]{1,200}/|api\.telegram\.org/bot"
    r"|[\w.:-]{1,250}/(?:[\w.-]{1,60}/){0,4}?(?:webhooks?|webhookb2|hooks)/))(?P<secret>[^\s\"'<>\\]+)"
)
# A login in an address that is a value of another one
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
    # "NAME=value" as a whole, then name: "value", then the rest of a line that begins with the name, then one word
    _pattern(r"(?P<keep>\"[\w.-]{0,64}?" + WORDS + r"[\w.-]{0,64}=)(?P<secret>(?:[^\"\\\n]|\\.)+)(?=\")"),
    _pattern(r"(?P<keep>" + WORDS + r"[\w.-]{0,64}\\?[\"']?\s*[:=]\s*)(?P<secret>" + _QUOTED + ")"),
    _pattern(
        r"^(?P<keep>[ \t]*(?:export[ \t]+|-[ \t]+)?[\"']?[\w.-]{0,64}?" + WORDS + r"[\w.-]{0,64}[\"']?[ \t]*[:=](?!:)[ \t]*)"
        r"(?P<secret>(?![\"']?" + MARK + r")[^\s\"'].*)$"
    ),
    _pattern(r"(?P<keep>" + WORDS + r"[\w.-]{0,64}\\?[\"']?[ \t]*[:=](?!:)[ \t]*\\?[\"']?)(?P<secret>[^\s\"'&})\]\\]+)"),
    _pattern(r"(?P<keep>(?<!\S)--?[\w-]{0,64}?" + WORDS + r"[\w-]{0,64}[ \t]+)(?P<secret>(?!-)[^\s\"']+)"),
]
# A name whose value begins in the next line
BLOCK = re.compile(r"(?:- +)*[\"']?([\w.-]{1,100})[\"']? *:(?: +[|>][-+0-9]{0,2})?(?: +#.*)?")
# A line with none of these matches no pattern: looking for words is quicker by far
NEEDLES = (
    "pass", "pwd", "secret", "token", "credential", "key", "vault_", "://", "auth", "cookie", "bearer", "restricted-", "eyj",
    "webhook", "connection", "sig", "%3a",
)  # fmt: skip


def secret_values(variables: Mapping[str, Any]) -> Set[str]:
    """Values of variables, and of entries inside of them, that have the name of a secret or stand in a URL as a login."""
    found: Set[str] = set()

    def walk(value: Any, secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                hidden = (looks_secret(str(name)) and not PLACE_NAME.search(str(name))) or _headers(name, part)
                walk(part, secret or hidden)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part, secret)
        elif isinstance(value, _SCALAR) and not isinstance(value, bool):
            text = str(value)
            found.update([text] if secret else _logins(text))

    walk(variables, False)
    return {value for value in found if len(value) >= SHORTEST}


def _headers(name: Any, value: Any) -> bool:
    """Whether these are headers of requests."""
    return isinstance(value, Mapping) and HEADERS_NAME.search(str(name)) is not None


def _logins(text: str) -> List[str]:
    """Passwords and signatures in URLs, and keys in options of a server."""
    words = [urllib.parse.unquote(match["secret"]).split(":", 1)[-1] for match in LOGIN.finditer(text)]
    for pattern in (RESTRICTED, SIGNED, WEBHOOK):
        words += [urllib.parse.unquote(match["secret"]) for match in pattern.finditer(text)]
    return words


def forms(value: str) -> Set[str]:
    """A value as programs write it: plain, in JSON, in URLs, in HTML, in hexadecimal, quoted by a shell or by Python."""
    written = {
        value,
        value.strip(),
        html.escape(value),
        html.escape(value, quote=False),
        value.replace("'", "'\\''"),
        repr(value)[1:-1],
    }
    written |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {urllib.parse.quote(value, safe=safe) for safe in ("", "/", ":/", "!$&'()*+,;=", "!$&'()*+,;=:/@")}
    quoted |= {urllib.parse.quote_plus(value), "".join(_percent(byte) for byte in value.encode())}
    written |= quoted | {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in quoted}
    written |= {value.encode().hex(), value.encode().hex().upper()}
    written |= {json.dumps(form)[1:-1] for form in written}
    return {form for form in written if len(form) >= SHORTEST}


def _percent(byte: int) -> str:
    """A byte in a URL of which nothing but letters and digits is left as it is."""
    return chr(byte) if byte < 128 and chr(byte).isalnum() else f"%{byte:02X}"


def base64_cores(value: str) -> Set[str]:
    """What is always to be seen of a value inside of a base64 text, wherever in it the value begins."""
    raw = value.encode()
    cores = set()
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        first = (shift * 8 + 5) // 6
        core = whole[first : (shift + len(raw)) * 8 // 6]
        cores |= {core, core.replace("+", "-").replace("/", "_")}
    return {core for core in cores if len(core) >= SHORTEST}


class Redactor:
    """Cleans contents. `learn` first shows it all of them, so that what is a secret in one place is one in every place."""

    def __init__(self, values: Iterable[str]) -> None:
        self.count = 0
        self._plain: Set[str] = set()
        self._encoded: Set[str] = set()
        self._ordered: Tuple[List[str], List[str]] = ([], [])
        for value in values:
            self._know(value)

    def _know(self, value: str) -> None:
        if len(value) >= SHORTEST:
            self._plain |= forms(value)
            self._encoded |= base64_cores(value)
            # The longest first: one may be a part of another
            self._ordered = (sorted(self._plain, key=len, reverse=True), sorted(self._encoded, key=len, reverse=True))

    def learn(self, content: Any) -> None:
        """Remember what looks like a secret of its own, letters with digits, to take it out wherever else it stands."""
        found: Set[str] = set()

        def keep(value: str) -> str:
            word = value.strip("\"'")
            if 8 <= len(word) <= 200 and re.search("[A-Za-z]", word) and re.search("[0-9]", word) and not re.search(r"\s", word):
                found.add(word)
            return MARK

        _Cleaner(keep).content(content)
        for value in found:
            self._know(value)

    def clean(self, content: Any) -> Any:
        """Text or data without secrets."""
        cleaner = _Cleaner(lambda _value: MARK, self._known)
        content = cleaner.content(content)
        self.count += cleaner.count
        return content

    def _known(self, text: str) -> str:
        plain, encoded = self._ordered
        for entry in plain:
            if entry in text:
                text = text.replace(entry, MARK)
        for entry in encoded:
            if entry in text:
                # What stands around it belongs to the same base64 text
                text = re.sub("[A-Za-z0-9+/_=-]{0,4000}" + re.escape(entry) + "[A-Za-z0-9+/_=-]{0,4000}", MARK, text)
        return text


class _Cleaner:
    """One walk over a content: known values first, then what looks like a secret."""

    def __init__(self, replace: Callable[[str], str], known: Callable[[str], str] = lambda text: text) -> None:
        self._replace = replace
        self._known = known
        self.count = 0

    def content(self, value: Any, secret: bool = False) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, secret)
        if isinstance(value, (list, tuple)):
            return self._list(value, secret)
        if value is None or isinstance(value, bool) or value == "":
            return value
        if secret:
            self.count += 1
            return self._replace(str(value))
        return self.text(value) if isinstance(value, str) else value

    def _mapping(self, value: Mapping[Any, Any], secret: bool) -> Dict[str, Any]:
        return {
            self.text(str(name)): self.content(part, secret or looks_secret(str(name)) or _headers(name, part))
            for name, part in value.items()
        }

    def _list(self, value: Iterable[Any], secret: bool) -> List[Any]:
        cleaned, flag = [], False
        for part in value:
            assigned = _ASSIGNED.fullmatch(part) if isinstance(part, str) else None
            if assigned and not secret:
                # An environment: the value goes to the end, whatever is in it
                self.count += 1
                cleaned.append(self.text(assigned[1]) + self._replace(assigned[2]))
            else:
                cleaned.append(self.content(part, secret or flag))
            flag = isinstance(part, str) and _FLAG.fullmatch(part) is not None
        return cleaned

    def text(self, text: str) -> str:
        before = text.count(MARK)
        text = self._known(text)
        if "PRIVATE KEY-----" in text:
            for pattern in KEYS:
                text = pattern.sub(self._marked, text)
        text = "".join(map(self._line, self._blocks(text.splitlines(keepends=True))))
        self.count += max(text.count(MARK) - before, 0)
        return text

    def _blocks(self, lines: Iterable[str]) -> Iterator[str]:
        """Lines without what stands below a secret's name that has no value in its own line, as in YAML."""
        deep = -1
        for line in lines:
            words = line.strip()
            indent = len(line) - len(line.lstrip(" "))
            if deep >= 0 and words and words != MARK:
                inside = indent > deep or (indent == deep and words.startswith("- "))
                if inside:
                    yield line[:indent] + self._replace(words) + line[len(line.rstrip("\r\n")) :]
                    continue
                deep = -1
            opened = BLOCK.fullmatch(words)
            if opened and looks_secret(opened[1]):
                # Of an entry of a list its fields are deeper than the list
                deep = indent + len(words) - len(words.lstrip("- "))
                yield line
                continue
            yield line

    def _line(self, line: str) -> str:
        low = line.lower()
        if any(needle in low for needle in NEEDLES):
            for pattern in PATTERNS:
                line = pattern.sub(self._marked, line)
        return line

    def _marked(self, found: Match[str]) -> str:
        secret = found["secret"]
        if secret.strip("\"',").lower() in ("", "null", "none", "true", "false", MARK):
            return found[0]
        quote = secret[0] if secret[0] in "\"'" and secret[0] == secret[-1] else ""
        return found["keep"] + quote + self._replace(secret) + quote
