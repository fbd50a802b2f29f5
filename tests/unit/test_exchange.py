"""One exchange over HTTP: whole answers of servers in each of their forms, and one reason for whatever is none."""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import exchange as exchanges
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import exchange

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answering(answer: bytes, ends: bool = True) -> Iterator[tuple[socket.socket, list[bytes]]]:
    """(a connection to a server that says this and hangs up, what it was asked)."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    asked: list[bytes] = []

    def serve() -> None:
        said = b""
        while b"\r\n\r\n" not in said:
            said += theirs.recv(65536)
        asked.append(said)
        # Who sees that an answer is no good hangs up in the midst of it
        try:
            theirs.sendall(answer)
        except OSError:
            return
        if ends:
            theirs.shutdown(socket.SHUT_WR)

    server = threading.Thread(target=serve)
    server.start()
    try:
        with ours:
            yield ours, asked
    finally:
        server.join()
        theirs.close()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", (200, b"hello")),
        (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello and more", (200, b"hello")),
        (b"HTTP/1.0 404 Not Found\r\n\r\nno such container", (404, b"no such container")),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", (304, b"")),
        (
            CHUNKED + b"5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: t\r\n\r\n",
            (200, b"hello!"),
        ),
        (CHUNKED.replace(b"c", b"C") + b"A\r\n0123456789\r\n0\r\n\r\n", (200, b"0123456789")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, b"ok")),
        (b"HTTP/1.1 500 Oh\nContent-Length: 2\n\nno", (500, b"no")),
    ],
)
def test_an_answer_in_each_of_its_forms(answer: bytes, found: tuple[int, bytes]) -> None:
    with answering(answer) as (connected, _asked):
        assert exchange(connected, "GET", "/") == found


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_nobody_waits_for_a_server_that_does_not_hang_up(answer: bytes) -> None:
    with answering(answer, ends=False) as (connected, _asked):
        connected.settimeout(0.5)
        assert exchange(connected, "GET", "/") == (200, b"hello")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the answer ended early"),
        (b"\x00\x00\x12\x04\n", "the answer is not HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 20x OK\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "the answer ended early"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "the answer ended early after 5 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello", "the answer announces the length '-1'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nhello", "the answer announces the length '\\xb2'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", "the answer has more than 67108864 bytes"),
        (CHUNKED + b"5\r\nhel", "the answer ended early after 3 of 5 bytes"),
        (CHUNKED + b"5\r\nhello\r\n", "the answer ended early"),
        (CHUNKED + b"0x5\r\nhello\r\n", "the answer announces the length '0x5'"),
        (CHUNKED + b"5\r\nhello and more\r\n0\r\n\r\n", "the answer has a chunk that is longer than its announced 5 bytes"),
        (CHUNKED + b"0\r\n" + b"A: b\r\n" * 300 + b"\r\n", "the answer has more than 200 headers"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 300 + b"HTTP/1.1 100 Continue\r\n", "the answer has more than 200 interim responses"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n", "the answer has more than 200 headers"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70000, "the answer has a line of more than 65536 bytes"),
    ],
)
def test_what_is_no_whole_answer_is_one_reason(answer: bytes, why: str) -> None:
    with answering(answer) as (connected, _asked), pytest.raises(OSError) as raised:
        exchange(connected, "GET", "/")
    assert str(raised.value) == why


def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MAX_BODY", 1000)
    longs = [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000, CHUNKED + b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n" + b"x" * 501]
    for answer in longs:
        with answering(answer) as (connected, _asked), pytest.raises(OSError, match="more than 1000 bytes"):
            exchange(connected, "GET", "/")


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        ours.settimeout(0.1)
        exchange(ours, "GET", "/")


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", None), ("POST", b'{"a": 1}'), ("DELETE", None)])
def test_it_is_asked_as_any_client_asks(method: str, body: bytes | None) -> None:
    with answering(b"HTTP/1.1 204 No\r\n\r\n") as (connected, asked):
        exchange(
            connected, method, "/v2/models/\ubaa8\ub378/config", {"Content-Type": "application/json", "Host": "npu1:8000"}, body
        )
    parsed = http.client.parse_headers(io.BytesIO(asked[0].partition(b"\r\n")[2]))
    assert asked[0].startswith(f"{method} /v2/models/\ubaa8\ub378/config HTTP/1.1\r\n".encode())
    assert parsed["Host"] == "npu1:8000" and parsed["Content-Type"] == "application/json" and parsed["Connection"] == "close"
    assert parsed["Content-Length"] == (str(len(body or b"")) if method == "POST" else None)


@pytest.mark.parametrize(
    ("resource", "headers"),
    [("/a b", {}), ("/a\r\nX: y", {}), ("/\0", {}), ("/\x7f", {}), ("/", {"X": "a\r\nY: b"}), ("/", {"X\n": "a"})],
)
def test_what_would_be_another_request_is_not_sent(resource: str, headers: dict[str, str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(1)
        with pytest.raises(OSError, match="characters that a request must not have"):
            exchange(ours, "GET", resource, headers)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
