# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client for servers of this host (Docker's engine, Triton, Prometheus), and the limits of an exchange.

The client does not use http.client, because its import also loads the packages for mail and TLS. This import would take a quarter
of the time in which a module reads the state of a host (docs/decisions/0035-a-call-imports-what-it-needs.md).
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any, BinaryIO, Dict, Iterator, Mapping, Optional, Tuple

# Default time limit of an exchange in seconds
TIMEOUT_SECONDS = 20.0
# Limits: bytes of a header line, bytes of a body, number of header lines
MAX_LINE, MAX_BODY, MAX_LINES = 1 << 16, 1 << 26, 200
# Number of received bytes that are allowed for each byte of a body. A chunk with one byte of content takes six or more bytes.
FRAMING_FACTOR = 8
DIGITS = "0123456789abcdef"


class TooLong(OSError):
    """The error of a response that is longer than its limit."""


class Budget:
    """The limits of one exchange as a whole, from connecting to the end of the response: seconds and received bytes.

    The timeout of a socket does not limit an exchange, because it restarts whenever bytes arrive.
    """

    def __init__(self, seconds: float, size: Optional[int] = None) -> None:
        self.allow(seconds, MAX_LINES * MAX_LINE + FRAMING_FACTOR * MAX_BODY if size is None else size)

    def allow(self, seconds: float, size: int) -> None:
        """Set new limits, and start to count from zero."""
        self.seconds, self._size = seconds, size
        self._deadline, self._bytes_left = time.monotonic() + seconds, size

    def remaining(self) -> float:
        """Return the seconds that are left. Raises socket.timeout if the time is over."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout(self.late())
        return left

    def late(self) -> str:
        """Return the error message for an exchange that took too long."""
        return f"the exchange did not end within {self.seconds:g} s"

    def receive(self, count: int) -> None:
        """Count received bytes. Raises TooLong if they exceed the limit."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise TooLong(f"the answer has more than {self._size} bytes")


def incoming(connected: socket.socket, budget: Budget) -> BinaryIO:
    """Return a file that reads from the socket, and fails as soon as the budget is used up."""
    return io.BufferedReader(_Incoming(connected, budget))


