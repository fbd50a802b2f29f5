# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Requests that check if a supplier (web server, package index, image registry) can be reached and accepts the login.

The requests change nothing. A check returns None for success, or an error message.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget
from ansible_collections.npufleet.triton.plugins.module_utils.secret import has_login, mask_logins, replace_logins

# Limits of one exchange including redirects: seconds, received bytes, bytes of the body that are read
TIMEOUT_SECONDS, MAX_RECEIVED, MAX_PAGE = 10.0, 8 << 20, 1 << 20
DOCKER_HUB = "registry-1.docker.io"
DOCKER_HUB_TOKENS = "auth.docker.io"
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)


class AddressError(ValueError):
    """The error of an invalid address. Its message does not contain the address, because the address can contain a login."""


def parse_address(address: str) -> urllib.parse.SplitResult:
    """Return the parts of a web address. Raises AddressError: an error of urllib would repeat parts of the address."""
    try:
        parts = urllib.parse.urlsplit(address)
        is_web_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_web_address = False
    if not is_web_address or not re.fullmatch(r"[\x21-\x7e]+", address):
        raise AddressError("it is not a web address, expected https://host:port/path with special characters as %20")
    if "@" in parts.netloc:
        raise AddressError("the address has a login, expected it in the variables for logins")
    return parts


class Access(NamedTuple):
    """The login (user, password), proxies and PEM certificate authorities for requests to a server."""

    login: Tuple[str, str]
    proxies: Mapping[str, str]
    ca: Optional[str]


def access(settings: Mapping[str, Any], password: Optional[str]) -> Access:
    """Return the Access for these settings: {"user", "proxies", "ca"}. Each field can be missing."""
    return Access((str(settings.get("user") or ""), password or ""), settings.get("proxies") or {}, settings.get("ca"))


def supplier_error(entry: Mapping[str, Any], passwords: Mapping[str, str]) -> Optional[str]:
    """Return an error message if the supplier cannot be used, or None.

    `entry` is {"kind": "web" or "image", "name", "address", "user", "proxies", "ca", "todo": the next step for the message, and for
    images "mirror"}. `passwords` is {name of a supplier: password}, so that `entry` has no secret.
    """
    own_access = access(entry, passwords.get(entry["name"]))
    if entry["kind"] == "web":
        why = measure(entry["address"], own_access)[1]
    else:
        why = image(entry["address"], own_access, entry.get("mirror"))
    return f"{entry['name']} {public_address(entry['address'])}: {why}: {entry['todo']}" if why else None


def public_address(address: str) -> str:
    """Return an address without its login and without its query, which can contain a signature."""
    shown = replace_logins(address).partition("?")[0]
    return shown if not has_login(shown) else "an address with a login"


def measure(address: str, own_access: Access) -> Tuple[Optional[int], Optional[str]]:
    """Return (size of a page or file, or None if unknown; reason why the page cannot be downloaded, or None)."""
    status, text, headers = _exchange(address, own_access)
    why = status_error(status, text, own_access.login)
    return (None if why else whole_number(headers.get("content-length", ""))), why


def whole_number(text: str) -> Optional[int]:
    """Return the number in a header, or None if the text is no number or has more than 15 digits."""
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None


def status_error(status: int, text: str, login: Tuple[str, str]) -> Optional[str]:
    """Return the error message for an HTTP status, or None for success. Without a response, status is 0 and `text` the reason."""
    if status in (401, 403):
        return _refused(status, login)
    if status == 404:
        return "status 404, expected a file or page"
    return None if 200 <= status < 300 else _unreachable(status, text)


def image(reference: str, own_access: Access, mirror: Optional[str] = None) -> Optional[str]:
    """Return the reason why an image is in neither the mirror nor its registry, or None if one of them has the image."""
    registry, name, tag = split(reference)
    mirror_error = _manifest(mirror.rstrip("/"), name, tag, own_access._replace(login=("", ""))) if mirror else None
    if mirror and not mirror_error:
        return None
    why = _manifest(f"https://{registry}", name, tag, own_access)
    return f"{why}; at its mirror {public_address(str(mirror))}: {mirror_error}" if why and mirror_error else why


