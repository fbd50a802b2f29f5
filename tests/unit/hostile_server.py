"""A server that lies: answers that drip, have no end, lead in circles or are no answer at all. On the loopback or a socket."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

# Seconds between two bytes of what drips: less than any limit of a test
PAUSE = 0.05
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MUCH = b"x" * (1 << 16)
# Once decompressed, 64 MiB
BOMB = gzip.compress(bytes(64 << 20))


class Hostile:
    """What the server does, where it is, and how much of it was taken."""

    def __init__(self, mode: str, port: int, secure: bool) -> None:
        self.mode, self.port, self.secure = mode, port, secure
        self.sent = self.requests = 0
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http{'s' * self.secure}://127.0.0.1:{self.port}"

    def say(self) -> Iterator[tuple[bytes, bool]]:
        """(a piece of the answer, whether it comes byte for byte)."""
        yield from MODES[self.mode](self)


def _repeat(begin: bytes, piece: bytes) -> Callable[[Hostile], Iterator[tuple[bytes, bool]]]:
    def pieces(_server: Hostile) -> Iterator[tuple[bytes, bool]]:
        yield begin, False
        while True:
            yield piece, False

    return pieces


def _drip(begin: bytes, rest: bytes) -> Callable[[Hostile], Iterator[tuple[bytes, bool]]]:
    def pieces(_server: Hostile) -> Iterator[tuple[bytes, bool]]:
        yield begin, False
        while True:
            yield rest, True

    return pieces


def _loop(server: Hostile) -> Iterator[tuple[bytes, bool]]:
    place = f"{server.url}/again/{server.requests}".encode()
    yield b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n", False


def _endless_redirect(server: Hostile) -> Iterator[tuple[bytes, bool]]:
    yield f"HTTP/1.1 302 Found\r\nLocation: {server.url}/there\r\n\r\n".encode(), False
    while True:
        yield MUCH, False


def _once(*pieces: bytes) -> Callable[[Hostile], Iterator[tuple[bytes, bool]]]:
    return lambda _server: iter([(piece, False) for piece in pieces])


def _silent(server: Hostile) -> Iterator[tuple[bytes, bool]]:
    server.ended.wait(60)
    yield b"", False


# Answers that never end by themselves
ENDLESS = {
    "silence": _silent,
    "a byte of the head at a time": _drip(b"", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10000),
    "a byte of the body at a time": _drip(OK + b"Content-Length: 200000000\r\n\r\n", b" "),
    "a byte of a body without length at a time": _drip(OK + b"\r\n", b" "),
    "a byte of a chunk at a time": _drip(CHUNKED + b"ffffff\r\n", b" "),
    "a chunk of a byte at a time": _drip(CHUNKED, b"1\r\nx\r\n"),
    "endless body": _repeat(OK + b"\r\n", MUCH),
    "endless chunks": _repeat(CHUNKED, b"10000\r\n" + MUCH + b"\r\n"),
    "endless chunks of a byte": _repeat(CHUNKED, b"1\r\nx\r\n" * 10000),
    "endless chunk extension": _repeat(CHUNKED + b"1;", MUCH),
    "endless trailer": _repeat(CHUNKED + b"0\r\n", b"A: b\r\n" * 10000),
    "endless headers": _repeat(OK, b"A: b\r\n" * 10000),
    "endless header": _repeat(OK + b"A: ", MUCH),
    "endless heads": _repeat(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "endless redirect": _endless_redirect,
    "endless garbage": _repeat(b"", bytes(range(256)) * 256),
}
# Answers that end, and are none
WRONG = {
    "redirect loop": _loop,
    "garbage": _once(b"\x00\x01\x02 garbage\r\n\r\n"),
    "nothing": _once(),
    "a challenge of one word": _once(b"HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer " + b"a" * 65_000 + b"\r\n\r\n"),
    "a wrong length": _once(OK + b"Content-Length: ten\r\n\r\nhello"),
    "a length of 20,000 digits": _once(OK + b"Content-Length: " + b"9" * 20000 + b"\r\n\r\nhello"),
    "less than announced": _once(OK + b"Content-Length: 1000\r\n\r\nhello"),
    "a bomb": _once(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB),
    "a wrong chunk": _once(CHUNKED + b"zz\r\nhello\r\n"),
}
MODES = {**ENDLESS, **WRONG}


@contextlib.contextmanager
def hostile(mode: str, path: Path | None = None, tls: dict[str, str] | None = None) -> Iterator[Hostile]:
    """A server in this mode, at a port of the loopback or at the path of a socket, with TLS by certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if tls:
        context.load_cert_chain(tls["server"], tls["server_key"])
    listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    listener.bind(str(path) if path else ("127.0.0.1", 0))
    listener.listen(50)
    server = Hostile(mode, 0 if path else listener.getsockname()[1], bool(tls))
    threads: list[threading.Thread] = []

    def serve(plain: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            plain.settimeout(60)
            stack.enter_context(plain)
            peer = stack.enter_context(context.wrap_socket(plain, server_side=True)) if tls else plain
            if b"\r\n\r\n" not in peer.recv(1 << 16):
                peer.recv(1 << 16)
            for piece, slowly in server.say():
                for part in [piece[at : at + 1] for at in range(len(piece))] if slowly else [piece]:
                    if server.ended.is_set():
                        return
                    peer.sendall(part)
                    server.sent += len(part)
                    if slowly:
                        server.ended.wait(PAUSE)

    def accept() -> None:
        while True:
            try:
                peer, _where = listener.accept()
            except OSError:
                return
            server.requests += 1
            threads.append(threading.Thread(target=serve, args=(peer,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield server
    finally:
        server.ended.set()
        # A listener that is closed does not wake who waits for it
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(60)
        for thread in threads:
            thread.join(60)
