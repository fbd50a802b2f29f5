# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to web servers with urllib. One budget (exchange.py) limits the seconds and bytes of a request as a whole.

The budget covers redirects, proxies, TLS and the response. urllib's own timeout is not sufficient: it restarts with each received
byte, address and redirect. urllib also reads the whole body of a redirect, whatever its size.
"""

from __future__ import annotations

import functools
import http.client
import ssl
import types
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, connect, head, incoming

# Headers that contain a login. urllib stores header names in this spelling.
LOGIN_HEADERS = ("Authorization", "Proxy-authorization")


def open_request(request: urllib.request.Request, proxies: Mapping[str, str], ca: Optional[str], budget: Budget) -> Any:
    """Send a request, and return the response, which the caller closes. Raises URLError, InvalidURL or OSError."""
    handlers: List[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(dict(proxies)),
        _RedirectHandler(),
        _Handler(budget, ca),
    ]
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=budget.remaining())
    except http.client.InvalidURL:
        raise
    except http.client.HTTPException as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"the answer is not HTTP ({type(error).__name__}: {reason})") from None


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    """A handler that sends no login to the target of a redirect. A proxy still gets its own login from urllib."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> Optional[urllib.request.Request]:
        redirected = super().redirect_request(req, *answer)
        for name in LOGIN_HEADERS if redirected else ():
            redirected.remove_header(name)  # type: ignore[union-attr]
        return redirected


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """A handler of http and https addresses whose connections have one budget."""

    def __init__(self, budget: Budget, ca: Optional[str]) -> None:
        super().__init__()
        self._budget, self._ca = budget, ca

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_Connection, budget=self._budget), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        # This context trusts the certificate authorities of the system, and the authorities in the PEM text `ca`.
        context = ssl.create_default_context()
        if self._ca:
            context.load_verify_locations(cadata=self._ca)
        return self.do_open(functools.partial(_Connection, budget=self._budget, context=context), req)


class _Connection(http.client.HTTPConnection):
    """A connection with one budget for connecting, proxy tunnel, TLS handshake, request and response."""

    def __init__(self, host: str, budget: Budget, context: Optional[ssl.SSLContext] = None, **options: Any) -> None:
        if context is not None:
            self.default_port = http.client.HTTPS_PORT
        super().__init__(host, **options)
        self._budget, self._context = budget, context
        self._target: Optional[Tuple[str, int, Dict[str, str]]] = None
        self.response_class = functools.partial(_response, budget=budget)  # type: ignore[assignment]

    def set_tunnel(self, host: str, port: Optional[int] = None, headers: Optional[Mapping[str, str]] = None) -> None:
        try:
            parts = urllib.parse.urlsplit("//" + host)
            self._target = (parts.hostname or "", port or parts.port or self.default_port, dict(headers or {}))
        except ValueError:
            raise http.client.InvalidURL("the address to reach through the proxy is invalid") from None

    def connect(self) -> None:
        connected = connect(self.host, self.port, self._budget)
        try:
            name = self.host
            if self._target:
                name = self._target[0]
                _open_tunnel(connected, *self._target, self._budget)
            if self._context is not None:
                # The timeout of a socket limits each call of recv(), but the handshake as a whole.
                connected.settimeout(self._budget.remaining())
                connected = self._context.wrap_socket(connected, server_hostname=name)
            connected.settimeout(self._budget.remaining())
        except BaseException:
            connected.close()
            raise
        self.sock = connected


def _open_tunnel(connected: Any, host: str, port: int, headers: Mapping[str, str], budget: Budget) -> None:
    """Open a tunnel to a host through a connected proxy. Raises OSError if the proxy refuses."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    connected.settimeout(budget.remaining())
    connected.sendall("\r\n".join(lines).encode("latin-1"))
    with incoming(connected, budget) as answer:
        status = head(answer)[0]
    if not 200 <= status < 300:
        raise OSError(f"the proxy answers {status} to CONNECT {target}")


def _response(connected: Any, *arguments: Any, budget: Budget, **options: Any) -> http.client.HTTPResponse:
    # HTTPResponse calls no other method of its socket than `makefile`.
    source: Any = types.SimpleNamespace(makefile=lambda _mode: incoming(connected, budget))
    return http.client.HTTPResponse(source, *arguments, **options)