def _manifest(base: str, name: str, tag: str, own_access: Access) -> Optional[str]:
    """Return the reason why a registry does not return an image's manifest, or None. Get a token if the registry requires one."""
    address = f"{base}/v2/{name}/manifests/{tag}"
    accept = {"Accept": MANIFESTS}
    status, text, headers = _exchange(address, own_access, accept)
    used_access = own_access
    if status == 401 and headers.get("www-authenticate", "").lower().startswith("bearer"):
        challenge = dict(re.findall(r'(?<!\w)(\w+)="([^"]*)"', headers["www-authenticate"]))
        realm = challenge.get("realm", "")
        if not realm.startswith("https://"):
            return "the registry's token server has no https address, expected one: no login was sent to it"
        query = urllib.parse.urlencode({key: challenge[key] for key in ("service", "scope") if key in challenge})
        anonymous = own_access._replace(login=("", ""))
        used_access = own_access if takes_login(base, realm) else anonymous
        status, text, _headers = _exchange(f"{realm}?{query}", used_access, method="GET")
        if status == 200:
            status, text, _headers = _exchange(address, anonymous, {**accept, "Authorization": f"Bearer {_token(text)}"})
    if status in (401, 403):
        # If the login was not sent to a foreign token server, this refusal does not concern the login. The pull of the engine will
        # show if the login is right.
        return None if used_access != own_access else _refused(status, own_access.login)
    if status == 404:
        return f"the registry has no {name}:{tag}, expected this image"
    return None if status == 200 else _unreachable(status, text)


def takes_login(registry: str, realm: str) -> bool:
    """Return True if the login of a registry may be sent to a token server.

    Both need https addresses. They have to be on the same host, or to belong to Docker Hub.
    """
    try:
        registry_parts, realm_parts = parse_address(registry), parse_address(realm)
    except AddressError:
        return False
    hosts = registry_parts.hostname, realm_parts.hostname
    is_same_owner = hosts[0] == hosts[1] or hosts == (DOCKER_HUB, DOCKER_HUB_TOKENS)
    return registry_parts.scheme == realm_parts.scheme == "https" and is_same_owner


def split(reference: str) -> Tuple[str, str, str]:
    """Return (registry, name, tag or digest) of an image reference, with the defaults of Docker."""
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
    """Return the token in a response, or an empty string if its characters are not valid in a header."""
    try:
        answer = shapes.parse(body)
    except ValueError:
        return ""
    token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
    return token if isinstance(token, str) and re.fullmatch(r"[\x21-\x7e]+", token) else ""


def _refused(status: int, login: Tuple[str, str]) -> str:
    return f"status {status}: " + (f"it refuses the login of {login[0]}" if login[0] else "it requires a login, and none is set")


def _unreachable(status: int, text: str) -> str:
    reason = f"status {status}" if status else text
    return f"no answer ({reason}), expected one, directly or through npufleet_https_proxy"


def _exchange(
    address: str, own_access: Access, headers: Optional[Mapping[str, str]] = None, method: str = "HEAD"
) -> Tuple[int, str, Mapping[str, str]]:
    """Return (status, body, {header name in lower case: value}). Without a response, status is 0 and the body is the reason."""
    import urllib.error
    from http.client import HTTPException

    try:
        with send(address, own_access, headers or {}, method, Budget(TIMEOUT_SECONDS, MAX_RECEIVED)) as answer:
            return answer.status, answer.read(MAX_PAGE).decode("utf-8", "replace"), _lower(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, mask_logins(str(error.reason)), _lower(error.headers)
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else str(error) or type(error).__name__
        return 0, mask_logins(str(reason)), {}


def send(address: str, own_access: Access, headers: Mapping[str, str], method: str, budget: Budget) -> Any:
    """Send a request, and return urllib's response, which the caller closes. Raises the errors of urllib, and AddressError."""
    # These imports are slow, and most importers of this file send no request.
    import urllib.request
    from http.client import InvalidURL

    from ansible_collections.npufleet.triton.plugins.module_utils.web_client.opener import open_request

    parse_address(address)
    request = urllib.request.Request(address, method=method)
    for name, value in headers.items():
        # The target of a redirect must not receive the credentials.
        (request.add_unredirected_header if name == "Authorization" else request.add_header)(name, value)
    if own_access.login[0]:
        credentials = base64.b64encode(":".join(own_access.login).encode()).decode()
        request.add_unredirected_header("Authorization", "Basic " + credentials)
    try:
        return open_request(request, _proxies(address, own_access.proxies), own_access.ca, budget)
    except (InvalidURL, UnicodeError):
        # The address itself is valid, so the address of a proxy or redirect is invalid.
        raise AddressError("the address of a proxy or redirect is invalid, expected http://host:port") from None


def _lower(headers: Any) -> Dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _proxies(address: str, proxies: Mapping[str, str]) -> Dict[str, str]:
    """Return {scheme: proxy} for an address, or {} if no_proxy contains the host of the address or a parent domain."""
    host = parse_address(address).hostname or ""
    for domain in str(proxies.get("no_proxy") or "").replace(" ", "").split(","):
        if domain and (domain == "*" or host == domain.lstrip(".") or host.endswith("." + domain.lstrip("."))):
            return {}
    return {scheme: proxies[scheme] for scheme in ("http", "https") if proxies.get(scheme)}
