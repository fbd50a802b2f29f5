"""One exchange over HTTP with a server of this host: Docker's engine, Triton, Prometheus. And the budget of any exchange.

Each call on a host begins with its imports, and those of http.client, which reads mails and speaks TLS too, are a quarter of a look
at the host (docs/decisions/0035-a-call-imports-what-it-needs.md).
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any, BinaryIO, Dict, Iterator, Mapping, Optional, Tuple

# Seconds of an exchange whose caller names none
SECONDS = 20.0
# Bytes of a line before the body, and of a body
LINE, BODY = 1 << 16, 1 << 26
LINES = 200
# Bytes that a response may have in all for each byte of its body: a chunk of one byte has seven around it
FRAMING = 8
DIGITS = "0123456789abcdef"


class Budget:
    """The time and the bytes of one exchange: connection, handshake, request and response share them.

    A timeout of a socket is none: it begins again with each byte that comes.
    """

    def __init__(self, seconds: float, size: Optional[int] = None) -> None:
        self.allow(seconds, LINES * LINE + FRAMING * BODY if size is None else size)

    def allow(self, seconds: float, size: int) -> None:
        """So much time and so many bytes from now on."""
        self.seconds, self._size = seconds, size
        self._ends, self._left = time.monotonic() + seconds, size

    def remaining(self) -> float:
        """Return the seconds that are left. Raises socket.timeout where none are."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise socket.timeout(self.late())
        return left

    def late(self) -> str:
        """Return what is said where no time is left."""
        return f"the exchange did not end within {self.seconds:g} s"

    def receive(self, count: int) -> None:
        """Count bytes that have come. Raises OSError where they are more than the response may have."""
        self._left -= count
        if self._left < 0:
            raise OSError(f"the answer has more than {self._size} bytes")


def incoming(connected: socket.socket, budget: Budget) -> BinaryIO:
    """Return what a socket receives as a file that keeps to the budget."""
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
    """Connect to a host, of whose addresses each gets its share of the time. Raises OSError with the reason of the last."""
    why = OSError(f"{address} has no address")
    # As bytes, so that no table of names in other alphabets is imported
    found = socket.getaddrinfo(address.encode(), port, 0, socket.SOCK_STREAM)
    for number, (family, kind, protocol, _name, where) in enumerate(found):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(budget.remaining() / (len(found) - number))
            connected.connect(where)
            return connected
        except OSError as error:
            connected.close()
            why = error
    raise why


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
    """(status, body) of one answer, whose connection ends with it.

    `resource` is sent as it is: Triton takes the bytes of a model's name. Without a `budget` the socket's timeout is that of the
    whole exchange. Of a body that is longer than `cut` its first bytes are returned. Raises OSError where there is no whole answer
    in time, it is longer than `size` (or BODY), or the request would be more than one.
    """
    budget = budget or Budget(connected.gettimeout() or SECONDS)
    told = {"Host": "localhost", "Connection": "close", **(headers or {})}
    if body is not None or method in ("POST", "PUT"):
        told["Content-Length"] = str(len(body or b""))
    lines = [f"{method} {resource} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    if any(sign <= " " or sign == "\x7f" for sign in resource) or any(sign in line for line in lines for sign in "\r\n\0"):
        raise OSError(f"{method} {resource!a} has signs that no request can carry")
    connected.settimeout(budget.remaining())
    # Its timeout is that of all that is sent
    connected.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
    with incoming(connected, budget) as answer:
        for _count in range(LINES):
            status, said = head(answer)
            if status not in (100, 102, 103):
                break
        else:
            raise OSError(f"the answer has more than {LINES} heads")
        if status in (204, 304):
            return status, b""
        return status, _body(answer, said, BODY if size is None else size, cut)


def _body(answer: BinaryIO, said: Mapping[str, str], size: int, cut: Optional[int]) -> bytes:
    most = size if cut is None else cut
    body = bytearray()
    for piece in _pieces(answer, said, most, whole=cut is None):
        body += piece
        if len(body) > most and cut is None:
            raise _too_long(most)
        if len(body) >= most and cut is not None:
            break
    return bytes(body[:most])


def _pieces(answer: BinaryIO, said: Mapping[str, str], most: int, whole: bool) -> Iterator[bytes]:
    """The body in the pieces in which it comes, up to a byte beyond `most`. As a `whole` it must not be announced as longer."""
    if said.get("transfer-encoding", "").lower() == "chunked":
        yield from _chunks(answer, most)
    elif "content-length" in said:
        length = _number(said["content-length"], 10)
        if length > most and whole:
            raise _too_long(most)
        yield _exactly(answer, min(length, most + 1))
    else:
        yield answer.read(most + 1)


def _too_long(most: int) -> OSError:
    return OSError(f"the answer has more than {most} bytes")


def head(answer: BinaryIO) -> Tuple[int, Dict[str, str]]:
    """(status, headers by their names in lower case)."""
    protocol, _space, rest = _line(answer).partition(" ")
    status = rest.partition(" ")[0]
    if protocol not in ("HTTP/1.0", "HTTP/1.1") or len(status) != 3 or not set(status) <= set(DIGITS[:10]):
        raise OSError("what answered does not speak HTTP")
    return int(status), _headers(answer)


def _headers(answer: BinaryIO) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for _count in range(LINES):
        line = _line(answer)
        if not line:
            return found
        name, _colon, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    raise OSError(f"the answer has more than {LINES} headers")


def _line(answer: BinaryIO) -> str:
    raw = answer.readline(LINE)
    if not raw.endswith(b"\n"):
        raise OSError("the answer broke off" if len(raw) < LINE else f"the answer has a line of more than {LINE} bytes")
    return raw.decode("latin-1").rstrip("\r\n")


def _chunks(answer: BinaryIO, most: int) -> Iterator[bytes]:
    while True:
        size = _number(_line(answer).partition(";")[0].strip(), 16)
        if not size:
            _headers(answer)
            return
        yield _exactly(answer, min(size, most + 1))
        if _line(answer):
            raise OSError(f"the answer has a chunk of more than the {size} bytes that it says")


def _number(text: str, base: int) -> int:
    if not text or not set(text.lower()) <= set(DIGITS[:base]) or len(text) > 15:
        raise OSError(f"the answer has the length {text[:40]!a}")
    return int(text, base)


def _exactly(answer: BinaryIO, size: int) -> bytes:
    raw = answer.read(size)
    if len(raw) < size:
        raise OSError(f"the answer broke off after {len(raw)} of {size} bytes")
    return raw
