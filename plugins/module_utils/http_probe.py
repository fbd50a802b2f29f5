"""Whether a supplier can be reached and takes the login: web servers, package indexes, image registries. Changes nothing.

Every function returns None, or one sentence of what was found, wanted, and to be done.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from typing import Any, Dict, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget
from ansible_collections.npufleet.triton.plugins.module_utils.secret import has_login, mask_logins, replace_logins

# Seconds and bytes of one exchange, its redirects included; characters of a page that are read
SECONDS, SIZE, PAGE = 10.0, 8 << 20, 1 << 20
DOCKER_HUB = "registry-1.docker.io"
DOCKER_HUB_TOKENS = "auth.docker.io"
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


class AddressError(ValueError):
    """An address that no request can be made of. Its text has no part of the address, which may hold a login."""


def parsed(address: str) -> urllib.parse.SplitResult:
    """Return the parts of an address of the web. Raises AddressError, as urllib's own errors repeat what they stumble over."""
    try:
        parts = urllib.parse.urlsplit(address)
        usual = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usual = False
    if not usual or not re.fullmatch(r"[\x21-\x7e]+", address):
        raise AddressError("found no address of the web, wanted https://host:port/path with special characters as %20")
    if "@" in parts.netloc:
        raise AddressError("found an address with a login in it, wanted the login in the variables that are for it")
    return parts


def supplier(entry: Mapping[str, Any], passwords: Mapping[str, str]) -> Optional[str]:
    """Ask one supplier: {"kind": "web" or "image", "what", "address", "user", "proxies", "ca", "todo", for images "mirror"}.

    `passwords` are by the supplier's `what`, so that they travel apart from everything that may be shown.
    """
    login = (str(entry.get("user") or ""), passwords.get(entry["what"], ""))
    if entry["kind"] == "web":
        why = web(entry["address"], login, entry.get("proxies") or {}, entry.get("ca"))
    else:
        why = image(entry["address"], login, entry.get("proxies") or {}, entry.get("ca"), entry.get("mirror"))
    return f"{entry['what']} {bare(entry['address'])}: {why}: {entry['todo']}" if why else None


def bare(address: str) -> str:
    """An address without the login that may be in it, and without a signature behind it."""
    shown = replace_logins(address).partition("?")[0]
    return shown if not has_login(shown) else "an address with a login"


def web(address: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str]) -> Optional[str]:
    """A page or file on a web server."""
    return measure(address, login, proxies, ca)[1]


def measure(
    address: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str]
) -> Tuple[Optional[int], Optional[str]]:
    """(bytes of a file on a web server where it says so, why it cannot be had)."""
    status, words, headers = _exchange(address, login, proxies, ca, {})
    why = judge(status, words, login)
    return (None if why else whole_number(headers.get("content-length", ""))), why


def whole_number(text: str) -> Optional[int]:
    """The number in a header; None for anything else, and for one that no file is as long as."""
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None


def judge(status: int, words: str, login: Tuple[str, str]) -> Optional[str]:
    """What the status of an answer says of a file or page; status 0 is no answer, for the reason in `words`."""
    if status in (401, 403):
        return _refused(status, login)
    if status == 404:
        return "found 404, wanted a file or page there"
    return None if 200 <= status < 300 else _unreachable(status, words)


def image(
    reference: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str], mirror: Optional[str] = None
) -> Optional[str]:
    """An image at the mirror, where the engine asks first, or else in its registry, for which alone the login is."""
    registry, name, tag = split(reference)
    elsewhere = _manifest(mirror.rstrip("/"), name, tag, ("", ""), proxies, ca) if mirror else None
    if mirror and not elsewhere:
        return None
    why = _manifest(f"https://{registry}", name, tag, login, proxies, ca)
    return f"{why}; at its mirror {bare(str(mirror))}: {elsewhere}" if why and elsewhere else why


def _manifest(
    base: str, name: str, tag: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str]
) -> Optional[str]:
    """The manifest of an image in one registry, after the token that it may ask for."""
    address = f"{base}/v2/{name}/manifests/{tag}"
    accept = {"Accept": MANIFESTS}
    status, words, headers = _exchange(address, login, proxies, ca, accept)
    tried = login
    if status == 401 and headers.get("www-authenticate", "").lower().startswith("bearer"):
        asked = dict(re.findall(r'(?<!\w)(\w+)="([^"]*)"', headers["www-authenticate"]))
        realm = asked.get("realm", "")
        if not realm.startswith("https://"):
            return "found a registry that named no https address for its tokens, wanted one: nothing was sent there"
        query = urllib.parse.urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        tried = login if takes_login(base, realm) else ("", "")
        status, words, _headers = _exchange(f"{realm}?{query}", tried, proxies, ca, {}, "GET")
        if status == 200:
            token = _token(words)
            status, words, _headers = _exchange(address, ("", ""), proxies, ca, {**accept, "Authorization": f"Bearer {token}"})
    if status in (401, 403):
        # Where the login was not sent it is not known to be wrong: the engine's own pull will tell.
        return None if tried != login else _refused(status, login)
    if status == 404:
        return f"found no {name}:{tag} in the registry, wanted it there"
    return None if status == 200 else _unreachable(status, words)


