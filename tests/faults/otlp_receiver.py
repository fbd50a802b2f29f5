"""A receiver of OTLP over HTTP, and the spans in what it received. Triton sends JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Span(NamedTuple):
    """A span with the attributes of its process."""

    trace: str
    identity: str
    parent: str
    name: str
    attributes: dict[str, Any]
    events: list[str]
    resource: dict[str, Any]


class Receiver:
    """A receiver and its requests, as (path, content type, body). It answers requests only while `open` is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.open = threading.Event()
        self.open.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def spans(self, trace: str = "") -> dict[str, Span]:
        """Return {name: span} of a trace."""
        return {span.name: span for span in self.all_spans() if span.trace == trace}

    def all_spans(self) -> list[Span]:
        return [span for _path, _type, body in list(self.requests) for span in _spans(body)]


def _spans(body: bytes) -> Iterator[Span]:
    for process in json.loads(body)["resourceSpans"]:
        resource = _attributes(process["resource"])
        for scope in process["scopeSpans"]:
            for span in scope["spans"]:
                events = [event["name"] for event in span["events"]]
                parent = span.get("parentSpanId", "")
                yield Span(span["traceId"], span["spanId"], parent, span["name"], _attributes(span), events, resource)


def _attributes(entry: dict[str, Any]) -> dict[str, Any]:
    """Return {key: value}. The value of an attribute is a dict of its type."""
    return {item["key"]: next(iter(item["value"].values())) for item in entry.get("attributes", [])}


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free loopback port."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests.append((self.path, self.headers["Content-Type"], body))
            received.open.wait()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_words: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield received
        finally:
            received.open.set()
            server.shutdown()
