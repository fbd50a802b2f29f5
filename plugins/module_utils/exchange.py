"""One exchange over HTTP with a server of this host: Docker's engine, Triton, Prometheus.

Each call on a host begins with its imports, and those of http.client, which reads mails and speaks TLS too, are a quarter of a look
at the host (docs/decisions/0035-a-call-imports-what-it-needs.md).
"""

from __future__ import annotations

import socket
from typing import BinaryIO, Dict, Iterator, Mapping, Optional, Tuple

# Bytes of a line before the body, and of a body
LINE, BODY = 1 << 16, 1 << 28
LINES = 200
DIGITS = "0123456789abcdef"


def exchange(
    connected: socket.socket,
    method: str,
    resource: str,
    headers: Optional[Mapping[str, str]] = None,
    body: Optional[bytes] = None,
) -> Tuple[int, bytes]:
    """(status, body) of one answer, whose connection ends with it.

    `resource` is sent as it is: Triton takes the bytes of a model's name. Raises OSError where there is no whole answer, or the
    request would be more than one.
    """
    told = {"Host": "localhost", "Connection": "close", **(headers or {})}
    if body is not None or method in ("POST", "PUT"):
        told["Content-Length"] = str(len(body or b""))
    lines = [f"{method} {resource} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    if any(sign <= " " or sign == "\x7f" for sign in resource) or any(sign in line for line in lines for sign in "\r\n\0"):
        raise OSError(f"{method} {resource!a} has signs that no request can carry")
    connected.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
    with connected.makefile("rb") as answer:
        for _count in range(LINES):
            status, said = _head(answer)
            if status not in (100, 102, 103):
                break
        else:
            raise OSError(f"the answer has more than {LINES} heads")
        if status in (204, 304):
            return status, b""
        if said.get("transfer-encoding", "").lower() == "chunked":
            return status, b"".join(_chunks(answer))
        if "content-length" in said:
            return status, _exactly(answer, _number(said["content-length"], 10))
        return status, _to_its_end(answer)


def _head(answer: BinaryIO) -> Tuple[int, Dict[str, str]]:
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


def _chunks(answer: BinaryIO) -> Iterator[bytes]:
    left = BODY
    while True:
        size = _number(_line(answer).partition(";")[0].strip(), 16)
        left -= size
        if left < 0:
            raise OSError(f"the answer has more than {BODY} bytes")
        if not size:
            _headers(answer)
            return
        yield _exactly(answer, size)
        if _line(answer):
            raise OSError(f"the answer has a chunk of more than the {size} bytes that it says")


def _number(text: str, base: int) -> int:
    if not text or not set(text.lower()) <= set(DIGITS[:base]) or len(text) > 15:
        raise OSError(f"the answer has the length {text[:40]!a}")
    return int(text, base)


def _exactly(answer: BinaryIO, size: int) -> bytes:
    if size > BODY:
        raise OSError(f"the answer has more than {BODY} bytes")
    raw = answer.read(size)
    if len(raw) < size:
        raise OSError(f"the answer broke off after {len(raw)} of {size} bytes")
    return raw


def _to_its_end(answer: BinaryIO) -> bytes:
    raw = answer.read(BODY + 1)
    if len(raw) > BODY:
        raise OSError(f"the answer has more than {BODY} bytes")
    return raw