def takes_login(registry: str, realm: str) -> bool:
    """Whether a registry's login is for this address of tokens: its own, or the one that Docker Hub is known to have."""
    try:
        own, named = parsed(registry), parsed(realm)
    except AddressError:
        return False
    known = own.hostname == DOCKER_HUB and named.hostname == DOCKER_HUB_TOKENS
    return own.scheme == named.scheme == "https" and (own.hostname == named.hostname or known)


def split(reference: str) -> Tuple[str, str, str]:
    """(registry, name, tag or digest) of an image reference, as the engine reads it."""
    head, _slash, rest = reference.partition("/")
    if not rest or not ("." in head or ":" in head or head == "localhost"):
        head, rest = "docker.io", reference
    name, at, tag = rest.partition("@")
    if not at:
        name, _colon, tag = rest.partition(":")
    if head == "docker.io":
        head, name = DOCKER_HUB, name if "/" in name else "library/" + name
    return head, name, tag or "latest"


def _token(body: str) -> str:
    """The token in an answer, empty for anything else: it becomes a header."""
    try:
        answer = shapes.parse(body)
    except ValueError:
        return ""
    token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
    return token if isinstance(token, str) and re.fullmatch(r"[\x21-\x7e]+", token) else ""


def _refused(status: int, login: Tuple[str, str]) -> str:
    if not login[0]:
        return f"found {status}, it wants a login, and none is set"
    return f"found {status}, it refuses the login of {login[0]}, wanted one that it takes"


def _unreachable(status: int, words: str) -> str:
    found = f"status {status}" if status else words
    return f"found no answer ({found}), wanted it reachable, directly or through npufleet_https_proxy"


def _exchange(
    address: str,
    login: Tuple[str, str],
    proxies: Mapping[str, str],
    ca: Optional[str],
    headers: Mapping[str, str],
    method: str = "HEAD",
) -> Tuple[int, str, Mapping[str, str]]:
    """(status, body or reason, headers in lower case); status 0 when there was no answer."""
    import urllib.error
    from http.client import HTTPException

    try:
        with ask(address, login, proxies, ca, headers, method, Budget(SECONDS, SIZE)) as answer:
            return answer.status, answer.read(PAGE).decode("utf-8", "replace"), _lower(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, mask_logins(str(error.reason)), _lower(error.headers)
    except urllib.error.URLError as error:
        return 0, mask_logins(str(error.reason)), {}
    except (OSError, ValueError, HTTPException) as error:
        return 0, mask_logins(str(error) or type(error).__name__), {}


def ask(
    address: str,
    login: Tuple[str, str],
    proxies: Mapping[str, str],
    ca: Optional[str],
    headers: Mapping[str, str],
    method: str,
    budget: Budget,
) -> Any:
    """The answer as urllib gives it, to be closed by the caller. Raises what urllib raises, and AddressError."""
    # Here, as most who import this ask nobody
    import urllib.request
    from http.client import InvalidURL

    from ansible_collections.npufleet.triton.plugins.module_utils.web_client.opener import open_request

    parsed(address)
    request = urllib.request.Request(address, method=method)
    for name, value in headers.items():
        # What opens this door is not sent on when the answer leads elsewhere
        (request.add_unredirected_header if name == "Authorization" else request.add_header)(name, value)
    if login[0]:
        given = base64.b64encode(f"{login[0]}:{login[1]}".encode()).decode()
        request.add_unredirected_header("Authorization", "Basic " + given)
    try:
        return open_request(request, _proxies(address, proxies), ca, budget)
    except (InvalidURL, UnicodeError):
        # Of a proxy, or of where a redirection leads
        raise AddressError("found a proxy or a redirection that is no address, wanted http://host:port") from None


def _lower(headers: Any) -> Dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _proxies(address: str, proxies: Mapping[str, str]) -> Dict[str, str]:
    """The proxies for this address: none where no_proxy names its host or a domain above it."""
    host = parsed(address).hostname or ""
    for part in str(proxies.get("no_proxy") or "").replace(" ", "").split(","):
        if part and (part == "*" or host == part.lstrip(".") or host.endswith("." + part.lstrip("."))):
            return {}
    return {scheme: proxies[scheme] for scheme in ("http", "https") if proxies.get(scheme)}
