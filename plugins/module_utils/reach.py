"""Whether a supplier can be reached and takes the login: web servers, package indexes, image registries. Changes nothing.

Every function returns None, or one sentence of what was found, wanted, and to be done.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Mapping, Optional, Tuple

SECONDS = 10.0
DOCKER_HUB = "registry-1.docker.io"
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


def supplier(one: Mapping[str, Any], passwords: Mapping[str, str]) -> Optional[str]:
    """Ask one supplier: {"kind": "web" or "image", "what", "address", "user", "proxies", "ca", "todo", for images "registry"}.

    `passwords` are by the supplier's `what`, so that they travel apart from everything that may be shown.
    """
    login = (str(one.get("user") or ""), passwords.get(one["what"], ""))
    if one["kind"] == "web":
        why = web(one["address"], login, one.get("proxies") or {}, one.get("ca"))
    else:
        why = image(one["address"], login, one.get("proxies") or {}, one.get("ca"), one.get("registry"))
    return f"{one['what']} {bare(one['address'])}: {why}: {one['todo']}" if why else None


def bare(address: str) -> str:
    """An address without the login that may be in it."""
    return re.sub(r"//[^/@]*@", "//", address)


def web(address: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str]) -> Optional[str]:
    """A page or file on a web server."""
    return measure(address, login, proxies, ca)[1]


def measure(
    address: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str]
) -> Tuple[Optional[int], Optional[str]]:
    """(bytes of a file on a web server where it says so, why it cannot be had)."""
    status, words, headers = _exchange(address, login, proxies, ca, {})
    why = judge(status, words, login)
    length = headers.get("content-length", "")
    return (int(length) if not why and length.isdigit() else None), why


def judge(status: int, words: str, login: Tuple[str, str]) -> Optional[str]:
    """What the status of an answer says of a file or page; status 0 is no answer, for the reason in `words`."""
    if status in (401, 403):
        return _refused(status, login)
    if status == 404:
        return "found 404, wanted a file or page there"
    return None if 200 <= status < 400 else _unreachable(status, words)


def image(
    reference: str, login: Tuple[str, str], proxies: Mapping[str, str], ca: Optional[str], instead: Optional[str] = None
) -> Optional[str]:
    """An image in its registry, or in the one `instead` of it (http://...): its manifest, after the token that it may ask for."""
    registry, name, tag = split(reference)
    address = "{}/v2/{}/manifests/{}".format((instead or f"https://{registry}").rstrip("/"), name, tag)
    accept = {"Accept": MANIFESTS}
    status, words, headers = _exchange(address, login, proxies, ca, accept)
    if status == 401 and headers.get("www-authenticate", "").lower().startswith("bearer"):
        asked = dict(re.findall(r'(\w+)="([^"]*)"', headers["www-authenticate"]))
        query = urllib.parse.urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        status, words, _headers = _exchange(f"{asked.get('realm', '')}?{query}", login, proxies, ca, {}, "GET")
        if status == 200:
            token = _token(words)
            status, words, _headers = _exchange(address, ("", ""), proxies, ca, {**accept, "Authorization": f"Bearer {token}"})
    if status in (401, 403):
        return _refused(status, login)
    if status == 404:
        return f"found no {name}:{tag} in the registry, wanted it there"
    return None if status == 200 else _unreachable(status, words)


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
    try:
        answer: Dict[str, str] = json.loads(body)
    except ValueError:
        return ""
    return answer.get("token") or answer.get("access_token") or ""


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
    try:
        with ask(address, login, proxies, ca, headers, method) as answer:
            return answer.status, answer.read(1 << 20).decode("utf-8", "replace"), _lower(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, str(error.reason), _lower(error.headers)
    except urllib.error.URLError as error:
        return 0, str(error.reason), {}
    except (OSError, ValueError) as error:
        return 0, str(error), {}


def ask(
    address: str,
    login: Tuple[str, str],
    proxies: Mapping[str, str],
    ca: Optional[str],
    headers: Mapping[str, str],
    method: str,
    seconds: float = SECONDS,
) -> Any:
    """The answer as urllib gives it, to be closed by the caller. Raises what urllib raises."""
    request = urllib.request.Request(address, method=method, headers=dict(headers))
    if login[0]:
        given = base64.b64encode(f"{login[0]}:{login[1]}".encode()).decode()
        # Not sent on when the answer leads elsewhere
        request.add_unredirected_header("Authorization", "Basic " + given)
    handlers: List[urllib.request.BaseHandler] = [urllib.request.ProxyHandler(_proxies(address, proxies))]
    if address.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=_trust(ca)))
    return urllib.request.build_opener(*handlers).open(request, timeout=seconds)


def _trust(ca: Optional[str]) -> ssl.SSLContext:
    """The system's authorities, and the site's own beside them."""
    context = ssl.create_default_context()
    if ca:
        context.load_verify_locations(cadata=ca)
    return context


def _lower(headers: Any) -> Dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _proxies(address: str, proxies: Mapping[str, str]) -> Dict[str, str]:
    """The proxies for this address: none where no_proxy names its host or a domain above it."""
    host = urllib.parse.urlsplit(address).hostname or ""
    for one in str(proxies.get("no_proxy") or "").replace(" ", "").split(","):
        if one and (one == "*" or host == one.lstrip(".") or host.endswith("." + one.lstrip("."))):
            return {}
    return {scheme: proxies[scheme] for scheme in ("http", "https") if proxies.get(scheme)}