class _Incoming(io.RawIOBase):
    def __init__(self, connected: socket.socket, budget: Budget) -> None:
        self._connected, self._budget = connected, budget
        self._raw: Any = connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connected.settimeout(self._budget.remaining())
        try:
            count = int(self._raw.readinto(buffer) or 0)
        except socket.timeout:
            raise socket.timeout(self._budget.late()) from None
        self._budget.receive(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def connect(address: str, port: int, budget: Budget) -> socket.socket:
    """Connect to a host. Its IP addresses get equal parts of the remaining time. Raises the OSError of the last address."""
    failure = OSError(f"{address} has no address")
    # For a name in bytes, getaddrinfo does not import the tables of international domain names.
    addresses = socket.getaddrinfo(address.encode(), port, 0, socket.SOCK_STREAM)
    for number, (family, kind, protocol, _name, where) in enumerate(addresses):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(budget.remaining() / (len(addresses) - number))
            connected.connect(where)
            return connected
        except OSError as error:
            connected.close()
            failure = error
    raise failure


def exchange(
    connected: socket.socket,
    method: str,
    resource: str,
    headers: Optional[Mapping[str, str]] = None,
    body: Optional[bytes] = None,
    budget: Optional[Budget] = None,
    cut: Optional[int] = None,
    size: Optional[int] = None,
) -> Tuple[int, bytes]:
    """Send a request, and return (status, body) of the response. Then the server closes the connection.

    `resource` is sent without percent-encoding, because Triton expects the plain bytes of a model's name. Without a `budget`, the
    socket's timeout limits the whole exchange. A body longer than `cut` is truncated. Raises OSError if the response is incomplete,
    late or longer than `size` (default MAX_BODY), or if `resource` or a header contains a forbidden character.
    """
    budget = budget or Budget(connected.gettimeout() or TIMEOUT_SECONDS)
    fields = {"Host": "localhost", "Connection": "close", **(headers or {})}
    if body is not None or method in ("POST", "PUT"):
        fields["Content-Length"] = str(len(body or b""))
    lines = [f"{method} {resource} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any(sign <= " " or sign == "\x7f" for sign in resource) or any(sign in line for line in lines for sign in "\r\n\0"):
        raise OSError(f"{method} {resource!a} has characters that a request must not have")
    # Unlike recv(), sendall() has to end as a whole within the timeout of the socket.
    connected.settimeout(budget.remaining())
    connected.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
    with incoming(connected, budget) as answer:
        for _count in range(MAX_LINES):
            status, fields = head(answer)
            if status not in (100, 102, 103):
                break
        else:
            raise OSError(f"the answer has more than {MAX_LINES} interim responses")
        if status in (204, 304):
            return status, b""
        if cut is not None:
            return status, _body(answer, fields, cut, truncate=True)
        return status, _body(answer, fields, MAX_BODY if size is None else size, truncate=False)


def _body(answer: BinaryIO, headers: Mapping[str, str], limit: int, truncate: bool) -> bytes:
    body = bytearray()
    for piece in _pieces(answer, headers, limit, truncate):
        body += piece
        if truncate and len(body) >= limit:
            break
        if len(body) > limit:
            raise _too_long(limit)
    return bytes(body[:limit])


def _pieces(answer: BinaryIO, headers: Mapping[str, str], limit: int, truncate: bool) -> Iterator[bytes]:
    """Yield the body in pieces of at most `limit` + 1 bytes. Without `truncate`, raise TooLong for a longer Content-Length."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        yield from _chunks(answer, limit)
    elif "content-length" in headers:
        length = _number(headers["content-length"], 10)
        if length > limit and not truncate:
            raise _too_long(limit)
        yield _exactly(answer, min(length, limit + 1))
    else:
        yield answer.read(limit + 1)


def _too_long(limit: int) -> TooLong:
    return TooLong(f"the answer has more than {limit} bytes")


def head(answer: BinaryIO) -> Tuple[int, Dict[str, str]]:
    """Read the head of a response, and return (status, {name in lower case: value})."""
    protocol, _space, rest = _line(answer).partition(" ")
    status = rest.partition(" ")[0]
    if protocol not in ("HTTP/1.0", "HTTP/1.1") or len(status) != 3 or not set(status) <= set(DIGITS[:10]):
        raise OSError("the answer is not HTTP")
    return int(status), _headers(answer)


def _headers(answer: BinaryIO) -> Dict[str, str]:
    headers: Dict[str, str] = {}
    for _count in range(MAX_LINES):
        line = _line(answer)
        if not line:
            return headers
        name, _colon, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise OSError(f"the answer has more than {MAX_LINES} headers")


def _line(answer: BinaryIO) -> str:
    raw = answer.readline(MAX_LINE)
    if not raw.endswith(b"\n"):
        raise OSError("the answer ended early" if len(raw) < MAX_LINE else f"the answer has a line of more than {MAX_LINE} bytes")
    return raw.decode("latin-1").rstrip("\r\n")


def _chunks(answer: BinaryIO, limit: int) -> Iterator[bytes]:
    while True:
        size = _number(_line(answer).partition(";")[0].strip(), 16)
        if not size:
            _headers(answer)
            return
        yield _exactly(answer, min(size, limit + 1))
        if _line(answer):
            raise OSError(f"the answer has a chunk that is longer than its announced {size} bytes")


def _number(text: str, base: int) -> int:
    if not text or not set(text.lower()) <= set(DIGITS[:base]) or len(text) > 15:
        raise OSError(f"the answer announces the length {text[:40]!a}")
    return int(text, base)


def _exactly(answer: BinaryIO, size: int) -> bytes:
    raw = answer.read(size)
    if len(raw) < size:
        raise OSError(f"the answer ended early after {len(raw)} of {size} bytes")
    return raw
