"""Requests to web servers, by urllib: redirects, proxies and TLS, all within the budget of one exchange.

urllib's own timeout begins again with each byte, at each address of a name and at each redirect, and it reads what comes with a
redirect to its end.
"""

from __future__ import annotations

import functools
import http.client
import ssl
import urllib.parse
import urllib.request
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, connect, head, incoming

# Headers with a login, as urllib spells them
LOGINS = ("Authorization", "Proxy-authorization")


def open_request(request: urllib.request.Request, proxies: Mapping[str, str], ca: Optional[str], budget: Budget) -> Any:
    """Return urllib's answer, to be closed by the caller. Raises what urllib raises, InvalidURL, OSError for what is no HTTP."""
    handlers: List[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(dict(proxies)),
        _Redirects(),
        _Plain(budget),
        _Secure(budget, functools.partial(_trust, ca)),
    ]
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=budget.remaining())
    except http.client.InvalidURL:
        raise
    except http.client.HTTPException as error:
        raise OSError(unreadable(error)) from None


def unreadable(error: http.client.HTTPException) -> str:
    """Return why an answer cannot be read as HTTP."""
    return f"the answer is not HTTP ({type(error).__name__}: {' '.join(str(error).split())[:200]})"


def _trust(ca: Optional[str]) -> ssl.SSLContext:
    """The system's authorities, and the site's own beside them."""
    context = ssl.create_default_context()
    if ca:
        context.load_verify_locations(cadata=ca)
    return context


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects that take no login along. That of a proxy is added again where the next request goes through one."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> Optional[urllib.request.Request]:
        following = super().redirect_request(req, *answer)
        for name in LOGINS if following else ():
            following.remove_header(name)  # type: ignore[union-attr]
        return following


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_Connection, budget=self._budget), req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, budget: Budget, trust: Any) -> None:
        super().__init__()
        self._budget, self._trust = budget, trust

    def https_open(self, req: urllib.request.Request) -> Any:
        secure = functools.partial(_Connection, budget=self._budget, context=self._trust())
        return self.do_open(secure, req)


class _Connection(http.client.HTTPConnection):
    """A connection whose every step is within the budget: addresses, a proxy's tunnel, TLS, request and response."""

    def __init__(self, host: str, budget: Budget, context: Optional[ssl.SSLContext] = None, **options: Any) -> None:
        if context is not None:
            self.default_port = http.client.HTTPS_PORT
        super().__init__(host, **options)
        self._budget, self._context = budget, context
        self._behind: Optional[Tuple[str, int, Dict[str, str]]] = None
        self.response_class = functools.partial(_response, budget=budget)  # type: ignore[assignment]

    def set_tunnel(self, host: str, port: Optional[int] = None, headers: Optional[Mapping[str, str]] = None) -> None:
        try:
            named = urllib.parse.urlsplit("//" + host)
            self._behind = (named.hostname or "", port or named.port or self.default_port, dict(headers or {}))
        except ValueError:
            raise http.client.InvalidURL("the address behind a proxy is none") from None

    def connect(self) -> None:
        connected = connect(self.host, self.port, self._budget)
        try:
            name = self.host
            if self._behind:
                name = self._behind[0]
                _through_proxy(connected, *self._behind, self._budget)
            if self._context is not None:
                # One handshake, one read and one write keep to a timeout as a whole
                connected.settimeout(self._budget.remaining())
                connected = self._context.wrap_socket(connected, server_hostname=name)
            connected.settimeout(self._budget.remaining())
        except BaseException:
            connected.close()
            raise
        self.sock = connected


def _through_proxy(connected: Any, host: str, port: int, headers: Mapping[str, str], budget: Budget) -> None:
    """Have a proxy connect to a host. Raises OSError where it does not."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    connected.settimeout(budget.remaining())
    connected.sendall("\r\n".join(lines).encode("latin-1"))
    with incoming(connected, budget) as answer:
        status = head(answer)[0]
    if not 200 <= status < 300:
        raise OSError(f"the proxy answers {status} to CONNECT {where}")


def _response(connected: Any, *arguments: Any, budget: Budget, **options: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Received(connected, budget), *arguments, **options)  # type: ignore[arg-type]


class _Received:
    """What HTTPResponse takes of a socket."""

    def __init__(self, connected: Any, budget: Budget) -> None:
        self._connected, self._budget = connected, budget

    def makefile(self, _mode: str) -> BinaryIO:
        """Return what comes as a file."""
        return incoming(self._connected, self._budget)
